/*
collective_table.h: a collective as the table of each rank's network interface, as text: what draw_collective --what
table prints, from the plan that the trainer executes.

Theory: figure 5 of MultiTree (Huang et al. 2021). A flow is the way of a chunk, a tree. A Reduce row sends to the
Parent as soon as all Children have been added, a Gather row to the Children as soon as the Parent has sent; NOP: the
rank sends nothing in this Step. A flow is named by its root; by its chunk, where ranks have several.
*/
#pragma once

#include "../../comm/collectives/plan.h"

// The other ends of a rank's messages of a chunk, all like `of`, that arrive or leave; step -1: in any step.
static inline void list_peers(char* text, size_t size, const Plan* plan, const int64_t* first, const int32_t* rows,
                              const Transfer* of, bool arriving, int step) {
    text[0] = 0;
    for (int64_t i = first[of->chunk]; i < first[of->chunk + 1]; i++) {
        const Transfer* t = &plan->transfers[rows[i]];
        if (t->add != of->add || (arriving ? t->to : t->from) != of->from || (step >= 0 && t->step != step)) continue;
        append_text(text, size, "%s%d", *text ? "," : "", arriving ? t->from : t->to);
    }
    if (!*text) append_text(text, size, arriving && !of->add ? "nil" : "-");
}

// owner: (chunks) the rank that each belongs to.
static inline bool write_collective_table(const Plan* plan, const int* owner, FILE* out, Error* error) {
    char arrive[1024], leave[1024];
    int64_t* first;
    int32_t* rows;
    for (int64_t i = 0; i < plan->n; i++) {
        if (plan->transfers[i].chunks > 1)
            return fail(error, "%s sends several flows at once; take --what steps", plan->name);
    }
    plan_by_chunk(plan, &first, &rows);
    fprintf(out, "%4s %-6s %6s %6s %8s %4s\n", "Rank", "Op", "FlowID", "Parent", "Children", "Step");
    for (int r = 0; r < plan->ranks; r++) {
        int next = 0;                           // step
        for (int64_t i = 0; i < plan->n; i++) { // in the order of steps
            const Transfer* t = &plan->transfers[i];
            if (t->from != r) continue;
            list_peers(arrive, sizeof arrive, plan, first, rows, t, true, -1);
            list_peers(leave, sizeof leave, plan, first, rows, t, false, t->step);
            if (atoi(leave) != t->to) continue; // the row of the first child has all
            for (; next < t->step; next++) fprintf(out, "%4d NOP %29d\n", r, next);
            fprintf(out, "%4d %-6s %6d %6s %8s %4d\n", r, t->add ? "Reduce" : "Gather",
                    plan->chunks == plan->ranks ? owner[t->chunk] : t->chunk, t->add ? leave : arrive,
                    t->add ? arrive : leave, t->step);
            next = t->step + 1;
        }
    }
    free(first);
    free(rows);
    return true;
}
