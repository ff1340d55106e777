/*
schedule_svg.h: the timeline of a schedule's tables (parallel/schedule_time.h) as a panel of a picture (svg_timeline.h):
draw_panel; the picture as a file: write_picture.
*/
#pragma once

#include "../../parallel/schedule_time.h"
#include "svg_timeline.h"

static inline SvgKind picture_kind(ActionKind kind) {
    switch (kind) {
    case FORWARD: return SVG_FORWARD;
    case BACKWARD: return SVG_BACKWARD;
    case BACKWARD_INPUT: return SVG_INPUT;
    case BACKWARD_WEIGHT: return SVG_WEIGHT;
    case REDUCE:
    case TIE:
    case NORM: return SVG_REDUCE;
    case UPDATE:
    case UPDATE_TIED: return SVG_UPDATE;
    default: return SVG_OTHER;
    }
}

// The timeline of all stages as a panel. scale: units of the picture in a second.
static inline void draw_panel(SvgPicture* picture, const char* title, const char* caption, const Schedule* stages,
                              const Timeline* t, double scale) {
    SvgPanel* panel = svg_add_panel(picture, title, caption, t->p);
    for (int r = 0; r < t->p; r++) {
        snprintf(panel->labels[r].text, sizeof panel->labels[r].text, "stage %d", r);
        for (int i = 0; i < t->done[r]; i++) {
            const Action a = stages[r].actions[i];
            const SvgBox box = {r,
                                scale * t->start[r][i],
                                scale * t->end[r][i],
                                picture_kind(a.kind),
                                0,
                                action_computes(a.kind) ? a.microbatch : -1};
            if (action_transfers(a.kind)) continue;
            svg_add_box(panel, box);
            panel->boxes[panel->n - 1].chunk = (int)max_i64(a.chunk, 0);
        }
    }
}

// "zb-v: 4 stages of 2 chunks, 8 micro-batches"
static inline void plan_title(char* text, size_t size, const PipelineConfig* plan) {
    char chunks[32] = "";
    if (plan->v > 1) snprintf(chunks, sizeof chunks, " of %d chunks", plan->v);
    snprintf(text, size, "%s: %d stage%s%s, %d micro-batch%s", schedule_name(plan->kind), plan->p,
             plan->p == 1 ? "" : "s", chunks, plan->m, plan->m == 1 ? "" : "es");
}

// The file is there as a whole or not at all: a regular file gets its name when it is complete. write: svg_write, if
// it is a timeline.
static inline bool write_picture(bool (*write)(FILE*, const void*), const void* picture, const char* path,
                                 Error* error) {
    struct stat st;
    const bool special = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    const size_t size = strlen(path) + 8;
    char* name = (char*)checked_malloc(size, "a file's name");
    snprintf(name, size, "%s%s", path, special ? "" : ".part");
    FILE* out = fopen(name, "w");
    bool ok = out != NULL;
    if (!ok) fail(error, "%s: cannot write: %s", name, strerror(errno));
    if (out) {
        ok = write(out, picture);
        ok = fclose(out) == 0 && ok;
        ok = ok && (special || rename(name, path) == 0);
        if (!ok) fail(error, "%s: writing failed: %s", path, strerror(errno));
        if (!ok && !special) unlink(name);
    }
    free(name);
    return ok;
}
