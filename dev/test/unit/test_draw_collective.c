/*
Tests of dev/plot/draw_collective.c. Pictures are written to memory and read back as a reader of the file finds them: as
XML, as arrows between the vertices that they touch, as cells in rows. What is found has to be what the plan says, link by
link and step by step; nothing lies outside the picture, no text on another; and what cannot be drawn is refused with a
reason and without a byte of output.
*/
#define DRAW_COLLECTIVE_NO_MAIN
#include "../../plot/draw_collective.c"
#include "test.h"

// ----------------------------------------------------------------------------------------------------------------
// XML: elements in the order of the file

typedef struct {
    const char *tag, *content; // behind "<", behind ">"
    char group[16];            // class of the innermost <g>
    int panel;                 // number of the <g class="panel"> around it; -1: none
} Element;

typedef struct {
    char* text;
    size_t size;
    bool sound; // well-formed
    int n, capacity, panels;
    Element* elements;
    double width, height;
} Svg;

static size_t name_length(const char* at) { return strcspn(at, " \t\n=/>\"<&"); }

// Text up to `end`: no character that has a meaning, no control character; & only in an entity. NULL: it is none.
static const char* xml_text(const char* at, char end) {
    static const char* entities[] = {"&lt;", "&gt;", "&amp;", "&quot;"};
    while (*at && *at != end) {
        const size_t bytes = json_utf8_bytes((const unsigned char*)at, strnlen(at, 4));
        bool known = *at != '&';
        for (int i = 0; i < 4; i++) known = known || strncmp(at, entities[i], strlen(entities[i])) == 0;
        if (*at == '<' || *at == '>' || ((unsigned char)*at < 32 && *at != '\n') || !known || bytes == 0) return NULL;
        at += bytes;
    }
    return at;
}

// Attributes up to > or />: name="value", each name once.
static const char* xml_attributes(const char* at) {
    const char* seen[32];
    for (int n = 0;; n++) {
        const char* next = at + strspn(at, " \n");
        const size_t length = name_length(next);
        if (*next == '>' || *next == '/') return next;
        if (next == at || length == 0 || n == 32 || next[length] != '=' || next[length + 1] != '"') return NULL;
        for (int i = 0; i < n; i++) {
            if (strncmp(seen[i], next, length + 1) == 0) return NULL;
        }
        seen[n] = next;
        at = xml_text(next + length + 2, '"');
        if (!at || *at++ != '"') return NULL;
    }
}

// Behind name=" in a tag, or NULL.
static const char* attribute_at(const char* tag, const char* name) {
    const size_t length = strlen(name);
    for (const char* at = tag; *at && *at != '>'; at++) {
        if (*at == ' ' && strncmp(at + 1, name, length) == 0 && strncmp(at + 1 + length, "=\"", 2) == 0)
            return at + length + 3;
    }
    return NULL;
}

static double attribute(const char* tag, const char* name) {
    const char* at = attribute_at(tag, name);
    return at ? strtod(at, NULL) : NAN;
}

static const char* attribute_text(const char* tag, const char* name, char* value, size_t size) {
    const char* at = attribute_at(tag, name);
    snprintf(value, size, "%.*s", at ? (int)strcspn(at, "\"") : 0, at ? at : "");
    return value;
}

static bool has_attribute(const char* tag, const char* name, const char* value) {
    const char* at = attribute_at(tag, name);
    return at && strncmp(at, value, strlen(value)) == 0 && at[strlen(value)] == '"';
}

static void svg_add(Svg* svg, Element e) {
    if (svg->n == svg->capacity)
        svg->elements = (Element*)checked_grow(svg->elements, &svg->capacity, 1024, sizeof(Element), "elements");
    svg->elements[svg->n++] = e;
}

// Reads svg->text. Whether it is one element with what belongs inside.
static bool svg_read(Svg* svg) {
    Element open[16];
    int depth = 0;
    const char* at = svg->text;
    Element now = {at, at, "", -1};
    do {
        at = depth > 0 ? xml_text(at, '<') : at;
        if (!at || *at != '<') return false;
        const bool closing = *++at == '/';
        const size_t length = name_length(at + closing);
        if (length == 0) return false;
        if (closing) {
            if (depth == 0 || strncmp(open[depth - 1].tag, at + 1, length) != 0 || at[1 + length] != '>' ||
                name_length(open[depth - 1].tag) != length)
                return false;
            depth--;
            memcpy(now.group, depth ? open[depth].group : "", depth ? sizeof now.group : 1);
            now.panel = depth ? open[depth].panel : -1;
            at += length + 2;
            continue;
        }
        now.tag = at;
        at = xml_attributes(at + length);
        if (!at || depth == 16) return false;
        const bool empty = *at == '/';
        at += 1 + empty;
        if (at[-1] != '>') return false;
        now.content = at;
        svg_add(svg, now);
        if (empty) continue;
        open[depth++] = now; // what holds behind its end
        if (strncmp(now.tag, "g ", 2) == 0) attribute_text(now.tag, "class", now.group, sizeof now.group);
        if (strncmp(now.tag, "g ", 2) == 0 && strcmp(now.group, "panel") == 0) now.panel = svg->panels++;
    } while (depth > 0);
    return *(at + strspn(at, "\n")) == 0;
}

static bool is(const Element* e, const char* name) {
    return strlen(name) == name_length(e->tag) && strncmp(e->tag, name, strlen(name)) == 0;
}

static void svg_free(Svg* svg) {
    free(svg->text);
    free(svg->elements);
    memset(svg, 0, sizeof *svg);
}

// Runs the program; words are separated by spaces.
static int run_tool(const char* line, Svg* svg, Error* error) {
    char words[1024], name[] = "draw_collective";
    char* argv[32] = {name};
    int argc = 1;
    memset(svg, 0, sizeof *svg);
    snprintf(words, sizeof words, "%s", line);
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    FILE* out = open_memstream(&svg->text, &svg->size);
    if (!out) die("test_draw_collective: no memory for a file");
    error->text[0] = 0;
    const int status = draw_collective(argc, argv, out, error);
    fclose(out);
    svg->sound = status == 0 && svg_read(svg);
    if (svg->sound) svg->width = attribute(svg->text, "width"), svg->height = attribute(svg->text, "height");
    return status;
}

static void test_xml(void) {
    const char* good[] = {"<a/>", "<a b=\"1\" c=\"&lt;\">x<b/>&amp;<c>y</c></a>\n"};
    const char* bad[] = {"",
                         "x",
                         "<a>",
                         "<a></b>",
                         "<a/><a/>",
                         "<a b=\"1\" b=\"2\"/>",
                         "<a>&</a>",
                         "<a>a > b</a>",
                         "<a b=c/>",
                         "<a b=\"<\"/>",
                         "<a>\x01</a>",
                         "<a>\xff</a>",
                         "<a></ab>",
                         "</a>"};
    int wrong = 0;
    for (size_t i = 0; i < sizeof good / sizeof good[0] + sizeof bad / sizeof bad[0]; i++) {
        const size_t n = sizeof good / sizeof good[0];
        Svg svg;
        memset(&svg, 0, sizeof svg);
        svg.text = strdup(i < n ? good[i] : bad[i - n]);
        wrong += svg_read(&svg) != (i < n);
        svg_free(&svg);
    }
    check(wrong == 0, "the checker of XML tells good from bad");
}

// ----------------------------------------------------------------------------------------------------------------
// Places

typedef struct {
    double left, top, right, bottom;
} Box;

static void box_add(Box* box, double x, double y) {
    box->left = fmin(box->left, x), box->right = fmax(box->right, x);
    box->top = fmin(box->top, y), box->bottom = fmax(box->bottom, y);
}

static Box box_none(void) {
    const Box none = {INFINITY, INFINITY, -INFINITY, -INFINITY};
    return none;
}

// A point of a path; begins: behind an M.
typedef struct {
    double x, y;
    bool begins;
} PathPoint;

// Reads the next point of "M1 2L3 4h5z"; false at the end. *ok turns false where it is nothing of this kind.
static bool path_next(const char** at, PathPoint* p, bool* ok) {
    while (**at == 'z') ++*at;
    if (**at == '"') return false;
    const char command = *(*at)++;
    char* end;
    const double x = strtod(*at, &end);
    *ok = *ok && end != *at && (command == 'M' || command == 'L' || command == 'h') && isfinite(x);
    *at = end;
    p->begins = command == 'M';
    if (command == 'h') {
        p->x += x;
        return *ok;
    }
    const double y = strtod(*at, &end);
    *ok = *ok && end != *at && isfinite(y);
    *at = end, p->x = x, p->y = y;
    return *ok;
}

static const char* path_of(const Element* e) { return attribute_at(e->tag, "d"); }

static size_t text_characters(const char* s) {
    size_t n = 0;
    for (; *s != '<'; n++) {
        if (*s == '&') s += strcspn(s, ";");
        for (s++; ((unsigned char)*s & 0xC0) == 0x80;) s++;
    }
    return n;
}

// Where an element is drawn; a text by a guess of its width.
static Box element_box(const Element* e, bool* ok) {
    Box box = box_none();
    if (is(e, "rect")) {
        const double x = attribute(e->tag, "x"), y = attribute(e->tag, "y");
        const double width = attribute(e->tag, "width"), height = attribute(e->tag, "height");
        *ok = *ok && width >= 0 && height >= 0;
        box_add(&box, x, y), box_add(&box, x + width, y + height);
    } else if (is(e, "circle")) {
        const double x = attribute(e->tag, "cx"), y = attribute(e->tag, "cy"), r = attribute(e->tag, "r");
        box_add(&box, x - r, y - r), box_add(&box, x + r, y + r);
    } else if (is(e, "path")) {
        PathPoint p = {0, 0, false};
        const char* at = path_of(e);
        *ok = *ok && at != NULL;
        while (at && path_next(&at, &p, ok)) box_add(&box, p.x, p.y);
    } else if (is(e, "text")) {
        const double font = attribute(e->tag, "font-size"), x = attribute(e->tag, "x"), y = attribute(e->tag, "y");
        const double width = 0.5 * font * (double)text_characters(e->content);
        const double before = has_attribute(e->tag, "text-anchor", "middle") ? 0.5
                              : has_attribute(e->tag, "text-anchor", "end")  ? 1
                                                                             : 0;
        *ok = *ok && font >= 5 && font <= 20;
        box_add(&box, x - before * width, y - 0.72 * font), box_add(&box, x + (1 - before) * width, y);
    }
    return box;
}

// How many elements lie outside of the picture or are none; how many texts on others.
static void count_wrong_places(const Svg* svg, int* outside, int* overlaps) {
    Box* texts = (Box*)checked_malloc(((size_t)svg->n + 1) * sizeof(Box), "boxes");
    int n = 0;
    *outside = *overlaps = 0;
    for (int i = 0; i < svg->n; i++) {
        const Element* e = &svg->elements[i];
        bool ok = true;
        const Box b = element_box(e, &ok);
        const bool some = b.left <= b.right;
        *outside += !ok || (some && !(b.left >= 0 && b.top >= 0 && b.right <= svg->width && b.bottom <= svg->height));
        if (!is(e, "text") || strcmp(e->group, "counts") == 0) continue;
        for (int k = 0; k < n; k++)
            *overlaps += b.left < texts[k].right && texts[k].left < b.right && b.top < texts[k].bottom &&
                         texts[k].top < b.bottom;
        texts[n++] = b;
    }
    free(texts);
}

// What holds for every picture.
static bool svg_is_good(const Svg* svg) {
    int outside, overlaps;
    if (!svg->sound || strstr(svg->text, "nan") || strstr(svg->text, "inf\"")) return false;
    if (strstr(svg->text, "<script") || strstr(svg->text, "href") || strstr(svg->text, "<style")) return false;
    count_wrong_places(svg, &outside, &overlaps);
    if (outside + overlaps > 0) printf("      %d outside, %d texts on others\n", outside, overlaps);
    return outside == 0 && overlaps == 0;
}

// ----------------------------------------------------------------------------------------------------------------
// What was asked for, computed once more

typedef struct {
    Network net;
    Plan plan;
    Routes routes;
    int* transfers; // (steps, links): how many use a link in a step,
    int64_t* first; // and which one is the first of them
} Asked;

static void ask(Asked* a, const char* topology, const char* algorithm, PlanKind kind) {
    Error error;
    memset(a, 0, sizeof *a);
    if (!network_build(&a->net, topology, &error)) die("%s", error.text);
    if (!collective_build(&a->plan, algorithm, kind, &a->net, &error)) die("%s", error.text);
    a->routes = network_routes(&a->net);
    const size_t n = (size_t)a->plan.steps * (size_t)a->net.links;
    a->transfers = (int*)checked_calloc(n, sizeof(int), "the uses of links");
    a->first = (int64_t*)checked_calloc(n, sizeof(int64_t), "the uses of links");
    for (int64_t i = a->plan.n - 1; i >= 0; i--) {
        int links[64];
        for (int k = plan_way(&a->plan, &a->net, &a->routes, i, links) - 1; k >= 0; k--) {
            const size_t use = (size_t)a->plan.transfers[i].step * (size_t)a->net.links + (size_t)links[k];
            a->transfers[use]++, a->first[use] = i;
        }
    }
}

static void asked_free(Asked* a) {
    free(a->transfers);
    free(a->first);
    routes_free(&a->routes);
    plan_free(&a->plan);
    network_free(&a->net);
}

// Transfers that use a link in a step. first: one of them.
static int transfers_on(const Asked* a, int step, int link, int64_t* first) {
    const size_t use = (size_t)step * (size_t)a->net.links + (size_t)link;
    *first = a->first[use];
    return a->transfers[use];
}

static void tool_line(char* line, size_t size, const char* topology, const char* algorithm, PlanKind kind,
                      const char* what) {
    snprintf(line, size, "--topology %s --algorithm %s --kind %s --what %s", topology, algorithm, plan_kind_name(kind),
             what);
}

// The i-th element of a panel that has this name and group, or NULL.
static const Element* find_element(const Svg* svg, int panel, const char* group, const char* name, int i) {
    for (int k = 0; k < svg->n; k++) {
        const Element* e = &svg->elements[k];
        if (e->panel == panel && (!group || strcmp(e->group, group) == 0) && is(e, name) && i-- == 0) return e;
    }
    return NULL;
}

static int count_elements(const Svg* svg, int panel, const char* group, const char* name) {
    int n = 0;
    while (find_element(svg, panel, group, name, n)) n++;
    return n;
}

// The boxes of all vertices of a panel: ranks are circles, switches bars.
static bool read_vertices(const Svg* svg, int panel, const Network* net, Box* boxes) {
    bool ok = true;
    for (int v = 0; v < net->vertices; v++) {
        const bool rank = v < net->ranks;
        const Element* e = find_element(svg, panel, "vertices", rank ? "circle" : "rect", rank ? v : v - net->ranks);
        if (!e) return false;
        boxes[v] = element_box(e, &ok);
    }
    return ok && count_elements(svg, panel, "vertices", "circle") == net->ranks &&
           count_elements(svg, panel, "vertices", "rect") == net->vertices - net->ranks;
}

static int nearest_vertex(const Box* boxes, int n, double x, double y) {
    int best = 0;
    double least = INFINITY;
    for (int v = 0; v < n; v++) {
        const double dx = fmax(0, fmax(boxes[v].left - x, x - boxes[v].right));
        const double dy = fmax(0, fmax(boxes[v].top - y, y - boxes[v].bottom));
        if (hypot(dx, dy) < least) least = hypot(dx, dy), best = v;
    }
    return best;
}

// An arrow as it is seen: from the vertex where it begins to the one that its tip touches.
typedef struct {
    int from, to, lines; // lines: so many begin, with its head
    bool put;
    char colour[16];
} Arrow;

static int read_arrows(const Svg* svg, int panel, const Box* boxes, int vertices, Arrow* arrows, int most) {
    int n = 0;
    for (int k = 0; k < svg->n; k++) {
        const Element* e = &svg->elements[k];
        const bool put = strcmp(e->group, "put") == 0;
        if (e->panel != panel || !is(e, "path") || (!put && strcmp(e->group, "add") != 0)) continue;
        const char* at = path_of(e);
        PathPoint p = {0, 0, false};
        Arrow arrow = {-1, -1, 0, put, ""};
        bool ok = true;
        while (path_next(&at, &p, &ok)) {
            arrow.lines += p.begins;
            if (arrow.from < 0) arrow.from = nearest_vertex(boxes, vertices, p.x, p.y);
        }
        arrow.to = nearest_vertex(boxes, vertices, p.x, p.y);
        attribute_text(e->tag, "stroke", arrow.colour, sizeof arrow.colour);
        if (ok && n < most) arrows[n++] = arrow;
    }
    return n;
}

// Takes an arrow like this out of the list; false: there is none.
static bool take_arrow(Arrow* arrows, int* n, int from, int to, bool put, const char* colour) {
    for (int i = 0; i < *n; i++) {
        const Arrow* a = &arrows[i];
        if (a->from != from || a->to != to || a->put != put || (colour && strcmp(colour, a->colour) != 0)) continue;
        arrows[i] = arrows[--*n];
        return true;
    }
    return false;
}

enum { MOST_ARROWS = 4096 };

// ----------------------------------------------------------------------------------------------------------------
// Steps

// Whether a link leads around the end of a grid, so that it is drawn as two stubs.
static bool leads_around(const Network* net, const Link* link) {
    bool around = false;
    for (int i = 0; i < NETWORK_DIMENSIONS; i++) {
        if (i >= net->dimensions || net->dimensions == 1) continue;
        around = around || abs(network_coordinate(net, link->from, i) - network_coordinate(net, link->to, i)) > 1;
    }
    return around;
}

// owner_known: chunks belong to ranks in their order, so that colours can be foretold.
static void test_planner_step(const Asked* a, const Svg* svg, int step, bool owner_known, int* wrong, int* arrows_in_all) {
    const Network* net = &a->net;
    Box boxes[64];
    Arrow* arrows = (Arrow*)checked_malloc(MOST_ARROWS * sizeof(Arrow), "arrows");
    if (!read_vertices(svg, step, net, boxes)) ++*wrong;
    int n = read_arrows(svg, step, boxes, net->vertices, arrows, MOST_ARROWS), idle = 0, busy = 0, numbers = 0;
    *arrows_in_all += n;
    for (int l = 0; l < net->links; l++) {
        int64_t first = -1;
        const Link* link = &net->link[l];
        const int transfers = transfers_on(a, step, l, &first);
        char colour[16] = "";
        idle += transfers == 0 ? 1 + leads_around(net, link) : 0;
        busy += transfers > 0, numbers += transfers > 1;
        if (transfers == 0) continue;
        const Transfer* t = &a->plan.transfers[first];
        const int owner = t->chunk / (a->plan.chunks / a->plan.ranks);
        const bool known = owner_known && transfers == 1 && t->chunks == 1;
        if (known) attribute_text(find_element(svg, step, "vertices", "circle", owner)->tag, "fill", colour, 16);
        *wrong += !take_arrow(arrows, &n, link->from, link->to, !t->add, known ? colour : NULL);
    }
    const Element* lines = NULL;
    for (int i = 0; (lines = find_element(svg, step, NULL, "path", i)) && !has_attribute(lines->tag, "class", "idle");)
        i++;
    PathPoint p = {0, 0, false};
    bool ok = lines != NULL;
    const char* at = lines ? path_of(lines) : "\"";
    for (; path_next(&at, &p, &ok); idle -= p.begins) {}
    char title[64];
    snprintf(title, sizeof title, ">step %d of %d: %d of %d links<", step + 1, a->plan.steps, busy, net->links);
    *wrong += n != 0 || idle != 0 || !ok || !strstr(svg->text, title) ||
              numbers != count_elements(svg, step, "counts", "text");
    free(arrows);
}

static void test_steps(const char* topology, const char* algorithm, PlanKind kind, bool owner_known) {
    char line[256];
    Svg svg;
    Error error;
    Asked a;
    ask(&a, topology, algorithm, kind);
    int wrong = 0, arrows = 0;
    tool_line(line, sizeof line, topology, algorithm, kind, "steps");
    const int status = run_tool(line, &svg, &error);
    if (check(status == 0 && svg_is_good(&svg) && svg.panels == a.plan.steps, "%s: %d panels, %zu bytes %s", line,
              svg.panels, svg.size, error.text)) {
        for (int s = 0; s < a.plan.steps; s++) test_planner_step(&a, &svg, s, owner_known, &wrong, &arrows);
    }
    check(wrong == 0 && arrows > 0, "%s: %d arrows, where the plan has them; %d wrong", line, arrows, wrong);
    svg_free(&svg);
    asked_free(&a);
}

// ----------------------------------------------------------------------------------------------------------------
// Trees

// Panels of a plan in which chunk c's tree is number c.
static void test_trees(const char* topology, const char* algorithm, PlanKind kind, int only) {
    char line[256];
    Svg svg;
    Error error;
    Asked a;
    ask(&a, topology, algorithm, kind);
    const bool up = kind == PLAN_REDUCE_SCATTER;
    int wrong = 0, all = 0, first = a.plan.steps, last = 0;
    tool_line(line, sizeof line, topology, algorithm, kind, "trees");
    if (only >= 0) snprintf(line + strlen(line), sizeof line - strlen(line), " --tree %d", only);
    const int panels = only < 0 ? a.plan.chunks : 1;
    const int status = run_tool(line, &svg, &error);
    check(status == 0 && svg_is_good(&svg) && svg.panels == panels, "%s: %d panels, %zu bytes %s", line, svg.panels,
          svg.size, error.text);
    for (int64_t i = 0; i < a.plan.n; i++) {
        if (a.plan.transfers[i].add != up) continue;
        first = (int)min_i64(first, a.plan.transfers[i].step), last = (int)max_i64(last, a.plan.transfers[i].step);
    }
    wrong += count_elements(&svg, -1, "key", "rect") != last - first + 1;
    Arrow* arrows = (Arrow*)checked_malloc(MOST_ARROWS * sizeof(Arrow), "arrows");
    for (int p = 0; p < panels && svg.panels == panels; p++) {
        Box boxes[64];
        const int chunk = only < 0 ? p : only, root = chunk / (a.plan.chunks / a.plan.ranks);
        wrong += !read_vertices(&svg, p, &a.net, boxes);
        int n = read_arrows(&svg, p, boxes, a.net.vertices, arrows, MOST_ARROWS), links[64];
        all += n;
        for (int64_t i = 0; i < a.plan.n; i++) {
            const Transfer* t = &a.plan.transfers[i];
            if (t->add != up || t->chunk > chunk || t->chunk + t->chunks <= chunk) continue;
            char colour[16];
            attribute_text(find_element(&svg, -1, "key", "rect", t->step - first)->tag, "fill", colour, sizeof colour);
            for (int k = plan_way(&a.plan, &a.net, &a.routes, i, links) - 1; k >= 0; k--)
                wrong += !take_arrow(arrows, &n, a.net.link[links[k]].from, a.net.link[links[k]].to, !up, colour);
        }
        wrong += n != 0;
        for (int r = 0; r < a.plan.ranks; r++) {
            const Element* e = find_element(&svg, p, "vertices", "circle", r);
            wrong += has_attribute(e->tag, "fill", "#1f2937") != (r == root);
        }
    }
    check(wrong == 0 && all > 0, "%s: %d arrows, where the plan has them; %d wrong", line, all, wrong);
    free(arrows);
    svg_free(&svg);
    asked_free(&a);
}

// ----------------------------------------------------------------------------------------------------------------
// Links

// Every cell: in which row (link) and step it lies, and its colour; as a table (steps, links), "" where there is none.
typedef struct {
    char colour[16];
} Cell;

static int read_cells(const Svg* svg, const Asked* a, const Box* rows, Cell* cells) {
    int wrong = 0;
    for (int k = 0; k < svg->n; k++) {
        const Element* e = &svg->elements[k];
        if (strcmp(e->group, "cells") != 0 || !is(e, "path")) continue;
        const char* at = path_of(e);
        PathPoint p = {0, 0, false}, start = p;
        bool ok = true;
        while (path_next(&at, &p, &ok)) {
            if (p.begins) start = p;
            if (p.begins) continue;
            const double x = (start.x + p.x) / 2;
            int l = 0;
            while (l < a->net.links &&
                   !(x > rows[l].left && x < rows[l].right && p.y > rows[l].top && p.y < rows[l].bottom))
                l++;
            if (l == a->net.links || start.x < rows[l].left - 0.06 || p.x > rows[l].right + 0.06) {
                wrong++;
                continue;
            }
            const int step = (int)((x - rows[l].left) / (rows[l].right - rows[l].left) * a->plan.steps);
            Cell* cell = &cells[(size_t)step * (size_t)a->net.links + (size_t)l];
            wrong += cell->colour[0] != 0;
            attribute_text(e->tag, "stroke", cell->colour, sizeof cell->colour);
        }
        wrong += !ok;
    }
    return wrong;
}

// Rows in the order of links, beside their names.
static int read_rows(const Svg* svg, const Asked* a, Box* rows) {
    int wrong = count_elements(svg, -1, "row", "rect") != a->net.links;
    for (int l = 0; l < a->net.links && !wrong; l++) {
        char label[32];
        bool ok = true;
        rows[l] = element_box(find_element(svg, -1, "row", "rect", l), &ok);
        const Element* text = find_element(svg, -1, "labels", "text", l);
        const Box b = text ? element_box(text, &ok) : box_none();
        const double middle = (b.top + b.bottom) / 2;
        snprintf(label, sizeof label, "%d&gt;%d<", a->net.link[l].from, a->net.link[l].to);
        wrong += !text || !ok || strncmp(text->content, label, strlen(label)) != 0 || middle < rows[l].top ||
                 middle > rows[l].bottom || b.right > rows[l].left || b.right < rows[l].left - 8;
    }
    return wrong;
}

// Compares with what every link does in every step; returns the mean use.
static double test_cells(const Asked* a, const Svg* svg, const Cell* cells, bool owner_known, int* wrong,
                         int* crowded) {
    double sum = 0;
    int numbers = 0;
    for (int s = 0; s < a->plan.steps; s++) {
        int busy = 0;
        for (int l = 0; l < a->net.links; l++) {
            int64_t first = -1;
            const char* colour = cells[(size_t)s * (size_t)a->net.links + (size_t)l].colour;
            const int transfers = transfers_on(a, s, l, &first);
            busy += transfers > 0;
            *wrong += (transfers > 0) != (colour[0] != 0);
            if (transfers == 0) continue;
            const bool dark = strcmp(colour, "#22272e") == 0;
            const int room = (int)(a->net.link[l].bandwidth / network_slowest(&a->net) + 1e-6);
            *wrong += dark != (transfers > room);
            *crowded += dark, numbers += transfers > 1;
            const Transfer* t = &a->plan.transfers[first];
            const int owner = t->chunk / (a->plan.chunks / a->plan.ranks);
            if (!owner_known || transfers > 1 || t->chunks > 1) continue;
            *wrong += !has_attribute(find_element(svg, -1, "key", "rect", owner)->tag, "fill", colour);
        }
        const Element* bar = find_element(svg, -1, "share", "rect", s);
        const double share = (double)busy / a->net.links;
        *wrong += !bar || fabs(attribute(bar->tag, "height") / CHART_HEIGHT - share) > 0.001;
        sum += share;
    }
    *wrong += count_elements(svg, -1, "counts", "text") != numbers;
    return sum / a->plan.steps;
}

static double test_links(const char* topology, const char* algorithm, PlanKind kind, bool owner_known,
                         int least_crowded) {
    char line[256], said[64];
    Svg svg;
    Error error;
    Asked a;
    ask(&a, topology, algorithm, kind);
    int wrong = 0, crowded = 0;
    double mean = 0;
    tool_line(line, sizeof line, topology, algorithm, kind, "links");
    const int status = run_tool(line, &svg, &error);
    if (check(status == 0 && svg_is_good(&svg), "%s: %zu bytes %s", line, svg.size, error.text)) {
        Box* rows = (Box*)checked_malloc((size_t)a.net.links * sizeof(Box), "rows");
        Cell* cells = (Cell*)checked_calloc((size_t)a.net.links * (size_t)a.plan.steps, sizeof(Cell), "cells");
        wrong += read_rows(&svg, &a, rows);
        if (!wrong) wrong += read_cells(&svg, &a, rows, cells);
        mean = test_cells(&a, &svg, cells, owner_known, &wrong, &crowded);
        free(rows), free(cells);
    }
    snprintf(said, sizeof said, "mean use %.3f:", mean);
    check(wrong == 0 && strstr(svg.text, said) && (least_crowded > 0 ? crowded >= least_crowded : crowded == 0),
          "%s: %s %d cells with too much; %d wrong", line, said, crowded, wrong);
    svg_free(&svg);
    asked_free(&a);
    return mean;
}

// ----------------------------------------------------------------------------------------------------------------
// Everything else

// All that there is, on small networks: a sound picture, or a refusal with a reason and nothing written.
static void test_all(void) {
    static const char* topologies[] = {"ring:2",      "ring:5",      "mesh:2x3",    "mesh:1x6",    "torus:2x2",
                                       "torus:4x4",   "torus:3x5",   "torus:2x2x2", "mesh:3x2x2",  "torus:3x3x3",
                                       "full:2",      "full:6",      "fattree:2,3", "fattree:4,2", "fattree:5,1",
                                       "bigraph:2x4", "bigraph:3x2", "dgx"};
    static const char* algorithms[] = {"ring",      "ring-both",     "2d-ring",     "torus-ring", "halving-doubling",
                                       "multitree", "double-tree:3", "multitree:2", "forest:3,4"};
    static const char* whats[] = {"trees", "steps", "links"};
    int drawn = 0, refused = 0, wrong = 0;
    for (size_t t = 0; t < sizeof topologies / sizeof topologies[0]; t++) {
        for (size_t a = 0; a < sizeof algorithms / sizeof algorithms[0]; a++) {
            for (int what = 0; what < 3; what++) {
                char line[256];
                Svg svg;
                Error error;
                const PlanKind kind = (PlanKind)((t + a + (size_t)what) % 3);
                tool_line(line, sizeof line, topologies[t], algorithms[a], kind, whats[what]);
                const int status = run_tool(line, &svg, &error);
                const bool ok = status == 0 ? svg_is_good(&svg) : status == 2 && error.text[0] && svg.size == 0;
                drawn += status == 0, refused += status == 2, wrong += !ok;
                if (!ok) printf("      %s: %d %s\n", line, status, error.text);
                svg_free(&svg);
            }
        }
    }
    check(wrong == 0 && drawn > 250 && refused > 20, "all algorithms on small networks: %d drawn, %d refused, %d wrong",
          drawn, refused, wrong);
}

static void write_file(const char* path, const char* text) {
    FILE* file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) die("cannot write %s", path);
}

// Networks from files: whatever they are called and look like.
static void test_files(const char* folder) {
    static const char* names[] = {"a<b>&\"c", "\xff\xfe", "\x01\n2", "\xc3\xa4\xe2\x82\xac",
                                  "a_long_name_of_a_network_that_is_cut_somewhere_before_its_end_is_reached_\xc3\xa4"};
    static const char* whats[] = {"trees", "steps", "links"};
    char path[512], line[1024];
    int wrong = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        write_file(path, "ranks 3\nlink 0 1\nlink 1 2 32GB/s\noneway 2 0\noneway 0 2\n");
        for (int what = 0; what < 3; what++) {
            Svg svg;
            Error error;
            snprintf(line, sizeof line, "--topology %s --what %s", path, whats[what]);
            const int status = run_tool(line, &svg, &error);
            wrong += status != 0 || !svg_is_good(&svg);
            if (i == 0 && status == 0)
                wrong += !strstr(svg.text, "a&lt;b&gt;&amp;&quot;c") || strstr(svg.text, "a<b") != NULL;
            if (wrong) printf("      %s: %d %s\n", line, status, error.text);
            svg_free(&svg);
        }
        unlink(path);
    }
    check(wrong == 0, "names with <, >, &, quotes, and bytes that are no characters: %d wrong", wrong);
}

static int random_below(uint64_t round, uint64_t* index, int below) {
    return (int)(philox(9, round, (*index)++).word[0] % (uint32_t)below);
}
// A connected network of a few ranks and switches, with links of all kinds.
static void random_network(char* text, size_t size, uint64_t round) {
    uint64_t index = 0;
    const int ranks = 2 + random_below(round, &index, 7), switches = random_below(round, &index, 4);
    const int all = ranks + switches;
    size_t n = (size_t)snprintf(text, size, "ranks %d\nswitches %d\n", ranks, switches);
    for (int v = 1; v < all; v++) {
        const int to = random_below(round, &index, v), speed = 16 * (1 + random_below(round, &index, 3));
        n += (size_t)snprintf(text + n, size - n, "link %d %d %dGB/s\n", v, to, speed);
    }
    for (int extra = random_below(round, &index, 8); extra > 0; extra--) {
        const int a = random_below(round, &index, all), b = (a + 1 + random_below(round, &index, all - 1)) % all;
        n += (size_t)snprintf(text + n, size - n, "%s %d %d\n", random_below(round, &index, 3) ? "link" : "oneway", a,
                              b);
    }
}

static void test_random_networks(const char* folder, int rounds) {
    static const char* algorithms[] = {"ring", "halving-doubling", "multitree", "double-tree:2"};
    static const char* whats[] = {"trees", "steps", "links"};
    char path[512], line[1024], text[4096];
    int drawn = 0, refused = 0, wrong = 0;
    snprintf(path, sizeof path, "%s/network", folder);
    for (int round = 0; round < rounds; round++) {
        random_network(text, sizeof text, (uint64_t)round);
        write_file(path, text);
        Svg svg;
        Error error;
        snprintf(line, sizeof line, "--topology %s --algorithm %s --what %s", path, algorithms[round / 3 % 4],
                 whats[round % 3]);
        const int status = run_tool(line, &svg, &error);
        const bool ok = status == 0 ? svg_is_good(&svg) : status == 2 && error.text[0] && svg.size == 0;
        drawn += status == 0, refused += status != 0, wrong += !ok;
        if (!ok) printf("      round %d: %d %s\n", round, status, error.text);
        svg_free(&svg);
    }
    unlink(path);
    check(wrong == 0 && drawn > rounds / 2, "random networks: %d drawn, %d refused, %d wrong", drawn, refused, wrong);
}

static void test_refused(const char* folder) {
    const struct {
        const char *line, *reason;
    } cases[] = {{"", "--topology NAME is missing"},
                 {"--topology torus:4x", "network torus:4x: write torus:AxB"},
                 {"--topology /nowhere/net", "/nowhere/net"},
                 {"--topology torus:4x4 --algorithm tree", "tree is no algorithm"},
                 {"--topology ring:4 --algorithm 2d-ring", "needs a mesh or torus"},
                 {"--topology torus:4x4 --algorithm double-tree --kind all-gather", "sums to all ranks, without"},
                 {"--topology torus:4x4 --algorithm multitree:2000", "a number above 1024"},
                 {"--topology torus:4x4 --kind reduce", "--kind reduce: has to be one of all-reduce"},
                 {"--topology torus:4x4 --what picture", "--what picture: has to be one of trees|steps|links"},
                 {"--topology torus:4x4 --tree 16", "--tree 16: there are trees 0 to 15"},
                 {"--topology torus:4x4 --tree -1", "--tree -1: out of range"},
                 {"--topology torus:4x4 --what links --tree 1", "--tree needs --what trees"},
                 {"--topology torus:4x4 --algorithm 2d-ring --what trees", "so its way is no tree"},
                 {"--topology ring:1", "network ring:1: one rank has nothing to send"},
                 {"--topology mesh:1x1 --what links", "network mesh:1x1: one rank has nothing to send"},
                 {"--topology torus:17x16", "network torus:17x16: 272 ranks, 0 switches, 1088 links; no more than 256"},
                 {"--topology full:80", "network full:80: 80 ranks, 0 switches, 6320 links"},
                 {"--topology torus:16x16 --what trees", "256 panels of 256 ranks: more than can be seen"},
                 {"--topology torus:16x16 --algorithm ring --what steps", "510 panels of 256 ranks"},
                 {"--topology mesh:1x250 --what steps", "panels of 250 ranks"},
                 {"--topology ring:16 --algorithm forest:4,1000 --what links", "more than can be seen"},
                 {"--topology ring:4 --algorithm forest:1024,1024", "chunks; no more than 16384 can be seen"},
                 {"--topology torus:4x4 --wat links", "did you mean --what"},
                 {"torus:4x4", "options are written --name value"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Svg svg;
        Error error;
        const int status = run_tool(cases[i].line, &svg, &error);
        check(status == 2 && strstr(error.text, cases[i].reason) && svg.size == 0, "%s: %d %s", cases[i].line, status,
              error.text);
        svg_free(&svg);
    }
    char path[512], line[1024];
    Svg svg;
    Error error;
    snprintf(path, sizeof path, "%s/broken", folder);
    write_file(path, "ranks 3\nlink 0 1\n");
    snprintf(line, sizeof line, "--topology %s", path);
    check(run_tool(line, &svg, &error) == 2 && strstr(error.text, "no way leads") && svg.size == 0, "%s", error.text);
    svg_free(&svg);
    unlink(path);
}

static void test_large(void) {
    static const char* lines[] = {"--topology torus:16x16 --tree 100",
                                  "--topology torus:16x16 --what links --kind all-gather",
                                  "--topology ring:256 --tree 0",
                                  "--topology torus:8x8 --algorithm ring --what links",
                                  "--topology torus:8x8 --what steps --kind all-gather",
                                  "--topology fattree:4,3 --what trees --tree 63"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Svg svg;
        Error error;
        const int status = run_tool(lines[i], &svg, &error);
        check(status == 0 && svg_is_good(&svg), "%s: %g x %g, %zu bytes %s", lines[i], svg.width, svg.height, svg.size,
              error.text);
        svg_free(&svg);
    }
}

static void test_writing(void) {
    char name[] = "draw_collective", topology[] = "--topology=torus:4x4", help[] = "--help";
    char *argv[] = {name, topology}, *argv_help[] = {name, help};
    Error error = {""};
    FILE* full = fopen("/dev/full", "w");
    if (full) {
        check(draw_collective(2, argv, full, &error) == 1 && strstr(error.text, "writing failed"), "a full disk: %s",
              error.text);
        fclose(full);
    }
    char* text = NULL;
    size_t size = 0;
    FILE* out = open_memstream(&text, &size);
    if (!out) die("test_draw_collective: no memory for a file");
    const int status = draw_collective(2, argv_help, out, &error);
    fclose(out);
    check(status == 0 && strstr(text, "--topology") && strstr(text, "trees|steps|links"), "--help lists the options");
    free(text);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    const char* tmp = getenv("TMPDIR");
    char folder[200];
    process.name = "test_draw_collective";
    snprintf(folder, sizeof folder, "%.150s/test_draw_XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) die("cannot make a folder %s", folder);
    test_xml();
    test_trees("torus:4x4", "multitree", PLAN_ALL_REDUCE, -1);
    test_trees("torus:4x4", "multitree", PLAN_ALL_GATHER, 5);
    test_trees("mesh:2x3", "multitree", PLAN_REDUCE_SCATTER, -1);
    test_trees("fattree:4,2", "multitree", PLAN_REDUCE_SCATTER, 3);
    test_trees("torus:2x2x3", "multitree", PLAN_ALL_GATHER, -1);
    test_trees("ring:8", "ring", PLAN_ALL_GATHER, -1);
    test_trees("bigraph:2x4", "halving-doubling", PLAN_ALL_GATHER, -1);
    test_steps("torus:4x4", "multitree", PLAN_ALL_REDUCE, true);
    test_steps("mesh:3x3", "multitree", PLAN_ALL_REDUCE, true);
    test_steps("torus:4x4", "halving-doubling", PLAN_ALL_REDUCE, false);
    test_steps("fattree:2,3", "multitree", PLAN_REDUCE_SCATTER, true);
    test_steps("dgx", "ring", PLAN_ALL_GATHER, true);
    test_steps("ring:6", "forest:2,4", PLAN_ALL_REDUCE, false);
    test_links("torus:4x4", "multitree", PLAN_ALL_REDUCE, true, 0);
    test_links("torus:4x4", "halving-doubling", PLAN_ALL_REDUCE, false, 8);
    test_links("bigraph:4x4", "multitree", PLAN_ALL_GATHER, true, 0);
    test_links("full:5", "double-tree:3", PLAN_ALL_REDUCE, false, 0);
    if (!brief) {
        const double mean = test_links("torus:8x8", "multitree", PLAN_ALL_REDUCE, true, 0);
        check_error("mean use of torus:8x8: 2 x 64 x 63 of 256 x 34", fabs(mean - 2.0 * 64 * 63 / (256 * 34)), 1e-12);
    }
    test_all();
    test_files(folder);
    test_random_networks(folder, brief ? 120 : 400);
    test_large();
    test_refused(folder);
    test_writing();
    check(rmdir(folder) == 0, "nothing else was left in the folder");
    return test_end();
}
