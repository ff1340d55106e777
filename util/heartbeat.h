/*
util/heartbeat.h: what each rank does and waits for, in memory that the ranks of a machine share, for
trainer/watchdog.h. A rank writes its own row: phase, step and action of the schedule; the operation that it waits for;
and a counter of actions and operations, which shows that it moves. A call is a few atomic stores, no lock and no system
call; with row = NULL it does nothing.
*/
#pragma once

#include "base.h"

typedef enum {
    PHASE_STARTING,
    PHASE_LOADING,
    PHASE_TRAINING,
    PHASE_VALIDATING,
    PHASE_EVALUATING,
    PHASE_REPORTING,
    PHASE_SAVING,
    PHASE_SAMPLING,
    PHASE_ENDING // it has finished, and may exit
} HeartbeatPhase;

enum { HEARTBEAT_GROUPS = 8 };

typedef struct {
    __attribute__((aligned(64))) int32_t rank;
    int32_t process, speaks;                  // speaks: of the first row, a watchdog reports
    int32_t phase, action, chunk, microbatch; // -1: none
    int32_t operation, group, peer;           // what it waits for (-1: it computes), of which group (-1: of none),
    int32_t groups;                           // and for which rank of the world (-1: all of the group)
    int64_t step;
    uint64_t moved;
    struct {
        char text[96];        // "in group "tensor" of ranks 0, 1, 2, 3"
        const int32_t* ranks; // its members as ranks of the world; a pointer of the rank's own process
    } of_group[HEARTBEAT_GROUPS];
} HeartbeatRow;

static inline void heartbeat_set(int32_t* field, int value) { __atomic_store_n(field, value, __ATOMIC_RELAXED); }
static inline int heartbeat_get(const int32_t* field) { return __atomic_load_n(field, __ATOMIC_RELAXED); }

// The rank moves, or an operation or a file does, part by part.
static inline void heartbeat_move(HeartbeatRow* row) {
    if (row) __atomic_fetch_add(&row->moved, 1, __ATOMIC_RELAXED);
}

// An action of the schedule, in the current phase.
static inline void heartbeat_action(HeartbeatRow* row, int action, int chunk, int microbatch) {
    if (!row) return;
    heartbeat_set(&row->action, action);
    heartbeat_set(&row->chunk, chunk);
    heartbeat_set(&row->microbatch, microbatch);
    heartbeat_move(row);
}

static inline void heartbeat_phase(HeartbeatRow* row, HeartbeatPhase phase, int64_t step) {
    if (!row) return;
    heartbeat_set(&row->phase, (int)phase);
    __atomic_store_n(&row->step, step, __ATOMIC_RELAXED);
    heartbeat_action(row, -1, -1, -1);
}

// The rank waits for an operation of a group (-1: of none of the row's), with the group's rank `peer` (-1: with all).
static inline void heartbeat_wait(HeartbeatRow* row, int operation, int group, int peer) {
    if (!row) return;
    heartbeat_set(&row->group, group);
    heartbeat_set(&row->peer, group >= 0 && peer >= 0 ? row->of_group[group].ranks[peer] : -1);
    heartbeat_set(&row->operation, operation);
}

// The wait is over.
static inline void heartbeat_resume(HeartbeatRow* row) {
    if (!row) return;
    heartbeat_set(&row->operation, -1);
    heartbeat_move(row);
}
