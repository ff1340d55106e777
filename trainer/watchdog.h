/*
trainer/watchdog.h: ends a run that hangs, and names the rank that is to blame (watchdog_open .. watchdog_close). A rank
that is stopped, computes for ever, or was killed unnoticed leaves the others waiting: MPI has no time limit.

Each rank has a row (util/heartbeat.h) beside those of its machine, and a thread that looks at all of them every second.
When none has moved for the limit, the job ends with status 1. To blame is the first of

    gone, stopped    by the state of its process: killed, out of memory; by a signal, or a debugger
    computes         it waits for no rank
    waits            for other ranks; if they are on another machine, that one has ELSEWHERE seconds to report first

and of the same kind the rank that is silent longest. While one rank moves, others may wait for it. A second counts only
if the thread itself ran: of a job that was stopped as a whole no rank is to blame.
The limit has to be longer than the longest action, operation (of a plan: message) or bucket of a checkpoint; before the
first step it is START seconds at least. On a GPU with NCCL the host waits for "the device".
*/
#pragma once

#include "../comm.h"
#include "../parallel/schedule.h"
#include "../util/heartbeat.h"
#include <poll.h>
#include <pthread.h>

// Seconds. Tests have shorter ones.
#ifndef WATCH_START
#define WATCH_START 60.0
#define WATCH_ELSEWHERE 3.0
#define WATCH_LAST_WORDS 5 // for process.stop, if MPI itself hangs
#endif

typedef enum { WATCH_GONE, WATCH_STOPPED, WATCH_COMPUTES, WATCH_WAITS, WATCH_ENDED } WatchState;

// A rank as the thread has seen it.
typedef struct {
    uint64_t moved;
    double silent; // seconds without a move
    WatchState state;
} WatchView;

typedef struct {
    HeartbeatRow* rows; // (n), of this machine's ranks; NULL: there is no watchdog
    int n, self;        // self: this rank's
    double limit;       // seconds
    WatchView* view;    // (n)
    int end[2];         // a pipe; the thread runs until it is closed
    pthread_t thread;
} Watchdog;

// This rank's row, or NULL.
static inline HeartbeatRow* watchdog_row(const Watchdog* w) { return w->rows ? &w->rows[w->self] : NULL; }

static inline bool watchdog_steps(const HeartbeatRow* row) { return heartbeat_get(&row->phase) > PHASE_LOADING; }

// By the third field of /proc/PROCESS/stat (proc(5)).
static inline WatchState watchdog_state(const HeartbeatRow* row) {
    char path[64], state = 'Z';
    if (heartbeat_get(&row->phase) == PHASE_ENDING) return WATCH_ENDED;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)row->process);
    FILE* f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    if (f) fclose(f);
    if (state == 'Z' || state == 'X') return WATCH_GONE;
    if (state == 'T' || state == 't') return WATCH_STOPPED;
    return heartbeat_get(&row->operation) < 0 ? WATCH_COMPUTES : WATCH_WAITS;
}

// Looks at the rows, `seconds` after the last time. Returns the one to blame if the job has to end, else -1.
static inline int watchdog_look(Watchdog* w, double seconds) {
    double late = INFINITY; // seconds beyond the limit, the least of all ranks
    int worst = 0;
    for (int i = 0; i < w->n; i++) {
        const HeartbeatRow* row = &w->rows[i];
        WatchView* v = &w->view[i];
        const uint64_t moved = __atomic_load_n(&row->moved, __ATOMIC_RELAXED);
        v->silent = moved == v->moved ? v->silent + seconds : 0;
        v->moved = moved;
        const double limit = watchdog_steps(row) ? w->limit : fmax(w->limit, WATCH_START);
        late = fmin(late, v->silent - limit);
    }
    if (late < 0) return -1;
    for (int i = 0; i < w->n; i++) {
        WatchView *v = &w->view[i], *x = &w->view[worst];
        v->state = watchdog_state(&w->rows[i]);
        if (v->state < x->state || (v->state == x->state && v->silent > x->silent)) worst = i;
    }
    const WatchState state = w->view[worst].state;
    return state == WATCH_ENDED || (state == WATCH_WAITS && late < WATCH_ELSEWHERE) ? -1 : worst;
}

// Appends "step 17, backward 3 of chunk 1: receive in group "pipeline" of ranks 0, 2, with rank 2".
static inline void watchdog_add_place(char* text, size_t size, const HeartbeatRow* row) {
    static const char* const phases[] = {"starting",  "loading the weights", "training", "validating", "evaluating",
                                         "reporting", "saving a checkpoint", "sampling", "ending"};
    const int action = heartbeat_get(&row->action), chunk = heartbeat_get(&row->chunk),
              microbatch = heartbeat_get(&row->microbatch), operation = heartbeat_get(&row->operation),
              group = heartbeat_get(&row->group), peer = heartbeat_get(&row->peer);
    if (watchdog_steps(row))
        append_text(text, size, "step %lld, ", (long long)__atomic_load_n(&row->step, __ATOMIC_RELAXED));
    append_text(text, size, "%s", action < 0 ? phases[heartbeat_get(&row->phase)] : action_name((ActionKind)action));
    if (microbatch >= 0) append_text(text, size, " %d", microbatch);
    if (chunk >= 0) append_text(text, size, " of chunk %d", chunk);
    if (operation < 0) return;
    append_text(text, size, ": %s%s", comm_kind_name((CommKind)operation), group < 0 ? "" : row->of_group[group].text);
    if (peer >= 0) append_text(text, size, ", with rank %d", peer);
}

// Writes a line of the report. Not through stderr's buffer, whose lock another thread may have.
static inline void watchdog_tell(const Watchdog* w, int i, bool blamed) {
    static const char* const states[] = {"is gone, without a word,", "is stopped, by a signal or a debugger,",
                                         "waits for no rank and makes no progress", "waits", "has come to its end"};
    const HeartbeatRow* row = &w->rows[i];
    char text[512] = "";
    watchdog_add_place(text, sizeof text, row);
    dprintf(STDERR_FILENO, "%s%s rank %d (process %d) %s at %s; silent for %.0f s (--watchdog %g)\n",
            blamed ? process.name : "", blamed ? ":" : " ", (int)row->rank, (int)row->process, states[w->view[i].state],
            text, w->view[i].silent, w->limit);
}

// Reports, unless another rank does, and ends the process as die() does, and with it the job, whatever else hangs.
static inline void watchdog_alarm(const Watchdog* w, int worst) {
    const bool first = __atomic_exchange_n(&w->rows[0].speaks, 1, __ATOMIC_SEQ_CST) == 0;
    if (first) watchdog_tell(w, worst, true);
    for (int i = 0; i < w->n; i++) {
        if (first && i != worst) watchdog_tell(w, i, false);
    }
    if (!first) sleep(WATCH_LAST_WORDS);
    alarm(WATCH_LAST_WORDS); // whose signal ends it
    if (process.stop) process.stop(EXIT_RUN);
    _exit(EXIT_RUN);
}

static inline void* watchdog_run(void* watch) {
    Watchdog* w = (Watchdog*)watch;
    const double pause = fmin(1, 0.05 * w->limit);
    struct pollfd end = {w->end[0], POLLIN, 0};
    double last = seconds_now();
    while (poll(&end, 1, (int)(1e3 * pause)) <= 0) {
        const double now = seconds_now();
        const int worst = watchdog_look(w, fmin(now - last, 2 * pause));
        last = now;
        if (worst >= 0) watchdog_alarm(w, worst);
    }
    return NULL;
}

// Memory of zeros for n rows: of a file, or (-1) of this process and its children.
static inline HeartbeatRow* watchdog_map(int fd, int n) {
    const int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    void* p = mmap(NULL, (size_t)n * sizeof(HeartbeatRow), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (p == MAP_FAILED) die("--watchdog: no memory for its table: %s", strerror(errno));
    return (HeartbeatRow*)p;
}

// Starts the thread of a rank, whose row is number `self` of n.
static inline void watchdog_begin(Watchdog* w, HeartbeatRow* rows, int n, int self, int rank, double limit) {
    memset(w, 0, sizeof *w);
    w->rows = rows;
    w->n = n;
    w->self = self;
    w->limit = limit;
    w->view = (WatchView*)checked_calloc((size_t)n, sizeof *w->view, "the watchdog");
    rows[self].rank = rank;
    rows[self].process = (int32_t)getpid();
    heartbeat_resume(&rows[self]);
    heartbeat_phase(&rows[self], PHASE_STARTING, 0);
    if (pipe2(w->end, O_CLOEXEC) != 0 || pthread_create(&w->thread, NULL, watchdog_run, w) != 0)
        die("--watchdog: no thread");
}

// Writes the name and the members of a group into this rank's row. All members call it.
static inline void watchdog_group(Watchdog* w, Comm* c) {
    enum { SHOWN = 8 };
    const int64_t counted = c->size_bytes; // no part of training
    HeartbeatRow* row = watchdog_row(w);
    if (!row || c->size == 1 || row->groups == HEARTBEAT_GROUPS) return;
    int32_t* ranks = (int32_t*)checked_malloc((size_t)c->size * sizeof *ranks, "the watchdog");
    comm_all_gather(c, ranks, &row->rank, 1, COMM_INT32);
    c->size_bytes = counted;
    c->row = row;
    c->row_group = row->groups++;
    row->of_group[c->row_group].ranks = ranks;
    char* text = row->of_group[c->row_group].text;
    const size_t size = sizeof row->of_group[0].text;
    snprintf(text, size, " in group \"%s\" of ranks", c->name);
    for (int i = 0; i < c->size && i < SHOWN; i++) append_text(text, size, "%s %d", i ? "," : "", (int)ranks[i]);
    if (c->size > SHOWN) append_text(text, size, " and %d more", c->size - SHOWN);
}

// Starts the watchdog; limit in seconds, 0: none. All ranks call it. The ranks of a machine share a file, which then
// loses its name; where one cannot open it (in containers of their own), each has rows of its own.
static inline void watchdog_open(Watchdog* w, Comm* world, double limit) {
    memset(w, 0, sizeof *w);
    if (limit <= 0) return;
    char path[] = "/dev/shm/threefold-XXXXXX";
    Comm machine = comm_split_machine(world);
    int fd = machine.rank == 0 ? mkstemp(path) : -1;
    int32_t all = machine.rank > 0 || posix_fallocate(fd, 0, (off_t)(machine.size * sizeof(HeartbeatRow))) == 0;
    comm_broadcast(&machine, path, sizeof path, COMM_BYTE, 0);
    if (machine.rank > 0) fd = open(path, O_RDWR | O_CLOEXEC);
    all = all && fd >= 0;
    comm_all_reduce(&machine, &all, 1, COMM_INT32, COMM_MIN);
    if (machine.rank == 0) unlink(path);
    watchdog_begin(w, watchdog_map(all ? fd : -1, machine.size), all ? machine.size : 1, all ? machine.rank : 0,
                   world->rank, limit);
    if (fd >= 0) close(fd);
    comm_free(&machine);
    watchdog_group(w, world);
    world->row = watchdog_row(w);
}

static inline void watchdog_close(Watchdog* w) {
    if (!w->rows) return;
    close(w->end[1]);
    pthread_join(w->thread, NULL);
    close(w->end[0]);
    for (int i = 0; i < w->rows[w->self].groups; i++) free((void*)(uintptr_t)w->rows[w->self].of_group[i].ranks);
    munmap(w->rows, (size_t)w->n * sizeof *w->rows);
    free(w->view);
    memset(w, 0, sizeof *w);
}
