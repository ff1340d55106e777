/*
draw_collective.c: collectives as SVG pictures, from the plans that the trainer executes (comm/collectives/plan.h).

    draw_collective --topology torus:4x4 --algorithm multitree --what trees >trees.svg
    draw_collective --topology mesh:3x3 --algorithm ring --kind all-gather --what steps >steps.svg
    draw_collective --topology torus:8x8 --algorithm multitree --what links >links.svg

    trees    for each tree the way of its chunks out from the root (of a reduce-scatter: in to it). An arrow is a
             message on one link, its colour the step. --tree N: only one of them
    steps    the network once for each step. An arrow is a link in use, its colour the rank that the chunk belongs to
    links    a row for each link, a column for each step; above, the share of the links that is busy
    table    text: MultiTree's rows of each rank's network interface (collective_table.h)

Theory: a chunk of a reduce-scatter or all-gather belongs to the rank that ends or begins with it, a chunk of an
all-reduce to the rank that is never sent the sum, as it has the sum first. Grids are drawn as grids, layers of three
dimensions side by side; links around the end or to another layer are two stubs. Switches stand in levels above the
ranks where no link joins two of one level; all other networks are circles. The two directions of a link keep to the
right.
*/
#include "../../comm/collectives/collectives.h"
#include "../../planner/plan_cost.h"
#include "../../util/options.h"
#include "collective_table.h"
#include "svg_timeline.h"

typedef enum { DRAW_TREES, DRAW_STEPS, DRAW_LINKS, DRAW_TABLE } CollectivePicture;

typedef struct {
    const char *topology, *algorithm;
    int kind, what; // choices
    int64_t tree;   // -1: all
    bool help;
} CollectiveOptions;

enum { MAX_RANKS = 256, MAX_LINKS = 4096, MAX_CHUNKS = 1 << 14 };

// ---- What a plan says: owners of chunks, links in use, trees ----------------------------------------------------

typedef struct {
    const Network* net;
    const Plan* plan;
    Routes routes;
    int64_t* first; // (chunks + 1): the rows of chunk c are rows[first[c]] to rows[first[c + 1] - 1]
    int32_t* rows;
    int* owner;     // (chunks): the rank that a chunk belongs to
    int* way;       // (vertices): scratch of plan_way
    double slowest; // bandwidth of a link
} Source;

static int chunk_owner(const Source* s, int chunk) {
    const Plan* plan = s->plan;
    const int usual = (int)((int64_t)chunk * plan->ranks / plan->chunks);
    bool put[MAX_RANKS] = {false};
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

static Source source_new(const Network* net, const Plan* plan) {
    Source s = {net, plan, network_routes(net), NULL, NULL, NULL, NULL, network_slowest(net)};
    plan_by_chunk(plan, &s.first, &s.rows);
    s.owner = (int*)checked_malloc((size_t)plan->chunks * sizeof(int), "the picture");
    s.way = (int*)checked_malloc((size_t)net->vertices * sizeof(int), "the picture");
    for (int c = 0; c < plan->chunks; c++) s.owner[c] = chunk_owner(&s, c);
    return s;
}

static void source_free(Source* s) {
    routes_free(&s->routes);
    free(s->first);
    free(s->rows);
    free(s->owner);
    free(s->way);
}

// What a link does in a step.
typedef struct {
    int transfers, adds;
    int owner; // of what it carries; -1: chunks of several ranks
} Use;

// (steps, links). Freed by free.
static Use* link_uses(const Source* s) {
    const Plan* plan = s->plan;
    const size_t links = (size_t)s->net->links;
    Use* uses = (Use*)checked_calloc((size_t)plan->steps * links + 1, sizeof(Use), "the uses of links");
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        int owner = s->owner[t->chunk];
        for (int c = 1; c < t->chunks; c++) {
            if (s->owner[t->chunk + c] != s->owner[t->chunk]) owner = -1;
        }
        for (int k = plan_way(plan, s->net, &s->routes, i, s->way) - 1; k >= 0; k--) {
            Use* use = &uses[(size_t)t->step * links + (size_t)s->way[k]];
            use->owner = use->transfers == 0 || use->owner == owner ? owner : -1;
            use->transfers++;
            use->adds += t->add;
        }
    }
    return uses;
}

static int count_busy(const Use* uses, int links) {
    int busy = 0;
    for (int l = 0; l < links; l++) busy += uses[l].transfers > 0;
    return busy;
}

typedef struct {
    int root;
    int64_t* row; // (ranks): the transfer that joins a rank to its parent; -1 for the root
} Tree;

typedef struct {
    int n, capacity;
    int first_step, steps; // in which the trees' messages are sent
    Tree* tree;
} TreeList;

static void tree_list_free(TreeList* list) {
    for (int i = 0; i < list->n; i++) free(list->tree[i].row);
    free(list->tree);
}

// Finds the way of one chunk; fails where it is no tree of all ranks.
static bool tree_of_chunk(const Source* s, int chunk, Tree* tree, Error* error) {
    const Plan* plan = s->plan;
    const bool up = plan->kind == PLAN_REDUCE_SCATTER;
    int edges = 0;
    for (int r = 0; r < plan->ranks; r++) tree->row[r] = -1;
    for (int64_t i = s->first[chunk]; i < s->first[chunk + 1]; i++) {
        const Transfer* t = &plan->transfers[s->rows[i]];
        const int child = up ? t->from : t->to;
        if (t->add != up) continue;
        edges += tree->row[child] < 0 ? 1 : plan->ranks;
        tree->row[child] = s->rows[i];
    }
    for (int r = 0; r < plan->ranks; r++) {
        if (tree->row[r] < 0) tree->root = r;
    }
    return edges == plan->ranks - 1 ||
           fail(error, "%s on %s: the way of chunk %d is no tree of all ranks; take --what steps or links", plan->name,
                s->net->name, chunk);
}

static bool trees_are_same(const Plan* plan, const Tree* a, const Tree* b) {
    for (int r = 0; r < plan->ranks; r++) {
        if (a->row[r] < 0 || b->row[r] < 0) {
            if (a->row[r] != b->row[r]) return false;
            continue;
        }
        const Transfer *x = &plan->transfers[a->row[r]], *y = &plan->transfers[b->row[r]];
        if (x->from != y->from || x->to != y->to) return false;
    }
    return true;
}

// The distinct trees of all chunks.
static bool tree_list(const Source* s, TreeList* list, Error* error) {
    const Plan* plan = s->plan;
    int last = 0;
    memset(list, 0, sizeof *list);
    list->first_step = plan->steps;
    for (int64_t i = 0; i < plan->n; i++) {
        if (plan->transfers[i].add != (plan->kind == PLAN_REDUCE_SCATTER)) continue;
        list->first_step = (int)min_i64(list->first_step, plan->transfers[i].step);
        last = (int)max_i64(last, plan->transfers[i].step);
    }
    list->steps = last + 1 - list->first_step;
    for (int c = 0; c < s->plan->chunks; c++) {
        Tree tree = {0, (int64_t*)checked_malloc((size_t)s->plan->ranks * sizeof(int64_t), "a tree")};
        int same = 0;
        if (!tree_of_chunk(s, c, &tree, error)) {
            free(tree.row);
            tree_list_free(list);
            return false;
        }
        while (same < list->n && !trees_are_same(s->plan, &list->tree[same], &tree)) same++;
        if (same < list->n) {
            free(tree.row);
            continue;
        }
        if (list->n == list->capacity)
            list->tree = (Tree*)checked_grow(list->tree, &list->capacity, 64, sizeof(Tree), "the trees");
        list->tree[list->n++] = tree;
    }
    return true;
}

// ---- Colours ----------------------------------------------------------------------------------------------------

enum { COLOUR_CROWDED = 0x22272e, COLOUR_SEVERAL = 0x8c959f, COLOUR_IDLE = 0xd8dee5, COLOUR_TEXT = 0x1f2937 };

// A hue (0 to 1: red, green, blue, red), mixed with white or black; light: 0 to 1.
static unsigned hue_colour(double hue, double light) {
    unsigned colour = 0;
    for (int i = 0; i < 3; i++) {
        const double pure = fmin(1, fmax(0, fabs(fmod(6 * hue + (6 - 2 * i) % 6, 6) - 3) - 1));
        colour = colour << 8 | (unsigned)lround(255 * (light + (pure - 0.5) * 0.7 * fmin(light, 1 - light) * 2));
    }
    return colour;
}

static unsigned step_colour(int step, int steps) {
    const double along = steps > 1 ? (double)step / (steps - 1) : 0;
    return hue_colour(fmod(0.66 + 0.46 * along, 1), 0.35 + 0.2 * along);
}

// The hue goes around once over the ranks.
static unsigned owner_colour(const Network* net, int rank) {
    return rank < 0 ? (unsigned)COLOUR_SEVERAL : hue_colour((double)rank / net->ranks, 0.5);
}

static unsigned use_colour(const Source* s, const Use* use, int l) {
    if (use->transfers > plan_room(&s->net->link[l], s->slowest)) return COLOUR_CROWDED;
    return owner_colour(s->net, use->owner);
}

// ---- Where vertices are, in units: neighbours are about one apart -----------------------------------------------

typedef struct {
    double x, y;
} Point;

typedef struct {
    const Network* net;
    Point* at; // (vertices), from 0
    double width, height, margin;
} Map;

// Along which dimension a grid's link leads, and in which direction; how far in coordinates.
static int grid_link_dimension(const Network* net, const Link* link, int* by) {
    int i = 0;
    *by = 0;
    for (; i < net->dimensions; i++) {
        *by = network_coordinate(net, link->to, i) - network_coordinate(net, link->from, i);
        if (*by) break;
    }
    return i;
}

// Whether a link is drawn as two stubs; u: in which direction they lead.
static bool map_stub(const Map* map, int l, Point* u) {
    const Network* net = map->net;
    int by;
    if (net->dimensions < 2) return false;
    const int across = net->dimensions - 1 - grid_link_dimension(net, &net->link[l], &by); // 0: sideways, 1: down
    if (across < 2 && abs(by) == 1) return false;
    const double sign = by == 1 || by < -1 ? 1 : -1;
    const Point directions[3] = {{sign, 0}, {0, sign}, {sign * M_SQRT1_2, -sign * M_SQRT1_2}};
    *u = directions[across < 2 ? across : 2];
    return true;
}

static void map_grid(Map* map) {
    const Network* net = map->net;
    const int n = net->dimensions, rows = net->sides[n - 2], columns = net->sides[n - 1];
    const int beside = n > 2 ? (int)ceil(sqrt(net->sides[0])) : 1;
    for (int r = 0; r < net->ranks; r++) {
        const int layer = r / (rows * columns);
        map->at[r].x = network_coordinate(net, r, n - 1) + layer % beside * (columns + 0.6);
        map->at[r].y = network_coordinate(net, r, n - 2) + layer / beside * (rows + 0.6);
    }
    map->margin = net->wraps || n > 2 ? 0.68 : 0.3;
}

// Ranks on a circle, clockwise from the top, and switches on a smaller one.
static void map_circle(Map* map) {
    const int N = map->net->ranks, switches = map->net->vertices - N;
    const double inside = switches > 1 ? 0.7 / sin(M_PI / switches) : 0;
    const double outside = fmax(0.5 / sin(M_PI / fmax(2, N)), switches ? inside + 1.3 : 0);
    for (int v = 0; v < map->net->vertices; v++) {
        const double angle = v < N ? 2 * M_PI * v / N : 2 * M_PI * (v - N) / switches;
        const double radius = v < N ? outside : inside;
        map->at[v].x = radius * sin(angle);
        map->at[v].y = -radius * cos(angle);
    }
}

// How far each vertex is from the nearest rank. Whether no link joins two of one level.
static bool map_levels(const Network* net, int* level) {
    bool apart = true;
    for (int v = 0; v < net->vertices; v++) level[v] = v < net->ranks ? 0 : -1;
    for (int l = 0; l < net->vertices; l++) {
        for (int i = 0; i < net->links; i++) {
            const Link* link = &net->link[i];
            if (level[link->from] == l && level[link->to] < 0) level[link->to] = l + 1;
        }
    }
    for (int i = 0; i < net->links; i++) apart = apart && level[net->link[i].from] != level[net->link[i].to];
    return apart;
}

// Ranks at the bottom, switches in levels above them; a circle where there are no levels.
static void map_switched(Map* map) {
    const Network* net = map->net;
    int* level = (int*)checked_calloc((size_t)net->vertices, sizeof(int), "the picture");
    if (!map_levels(net, level)) {
        map_circle(map);
        free(level);
        return;
    }
    for (int v = 0; v < net->vertices; v++) {
        int n = 0, before = 0;
        for (int o = 0; o < net->vertices; o++) {
            n += level[o] == level[v];
            before += level[o] == level[v] && o < v;
        }
        map->at[v].x = (before + 0.5) * net->ranks / n;
        map->at[v].y = -1.7 * level[v];
    }
    free(level);
}

static Map map_new(const Network* net) {
    Map map = {net, (Point*)checked_calloc((size_t)net->vertices, sizeof(Point), "the picture"), 0, 0, 0.3};
    if (network_has_switches(net))
        map_switched(&map);
    else if (net->dimensions > 1)
        map_grid(&map);
    else
        map_circle(&map);
    Point low = map.at[0];
    for (int v = 1; v < net->vertices; v++) {
        low.x = fmin(low.x, map.at[v].x);
        low.y = fmin(low.y, map.at[v].y);
    }
    for (int v = 0; v < net->vertices; v++) {
        map.at[v].x -= low.x;
        map.at[v].y -= low.y;
        map.width = fmax(map.width, map.at[v].x);
        map.height = fmax(map.height, map.at[v].y);
    }
    return map;
}

// ---- A sheet: a title, panels in rows, a key --------------------------------------------------------------------

enum { SHEET_WIDTH = 1020, SHEET_HEIGHT = 9000, SHEET_GAP = 22, SHEET_TOP = 68, SHEET_KEY = 34 };

typedef struct {
    char title[320];
    const char* text;
    int panels, columns;
    double unit;                      // pixels
    double panel_width, panel_height; // with its title
    double width, height;
} Sheet;

static void write_label(FILE* out, double x, double y, double font, const char* anchor, unsigned fill,
                        const char* text) {
    char attributes[96];
    snprintf(attributes, sizeof attributes, "font-size=\"%g\" text-anchor=\"%s\" fill=\"#%06x\"", font, anchor, fill);
    svg_write_text(out, x, y, attributes, text);
}

static unsigned ink_on(unsigned colour) { return svg_is_dark(colour) ? 0xffffff : COLOUR_TEXT; }

static void sheet_name(Sheet* sheet, const Source* s, const char* text) {
    snprintf(sheet->title, sizeof sheet->title, "%s on %s, %s", s->plan->name, s->net->name,
             plan_kind_name(s->plan->kind));
    sheet->text = text;
    sheet->width = 2 * SVG_MARGIN + fmax(svg_text_width(sheet->title, 1.08 * 15), svg_text_width(text, SVG_FONT));
}

// The largest unit with which the panels fit on a page; else the smallest that can be read, on a long page.
static bool sheet_place(Sheet* sheet, const Map* map, double head, Error* error) {
    const double least = sheet->width;
    for (sheet->unit = 60; sheet->unit >= 18; sheet->unit -= 3) {
        sheet->panel_width = fmax(head, (map->width + 2 * map->margin) * sheet->unit) + SHEET_GAP;
        sheet->panel_height = (map->height + 2 * map->margin) * sheet->unit + SHEET_GAP + 18;
        const int most = (int)fmax(1, floor(SHEET_WIDTH / sheet->panel_width)),
                  rows = (sheet->panels + most - 1) / most;
        sheet->columns = (sheet->panels + rows - 1) / rows;
        sheet->width = fmax(least, 2 * SVG_MARGIN + sheet->columns * sheet->panel_width);
        sheet->height = SHEET_TOP + rows * sheet->panel_height + SHEET_KEY;
        if (sheet->columns * sheet->panel_width <= SHEET_WIDTH && sheet->height <= 1400) return true;
    }
    return sheet->height <= SHEET_HEIGHT ||
           fail(error, "%d panels of %d ranks are more than can be seen; take one --tree, --what links, or fewer ranks",
                sheet->panels, map->net->ranks);
}

static void write_begin(FILE* out, const Sheet* sheet) {
    svg_write_begin(out, sheet->width, sheet->height, SVG_MARGIN, sheet->title);
    write_label(out, SVG_MARGIN, SVG_MARGIN + 34, SVG_FONT, "start", 0x57606a, sheet->text);
}

// How the network is drawn in a panel.
typedef struct {
    FILE* out;
    const Map* map;
    double unit, left, top, radius; // pixels
} Pen;

static Pen sheet_pen(FILE* out, const Sheet* sheet, const Map* map, int i, const char* title) {
    const double left = SVG_MARGIN + i % sheet->columns * sheet->panel_width;
    const double top = SHEET_TOP + i / sheet->columns * sheet->panel_height;
    const double inner = sheet->panel_width - SHEET_GAP;
    const Pen pen = {out,
                     map,
                     sheet->unit,
                     left + (inner - map->width * sheet->unit) / 2,
                     top + 18 + map->margin * sheet->unit,
                     0.22 * sheet->unit};
    svg_write_text(out, left + inner / 2, top + 8, "font-size=\"11\" text-anchor=\"middle\" font-weight=\"bold\"",
                   title);
    return pen;
}

static Point point_along(Point a, Point u, double length) {
    const Point p = {a.x + length * u.x, a.y + length * u.y};
    return p;
}

// A link as one line, or as two stubs; `off` pixels to the right. Returns how many.
static int link_lines(const Pen* pen, int l, Point from[2], Point to[2], Point* u) {
    const Network* net = pen->map->net;
    const Link* link = &net->link[l];
    const Point *x = &pen->map->at[link->from], *y = &pen->map->at[link->to];
    int lane = 0;
    for (int k = network_link(net, link->from, link->to); k < l; k++) lane += net->link[k].to == link->to;
    const double off = 0.15 * (lane + 0.5) * pen->unit, gap = pen->radius + 0.03 * pen->unit;
    const double trim = off < gap ? sqrt(gap * gap - off * off) : 0;
    const bool stub = map_stub(pen->map, l, u);
    const double length = stub ? 0.56 : hypot(y->x - x->x, y->y - x->y);
    if (!stub) {
        u->x = (y->x - x->x) / length;
        u->y = (y->y - x->y) / length;
    }
    const Point a = {pen->left + pen->unit * x->x - off * u->y, pen->top + pen->unit * x->y + off * u->x};
    const Point b = {pen->left + pen->unit * y->x - off * u->y, pen->top + pen->unit * y->y + off * u->x};
    const double end = stub ? length * pen->unit : length * pen->unit - trim, start = length * pen->unit;
    from[0] = point_along(a, *u, trim);
    to[0] = point_along(a, *u, end);
    from[1] = point_along(b, *u, -start);
    to[1] = point_along(b, *u, -trim);
    return stub ? 2 : 1;
}

// The path of a link that ends `head` pixels before its end. Returns that point; tip: the end itself.
static Point write_path(const Pen* pen, int l, double head, Point* tip, Point* u) {
    Point from[2], to[2];
    const int n = link_lines(pen, l, from, to, u);
    *tip = to[n - 1];
    to[n - 1].x -= head * u->x;
    to[n - 1].y -= head * u->y;
    for (int i = 0; i < n; i++) fprintf(pen->out, "M%.1f %.1fL%.1f %.1f", from[i].x, from[i].y, to[i].x, to[i].y);
    return to[n - 1];
}

static void write_arrow(const Pen* pen, int l, unsigned colour) {
    const double head = 0.17 * pen->unit, half = 0.4 * head;
    Point tip, u;
    fprintf(pen->out, "<path stroke=\"#%06x\" d=\"", colour);
    const Point foot = write_path(pen, l, head, &tip, &u);
    fprintf(pen->out, "\"/>\n<path stroke=\"none\" fill=\"#%06x\" d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fz\"/>\n", colour,
            foot.x - half * u.y, foot.y + half * u.x, foot.x + half * u.y, foot.y - half * u.x, tip.x, tip.y);
}

// The links that are not in use; uses NULL: all links.
static void write_idle(const Pen* pen, const Use* uses) {
    fprintf(pen->out, "<path class=\"idle\" stroke=\"#%06x\" fill=\"none\" d=\"", COLOUR_IDLE);
    for (int l = 0; l < pen->map->net->links; l++) {
        Point tip, u;
        if (!uses || !uses[l].transfers) write_path(pen, l, 0, &tip, &u);
    }
    fputs("\"/>\n", pen->out);
}

// A rank is a circle, a switch a square.
static void write_vertex(const Pen* pen, int v, unsigned fill) {
    const double x = pen->left + pen->unit * pen->map->at[v].x, y = pen->top + pen->unit * pen->map->at[v].y;
    const double r = pen->radius, font = fmin(11, v < 100 ? r : 0.8 * r);
    char number[16];
    snprintf(number, sizeof number, "%d", v);
    if (v < pen->map->net->ranks)
        fprintf(pen->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.2f\" fill=\"#%06x\"/>\n", x, y, r, fill);
    else
        svg_write_fill(pen->out, x - r, y - r, 2 * r, 2 * r, fill);
    write_label(pen->out, x, y + 0.36 * font, font, "middle", ink_on(fill), number);
}

// ---- Trees ------------------------------------------------------------------------------------------------------

static void write_tree(const Pen* pen, const Source* s, const TreeList* list, const Tree* tree) {
    const Network* net = s->net;
    write_idle(pen, NULL);
    fprintf(pen->out, "<g class=\"tree\" stroke-width=\"%.3g\">\n", 0.045 * pen->unit);
    for (int r = 0; r < s->plan->ranks; r++) {
        if (tree->row[r] < 0) continue;
        const int step = s->plan->transfers[tree->row[r]].step - list->first_step;
        for (int k = plan_way(s->plan, net, &s->routes, tree->row[r], s->way) - 1; k >= 0; k--)
            write_arrow(pen, s->way[k], step_colour(step, list->steps));
    }
    fputs("</g>\n", pen->out);
    for (int v = 0; v < net->vertices; v++) write_vertex(pen, v, v == tree->root ? COLOUR_TEXT : 0xe9edf2);
}

// A swatch for each step.
static void write_step_key(FILE* out, const Sheet* sheet, int first, int steps) {
    const double width = fmin(28, (sheet->width - 2 * SVG_MARGIN - 44) / steps), y = sheet->height - SHEET_KEY;
    write_label(out, SVG_MARGIN, y + 12, SVG_FONT, "start", COLOUR_TEXT, "step");
    for (int i = 0; i < steps; i++) {
        char number[16];
        const double x = SVG_MARGIN + 36 + i * width;
        snprintf(number, sizeof number, "%d", first + i + 1);
        svg_write_fill(out, x, y, width, 16, step_colour(i, steps));
        if (width >= 18) write_label(out, x + width / 2, y + 12, 10.5, "middle", ink_on(step_colour(i, steps)), number);
    }
}

static bool draw_trees(const Source* s, const Map* map, int64_t only, FILE* out, Error* error) {
    TreeList list;
    Sheet sheet;
    if (!tree_list(s, &list, error)) return false;
    const int first = only < 0 ? 0 : (int)only;
    sheet_name(&sheet, s,
               s->plan->kind == PLAN_REDUCE_SCATTER ? "How the sum of a chunk comes together at the root of its tree."
                                                    : "How a chunk goes out from the root of its tree.");
    sheet.panels = only < 0 ? list.n : 1;
    const bool ok =
        (only < list.n || fail(error, "--tree %lld: there are trees 0 to %d", (long long)only, list.n - 1)) &&
        sheet_place(&sheet, map, 100, error);
    if (ok) {
        write_begin(out, &sheet);
        for (int i = 0; i < sheet.panels; i++) {
            char title[64];
            snprintf(title, sizeof title, "tree %d, root %d", first + i, list.tree[first + i].root);
            const Pen pen = sheet_pen(out, &sheet, map, i, title);
            write_tree(&pen, s, &list, &list.tree[first + i]);
        }
        write_step_key(out, &sheet, list.first_step, list.steps);
        fputs("</svg>\n", out);
    }
    tree_list_free(&list);
    return ok;
}

// ---- Steps ------------------------------------------------------------------------------------------------------

static void write_step(const Pen* pen, const Source* s, const Use* uses) {
    write_idle(pen, uses);
    for (int put = 0; put < 2; put++) {
        fprintf(pen->out, "<g class=\"%s\" stroke-width=\"%.3g\"%s>\n", put ? "put" : "add", 0.04 * pen->unit,
                put ? " stroke-dasharray=\"6 3\"" : "");
        for (int l = 0; l < s->net->links; l++) {
            if (uses[l].transfers && (uses[l].adds == 0) == put) write_arrow(pen, l, use_colour(s, &uses[l], l));
        }
        fputs("</g>\n", pen->out);
    }
    for (int v = 0; v < s->net->vertices; v++)
        write_vertex(pen, v, v < s->net->ranks ? owner_colour(s->net, v) : 0xe9edf2);
}

static bool draw_steps(const Source* s, const Map* map, FILE* out, Error* error) {
    const int steps = s->plan->steps, links = s->net->links;
    char title[96];
    Sheet sheet;
    sheet_name(&sheet, s,
               "A colour is the rank that a chunk belongs to; gray: several ranks; black: more messages than there is "
               "room for. Solid arrows add, dashed ones replace.");
    sheet.panels = steps;
    snprintf(title, sizeof title, "step %d of %d: %d of %d links", steps, steps, links, links);
    if (!sheet_place(&sheet, map, svg_text_width(title, 11), error)) return false;
    Use* uses = link_uses(s);
    write_begin(out, &sheet);
    for (int i = 0; i < steps; i++) {
        const Use* used = uses + (size_t)i * (size_t)links;
        snprintf(title, sizeof title, "step %d of %d: %d of %d links", i + 1, steps, count_busy(used, links), links);
        const Pen pen = sheet_pen(out, &sheet, map, i, title);
        write_step(&pen, s, used);
    }
    fputs("</svg>\n", out);
    free(uses);
    return true;
}

// ---- Links ------------------------------------------------------------------------------------------------------

enum { CHART_HEIGHT = 92, BLOCK_ROWS = 64, ROW_HEIGHT = 11, LABEL_WIDTH = 44 };

// Share of the links that is busy, a bar a step.
static void write_chart(FILE* out, const Source* s, const Use* uses, double cell) {
    const int links = s->net->links;
    const double left = SVG_MARGIN + LABEL_WIDTH, bottom = SHEET_TOP + CHART_HEIGHT;
    write_label(out, left - 5, bottom - CHART_HEIGHT + 8, 9, "end", 0x57606a, "100 %");
    write_label(out, left - 5, bottom, 9, "end", 0x57606a, "0 %");
    fputs("<g class=\"share\">\n", out);
    for (int i = 0; i < s->plan->steps; i++) {
        const double share = (double)count_busy(uses + (size_t)i * (size_t)links, links) / links;
        svg_write_fill(out, left + i * cell, bottom - share * CHART_HEIGHT, 0.9 * cell, share * CHART_HEIGHT, 0x5b7fa6);
    }
    fputs("</g>\n", out);
}

// Where the row of a link begins: blocks of rows stand side by side.
static Point row_at(int l, double block, double top) {
    const Point p = {SVG_MARGIN + LABEL_WIDTH + l / BLOCK_ROWS * block, top + l % BLOCK_ROWS * ROW_HEIGHT};
    return p;
}

static void write_rows(FILE* out, const Source* s, double block, double top, double width) {
    for (int l = 0; l < s->net->links; l++) {
        const Point p = row_at(l, block, top);
        char label[32];
        snprintf(label, sizeof label, "%d>%d", s->net->link[l].from, s->net->link[l].to);
        write_label(out, p.x - 4, p.y + ROW_HEIGHT - 3, 9, "end", COLOUR_TEXT, label);
        svg_write_fill(out, p.x, p.y, width, ROW_HEIGHT - 1.5, 0xeef1f5);
    }
}

// A path for each owner, a stroke for each step in which a link is in use. owner -2: crowded links.
static void write_cells(FILE* out, const Source* s, const Use* uses, double block, double top, double cell) {
    const int links = s->net->links;
    for (int owner = -2; owner < s->net->ranks; owner++) {
        const unsigned colour = owner == -2 ? (unsigned)COLOUR_CROWDED : owner_colour(s->net, owner);
        fprintf(out, "<path class=\"cells\" stroke-width=\"%g\" stroke=\"#%06x\" d=\"", ROW_HEIGHT - 1.5, colour);
        for (int64_t i = 0; i < (int64_t)s->plan->steps * links; i++) {
            const int l = (int)(i % links), step = (int)(i / links);
            const bool crowded = uses[i].transfers > plan_room(&s->net->link[l], s->slowest);
            if (!uses[i].transfers || owner != (crowded ? -2 : uses[i].owner)) continue;
            const Point p = row_at(l, block, top);
            fprintf(out, "M%.1f %.1fh%.1f", p.x + step * cell, p.y + (ROW_HEIGHT - 1.5) / 2, 0.9 * cell);
        }
        fputs("\"/>\n", out);
    }
}

// The colours of the ranks, in lines.
static void write_owner_key(FILE* out, const Sheet* sheet, const Network* net, double top) {
    const int columns = (int)((sheet->width - 2 * SVG_MARGIN) / 20);
    for (int r = 0; r < net->ranks; r++) {
        const double x = SVG_MARGIN + r % columns * 20, y = top + r / columns * 16;
        char number[16];
        snprintf(number, sizeof number, "%d", r);
        svg_write_fill(out, x, y, 19, 15, owner_colour(net, r));
        write_label(out, x + 9.5, y + 11, 9, "middle", ink_on(owner_colour(net, r)), number);
    }
}

static bool draw_links(const Source* s, FILE* out, Error* error) {
    const int links = s->net->links, steps = s->plan->steps, blocks = (links + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const double wide = (double)(SHEET_WIDTH - 2 * SVG_MARGIN) / blocks - SHEET_GAP;
    const double cell = fmin(18, fmax(4, (wide - LABEL_WIDTH) / steps)), block = LABEL_WIDTH + cell * steps + SHEET_GAP;
    int64_t busy = 0;
    char text[256];
    Sheet sheet;
    Use* uses = link_uses(s);
    for (int i = 0; i < steps; i++) busy += count_busy(uses + (size_t)i * (size_t)links, links);
    const double mean = (double)busy / ((double)links * steps);
    snprintf(
        text, sizeof text,
        "A row is a link, a column a step, a colour the rank that the chunk belongs to. Mean use %.3f: a link is busy "
        "in %.4g of %d steps.",
        mean, mean * steps, steps);
    sheet_name(&sheet, s, text);
    sheet.width = fmax(sheet.width, 2 * SVG_MARGIN + blocks * block);
    const double top = SHEET_TOP + CHART_HEIGHT + 20, key = top + fmin(links, (double)BLOCK_ROWS) * ROW_HEIGHT + 16;
    sheet.height = key + 16 * ceil(20.0 * s->net->ranks / (sheet.width - 2 * SVG_MARGIN - 20)) + SVG_MARGIN;
    const bool ok = sheet.width <= SHEET_HEIGHT ||
                    fail(error, "%d steps of %d links are more than can be seen; take fewer ranks", steps, links);
    if (ok) {
        write_begin(out, &sheet);
        write_chart(out, s, uses, cell);
        write_rows(out, s, block, top, cell * steps);
        write_cells(out, s, uses, block, top, cell);
        write_owner_key(out, &sheet, s->net, key);
        fputs("</svg>\n", out);
    }
    free(uses);
    return ok;
}

// ---- The program ------------------------------------------------------------------------------------------------

static bool collective_draw(const Network* net, const Plan* plan, const CollectiveOptions* o, FILE* out, Error* error) {
    if (plan->chunks > MAX_CHUNKS)
        return fail(error, "%s on %s has %d chunks; pictures have at most %d", plan->name, net->name, plan->chunks,
                    MAX_CHUNKS);
    Source s = source_new(net, plan);
    Map map = map_new(net);
    bool ok = false;
    switch ((CollectivePicture)o->what) {
    case DRAW_TREES: ok = draw_trees(&s, &map, o->tree, out, error); break;
    case DRAW_STEPS: ok = draw_steps(&s, &map, out, error); break;
    case DRAW_LINKS: ok = draw_links(&s, out, error); break;
    case DRAW_TABLE: ok = write_collective_table(plan, s.owner, out, error); break;
    }
    free(map.at);
    source_free(&s);
    return ok;
}

static bool network_fits(const Network* net, Error* error) {
    if (net->ranks < 2) return fail(error, "network %s: one rank has nothing to send", net->name);
    return (net->ranks <= MAX_RANKS && net->vertices <= 4 * MAX_RANKS && net->links <= MAX_LINKS) ||
           fail(error, "network %s: %d ranks, %d links; pictures have at most %d and %d", net->name, net->ranks,
                net->links, MAX_RANKS, MAX_LINKS);
}

// Prints to out, and nothing before all is known to be right. Returns the exit status, with an error if it is not 0.
static int draw_collective(int argc, char** argv, FILE* out, Error* error) {
    CollectiveOptions o = {NULL, "multitree", PLAN_ALL_REDUCE, DRAW_TREES, -1, false};
    Network net;
    Plan plan;
    Option table[] = {
        option_string("topology", &o.topology, "NAME", "torus:4x4, fattree:4,2, ..., or a file of links"),
        option_string("algorithm", &o.algorithm, "NAME", "ring, multitree, ... (comm/collectives/collectives.h)"),
        option_choice("kind", &o.kind, "all-reduce|reduce-scatter|all-gather", ""),
        option_choice("what", &o.what, "trees|steps|links|table", ""),
        option_int("tree", &o.tree, 0, MAX_CHUNKS, "of --what trees: only this one"),
        option_flag("help", &o.help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    if (!options_parse(table, n, argc, argv, error)) return EXIT_ARGUMENTS;
    if (o.help) {
        fprintf(out, "draw_collective draws all-reduce, reduce-scatter and all-gather on a network, as SVG.\n\n");
        options_help(table, n, out);
        return 0;
    }
    bool ok = (o.topology || fail(error, "--topology NAME is missing; give a network, such as torus:4x4")) &&
              (o.tree < 0 || o.what == DRAW_TREES || fail(error, "--tree needs --what trees"));
    if (!ok || !network_build(&net, o.topology, error)) return EXIT_ARGUMENTS;
    ok = network_fits(&net, error) && collective_build(&plan, o.algorithm, (PlanKind)o.kind, &net, error);
    if (ok) {
        ok = collective_draw(&net, &plan, &o, out, error);
        plan_free(&plan);
    }
    network_free(&net);
    if (!ok) return EXIT_ARGUMENTS;
    if (fflush(out) == 0 && !ferror(out)) return 0;
    fail(error, "writing failed: %s", strerror(errno));
    return EXIT_RUN;
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
