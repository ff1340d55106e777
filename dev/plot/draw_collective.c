/*
draw_collective.c: collectives as figures, from the same tables that the trainer executes (comm/collectives/plan.h).

    draw_collective --topology torus:4x4 --algorithm multitree --what trees >trees.svg
    draw_collective --topology mesh:3x3 --algorithm ring --kind all-gather --what steps >steps.svg
    draw_collective --topology torus:8x8 --algorithm multitree --what links >links.svg

    trees    for each rank the tree along which its chunk goes out (of a reduce-scatter: comes in). An arrow is a message
             over one link, its colour says in which step. --tree N: one of them, larger
    steps    the network once for each step; an arrow is a link that is in use, in the colour of the rank that the chunk
             belongs to
    links    a row for each link, a column for each step; above, the share of the links that is busy; below, its mean

A chunk of a reduce-scatter or all-gather belongs to the rank that ends or begins with it, one of an all-reduce to the
rank that is never sent the sum, since it has it first. The tool reads the network and the rows of the plan and knows
nothing of algorithms; where a plan leaves the ways to the network, its routes are drawn.

Grids are drawn as grids, layers of three dimensions side by side. A link that leads around the end, or to another layer,
is drawn as two stubs: it leaves on one side and comes back on the other. Switches stand in levels above the ranks, or in
two rows between them; all else on a circle. Links are two lanes, one for each direction, and keep to the right.

The file is one SVG without scripts, style sheets and fonts, on a white ground of its own, as in svg_timeline.h; the first
thing that fails ends the program before it has written anything. About 90 bytes an arrow.
*/
#include "../../comm/collectives/collectives.h"
#include "../../util/options.h"
#include "svg_timeline.h" // how text and boxes are written

typedef enum { DRAW_TREES, DRAW_STEPS, DRAW_LINKS } CollectivePicture;

typedef struct {
    const char *topology, *algorithm;
    int kind, what;
    int64_t tree;
    bool help;
} CollectiveOptions;

enum { COLLECTIVE_OPTIONS = 8, MOST_RANKS = 256, MOST_LINKS = 4096, MOST_CHUNKS = 1 << 14 };

static inline CollectiveOptions collective_options_default(void) {
    const CollectiveOptions o = {NULL, "multitree", PLAN_ALL_REDUCE, DRAW_TREES, -1, false};
    return o;
}

static inline int collective_table(Option* table, CollectiveOptions* o) {
    const Option rows[] = {
        option_string("topology", &o->topology, "NAME",
                      "torus:4x4, fattree:4,2, ..., or a file (comm/collectives/topology.h)"),
        option_string("algorithm", &o->algorithm, "NAME", "ring, multitree:2, ... (comm/collectives/collectives.h)"),
        option_choice("kind", &o->kind, "all-reduce|reduce-scatter|all-gather", ""),
        option_choice("what", &o->what, "trees|steps|links", ""),
        option_int("tree", &o->tree, 0, MOST_CHUNKS, "of --what trees: only this one"),
        option_flag("help", &o->help, "this list"),
    };
    const int n = (int)(sizeof rows / sizeof rows[0]);
    if (n > COLLECTIVE_OPTIONS) die("internal error: %d options", n);
    memcpy(table, rows, sizeof rows);
    return n;
}

// ----------------------------------------------------------------------------------------------------------------
// What a plan says: who chunks belong to, trees, which links are in use

// What all pictures are drawn from.
typedef struct {
    const Network* net;
    const Plan* plan;
    Routes routes;
    int64_t* first; // (chunks + 1): the rows of chunk c are rows[first[c]] to rows[first[c + 1] - 1]
    int32_t* rows;
    int* owner; // (chunks)
    int* way;   // (vertices): scratch for plan_way
} Source;

static inline int chunk_owner(const Source* s, int chunk) {
    const Plan* plan = s->plan;
    const int usual = (int)((int64_t)chunk * plan->ranks / plan->chunks);
    bool put[MOST_RANKS] = {false};
    if (plan->kind != PLAN_ALL_REDUCE) return usual;
    for (int64_t i = s->first[chunk]; i < s->first[chunk + 1]; i++) {
        const Transfer* t = &plan->transfers[s->rows[i]];
        if (!t->add) put[t->to] = true;
    }
    for (int r = 0; r < plan->ranks; r++) {
        if (!put[r]) return r;
    }
    return usual;
}

static inline Source source_new(const Network* net, const Plan* plan) {
    Source s = {net, plan, network_routes(net), NULL, NULL, NULL, NULL};
    plan_by_chunk(plan, &s.first, &s.rows);
    s.owner = (int*)checked_malloc((size_t)plan->chunks * sizeof(int), "the picture");
    s.way = (int*)checked_malloc((size_t)net->vertices * sizeof(int), "the picture");
    for (int c = 0; c < plan->chunks; c++) s.owner[c] = chunk_owner(&s, c);
    return s;
}

static inline void source_free(Source* s) {
    routes_free(&s->routes);
    free(s->first);
    free(s->rows);
    free(s->owner);
    free(s->way);
}

// The rank that all chunks of a transfer belong to; -1: several.
static inline int transfer_owner(const Source* s, const Transfer* t) {
    for (int c = 1; c < t->chunks; c++) {
        if (s->owner[t->chunk + c] != s->owner[t->chunk]) return -1;
    }
    return s->owner[t->chunk];
}

// What a link does in a step.
typedef struct {
    int transfers, adds;
    int owner; // of what it carries; -1: several
} Use;

// (steps, links). Freed by free.
static inline Use* link_uses(const Source* s) {
    const Plan* plan = s->plan;
    Use* uses = (Use*)checked_calloc((size_t)plan->steps * (size_t)s->net->links + 1, sizeof(Use), "the uses of links");
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        const int owner = transfer_owner(s, t);
        for (int k = plan_way(plan, s->net, &s->routes, i, s->way) - 1; k >= 0; k--) {
            Use* use = &uses[(size_t)t->step * (size_t)s->net->links + (size_t)s->way[k]];
            use->owner = use->transfers == 0 || use->owner == owner ? owner : -1;
            use->transfers++, use->adds += t->add;
        }
    }
    return uses;
}

static inline int uses_busy(const Use* uses, int links) {
    int busy = 0;
    for (int l = 0; l < links; l++) busy += uses[l].transfers > 0;
    return busy;
}

// Step `step` and those behind only put; those before only add. 0, or the number of steps: there are no two phases.
static inline int plan_turn(const Plan* plan) {
    int turn = 0;
    for (int64_t i = 0; i < plan->n; i++) {
        if (plan->transfers[i].add) turn = plan->transfers[i].step + 1;
    }
    for (int64_t i = 0; i < plan->n; i++) {
        if (!plan->transfers[i].add && plan->transfers[i].step < turn) return 0;
    }
    return turn;
}

// A tree: the way of a chunk out from its root (of a reduce-scatter: in to it). Chunks that go the same ways are pieces of
// one tree.
typedef struct {
    int root, pieces;
    bool both;    // the sum comes in along the same edges
    int64_t* row; // (ranks): the transfer that joins a rank to its parent, -1 for the root; of the first piece
} Tree;

typedef struct {
    int n, capacity;
    Tree* tree;
} TreeList;

static inline void tree_list_free(TreeList* list) {
    for (int i = 0; i < list->n; i++) free(list->tree[i].row);
    free(list->tree);
}

// Of a transfer, the rank that is further from the root: it has one in a tree.
static inline int tree_child(const Plan* plan, const Transfer* t) {
    return plan->kind == PLAN_REDUCE_SCATTER ? t->from : t->to;
}

static inline int tree_parent_of(const Plan* plan, int64_t row, int child) {
    if (row < 0) return -1;
    const Transfer* t = &plan->transfers[row];
    return t->from == child ? t->to : t->from;
}

// The way of one chunk, where it is a tree.
static inline bool tree_of_chunk(const Source* s, int chunk, int64_t* row, int* root, Error* error) {
    const Plan* plan = s->plan;
    const bool up = plan->kind == PLAN_REDUCE_SCATTER;
    int edges = 0;
    for (int r = 0; r < plan->ranks; r++) row[r] = -1;
    for (int64_t i = s->first[chunk]; i < s->first[chunk + 1]; i++) {
        const Transfer* t = &plan->transfers[s->rows[i]];
        const int child = tree_child(plan, t);
        if (t->add != up) continue;
        if (row[child] >= 0)
            return fail(error, "%s on %s: chunk %d %s rank %d twice, so its way is no tree; take --what steps or links",
                        plan->name, s->net->name, chunk, up ? "leaves" : "comes to", child);
        row[child] = s->rows[i], edges++;
    }
    if (edges != plan->ranks - 1)
        return fail(error, "%s on %s: the way of chunk %d is no tree of all ranks; take --what steps or links",
                    plan->name, s->net->name, chunk);
    for (int r = 0; r < plan->ranks; r++) {
        if (row[r] < 0) *root = r;
    }
    return true;
}

// Whether the chunk's sum comes to the root over the tree's edges.
static inline bool tree_is_both(const Source* s, int chunk, const int64_t* row) {
    int edges = 0;
    for (int64_t i = s->first[chunk]; i < s->first[chunk + 1]; i++) {
        const Transfer* t = &s->plan->transfers[s->rows[i]];
        if (t->add && tree_parent_of(s->plan, row[t->from], t->from) != t->to) return false;
        edges += t->add;
    }
    return edges == s->plan->ranks - 1;
}

static inline bool trees_are_same(const Plan* plan, const int64_t* a, const int64_t* b) {
    for (int r = 0; r < plan->ranks; r++) {
        if (tree_parent_of(plan, a[r], r) != tree_parent_of(plan, b[r], r)) return false;
    }
    return true;
}

static inline bool tree_list(const Source* s, TreeList* list, Error* error) {
    const size_t size = (size_t)s->plan->ranks * sizeof(int64_t);
    memset(list, 0, sizeof *list);
    for (int c = 0; c < s->plan->chunks; c++) {
        int root = 0, same = 0;
        int64_t* row = (int64_t*)checked_malloc(size, "a tree");
        if (!tree_of_chunk(s, c, row, &root, error)) {
            free(row);
            tree_list_free(list);
            return false;
        }
        while (same < list->n && !trees_are_same(s->plan, list->tree[same].row, row)) same++;
        if (same < list->n) {
            list->tree[same].pieces++;
            free(row);
            continue;
        }
        if (list->n == list->capacity)
            list->tree = (Tree*)checked_grow(list->tree, &list->capacity, 64, sizeof(Tree), "the trees");
        const Tree tree = {root, 1, tree_is_both(s, c, row), row};
        list->tree[list->n++] = tree;
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Colours

// A colour by lightness, colourfulness and hue in degrees, as the eye has them (Ottosson's Oklab).
static inline unsigned colour_of(double light, double chroma, double hue) {
    const double a = chroma * cos(hue * M_PI / 180), b = chroma * sin(hue * M_PI / 180);
    const double l = pow(light + 0.3963377774 * a + 0.2158037573 * b, 3);
    const double m = pow(light - 0.1055613458 * a - 0.0638541728 * b, 3);
    const double s = pow(light - 0.0894841775 * a - 1.2914855480 * b, 3);
    const double rgb[3] = {4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
                           -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
                           -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s};
    unsigned colour = 0;
    for (int i = 0; i < 3; i++) {
        const double x = fmin(1, fmax(0, rgb[i]));
        const double y = x <= 0.0031308 ? 12.92 * x : 1.055 * pow(x, 1 / 2.4) - 0.055;
        colour = colour << 8 | (unsigned)lround(255 * y);
    }
    return colour;
}

// Steps: from dark blue over purple and red to orange.
static inline unsigned step_colour(int step, int steps) {
    static const unsigned stops[] = {0x1f2a80, 0x7a2f9e, 0xc93b76, 0xec6b45, 0xf5a81c};
    const double along = steps > 1 ? 4.0 * step / (steps - 1) : 0;
    const int i = (int)min_i64(3, (int64_t)along);
    unsigned colour = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        const double a = stops[i] >> shift & 255, b = stops[i + 1] >> shift & 255;
        colour |= (unsigned)lround(a + (along - i) * (b - a)) << shift;
    }
    return colour;
}

// The ranks as a table, for colours and their key: a grid's last dimension, else a square.
static inline int owner_columns(const Network* net) {
    const int last = net->dimensions > 1 ? net->sides[net->dimensions - 1] : 0;
    if (last > 1 && last <= 16 && net->ranks / last <= 16) return last;
    return (int)ceil(sqrt(net->ranks));
}

// Ranks: the hue goes around once, row after row of the table; each row goes from dark to light.
static inline unsigned owner_colour(const Network* net, int rank) {
    if (rank < 0) return 0x8c959f;
    const int columns = owner_columns(net);
    const double across = columns > 1 ? (double)(rank % columns) / (columns - 1) : 0;
    return colour_of(0.50 + 0.27 * across, 0.15 - 0.04 * across, 25 + 340.0 * rank / net->ranks);
}

// Links that carry more than they have room for are dark.
enum { CROWDED = 0x22272e };

static inline unsigned use_colour(const Network* net, const Use* use, int link, double slowest) {
    if (use->transfers > plan_room(&net->link[link], slowest)) return CROWDED;
    return owner_colour(net, use->owner);
}

// ----------------------------------------------------------------------------------------------------------------
// Where vertices are

typedef struct {
    double x, y;
} Point;

typedef struct {
    const Network* net;
    Point* at;                    // (vertices), in units, from 0; neighbours are about one apart
    double width, height, margin; // of all points; what has to be left around them
    double switch_width;          // what leads to other levels begins there side by side
    int* pair;                    // (links): a number that it shares with all links between the same two vertices
    int* lane;                    // (links): among those that lead the same way
    int parallel;                 // the most of those
} Map;

#define SWITCH_SHARE 0.45 // width of a switch: this much of that of the ranks below

// Along which dimension a grid's link leads, and in which direction (1, -1).
static inline int grid_link_dimension(const Network* net, const Link* link, int* by) {
    for (int i = 0; i < net->dimensions; i++) {
        const int moved = network_coordinate(net, link->to, i) - network_coordinate(net, link->from, i);
        if (moved == 0) continue;
        *by = moved == 1 || moved < -1 ? 1 : -1;
        return i;
    }
    return -1;
}

// Whether a link is drawn as two stubs, which lead in a direction of their own.
static inline bool map_stub(const Map* map, int l, Point* direction) {
    const Network* net = map->net;
    const Link* link = &net->link[l];
    int by = 0;
    if (net->dimensions < 2) return false;
    const int i = grid_link_dimension(net, link, &by), across = net->dimensions - 1 - i; // 0: sideways, 1: down
    if (across < 2 && abs(network_coordinate(net, link->to, i) - network_coordinate(net, link->from, i)) == 1)
        return false;
    direction->x = across == 0 ? by : across == 1 ? 0 : by * M_SQRT1_2;
    direction->y = across == 0 ? 0 : across == 1 ? by : -by * M_SQRT1_2;
    return true;
}

static inline void map_grid(Map* map) {
    const Network* net = map->net;
    const int n = net->dimensions, rows = net->sides[n - 2], columns = net->sides[n - 1];
    const int layers = n > 2 ? net->sides[0] : 1, beside = (int)ceil(sqrt(layers));
    for (int r = 0; r < net->ranks; r++) {
        const int layer = r / (rows * columns);
        map->at[r].x = network_coordinate(net, r, n - 1) + layer % beside * (columns + 0.6);
        map->at[r].y = network_coordinate(net, r, n - 2) + layer / beside * (rows + 0.6);
    }
    map->margin = net->wraps || n > 2 ? 0.68 : 0.3;
}

// Ranks on a circle, clockwise from the top, and switches on one inside.
static inline void map_circle(Map* map) {
    const int N = map->net->ranks, switches = map->net->vertices - N;
    const double inside = switches > 1 ? 0.7 / sin(M_PI / switches) : 0;
    const double radius = fmax(0.5 / sin(M_PI / fmax(2, N)), switches ? inside + 1.3 : 0);
    for (int v = 0; v < map->net->vertices; v++) {
        const int n = v < N ? N : switches, i = v < N ? v : v - N;
        const double r = v < N ? radius : inside;
        map->at[v].x = r * sin(2 * M_PI * i / n);
        map->at[v].y = -r * cos(2 * M_PI * i / n);
    }
}

// How far each vertex is from the nearest rank; whether no link joins two as far.
static inline bool map_levels(const Network* net, int* level) {
    bool apart = true;
    for (int v = 0; v < net->vertices; v++) level[v] = v < net->ranks ? 0 : -1;
    for (int l = 0, found = 1; found; l++) {
        found = 0;
        for (int i = 0; i < net->links; i++) {
            const Link* link = &net->link[i];
            if (level[link->from] == l && level[link->to] < 0) level[link->to] = l + 1, found = 1;
            if (level[link->to] == l && level[link->from] < 0) level[link->from] = l + 1, found = 1;
        }
    }
    for (int i = 0; i < net->links; i++) apart = apart && level[net->link[i].from] != level[net->link[i].to];
    return apart;
}

// Two sides, of switches that are joined to none of their own side, and of the ranks that hang on them (side: 0, 1). False
// where there are none.
static inline bool map_sides(const Network* net, const int* level, int* side) {
    for (int v = 0; v < net->vertices; v++) side[v] = -1;
    for (int from = net->ranks; from < net->vertices; from++) {
        if (side[from] < 0) side[from] = 0;
        for (bool found = true; found;) { // what is joined to it, and so on
            found = false;
            for (int i = 0; i < net->links; i++) {
                const Link* link = &net->link[i];
                if (link->from < net->ranks || link->to < net->ranks || side[link->from] < 0) continue;
                if (side[link->to] < 0) side[link->to] = 1 - side[link->from], found = true;
            }
        }
    }
    for (int i = 0; i < net->links; i++) {
        const Link* link = &net->link[i];
        const bool ends = link->from < net->ranks, starts = link->to < net->ranks;
        if (level[link->from] > 1 || (ends && starts)) return false;
        if (!ends && !starts && side[link->from] == side[link->to]) return false;
        if (!ends || starts) continue;
        if (side[link->from] >= 0 && side[link->from] != side[link->to]) return false;
        side[link->from] = side[link->to];
    }
    return true;
}

// Ranks on one switch, at most.
static inline int most_at_a_switch(const Network* net) {
    int most = 0;
    for (int v = net->ranks; v < net->vertices; v++) {
        int n = 0;
        for (int i = net->first[v]; i < net->first[v + 1]; i++) n += net->link[i].to < net->ranks;
        most = (int)max_i64(most, n);
    }
    return most;
}

// Those vertices from `first` on that have `mark` are spread over a row.
static inline void map_row(Map* map, int first, int last, const int* marks, int mark, double width, double y) {
    int n = 0, i = 0;
    for (int v = first; v < last; v++) n += marks[v] == mark;
    for (int v = first; v < last; v++) {
        if (marks[v] != mark) continue;
        map->at[v].x = (i++ + 0.5) * width / n, map->at[v].y = y;
    }
}

static inline void map_switched(Map* map) {
    const Network* net = map->net;
    int* level = (int*)checked_malloc((size_t)net->vertices * 2 * sizeof(int), "the picture");
    int *side = level + net->vertices, top = 0, below = 0;
    const bool apart = map_levels(net, level), sides = !apart && map_sides(net, level, side);
    for (int v = 0; v < net->vertices; v++) {
        top = (int)max_i64(top, level[v]);
        below += v < net->ranks && sides && side[v] == 0;
    }
    const double width = (double)(sides ? max_i64(below, net->ranks - below) : net->ranks);
    if (!apart && !sides) map_circle(map);
    if (apart || sides) map->switch_width = fmax(map->switch_width, SWITCH_SHARE * most_at_a_switch(net));
    for (int l = 0; l <= top && apart; l++) map_row(map, 0, net->vertices, level, l, width, (top - l) * 1.7);
    for (int i = 0; i < 2 && sides; i++) {
        map_row(map, 0, net->ranks, side, i, width, i ? 4.8 : 0);
        map_row(map, net->ranks, net->vertices, side, i, width, i ? 3.3 : 1.5);
    }
    free(level);
}

static inline void map_lanes(Map* map) {
    const Network* net = map->net;
    map->pair = (int*)checked_malloc(((size_t)net->links + 1) * 2 * sizeof(int), "the picture");
    map->lane = map->pair + net->links;
    map->parallel = 1;
    for (int l = 0; l < net->links; l++) {
        const Link* link = &net->link[l];
        const int there = network_link(net, link->from, link->to), back = network_link(net, link->to, link->from);
        map->pair[l] = back >= 0 && back < there ? back : there;
        map->lane[l] = 0;
        for (int k = there; k < l; k++) map->lane[l] += net->link[k].to == link->to;
        map->parallel = (int)max_i64(map->parallel, map->lane[l] + 1);
    }
}

enum { MAP_LANE = 15, MAP_RADIUS = 22 }; // hundredths of a unit: from lane to lane; of a rank

static inline Map map_new(const Network* net) {
    Map map;
    memset(&map, 0, sizeof map);
    map.net = net;
    map.at = (Point*)checked_calloc((size_t)net->vertices, sizeof(Point), "the picture");
    map_lanes(&map);
    map.switch_width = fmax(0.8, 0.02 * MAP_LANE * map.parallel + 0.2);
    map.margin = 0.3;
    if (network_has_switches(net))
        map_switched(&map);
    else if (net->dimensions > 1)
        map_grid(&map);
    else
        map_circle(&map);
    Point low = map.at[0], high = map.at[0];
    for (int v = 1; v < net->vertices; v++) {
        const double half = v < net->ranks ? 0 : map.switch_width / 2 - 0.2;
        low.x = fmin(low.x, map.at[v].x - half), high.x = fmax(high.x, map.at[v].x + half);
        low.y = fmin(low.y, map.at[v].y), high.y = fmax(high.y, map.at[v].y);
    }
    for (int v = 0; v < net->vertices; v++) map.at[v].x -= low.x, map.at[v].y -= low.y;
    map.width = high.x - low.x, map.height = high.y - low.y;
    return map;
}

static inline void map_free(Map* map) {
    free(map->at);
    free(map->pair);
}

// ----------------------------------------------------------------------------------------------------------------
// Writing: text, arrows, vertices

static inline void write_label(FILE* out, double x, double y, double font, const char* anchor, const char* attributes,
                               const char* text) {
    char all[128];
    snprintf(all, sizeof all, "font-size=\"%g\" text-anchor=\"%s\"%s%s", font, anchor, *attributes ? " " : "",
             attributes);
    svg_write_text(out, x, y, all, text);
}

// Bytes of `text` that make a line of a width: up to a space, where there is one, and no part of a character.
static inline size_t line_length(const char* text, double width, double font) {
    const size_t most = (size_t)fmax(1, width / svg_text_width("m", font)), all = strlen(text);
    if (all <= most) return all;
    for (size_t n = most; n > most / 2; n--) {
        if (text[n] == ' ') return n;
    }
    size_t n = most;
    while (n > 1 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    return n;
}

// Text on as many lines as it needs, the first one with its foot at y. Returns how many. out NULL: only counts them.
static inline int write_lines(FILE* out, double x, double y, double width, double font, const char* attributes,
                              const char* text) {
    int lines = 0;
    for (; *text; lines++) {
        char line[512];
        const size_t n = (size_t)min_i64((int64_t)sizeof line - 1, (int64_t)line_length(text, width, font));
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        if (out) write_label(out, x, y + lines * 1.4 * font, font, "start", attributes, line);
        text += n;
        text += strspn(text, " ");
    }
    return lines;
}

// How the network is drawn in a panel. Pixels.
typedef struct {
    FILE* out;
    const Map* map;
    double unit, left, top; // of the points
} Pen;

static inline Point pen_at(const Pen* pen, int v) {
    const Point p = {pen->left + pen->unit * pen->map->at[v].x, pen->top + pen->unit * pen->map->at[v].y};
    return p;
}

static inline double pen_radius(const Pen* pen) { return 0.01 * MAP_RADIUS * pen->unit; }

// How far to the side of a switch's middle a link to `other` begins.
static inline double pen_shift(const Pen* pen, int v, int other) {
    const Point a = pen->map->at[v], b = pen->map->at[other];
    const double most = fmax(0, pen->map->switch_width / 2 - 0.12);
    if (v < pen->map->net->ranks || fabs(b.y - a.y) < 0.5) return 0;
    return pen->unit * fmax(-most, fmin(most, SWITCH_SHARE * (b.x - a.x)));
}

// How far from there an arrow in direction u begins or ends, at a distance from the line through it.
static inline double pen_trim(const Pen* pen, int v, double shift, Point u, double off) {
    const double gap = 0.03 * pen->unit, r = pen_radius(pen) + gap;
    if (v >= pen->map->net->ranks) {
        const double half = 0.5 * pen->map->switch_width * pen->unit + gap - fabs(shift), high = 0.85 * r;
        return fmin(fabs(u.y) > 1e-6 ? high / fabs(u.y) : INFINITY, fabs(u.x) > 1e-6 ? half / fabs(u.x) : INFINITY);
    }
    return fabs(off) < r ? sqrt(r * r - off * off) : 0;
}

static inline void pen_line(const Pen* pen, Point a, Point u, double from, double to, bool dashed) {
    const double dash = 0.11 * pen->unit, gap = 0.075 * pen->unit;
    const int n = dashed ? (int)fmax(1, round((to - from + gap) / (dash + gap))) : 1;
    const double each = (to - from + gap) / n;
    for (int i = 0; i < n; i++) {
        const double s = from + i * each, e = i == n - 1 ? to : s + each - gap;
        fprintf(pen->out, "M%.1f %.1fL%.1f %.1f", a.x + s * u.x, a.y + s * u.y, a.x + e * u.x, a.y + e * u.y);
    }
}

// The line of a link: one straight part, or two stubs; each from from[i] to to[i] beyond point[i] in direction u.
typedef struct {
    int parts;
    Point point[2], u;
    double from[2], to[2];
} LinkLine;

static inline LinkLine link_line(const Pen* pen, int l, double off) {
    const Link* link = &pen->map->net->link[l];
    const double start = pen_shift(pen, link->from, link->to), end = pen_shift(pen, link->to, link->from);
    Point a = pen_at(pen, link->from), b = pen_at(pen, link->to);
    LinkLine line;
    a.x += start, b.x += end;
    memset(&line, 0, sizeof line);
    line.parts = map_stub(pen->map, l, &line.u) ? 2 : 1;
    const double length = line.parts == 2 ? 0.56 * pen->unit : hypot(b.x - a.x, b.y - a.y);
    if (line.parts == 1) line.u.x = (b.x - a.x) / length, line.u.y = (b.y - a.y) / length;
    const Point u = line.u;
    const double leave = pen_trim(pen, link->from, start, u, off), arrive = pen_trim(pen, link->to, end, u, off);
    line.point[0].x = a.x - off * u.y, line.point[0].y = a.y + off * u.x;
    line.from[0] = leave, line.to[0] = line.parts == 2 ? length : length - arrive;
    line.point[1].x = b.x - length * u.x - off * u.y, line.point[1].y = b.y - length * u.y + off * u.x;
    line.from[1] = 0, line.to[1] = length - arrive;
    return line;
}

// A link as an arrow, `off` pixels to the right of the line between its ends.
static inline void pen_arrow(const Pen* pen, int l, double off, bool dashed, unsigned colour) {
    const LinkLine line = link_line(pen, l, off);
    const Point u = line.u, p = line.point[line.parts - 1];
    const double head = fmax(0.17 * pen->unit, fmin(5, 0.25 * pen->unit)), half = 0.38 * head,
                 tip = line.to[line.parts - 1], foot = tip - head;
    fputs("<path d=\"", pen->out);
    for (int i = 0; i < line.parts; i++)
        pen_line(pen, line.point[i], u, line.from[i], line.to[i] - (i == line.parts - 1 ? head : 0), dashed);
    fprintf(pen->out, "M%.1f %.1fL%.1f %.1fL%.1f %.1fz\" stroke=\"#%06x\" fill=\"#%06x\"/>\n",
            p.x + foot * u.x - half * u.y, p.y + foot * u.y + half * u.x, p.x + foot * u.x + half * u.y,
            p.y + foot * u.y - half * u.x, p.x + tip * u.x, p.y + tip * u.y, colour, colour);
}

static inline double pen_lane(const Pen* pen, int l) { return (pen->map->lane[l] + 0.5) * 0.01 * MAP_LANE * pen->unit; }

static inline void pen_begin_arrows(const Pen* pen, const char* name, double width) {
    fprintf(pen->out, "<g class=\"%s\" stroke-width=\"%.3g\" stroke-linejoin=\"round\">\n", name, width * pen->unit);
}

// One vertex: a rank is a circle, a switch a bar. With its number where that can be read.
static inline void pen_vertex(const Pen* pen, int v, unsigned fill, unsigned stroke) {
    const Point p = pen_at(pen, v);
    const double r = pen_radius(pen), half = 0.5 * pen->map->switch_width * pen->unit;
    const double font = fmin(11, v < 100 ? 0.98 * r : 0.8 * r);
    if (v < pen->map->net->ranks)
        fprintf(pen->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.2f\" fill=\"#%06x\" stroke=\"#%06x\"/>\n", p.x, p.y, r,
                fill, stroke);
    else
        fprintf(pen->out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"%.1f\" fill=\"#%06x\" "
                "stroke=\"#%06x\"/>\n",
                p.x - half, p.y - 0.8 * r, 2 * half, 1.6 * r, 0.3 * r, fill, stroke);
    if (font < 6.5) return;
    char number[16];
    snprintf(number, sizeof number, "%d", v);
    write_label(pen->out, p.x, p.y + 0.36 * font, font, "middle", svg_is_dark(fill) ? "fill=\"#fff\"" : "", number);
}

// ----------------------------------------------------------------------------------------------------------------
// Sheets: a title, panels in rows, a key

enum { SHEET_WIDTH = 1020, SHEET_MARGIN = 18, SHEET_GAP = 22, SHEET_HEAD = 22, SHEET_TALLEST = 9000 };

typedef struct {
    const Map* map;
    char title[320], text[512];
    int panels, columns;
    double unit, panel_width, panel_height; // without its title
    double width, height, top, key;         // of the sheet; where panels begin, and the key
} Sheet;

static inline double sheet_top(const Sheet* s, double width) {
    const int title = write_lines(NULL, 0, 0, width - 2 * SHEET_MARGIN, 1.08 * SVG_TITLE_FONT, "", s->title);
    const int text = write_lines(NULL, 0, 0, width - 2 * SHEET_MARGIN, SVG_FONT, "", s->text);
    return SHEET_MARGIN + 1.4 * (1.08 * SVG_TITLE_FONT * title + SVG_FONT * text) + 14;
}

// Places for all panels, whose titles are so wide. key: the height that is left below.
static inline void sheet_place(Sheet* s, double unit, double head, int columns, double key) {
    const Map* map = s->map;
    s->unit = unit;
    s->panel_width = fmax(head, (map->width + 2 * map->margin) * unit);
    s->panel_height = (map->height + 2 * map->margin) * unit;
    const int most = (int)fmax(1, floor((SHEET_WIDTH - 2 * SHEET_MARGIN + SHEET_GAP) / (s->panel_width + SHEET_GAP)));
    int rows = (int)ceil((double)s->panels / most);
    s->columns = columns && columns <= most ? columns : (int)ceil((double)s->panels / rows);
    rows = (int)ceil((double)s->panels / s->columns);
    s->width = fmax(640, 2 * SHEET_MARGIN + s->columns * (s->panel_width + SHEET_GAP) - SHEET_GAP);
    s->top = sheet_top(s, s->width);
    s->key = s->top + rows * (s->panel_height + SHEET_HEAD + SHEET_GAP) - 4;
    s->height = s->key + key;
}

// The largest unit at which the picture can be seen as a whole; `columns`, if that is not 0, where they fit.
static inline bool sheet_fit(Sheet* s, double head, int columns, double key, const char* instead, Error* error) {
    static const double units[] = {64, 56, 48, 44, 40, 36, 32, 28, 24, 21, 18};
    const int n = (int)(sizeof units / sizeof units[0]);
    // First with numbers that can be read, on one page and in these columns; then smaller, longer.
    for (int pass = columns ? 0 : 1; pass < 4; pass++) {
        for (int i = s->panels > 2 ? 2 : 0; i < n && (pass == 3 || units[i] >= 30); i++) {
            sheet_place(s, units[i], head, pass == 0 ? columns : 0, key);
            if (s->width <= SHEET_WIDTH && s->height <= (pass < 2 ? 1400 : 3000) && (pass > 0 || s->columns == columns))
                return true;
        }
    }
    if (s->width <= 3 * SHEET_WIDTH && s->height <= SHEET_TALLEST) return true;
    return fail(error, "%d panels of %d ranks: more than can be seen; take %s", s->panels, s->map->net->ranks, instead);
}

static inline void write_begin(FILE* out, const Sheet* s) {
    const double font = SVG_TITLE_FONT, width = s->width - 2 * SHEET_MARGIN;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.7g %.7g\" width=\"%.7g\" height=\"%.7g\" "
            "role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"%d\" fill=\"#1f2937\">\n<title>",
            s->width, s->height, s->width, s->height, SVG_FONT);
    svg_write_escaped(out, s->title);
    fputs("</title>\n", out);
    svg_write_rect(out, 0.5, 0.5, s->width - 1, s->height - 1, "rx=\"10\" fill=\"#fff\" stroke=\"#d0d7de\"");
    // bold letters are wider
    const int lines = write_lines(NULL, 0, 0, width, 1.08 * font, "", s->title);
    const char* at = s->title;
    for (int i = 0; i < lines; i++) {
        char line[256];
        const size_t n = line_length(at, width, 1.08 * font);
        snprintf(line, sizeof line, "%.*s", (int)n, at);
        write_label(out, SHEET_MARGIN, SHEET_MARGIN + font - 2 + i * 1.4 * 1.08 * font, font, "start",
                    "font-weight=\"bold\"", line);
        at += n, at += strspn(at, " ");
    }
    write_lines(out, SHEET_MARGIN, SHEET_MARGIN + lines * 1.4 * 1.08 * font + SVG_FONT, width, SVG_FONT,
                "fill=\"#57606a\"", s->text);
}

// Where panel i goes; writes its title.
static inline Pen sheet_pen(FILE* out, const Sheet* s, int i, const char* title) {
    const Map* map = s->map;
    const double columns = s->columns * (s->panel_width + SHEET_GAP) - SHEET_GAP;
    const double left = (s->width - columns) / 2 + i % s->columns * (s->panel_width + SHEET_GAP);
    const double top = s->top + i / s->columns * (s->panel_height + SHEET_HEAD + SHEET_GAP);
    fputs("<g class=\"panel\">\n", out);
    write_label(out, left + s->panel_width / 2, top + 12, 11, "middle", "font-weight=\"bold\"", title);
    const Pen pen = {out, map, s->unit, left + (s->panel_width - map->width * s->unit) / 2,
                     top + SHEET_HEAD + map->margin * s->unit};
    return pen;
}

// "multitree on torus:4x4, all-reduce"
static inline void source_name(char* text, size_t size, const Source* s) {
    snprintf(text, size, "%s on %s, %s", s->plan->name, s->net->name, plan_kind_name(s->plan->kind));
}

// ----------------------------------------------------------------------------------------------------------------
// Trees

// The links of a panel that stand between the same two vertices share the room there.
typedef struct {
    int *all, *placed; // (links), by pair
} TreeLanes;

static inline void write_network(const Pen* pen) {
    const Network* net = pen->map->net;
    fputs("<path class=\"network\" stroke=\"#d8dee5\" fill=\"none\" d=\"", pen->out);
    for (int l = 0; l < net->links; l++) {
        Point u;
        const bool stub = map_stub(pen->map, l, &u);
        if (pen->map->lane[l] > 0 || (pen->map->pair[l] != l && !stub)) continue;
        const LinkLine line = link_line(pen, l, 0);
        for (int i = 0; i < (stub ? 1 : line.parts); i++)
            pen_line(pen, line.point[i], line.u, line.from[i], line.to[i], false);
    }
    fputs("\"/>\n", pen->out);
}

static inline double tree_offset(const Pen* pen, TreeLanes* lanes, int l) {
    const int pair = pen->map->pair[l], n = lanes->all[pair];
    const Link* link = &pen->map->net->link[l];
    const bool rank = link->from < pen->map->net->ranks || link->to < pen->map->net->ranks;
    const double wide = rank ? 0.4 : pen->map->switch_width - 0.2;
    const double apart = fmin(0.01 * MAP_LANE, n > 1 ? wide / (n - 1) : 0);
    const double off = (lanes->placed[pair]++ - (n - 1) / 2.0) * apart * pen->unit;
    return link->from < link->to ? off : -off;
}

static inline void write_tree_arrows(const Pen* pen, const Source* s, const Tree* tree, TreeLanes* lanes, int first,
                                     int steps) {
    memset(lanes->all, 0, (size_t)s->net->links * 2 * sizeof(int));
    for (int write = 0; write < 2; write++) {
        for (int r = 0; r < s->plan->ranks; r++) {
            if (tree->row[r] < 0) continue;
            const int n = plan_way(s->plan, s->net, &s->routes, tree->row[r], s->way);
            const int step = s->plan->transfers[tree->row[r]].step - first;
            for (int k = 0; k < n; k++) {
                if (write)
                    pen_arrow(pen, s->way[k], tree_offset(pen, lanes, s->way[k]), false, step_colour(step, steps));
                else
                    lanes->all[pen->map->pair[s->way[k]]]++;
            }
        }
        if (!write) pen_begin_arrows(pen, s->plan->kind == PLAN_REDUCE_SCATTER ? "add" : "put", 0.045);
    }
    fputs("</g>\n", pen->out);
}

static inline void write_tree(const Pen* pen, const Source* s, const Tree* tree, TreeLanes* lanes, int first,
                              int steps) {
    write_network(pen);
    write_tree_arrows(pen, s, tree, lanes, first, steps);
    fputs("<g class=\"vertices\">\n", pen->out);
    for (int v = 0; v < s->net->vertices; v++) {
        const bool root = v == tree->root;
        pen_vertex(pen, v, root ? 0x1f2937 : v < s->net->ranks ? 0xf3f5f8 : 0xdfe4ea, root ? 0x1f2937 : 0xaab3bd);
    }
    fputs("</g>\n</g>\n", pen->out);
}

// A swatch for each step, with its number where there is room.
static inline void write_step_key(FILE* out, const Sheet* s, int first, int steps) {
    const double width = fmin(28, (s->width - 2 * SHEET_MARGIN - 44) / steps), y = s->key;
    const int every = width >= 18 ? 1 : (int)(10 * ceil(24 / (10 * width)));
    write_label(out, SHEET_MARGIN, y + 12, SVG_FONT, "start", "", "step");
    fputs("<g class=\"key\">\n", out);
    for (int i = 0; i < steps; i++) {
        const double x = SHEET_MARGIN + 36 + i * width;
        char fill[32], number[16];
        snprintf(fill, sizeof fill, "fill=\"#%06x\"", step_colour(i, steps));
        svg_write_rect(out, x, y, width - (width > 6 ? 1.5 : 0), 16, fill);
        snprintf(number, sizeof number, "%d", first + i + 1);
        if (every == 1)
            write_label(out, x + width / 2 - 0.75, y + 12, 10.5, "middle",
                        svg_is_dark(step_colour(i, steps)) ? "fill=\"#fff\"" : "", number);
        else if ((first + i + 1) % every == 0 || (i == 0 && (every - (first + 1) % every) * width >= 24))
            write_label(out, x, y + 28, 10, "start", "fill=\"#57606a\"", number);
    }
    fputs("</g>\n", out);
}

static inline void tree_title(char* text, size_t size, const TreeList* list, int i) {
    bool own = true; // every rank has one tree, in the order of ranks
    for (int k = 0; k < list->n; k++) own = own && list->tree[k].root == k;
    if (own)
        snprintf(text, size, "root %d", list->tree[i].root);
    else
        snprintf(text, size, "tree %d, root %d", i, list->tree[i].root);
}

static inline void trees_text(Sheet* sheet, const Source* s, const TreeList* list) {
    char name[256];
    bool both = true;
    int pieces = 1;
    source_name(name, sizeof name, s);
    snprintf(sheet->title, sizeof sheet->title, "%s: %d tree%s", name, list->n, list->n == 1 ? "" : "s");
    for (int i = 0; i < list->n; i++) {
        both = both && list->tree[i].both;
        pieces = (int)max_i64(pieces, list->tree[i].pieces);
    }
    const bool up = s->plan->kind == PLAN_REDUCE_SCATTER, all = s->plan->kind == PLAN_ALL_REDUCE;
    char follow[128] = "";
    if (pieces > 1)
        snprintf(follow, sizeof follow,
                 " Up to %d pieces follow each other along a tree; the steps are the first one's.", pieces);
    snprintf(sheet->text, sizeof sheet->text, "%s%s%s%s",
             up    ? "How the sum of a chunk comes together at the root of its tree."
             : all ? "How the sum of a chunk goes out from the root of its tree."
                   : "How a chunk goes out from the rank that has it, the root of its tree.",
             !all   ? ""
             : both ? " It came together over the same edges."
                    : " It came together on other ways, which are not drawn.",
             network_has_switches(s->net) ? " An arrow is a message over one link." : "", follow);
}

static inline bool draw_trees(const Source* s, const Map* map, int64_t only, FILE* out, Error* error) {
    TreeList list;
    if (!tree_list(s, &list, error)) return false;
    Sheet sheet;
    memset(&sheet, 0, sizeof sheet);
    sheet.map = map, sheet.panels = only < 0 ? list.n : 1;
    bool ok = only < list.n || fail(error, "--tree %lld: there are trees 0 to %d", (long long)only, list.n - 1);
    trees_text(&sheet, s, &list);
    int first = s->plan->steps, last = 0;
    for (int i = 0; i < list.n; i++) {
        for (int r = 0; r < s->plan->ranks; r++) {
            if (list.tree[i].row[r] < 0) continue;
            const int step = s->plan->transfers[list.tree[i].row[r]].step;
            first = (int)min_i64(first, step), last = (int)max_i64(last, step);
        }
    }
    ok = ok && sheet_fit(&sheet, 100, 0, last - first > 30 ? 46 : 34, "one of them: --tree N", error);
    if (ok) {
        TreeLanes lanes = {(int*)checked_malloc(((size_t)s->net->links + 1) * 2 * sizeof(int), "the picture"), NULL};
        lanes.placed = lanes.all + s->net->links;
        write_begin(out, &sheet);
        for (int i = 0; i < sheet.panels; i++) {
            const int k = only < 0 ? i : (int)only;
            char title[64];
            tree_title(title, sizeof title, &list, k);
            const Pen pen = sheet_pen(out, &sheet, i, title);
            write_tree(&pen, s, &list.tree[k], &lanes, first, last - first + 1);
        }
        write_step_key(out, &sheet, first, last - first + 1);
        fputs("</svg>\n", out);
        free(lanes.all);
    }
    tree_list_free(&list);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Steps

static inline void write_idle(const Pen* pen, const Use* uses) {
    fprintf(pen->out, "<path class=\"idle\" stroke=\"#cfd6de\" stroke-width=\"%.2g\" fill=\"none\" d=\"",
            fmax(0.5, 0.018 * pen->unit));
    for (int l = 0; l < pen->map->net->links; l++) {
        if (uses[l].transfers) continue;
        const LinkLine line = link_line(pen, l, pen_lane(pen, l));
        for (int i = 0; i < line.parts; i++) pen_line(pen, line.point[i], line.u, line.from[i], line.to[i], false);
    }
    fputs("\"/>\n", pen->out);
}

// How many messages there are on a link, in the middle of it.
static inline void write_use_number(const Pen* pen, int l, const Use* use) {
    const LinkLine line = link_line(pen, l, pen_lane(pen, l));
    const double font = fmin(10, fmax(6.5, 0.16 * pen->unit)), along = 0.45 * line.to[0] + 0.55 * line.from[0];
    const Point p = {line.point[0].x + along * line.u.x, line.point[0].y + along * line.u.y};
    char number[16];
    snprintf(number, sizeof number, "%d", use->transfers);
    fprintf(pen->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"#fff\"/>\n", p.x, p.y, 0.55 * font);
    write_label(pen->out, p.x, p.y + 0.36 * font, font, "middle", "", number);
}

static inline void write_step(const Pen* pen, const Source* s, const Use* uses) {
    const double slowest = network_slowest(s->net);
    write_idle(pen, uses);
    for (int put = 0; put < 2; put++) {
        pen_begin_arrows(pen, put ? "put" : "add", 0.04);
        for (int l = 0; l < s->net->links; l++) {
            if (uses[l].transfers && (uses[l].adds == 0) == put)
                pen_arrow(pen, l, pen_lane(pen, l), put, use_colour(s->net, &uses[l], l, slowest));
        }
        fputs("</g>\n", pen->out);
    }
    fputs("<g class=\"vertices\">\n", pen->out);
    for (int v = 0; v < s->net->vertices; v++) {
        const unsigned fill = v < s->net->ranks ? owner_colour(s->net, v) : 0xdfe4ea;
        pen_vertex(pen, v, fill, v < s->net->ranks ? fill : 0xaab3bd);
    }
    fputs("</g>\n<g class=\"counts\">\n", pen->out);
    for (int l = 0; l < s->net->links; l++) {
        if (uses[l].transfers > 1) write_use_number(pen, l, &uses[l]);
    }
    fputs("</g>\n</g>\n", pen->out);
}

// What is to be explained, as occurs.
typedef struct {
    bool adds, puts, several, shared, crowded;
} UseKinds;

static inline UseKinds use_kinds(const Source* s, const Use* uses) {
    UseKinds k = {false, false, false, false, false};
    const double slowest = network_slowest(s->net);
    for (int64_t i = 0; i < (int64_t)s->plan->steps * s->net->links; i++) {
        const Use* use = &uses[i];
        const int l = (int)(i % s->net->links);
        if (!use->transfers) continue;
        const bool crowded = use->transfers > plan_room(&s->net->link[l], slowest);
        k.adds |= use->adds > 0, k.puts |= use->adds == 0;
        k.several |= use->owner < 0 && !crowded, k.shared |= use->transfers > 1, k.crowded |= crowded;
    }
    return k;
}

// An arrow as an example, and what it means; returns where the next one begins. Wraps at the right edge.
typedef struct {
    FILE* out;
    double left, right, x, y;
} Key;

static inline void key_step(Key* key, double width) {
    if (key->x + width > key->right && key->x > key->left) key->x = key->left, key->y += 18;
}

static inline void key_arrow(Key* key, unsigned colour, bool dashed, bool head, const char* text) {
    const double width = 37 + svg_text_width(text, SVG_FONT);
    key_step(key, width);
    if (key->out) {
        fprintf(key->out, "<path d=\"M%.1f %.1fL%.1f %.1f", key->x, key->y - 4, key->x + (dashed ? 5 : 19), key->y - 4);
        if (dashed)
            fprintf(key->out, "M%.1f %.1fL%.1f %.1fM%.1f %.1fL%.1f %.1f", key->x + 8, key->y - 4, key->x + 13,
                    key->y - 4, key->x + 16, key->y - 4, key->x + 19, key->y - 4);
        if (head)
            fprintf(key->out, "M%.1f %.1fL%.1f %.1fL%.1f %.1fz", key->x + 18, key->y - 7.2, key->x + 18, key->y - 0.8,
                    key->x + 26, key->y - 4);
        fprintf(key->out, "\" stroke=\"#%06x\" fill=\"#%06x\" stroke-width=\"%s\"/>\n", colour, colour,
                head ? "2" : "1");
        write_label(key->out, key->x + 34, key->y, SVG_FONT, "start", "", text);
    }
    key->x += width + 20;
}

static inline void key_box(Key* key, unsigned colour, const char* number, const char* text) {
    const double width = 20 + svg_text_width(text, SVG_FONT);
    key_step(key, width);
    if (key->out) {
        char fill[32];
        snprintf(fill, sizeof fill, "fill=\"#%06x\"", colour);
        svg_write_rect(key->out, key->x, key->y - 10.5, 13, 13, fill);
        if (*number) write_label(key->out, key->x + 6.5, key->y - 0.5, 9, "middle", "fill=\"#fff\"", number);
        write_label(key->out, key->x + 18, key->y, SVG_FONT, "start", "", text);
    }
    key->x += width + 20;
}

static inline void write_steps_key(Key* key, const UseKinds* k) {
    const unsigned example = 0x57606a;
    if (k->adds) key_arrow(key, example, false, true, "added to what is there");
    if (k->puts) key_arrow(key, example, true, true, "put in its place");
    key_arrow(key, 0xb8c1cb, false, false, "idle");
    if (k->several) key_arrow(key, owner_colour(NULL, -1), false, true, "chunks of several ranks");
    if (k->crowded) key_arrow(key, CROWDED, false, true, "more messages than it has room for");
    if (k->shared) key_step(key, 150);
    if (k->shared && key->out)
        write_label(key->out, key->x, key->y, SVG_FONT, "start", "", "a number: that many messages");
}

static inline bool draw_steps(const Source* s, const Map* map, FILE* out, Error* error) {
    const int steps = s->plan->steps, turn = plan_turn(s->plan);
    Use* uses = link_uses(s);
    const UseKinds kinds = use_kinds(s, uses);
    Sheet sheet;
    char name[256], title[96];
    memset(&sheet, 0, sizeof sheet);
    sheet.map = map, sheet.panels = steps;
    source_name(name, sizeof name, s);
    snprintf(sheet.title, sizeof sheet.title, "%s: %d step%s", name, steps, steps == 1 ? "" : "s");
    snprintf(sheet.text, sizeof sheet.text,
             "An arrow is a link in use, in the colour of the rank that its chunk belongs to.");
    snprintf(title, sizeof title, "step %d of %d: %d of %d links", steps, steps, s->net->links, s->net->links);
    const bool ok = sheet_fit(&sheet, svg_text_width(title, 11) - 12, 2 * turn == steps ? turn : 0, 34,
                              "--what links, or a smaller network", error);
    if (ok) {
        Key count = {NULL, SHEET_MARGIN, sheet.width - SHEET_MARGIN, SHEET_MARGIN, 0};
        write_steps_key(&count, &kinds);
        sheet.height += count.y;
        Key key = {out, SHEET_MARGIN, sheet.width - SHEET_MARGIN, SHEET_MARGIN, sheet.key + 14};
        write_begin(out, &sheet);
        for (int i = 0; i < steps; i++) {
            const Use* used = uses + (size_t)i * (size_t)s->net->links;
            snprintf(title, sizeof title, "step %d of %d: %d of %d links", i + 1, steps, uses_busy(used, s->net->links),
                     s->net->links);
            const Pen pen = sheet_pen(out, &sheet, i, title);
            write_step(&pen, s, used);
        }
        write_steps_key(&key, &kinds);
        fputs("</svg>\n", out);
    }
    free(uses);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Links

enum { CHART_HEIGHT = 92, LINKS_GAP = 18 };

// The rows stand in blocks beside each other, each of them as wide as all steps.
typedef struct {
    int blocks, per_block, columns; // links; of the key of ranks
    double label, cell, pitch;      // width of the labels; of a step; from row to row
    double left, width;             // of a block with its labels
    double key;                     // where the key of ranks begins, beside the chart
    double chart, top, swatch;      // where the chart and the rows begin; side of a rank in the key
} LinkGrid;

static inline double link_grid_cell(int blocks, int steps, double label) {
    const double width = (SHEET_WIDTH - 2 * SHEET_MARGIN + LINKS_GAP) / (double)blocks - LINKS_GAP;
    return (width - label - 2) / steps;
}

static inline LinkGrid link_grid(const Source* s, Sheet* sheet, int key_rows) {
    LinkGrid g;
    memset(&g, 0, sizeof g);
    const int links = s->net->links, steps = s->plan->steps;
    char longest[32];
    snprintf(longest, sizeof longest, "%d>%d", s->net->vertices - 1, s->net->vertices - 1);
    g.pitch = links <= 48 ? 14 : links <= 128 ? 11.5 : 9.5;
    const double font = fmin(10, g.pitch - 1.5);
    g.label = 1.1 * svg_text_width(longest, font) + 6;
    g.blocks = 1;
    for (int b = 2; b <= 6; b++) {
        const double least = links > 150 * (b - 1) ? 4 : 7.5; // rather narrow than long
        if (links >= 24 * b && link_grid_cell(b, steps, g.label) >= least) g.blocks = b;
    }
    g.per_block = (links + g.blocks - 1) / g.blocks;
    g.cell = fmin(1.3 * g.pitch, link_grid_cell(g.blocks, steps, g.label));
    const double wide = (640 - 2 * SHEET_MARGIN + LINKS_GAP) / (double)g.blocks - LINKS_GAP - g.label;
    g.cell = fmax(g.cell, fmin(2.2 * g.pitch, wide / steps)); // few steps are broader
    g.width = g.label + g.cell * steps;
    g.columns = owner_columns(s->net);
    const int rows = (s->net->ranks + g.columns - 1) / g.columns;
    g.swatch = fmax(s->net->ranks > 100 ? 13 : 10, fmin(20, (CHART_HEIGHT + 14.0) / rows));
    const double key = g.columns * g.swatch, head = fmax(CHART_HEIGHT, rows * g.swatch - 14);
    const double blocks = g.blocks * (g.width + LINKS_GAP) - LINKS_GAP;
    g.left = SHEET_MARGIN;
    g.key = g.left + fmax(g.width + LINKS_GAP + 12, g.label + 190); // the chart has a title
    sheet->width = fmax(640, fmax(blocks + 2 * SHEET_MARGIN, g.key + fmax(key, 140) + SHEET_MARGIN));
    g.chart = sheet_top(sheet, sheet->width) + 16;
    g.top = g.chart + head + 34;
    if (g.blocks == 1 && sheet->width > SHEET_WIDTH) { // the key does not fit beside the chart: it goes above
        g.key = g.left + g.label;
        sheet->width = fmax(640, 2 * SHEET_MARGIN + g.width);
        g.chart = sheet_top(sheet, sheet->width) + rows * g.swatch + 38;
        g.top = g.chart + CHART_HEIGHT + 34;
    }
    sheet->key = g.top + g.per_block * g.pitch + 16;
    sheet->height = sheet->key + 30 + 18 * key_rows;
    return g;
}

// Where a link's row is: the left end of its cells, and its top.
static inline Point link_grid_at(const LinkGrid* g, int l) {
    const Point p = {g->left + l / g->per_block * (g->width + LINKS_GAP) + g->label,
                     g->top + l % g->per_block * g->pitch};
    return p;
}

// Numbers of steps over the columns that begin at `left`.
static inline void write_step_numbers(FILE* out, const LinkGrid* g, double left, double y, int steps) {
    static const int everies[] = {1, 2, 5, 10, 20, 50, 100};
    const double room = steps < 100 ? 14 : 19;
    int every = 0;
    while (every < 6 && everies[every] * g->cell < room) every++;
    for (int i = 1; i <= steps; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const bool fits = i > 1 || everies[every] == 1 || (everies[every] - 1) * g->cell >= room;
        if ((i % everies[every] == 0 || i == 1) && fits)
            write_label(out, left + (i - 0.5) * g->cell, y, 9, "middle", "fill=\"#57606a\"", number);
    }
}

static inline void write_chart(FILE* out, const Source* s, const LinkGrid* g, const Use* uses, double mean) {
    const double left = g->left + g->label, width = g->cell * s->plan->steps, bottom = g->chart + CHART_HEIGHT;
    const int turn = plan_turn(s->plan);
    write_label(out, left, g->chart - 9, 10.5, "start", "fill=\"#57606a\"", "share of the links that is busy");
    for (int i = 0; i <= 2; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d %%", 50 * i);
        const double y = bottom - i * CHART_HEIGHT / 2.0;
        write_label(out, left - 5, y + 3, 9, "end", "fill=\"#57606a\"", number);
        fprintf(out, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#d8dee5\" fill=\"none\"/>\n", left, y, left + width, y);
    }
    fputs("<g class=\"share\">\n", out);
    for (int i = 0; i < s->plan->steps; i++) {
        const double share = (double)uses_busy(uses + (size_t)i * (size_t)s->net->links, s->net->links) / s->net->links;
        const double gap = fmin(1.5, 0.2 * g->cell);
        svg_write_rect(out, left + i * g->cell + gap / 2, bottom - share * CHART_HEIGHT, g->cell - gap,
                       share * CHART_HEIGHT, turn > i ? "fill=\"#5b7fa6\"" : "fill=\"#9dbad8\"");
    }
    fputs("</g>\n", out);
    fprintf(out, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#b3372f\" stroke-dasharray=\"4 3\" fill=\"none\"/>\n", left,
            bottom - mean * CHART_HEIGHT, left + width, bottom - mean * CHART_HEIGHT);
    write_step_numbers(out, g, left, bottom + 12, s->plan->steps);
}

// Which colour is which rank's.
static inline void write_owner_key(FILE* out, const Source* s, const LinkGrid* g) {
    const int rows = (s->net->ranks + g->columns - 1) / g->columns;
    const bool above = g->key < g->left + g->width;
    const double left = g->key, top = (above ? g->chart - rows * g->swatch - 24 : g->chart) - 2;
    write_label(out, left, top - 7, 10.5, "start", "fill=\"#57606a\"", "a chunk belongs to rank");
    fputs("<g class=\"key\">\n", out);
    for (int r = 0; r < s->net->ranks; r++) {
        const unsigned colour = owner_colour(s->net, r);
        const double x = left + r % g->columns * g->swatch, y = top + r / g->columns * g->swatch;
        const double font = fmin(9, (s->net->ranks <= 100 ? 0.66 : 0.5) * g->swatch);
        char fill[32], number[16];
        snprintf(fill, sizeof fill, "fill=\"#%06x\" rx=\"2\"", colour);
        svg_write_rect(out, x, y, g->swatch - 1, g->swatch - 1, fill);
        snprintf(number, sizeof number, "%d", r);
        if (font >= 5.5)
            write_label(out, x + (g->swatch - 1) / 2, y + (g->swatch - 1) / 2 + 0.36 * font, font, "middle",
                        svg_is_dark(colour) ? "fill=\"#fff\"" : "", number);
    }
    fputs("</g>\n", out);
}

static inline void write_rows(FILE* out, const Source* s, const LinkGrid* g) {
    const Network* net = s->net;
    const double high = g->pitch - 1.5, font = fmin(10, high);
    fputs("<g class=\"row\" fill=\"#eef1f5\">\n", out);
    for (int l = 0; l < net->links; l++) {
        const Point p = link_grid_at(g, l);
        svg_write_rect(out, p.x, p.y, g->cell * s->plan->steps, high, "");
    }
    fputs("</g>\n<g class=\"labels\">\n", out);
    for (int l = 0; l < net->links; l++) {
        const Point p = link_grid_at(g, l);
        char label[32];
        snprintf(label, sizeof label, "%d>%d", net->link[l].from, net->link[l].to);
        write_label(out, p.x - 4, p.y + high / 2 + 0.36 * font, font, "end", "", label);
    }
    fputs("</g>\n", out);
}

// A path for each colour, a broad stroke for each cell. owner -2: those that are crowded.
static inline void write_cells(FILE* out, const Source* s, const LinkGrid* g, const Use* uses) {
    const int links = s->net->links;
    const double slowest = network_slowest(s->net), gap = fmin(1, 0.15 * g->cell), high = g->pitch - 1.5;
    fprintf(out, "<g class=\"cells\" fill=\"none\" stroke-width=\"%g\">\n", high);
    for (int owner = -2; owner < s->net->ranks; owner++) {
        bool any = false;
        for (int64_t i = 0; i < (int64_t)s->plan->steps * links; i++) {
            const int l = (int)(i % links), step = (int)(i / links);
            if (!uses[i].transfers) continue;
            const bool crowded = uses[i].transfers > plan_room(&s->net->link[l], slowest);
            if (crowded ? owner != -2 : owner != uses[i].owner) continue;
            const Point p = link_grid_at(g, l);
            if (!any) fprintf(out, "<path stroke=\"#%06x\" d=\"", use_colour(s->net, &uses[i], l, slowest));
            any = true;
            fprintf(out, "M%.1f %.1fh%.1f", p.x + step * g->cell + gap / 2, p.y + high / 2, g->cell - gap);
        }
        if (any) fputs("\"/>\n", out);
    }
    fputs("</g>\n", out);
}

// How many messages there are at once, where there are several.
static inline void write_cell_numbers(FILE* out, const Source* s, const LinkGrid* g, const Use* uses) {
    const double slowest = network_slowest(s->net), high = g->pitch - 1.5;
    const double font = fmin(8.5, fmin(g->pitch - 2, 1.5 * g->cell));
    fputs("<g class=\"counts\">\n", out);
    for (int64_t i = 0; i < (int64_t)s->plan->steps * s->net->links; i++) {
        const int l = (int)(i % s->net->links), step = (int)(i / s->net->links);
        char number[16];
        if (uses[i].transfers < 2) continue;
        const int n = snprintf(number, sizeof number, "%d", uses[i].transfers);
        const Point p = link_grid_at(g, l);
        if (0.57 * font * n > g->cell) continue;
        write_label(out, p.x + (step + 0.5) * g->cell, p.y + high / 2 + 0.36 * font, font, "middle",
                    svg_is_dark(use_colour(s->net, &uses[i], l, slowest)) ? "fill=\"#fff\"" : "", number);
    }
    fputs("</g>\n", out);
}

// A line where adding ends, if it does everywhere at once.
static inline void write_turn(FILE* out, const Source* s, const LinkGrid* g) {
    const int turn = plan_turn(s->plan), steps = s->plan->steps;
    if (turn == 0 || turn == steps) return;
    for (int b = 0; b < g->blocks; b++) {
        const int rows = (int)min_i64(g->per_block, s->net->links - (int64_t)b * g->per_block);
        const double x = g->left + b * (g->width + LINKS_GAP) + g->label + turn * g->cell;
        fprintf(out, "<path class=\"turn\" d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#1f2937\" fill=\"none\"/>\n", x,
                g->top - 2, x, g->top + rows * g->pitch);
    }
}

static inline void write_links_key(Key* key, const Source* s, const UseKinds* k) {
    const int turn = plan_turn(s->plan);
    key_box(key, 0xeef1f5, "", "idle");
    if (k->several) key_box(key, owner_colour(NULL, -1), "", "chunks of several ranks");
    if (k->crowded) key_box(key, CROWDED, "2", "more messages than it has room for: so many");
    if (turn > 0) key_box(key, 0x5b7fa6, "", "share in steps that add");
    if (turn < s->plan->steps)
        key_box(key, 0x9dbad8, "", turn > 0 || s->plan->kind == PLAN_ALL_GATHER ? "in steps that put" : "busy");
    key_arrow(key, 0xb3372f, true, false, "mean");
}

static inline void links_text(Sheet* sheet, const Source* s) {
    char name[256];
    source_name(name, sizeof name, s);
    snprintf(sheet->title, sizeof sheet->title, "%s: %d links in %d step%s", name, s->net->links, s->plan->steps,
             s->plan->steps == 1 ? "" : "s");
    snprintf(sheet->text, sizeof sheet->text,
             "A row is a link, a column a step. Where a cell is filled the link is in use, in the colour of the rank "
             "that the chunk belongs to.");
}

static inline bool draw_links(const Source* s, FILE* out, Error* error) {
    const int links = s->net->links, steps = s->plan->steps;
    int64_t busy = 0;
    Sheet sheet;
    memset(&sheet, 0, sizeof sheet);
    links_text(&sheet, s);
    Use* uses = link_uses(s);
    const UseKinds kinds = use_kinds(s, uses);
    LinkGrid g = link_grid(s, &sheet, 0);
    Key count = {NULL, SHEET_MARGIN, sheet.width - SHEET_MARGIN, SHEET_MARGIN, 0};
    write_links_key(&count, s, &kinds);
    sheet.height += count.y + 18;
    if (g.cell < 1.5 || sheet.height > SHEET_TALLEST) {
        free(uses);
        return fail(error, "%d steps of %d links: more than can be seen; take a smaller network", steps, links);
    }
    for (int i = 0; i < steps; i++) busy += uses_busy(uses + (size_t)i * (size_t)links, links);
    const double mean = (double)busy / ((double)links * steps);
    char text[128];
    snprintf(text, sizeof text, "mean use %.3f: a link is busy in %.4g of %d steps", mean, mean * steps, steps);
    write_begin(out, &sheet);
    write_chart(out, s, &g, uses, mean);
    write_owner_key(out, s, &g);
    for (int b = 1; b < g.blocks; b++)
        write_step_numbers(out, &g, g.left + b * (g.width + LINKS_GAP) + g.label, g.top - 6, steps);
    write_rows(out, s, &g);
    write_cells(out, s, &g, uses);
    write_cell_numbers(out, s, &g, uses);
    write_turn(out, s, &g);
    Key key = {out, SHEET_MARGIN, sheet.width - SHEET_MARGIN, SHEET_MARGIN, sheet.key + 28};
    write_label(out, SHEET_MARGIN, sheet.key + 8, SVG_FONT, "start", "font-weight=\"bold\"", text);
    write_links_key(&key, s, &kinds);
    fputs("</svg>\n", out);
    free(uses);
    return true;
}

// ----------------------------------------------------------------------------------------------------------------

static inline bool collective_can_be_seen(const Network* net, Error* error) {
    if (net->ranks < 2) return fail(error, "network %s: one rank has nothing to send", net->name);
    if (net->ranks > MOST_RANKS || net->vertices > 4 * MOST_RANKS || net->links > MOST_LINKS)
        return fail(
            error, "network %s: %d ranks, %d switches, %d links; no more than %d, %d and %d can be seen in a picture",
            net->name, net->ranks, net->vertices - net->ranks, net->links, MOST_RANKS, 3 * MOST_RANKS, MOST_LINKS);
    return true;
}

static inline bool collective_draw(const Network* net, const Plan* plan, const CollectiveOptions* o, FILE* out,
                                   Error* error) {
    if (plan->chunks > MOST_CHUNKS)
        return fail(error, "%s on %s: %d chunks; no more than %d can be seen in a picture", plan->name, net->name,
                    plan->chunks, MOST_CHUNKS);
    Source s = source_new(net, plan);
    Map map = map_new(net);
    const bool ok = o->what == DRAW_TREES   ? draw_trees(&s, &map, o->tree, out, error)
                    : o->what == DRAW_STEPS ? draw_steps(&s, &map, out, error)
                                            : draw_links(&s, out, error);
    map_free(&map);
    source_free(&s);
    return ok;
}

// The program: prints to out and returns its exit status, with an error if that is not 0.
static inline int draw_collective(int argc, char** argv, FILE* out, Error* error) {
    CollectiveOptions o = collective_options_default();
    Option table[COLLECTIVE_OPTIONS];
    Network net;
    Plan plan;
    const int n = collective_table(table, &o);
    if (!options_parse(table, n, argc, argv, error)) return EXIT_ARGUMENTS;
    if (o.help) {
        fprintf(out, "draw_collective draws all-reduce, reduce-scatter and all-gather on a network, as SVG.\n\n");
        options_help(table, n, out);
        return 0;
    }
    if (!o.topology) return fail(error, "--topology NAME is missing: which network, torus:4x4"), EXIT_ARGUMENTS;
    if (o.tree >= 0 && o.what != DRAW_TREES) return fail(error, "--tree needs --what trees"), EXIT_ARGUMENTS;
    if (!network_build(&net, o.topology, error)) return EXIT_ARGUMENTS;
    bool ok = collective_can_be_seen(&net, error);
    if (ok && collective_build(&plan, o.algorithm, (PlanKind)o.kind, &net, error)) {
        ok = collective_draw(&net, &plan, &o, out, error);
        plan_free(&plan);
    } else {
        ok = false;
    }
    network_free(&net);
    if (!ok) return EXIT_ARGUMENTS;
    if (fflush(out) != 0 || ferror(out)) return fail(error, "writing failed: %s", strerror(errno)), EXIT_RUN;
    return 0;
}

#ifndef DRAW_COLLECTIVE_NO_MAIN
int main(int argc, char** argv) {
    process.name = "draw_collective";
    Error error;
    const int status = draw_collective(argc, argv, stdout, &error);
    if (status == EXIT_ARGUMENTS) die_usage("%s", error.text);
    if (status != 0) die("%s", error.text);
    return 0;
}
#endif
