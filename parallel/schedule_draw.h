// parallel/schedule_draw.h: the tables of a schedule as text for a terminal: schedule_draw.
#pragma once

#include "schedule_time.h"

static inline char action_letter(ActionKind kind) {
    if (kind == FORWARD) return 'F';
    return kind == BACKWARD_WEIGHT ? 'W' : 'B';
}

// Whether line i of n is left out: of more than `most` lines the first and last quarter of that are shown.
static inline bool is_left_out(int i, int n, int most) { return n > most && i >= most / 4 && i < n - most / 4; }

// F5; with several chunks F5a, F5b; with more chunks than letters F5.0, F5.1.
static inline int action_label(char* text, size_t size, const Schedule* schedule, Action action) {
    if (schedule->config.v > 26)
        return snprintf(text, size, "%c%d.%d", action_letter(action.kind), action.microbatch, action.chunk);
    const char chunk[2] = {schedule->config.v > 1 ? (char)('a' + action.chunk) : '\0', '\0'};
    return snprintf(text, size, "%c%d%s", action_letter(action.kind), action.microbatch, chunk);
}

// Writes one action into a line of `cell` characters per unit of time: F5, B5---.
static inline void schedule_draw_action(char* line, int cell, const Schedule* schedule, Action action, int start,
                                        int end) {
    char text[32];
    memset(line + start * cell, end - start > 1 ? '-' : ' ', (size_t)((end - start) * cell - 1));
    line[end * cell - 1] = ' ';
    const int n = action_label(text, sizeof text, schedule, action);
    memcpy(line + start * cell, text, (size_t)n);
}

// Draws tables that pass schedule_check over time, as in Narayanan et al. 2021, Figure 4: a line per stage, a forward
// pass 1 unit of time, a whole backward pass 2 units, dgrad or wgrad 1 unit. Lines have at most `columns` characters,
// and at most 110: a longer step is cut in the middle, and so are more than 64 stages.
static inline void schedule_draw(const Schedule* stages, int p, int columns, FILE* out) {
    enum { MOST = 64 };
    const bool chunks = stages[0].config.v > 1;
    const int width = columns < 110 ? columns : 110, label = snprintf(NULL, 0, "stage %d  ", p - 1);
    const Action widest = {FORWARD, stages[0].config.v - 1, stages[0].config.m - 1, 0, false};
    const int cell = action_label(NULL, 0, &stages[0], widest) + 1;
    Costs costs = costs_equal(p * stages[0].config.v, 1, 1, 1, 0);
    Timeline timeline = schedule_times(stages, p, &costs, false);
    const int units = (int)timeline.length,
              half = width < label + 5 + 2 * cell ? 1 : (width - label - 5) / cell / 2; // 5: "... " and "|"
    const bool cut = label + units * cell + 1 > width;
    char* line = (char*)checked_malloc((size_t)(units * cell) + 1, "drawing the schedule");
    for (int r = 0; r < p; r++) {
        const Schedule* schedule = &stages[r];
        if (is_left_out(r, p, MOST)) {
            if (!is_left_out(r - 1, p, MOST)) fprintf(out, "...\n");
            continue;
        }
        for (int i = 0; i < units * cell; i++) line[i] = i % cell == 0 ? '.' : ' ';
        for (int i = 0; i < timeline.done[r]; i++) {
            if (action_computes(schedule->actions[i].kind))
                schedule_draw_action(line, cell, schedule, schedule->actions[i], (int)timeline.start[r][i],
                                     (int)timeline.end[r][i]);
        }
        fprintf(out, "stage %-*d", label - 6, r);
        if (cut) fprintf(out, "%.*s... ", half * cell, line);
        fprintf(out, "%.*s|\n", (cut ? half : units) * cell, cut ? line + (units - half) * cell : line);
    }
    fprintf(out, "%*sF forward  B backward  W its weight half  %s. idle", label, "", chunks ? "a b chunks  " : "");
    if (width < 110) fprintf(out, "\n%*s", label - 2, "");
    fprintf(out, "  %send: bubble %.1f %% of the work\n", width < 110 ? "" : "| ",
            100 * timeline_bubble(stages, &timeline));
    free(line);
    timeline_free(&timeline);
    costs_free(&costs);
}
