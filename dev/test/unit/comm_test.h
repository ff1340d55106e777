// comm_test.h: checks of programs of several ranks. Rank 0 prints; a check passes if it passes on every rank.
#pragma once

#include "../../../comm/cpu_affinity.h"
#include "test.h"

static Comm world;

// True if it is true on every rank. By MPI itself: what is tested does not judge itself.
static inline bool everywhere(bool mine) {
    int all = mine;
#ifdef USE_MPI
    if (world.size > 1) MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
#endif
    return all != 0;
}

__attribute__((format(printf, 2, 3))) static inline void check_all(bool mine, const char* format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!mine) printf("rank %d: %s: wrong\n", world.rank, text);
    const bool ok = everywhere(mine);
    if (process.rank <= 0)
        check(ok, "%s", text);
    else if (ok)
        test_count.passed++;
    else
        test_count.failed++;
}

static inline int cores_of_this_process(int32_t holders[MAX_CORES]) {
    int n = 0;
    cores_own(holders);
    for (int i = 0; i < MAX_CORES; i++) n += holders[i];
    return n;
}
