/*
timeline.h: the timeline of a schedule's tables as rows, which ./plan --timeline and build/tables print: timeline_print.
*/
#pragma once

#include "../parallel/schedule_time.h"

// Every action that takes time as a row: tabs between columns, a line of headings. For programs that draw it.
static inline void timeline_print(const Schedule* stages, const Timeline* timeline, FILE* out) {
    fprintf(out, "stage\tkind\tchunk\tmicro_batch\tstart\tend\n");
    for (int r = 0; r < timeline->p; r++) {
        for (int i = 0; i < timeline->done[r]; i++) {
            const Action a = stages[r].actions[i];
            const double start = timeline->start[r][i], end = timeline->end[r][i];
            if (end > start && !action_transfers(a.kind))
                fprintf(out, "%d\t%s\t%d\t%d\t%.9g\t%.9g\n", r, action_name(a.kind), a.chunk, a.microbatch, start, end);
        }
    }
}
