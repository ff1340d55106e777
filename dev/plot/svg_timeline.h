/*
svg_timeline.h: timelines as an SVG picture. A picture has a title and panels; a panel has rows, one for each stage or
rank, with boxes on them; all panels have one time axis. svg_picture, svg_add_panel, svg_add_box, svg_write,
svg_picture_free.

    title                                              what dark and light mean
    panel title
    row label   [0][1][2]      [0]   [1]  ...      boxes: start, end, kind, chunk, number of the micro-batch
    row label      [0][1][2][0]   [1]     ...      what is empty is idle
                |----|----|----|----|--------      round times
                caption                    time (unit)
    legend                                         of the kinds that occur

Kinds that compute are as high as their row, the others are thin. A kind has one hue; its chunks go from dark to light.
The file has fixed width and its own white ground, without scripts, style sheets and fonts. Each kind and chunk is a
group <g class="KIND CHUNK"> of <rect>s.
*/
#pragma once

#include "../../util/base.h"
#include "../../util/json.h" // json_utf8_bytes

typedef enum { SVG_FORWARD, SVG_BACKWARD, SVG_INPUT, SVG_WEIGHT, SVG_REDUCE, SVG_UPDATE, SVG_OTHER, SVG_KINDS } SvgKind;

typedef struct {
    int row;
    double start, end; // in the picture's unit, from 0; a box without length is not drawn
    SvgKind kind;
    int chunk;  // from 0
    int number; // shown inside where it fits; -1: none
} SvgBox;

typedef struct {
    char text[32];
} SvgLabel;

typedef struct {
    char title[160], caption[320]; // "": none
    int rows, n, capacity;
    SvgLabel* labels; // (rows)
    SvgBox* boxes;    // (n)
} SvgPanel;

enum { SVG_PANELS = 4 }; // at most

typedef struct {
    char title[160], axis[64]; // axis: what is below it, "time (ms)"
    double length;             // of the axis; no box ends later
    int chunks, panels;
    SvgPanel panel[SVG_PANELS];
} SvgPicture;

// ---- Putting a picture together ---------------------------------------------------------------------------------

static inline SvgPicture svg_picture(const char* title, const char* axis, double length, int chunks) {
    SvgPicture picture = {};
    snprintf(picture.title, sizeof picture.title, "%s", title);
    snprintf(picture.axis, sizeof picture.axis, "%s", axis);
    picture.length = length;
    picture.chunks = chunks;
    return picture;
}

// A new panel below the others, without labels and boxes. There are at most SVG_PANELS.
static inline SvgPanel* svg_add_panel(SvgPicture* picture, const char* title, const char* caption, int rows) {
    if (picture->panels == SVG_PANELS) die("internal error: a picture of more than %d panels", SVG_PANELS);
    SvgPanel* panel = &picture->panel[picture->panels++];
    snprintf(panel->title, sizeof panel->title, "%s", title);
    snprintf(panel->caption, sizeof panel->caption, "%s", caption);
    panel->rows = rows;
    panel->labels = (SvgLabel*)checked_calloc((size_t)rows, sizeof(SvgLabel), "the picture");
    return panel;
}

static inline void svg_add_box(SvgPanel* panel, SvgBox box) {
    if (panel->n == panel->capacity)
        panel->boxes = (SvgBox*)checked_grow(panel->boxes, &panel->capacity, 256, sizeof(SvgBox), "the picture");
    panel->boxes[panel->n++] = box;
}

static inline void svg_picture_free(SvgPicture* picture) {
    for (int i = 0; i < picture->panels; i++) {
        free(picture->panel[i].labels);
        free(picture->panel[i].boxes);
    }
    memset(picture, 0, sizeof *picture);
}

// ---- How things look --------------------------------------------------------------------------------------------

typedef struct {
    unsigned dark, light; // 0xRRGGBB: the first chunk's and the last one's
    double height;        // part of the row
    const char *name, *legend;
} SvgStyle;

static inline SvgStyle svg_style(SvgKind kind) {
    static const SvgStyle styles[] = {{0x2a66b8, 0xa9cdf4, 1, "forward", "forward"},
                                      {0x238b4d, 0xa3dcb6, 1, "backward", "backward"},
                                      {0x238b4d, 0xa3dcb6, 1, "input", "backward: input half"},
                                      {0xb0cb3f, 0xe4eeae, 1, "weight", "weight half"},
                                      {0x8a93a3, 0xbcc3ce, 0.4, "reduce", "reduce"},
                                      {0x8457bd, 0xc9b3e6, 0.4, "update", "update"},
                                      {0xc2a878, 0xe2d5bd, 0.4, "other", "other"}};
    return styles[kind];
}

static inline unsigned svg_shade(SvgKind kind, int chunk, int chunks) {
    const SvgStyle style = svg_style(kind);
    const double along = chunks > 1 ? fmin(1, (double)chunk / (chunks - 1)) : 0;
    unsigned shade = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        const double dark = style.dark >> shift & 255, light = style.light >> shift & 255;
        shade |= (unsigned)lround(dark + along * (light - dark)) << shift;
    }
    return shade;
}

// Numbers on it are white; brightness as the eye weighs the colours (ITU-R BT.601).
static inline bool svg_is_dark(unsigned shade) {
    return 0.299 * (shade >> 16) + 0.587 * (shade >> 8 & 255) + 0.114 * (shade & 255) < 140;
}

// Pixels. All panels have rows of one height, smaller ones where there are many.
typedef struct {
    double width, left, right; // of the picture; where the axis begins and ends
    double pitch, row;         // from row to row; height of a row
    double scale;              // pixels in a unit of time
    double number;             // font size of the boxes' numbers
} SvgLayout;

enum { SVG_FONT = 12, SVG_MARGIN = 18 };

// A guess, on the safe side, as fonts differ.
static inline double svg_text_width(const char* text, double font) { return 0.54 * font * (double)strlen(text); }

static inline bool svg_number_fits(const SvgLayout* x, SvgBox box, double font) {
    char text[16];
    const int n = snprintf(text, sizeof text, "%d", box.number);
    return 0.57 * font * n + 1.5 <= (box.end - box.start) * x->scale && font <= x->row;
}

// The largest font in which nine of ten numbers fit; the smallest that can be read if there is none.
static inline double svg_number_font(const SvgPicture* picture, const SvgLayout* x) {
    for (double font = 12; font > 7; font -= 0.5) {
        int64_t all = 0, fit = 0;
        for (int i = 0; i < picture->panels; i++) {
            const SvgPanel* panel = &picture->panel[i];
            for (int j = 0; j < panel->n; j++) {
                if (panel->boxes[j].number < 0) continue;
                all++;
                fit += svg_number_fits(x, panel->boxes[j], font);
            }
        }
        if (10 * fit >= 9 * all) return font;
    }
    return 7;
}

static inline SvgLayout svg_layout(const SvgPicture* picture) {
    SvgLayout x = {900, 0, 0, 28, 25, 0, 0};
    int rows = 1;
    double label = 0;
    for (int i = 0; i < picture->panels; i++) {
        rows = (int)max_i64(rows, picture->panel[i].rows);
        for (int r = 0; r < picture->panel[i].rows; r++)
            label = fmax(label, svg_text_width(picture->panel[i].labels[r].text, SVG_FONT));
    }
    if (rows > 8) {
        x.pitch = fmax(13, x.pitch * 8 / rows);
        x.row = x.pitch - 2;
    }
    x.left = SVG_MARGIN + label + 8;
    x.right = x.width - SVG_MARGIN - 4;
    x.scale = (x.right - x.left) / picture->length;
    x.number = svg_number_font(picture, &x);
    return x;
}

// Between ticks: 1, 2 or 5 times a power of ten, so that there are about ten.
static inline double svg_tick_step(double length) {
    const double unit = pow(10, floor(log10(length / 10)));
    const double units = length / 10 / unit;
    if (units <= 1) return unit;
    if (units <= 2) return 2 * unit;
    return unit * (units <= 5 ? 5 : 10);
}

// ---- Writing ----------------------------------------------------------------------------------------------------

// Text as XML has it: escaped; what is no character there becomes a question mark.
static inline void svg_write_escaped(FILE* out, const char* text) {
    const unsigned char* s = (const unsigned char*)text;
    for (size_t left = strlen(text); left > 0;) {
        const size_t n = json_utf8_bytes(s, left);
        const bool none =
            n == 0 || *s < 32 || (n == 3 && s[0] == 0xEF && s[1] == 0xBF && s[2] >= 0xBE); // U+FFFE, U+FFFF
        if (none)
            fputc('?', out);
        else if (*s == '<')
            fputs("&lt;", out);
        else if (*s == '>')
            fputs("&gt;", out);
        else if (*s == '&')
            fputs("&amp;", out);
        else if (*s == '"')
            fputs("&quot;", out);
        else
            fwrite(s, 1, n, out);
        s += n ? n : 1;
        left -= n ? n : 1;
    }
}

static inline void svg_write_text(FILE* out, double x, double y, const char* attributes, const char* text) {
    fprintf(out, "<text x=\"%.5g\" y=\"%.7g\"%s%s>", x, y, *attributes ? " " : "", attributes);
    svg_write_escaped(out, text);
    fputs("</text>\n", out);
}

static inline void svg_write_rect(FILE* out, double x, double y, double width, double height, const char* attributes) {
    fprintf(out, "<rect x=\"%.5g\" y=\"%.7g\" width=\"%.5g\" height=\"%.4g\"%s%s/>\n", x, y, width, height,
            *attributes ? " " : "", attributes);
}

static inline void svg_write_fill(FILE* out, double x, double y, double width, double height, unsigned colour) {
    char fill[32];
    snprintf(fill, sizeof fill, "fill=\"#%06x\"", colour);
    svg_write_rect(out, x, y, width, height, fill);
}

// The first lines of a picture: its frame, and its title at `left`.
static inline void svg_write_begin(FILE* out, double width, double height, double left, const char* title) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.7g %.7g\" width=\"%.7g\" height=\"%.7g\" "
            "role=\"img\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"%d\" fill=\"#1f2937\">\n<title>",
            width, height, width, height, SVG_FONT);
    svg_write_escaped(out, title);
    fputs("</title>\n", out);
    svg_write_rect(out, 0.5, 0.5, width - 1, height - 1, "rx=\"10\" fill=\"#fff\" stroke=\"#d0d7de\"");
    svg_write_text(out, left, SVG_MARGIN + 13, "font-size=\"15\" font-weight=\"bold\"", title);
}

// A gap keeps neighbours apart, but not the narrow ones away.
static inline void svg_write_box(FILE* out, const SvgLayout* x, SvgBox box, double top) {
    const double left = x->left + box.start * x->scale, width = (box.end - box.start) * x->scale;
    const double gap = fmin(1, 0.2 * width), height = x->row * svg_style(box.kind).height;
    svg_write_rect(out, left + gap / 2, top + box.row * x->pitch + (x->row - height) / 2, width - gap, height, "");
}

// The boxes of one kind and chunk.
static inline void svg_write_group(FILE* out, const SvgPicture* picture, const SvgPanel* panel, const SvgLayout* x,
                                   double top, SvgKind kind, int chunk) {
    bool any = false;
    for (int i = 0; i < panel->n; i++) {
        const SvgBox box = panel->boxes[i];
        if (box.kind != kind || box.chunk != chunk || !(box.end > box.start)) continue;
        if (!any)
            fprintf(out, "<g class=\"%s %d\" fill=\"#%06x\">\n", svg_style(kind).name, chunk,
                    svg_shade(kind, chunk, picture->chunks));
        any = true;
        svg_write_box(out, x, box, top);
    }
    if (any) fputs("</g>\n", out);
}

// The numbers in dark boxes, or in light ones.
static inline void svg_write_numbers(FILE* out, const SvgPicture* picture, const SvgPanel* panel, const SvgLayout* x,
                                     double top, bool dark) {
    fprintf(out, "<g fill=\"%s\" text-anchor=\"middle\" font-size=\"%g\">\n", dark ? "#fff" : "#1f2937", x->number);
    for (int i = 0; i < panel->n; i++) {
        const SvgBox box = panel->boxes[i];
        char text[16];
        snprintf(text, sizeof text, "%d", box.number);
        if (box.number < 0 || svg_is_dark(svg_shade(box.kind, box.chunk, picture->chunks)) != dark) continue;
        if (!svg_number_fits(x, box, x->number)) continue;
        svg_write_text(out, x->left + (box.start + box.end) / 2 * x->scale,
                       top + box.row * x->pitch + x->row / 2 + 0.36 * x->number, "", text);
    }
    fputs("</g>\n", out);
}

static inline void svg_write_axis(FILE* out, const SvgPicture* picture, const SvgLayout* x, double y) {
    const double step = svg_tick_step(picture->length);
    fprintf(out, "<path d=\"M%.5g %.7gH%.5g", x->left, y, x->right);
    for (int i = 0; i * step <= picture->length * (1 + 1e-9); i++)
        fprintf(out, "M%.5g %.7gv4", x->left + i * step * x->scale, y);
    fputs("\" stroke=\"#8c959f\" fill=\"none\"/>\n<g fill=\"#57606a\" font-size=\"11\" text-anchor=\"middle\">\n", out);
    for (int i = 0; i * step <= picture->length * (1 + 1e-9); i++) {
        char text[32];
        snprintf(text, sizeof text, "%.10g", i * step);
        svg_write_text(out, x->left + i * step * x->scale, y + 16, "", text);
    }
    fputs("</g>\n", out);
}

static inline double svg_panel_height(const SvgPanel* panel, const SvgLayout* x) {
    return (panel->title[0] ? 22 : 0) + panel->rows * x->pitch + 2 + 20 + 20;
}

static inline void svg_write_panel(FILE* out, const SvgPicture* picture, const SvgPanel* panel, const SvgLayout* x,
                                   double top) {
    if (panel->title[0]) {
        svg_write_text(out, x->left, top + 12, "font-weight=\"bold\"", panel->title);
        top += 22;
    }
    fputs("<g class=\"row\" fill=\"#e9edf2\">\n", out);
    for (int r = 0; r < panel->rows; r++)
        svg_write_rect(out, x->left, top + r * x->pitch, x->right - x->left, x->row, "");
    fputs("</g>\n<g text-anchor=\"end\">\n", out);
    for (int r = 0; r < panel->rows; r++)
        svg_write_text(out, x->left - 8, top + r * x->pitch + x->row / 2 + 4, "", panel->labels[r].text);
    fputs("</g>\n", out);
    for (int kind = 0; kind < SVG_KINDS; kind++) {
        for (int chunk = 0; chunk < picture->chunks; chunk++)
            svg_write_group(out, picture, panel, x, top, (SvgKind)kind, chunk);
    }
    svg_write_numbers(out, picture, panel, x, top, true);
    svg_write_numbers(out, picture, panel, x, top, false);
    const double axis = top + panel->rows * x->pitch + 2;
    svg_write_axis(out, picture, x, axis);
    svg_write_text(out, x->left, axis + 34, "fill=\"#57606a\"", panel->caption);
    svg_write_text(out, x->right, axis + 34, "fill=\"#57606a\" text-anchor=\"end\"", picture->axis);
}

static inline bool svg_has_kind(const SvgPicture* picture, SvgKind kind) {
    for (int i = 0; i < picture->panels; i++) {
        for (int j = 0; j < picture->panel[i].n; j++) {
            const SvgBox box = picture->panel[i].boxes[j];
            if (box.kind == kind && box.end > box.start) return true;
        }
    }
    return false;
}

// A swatch for each chunk, four at most, and what they mean; returns where the next one begins.
static inline double svg_write_key(FILE* out, double left, double y, const unsigned* shades, int n, const char* text) {
    for (int i = 0; i < n; i++) svg_write_fill(out, left + 13 * i, y - 10, 12, 12, shades[i]);
    svg_write_text(out, left + 13 * n + 4, y, "", text);
    return left + 13 * n + 4 + svg_text_width(text, SVG_FONT) + 10;
}

static inline void svg_write_legend(FILE* out, const SvgPicture* picture, const SvgLayout* x, double y) {
    enum { SHADES = 4 };
    const int n = (int)min_i64(SHADES, max_i64(1, picture->chunks));
    const unsigned idle = 0xe9edf2;
    double left = x->left;
    for (int kind = 0; kind < SVG_KINDS; kind++) {
        unsigned shades[SHADES];
        if (!svg_has_kind(picture, (SvgKind)kind)) continue;
        const bool thin = svg_style((SvgKind)kind).height < 1;
        for (int i = 0; i < n; i++) shades[i] = svg_shade((SvgKind)kind, i, n);
        left = svg_write_key(out, left, y, shades, thin ? 1 : n, svg_style((SvgKind)kind).legend);
    }
    svg_write_key(out, left, y, &idle, 1, "idle");
}

// What the shades mean, beside the title.
static inline void svg_write_chunks(FILE* out, const SvgPicture* picture, const SvgLayout* x, double y) {
    char text[64];
    if (picture->chunks == 2)
        snprintf(text, sizeof text, "dark: chunk 0, light: chunk 1");
    else
        snprintf(text, sizeof text, "dark to light: chunks 0 to %d", picture->chunks - 1);
    if (picture->chunks > 1) svg_write_text(out, x->right, y, "fill=\"#57606a\" text-anchor=\"end\"", text);
}

// Writes an SvgPicture; returns false if writing to the file has failed.
static inline bool svg_write(FILE* out, const void* data) {
    const SvgPicture* picture = (const SvgPicture*)data;
    const SvgLayout x = svg_layout(picture);
    const double title = SVG_MARGIN + 30;
    double height = title + 24 + SVG_MARGIN - 6;
    for (int i = 0; i < picture->panels; i++) height += svg_panel_height(&picture->panel[i], &x) + (i > 0 ? 8 : 0);
    svg_write_begin(out, x.width, height, x.left, picture->title);
    svg_write_chunks(out, picture, &x, SVG_MARGIN + 13);
    double top = title;
    for (int i = 0; i < picture->panels; i++) {
        svg_write_panel(out, picture, &picture->panel[i], &x, top);
        top += svg_panel_height(&picture->panel[i], &x) + 8;
    }
    svg_write_legend(out, picture, &x, height - SVG_MARGIN);
    fputs("</svg>\n", out);
    return !ferror(out);
}
