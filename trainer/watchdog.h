/*
trainer/watchdog.h: ends a run that hangs, and names the rank that is to blame (watchdog_open .. watchdog_close). A rank
that is stopped, computes for ever, or was killed unnoticed leaves the others waiting: MPI has no time limit.

Each rank has a heartbeat slot (util/heartbeat.h), and a watchdog thread that reads the slots of its machine's ranks
once a second, or more often. Its own clock suffices: a slot is silent since its counter was last seen moving. A second
of silence only counts if the thread itself was running, so that a job that was stopped as a whole has no rank to blame.

    judge       gone      the process has ended without notice: killed, or out of memory. The job ends after GRACE
                          seconds, in which a launcher that notices may end the job itself
                stopped   its state is T: a signal, or a debugger
                computes  it waits for no rank
                waits     for other ranks
                moves     not silent

    alarm       when a slot has been silent for the limit. A rank that waits is excused while one of the ranks that it
                waits for moves. Where all silent ranks here wait for ranks of other machines, those machines get
                ELSEWHERE seconds more, to report first.

    blame       in the order above; of the same kind, the rank that is silent longest. Then the report lists all others.

Several threads raise the alarm at about the same time; the first one that writes itself into the table reports, the
others wait OTHERS seconds and then end their ranks. A rank ends as by die(): exit status 1, process.stop, which ends
the job. If MPI itself hangs, _exit follows LAST_WORDS seconds later.

The limit has to be longer than the longest single action or operation; before the first step it is START seconds at
least. Messages of a plan (comm_planned.h) count one by one, and so do buckets of a checkpoint. On a GPU with NCCL the
host waits only where it needs a result: such a rank waits for "the device", and the blame is with a rank that does not.
*/
#pragma once

#include "../comm.h"
#include "../util/heartbeat.h"
#include <pthread.h>
#include <signal.h>

// Seconds. Tests have shorter ones.
#ifndef WATCH_GRACE
#define WATCH_GRACE 5.0      // for launchers to notice that a rank is gone
#define WATCH_ELSEWHERE 3.0  // for another machine to report first
#define WATCH_OTHERS 10.0    // for the reporting rank to end the job
#define WATCH_LAST_WORDS 5.0 // for process.stop
#define WATCH_START 60.0     // limit before the first step, at least
#endif
#define WATCH_PAUSE 1.0  // between two looks at most, ...
#define WATCH_SHARE 0.05 // ... and this part of the limit

typedef enum { WATCH_GONE, WATCH_STOPPED, WATCH_COMPUTES, WATCH_WAITS, WATCH_MOVES } WatchState;

// A rank as the watchdog thread has seen it.
typedef struct {
    uint64_t count;           // of its slot at the last look
    double limit;             // the current one
    double silent, missing;   // seconds without progress; seconds without its process
    ProcessState process;     //
    uint64_t wait;            // its wait, see heartbeat_wait
    bool ended, excused, far; // has ended; waits for a late rank; waits for a rank of another machine
    WatchState state;
} WatchView;

typedef struct {
    HeartbeatTable* table;
    HeartbeatNames names;
    int self;         // this rank's slot
    bool sees;        // the processes of the other slots can be looked up
    double limit;     // seconds; 0: no watchdog
    WatchView* view;  // (rows)
    pthread_t thread; //
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
} Watchdog;

// ---- Judging: functions of the table and the views --------------------------------------------------------------

// Whether a rank that slot i waits for moves. *far: whether some of these are on other machines, or unknown.
static inline bool watchdog_only_late(const Watchdog* w, int i, bool* far) {
    const int32_t* ranks = NULL;
    const int n = heartbeat_awaited(w->table, i, w->view[i].wait, &ranks);
    bool late = false;
    *far = n == 0;
    for (int k = 0; k < n; k++) {
        const int row = heartbeat_find(w->table, ranks[k]);
        if (row < 0) *far = true;
        if (row >= 0 && row != i && w->view[row].silent < w->view[row].limit && !w->view[row].ended) late = true;
    }
    return late;
}

static inline WatchState watchdog_state(const WatchView* v) {
    if (v->ended) return WATCH_MOVES;
    if (v->process == PROCESS_GONE) return WATCH_GONE;
    if (v->silent < v->limit / 2) return WATCH_MOVES;
    if (v->process == PROCESS_STOPPED) return WATCH_STOPPED;
    return v->wait ? WATCH_WAITS : WATCH_COMPUTES;
}

// Whether a is before b in the order of blame.
static inline bool watchdog_before(const WatchView* a, const WatchView* b) {
    return a->state != b->state ? a->state < b->state : a->silent > b->silent;
}

// Judges all slots. Returns the one that is most to blame if the job has to end, else -1.
static inline int watchdog_judge(Watchdog* w) {
    int worst = -1;
    bool alarm = false;
    for (int i = 0; i < w->table->rows; i++) {
        WatchView* v = &w->view[i];
        v->state = watchdog_state(v);
        v->excused = watchdog_only_late(w, i, &v->far) && v->state == WATCH_WAITS;
        if (v->state == WATCH_MOVES || v->excused) continue;
        if (worst < 0 || watchdog_before(v, &w->view[worst])) worst = i;
        if (v->state == WATCH_GONE)
            alarm = alarm || v->missing >= WATCH_GRACE;
        else
            alarm = alarm || v->silent >= v->limit + (v->state == WATCH_WAITS && v->far ? WATCH_ELSEWHERE : 0);
    }
    return alarm ? worst : -1;
}

// ---- Looking ----------------------------------------------------------------------------------------------------

// Updates the view of slot i. seconds: since the last look.
static inline void watchdog_look_at(Watchdog* w, int i, double seconds) {
    const HeartbeatRow* row = heartbeat_row(w->table, i);
    WatchView* v = &w->view[i];
    const uint64_t count = heartbeat_count(row);
    v->ended = __atomic_load_n(&row->ended, __ATOMIC_RELAXED) != 0;
    v->wait = heartbeat_waits(row);
    v->limit = heartbeat_steps(heartbeat_phase_of(row)) ? w->limit : fmax(w->limit, WATCH_START);
    v->silent = count == v->count ? v->silent + seconds : 0;
    v->count = count;
    v->process = PROCESS_RUNS; // a rank that moves runs: no need to read its file
    if (w->sees && v->silent > 0 && i != w->self) v->process = heartbeat_process(row);
    v->missing = v->process == PROCESS_GONE ? v->missing + seconds : 0;
}

// ---- Reporting --------------------------------------------------------------------------------------------------

// Appends a rank: "rank 2 (process 71) is stopped, by a signal or a debugger, at step 17, backward 3; silent for 20 s".
static inline void watchdog_add_rank(char* text, size_t size, const Watchdog* w, int i) {
    const HeartbeatRow* row = heartbeat_row(w->table, i);
    const WatchView* v = &w->view[i];
    static const char* const states[] = {"is gone, without a word, at ", "is stopped, by a signal or a debugger, at ",
                                         "waits for no rank and makes no progress at ", "waits at ", "progresses at "};
    append_text(text, size, "rank %d (process %d) %s", (int)row->rank, (int)row->process,
                v->ended ? "has come to its end at " : states[v->state]);
    heartbeat_add_place(text, size, row, w->names);
    if (v->state == WATCH_MOVES) return;
    if (v->wait) append_text(text, size, ": ");
    if (v->wait) heartbeat_add_wait(text, size, w->table, i, v->wait, w->names);
    append_text(text, size, "; silent for %.0f s", v->silent);
}

// The first `shown` slots in the order of blame, without one. Returns how many there are.
static inline int watchdog_order(const Watchdog* w, int without, int* order, int shown) {
    int n = 0;
    for (int i = 0; i < w->table->rows; i++) {
        int k = n; // its place, searched from the end
        if (i == without) continue;
        while (k > 0 && watchdog_before(&w->view[i], &w->view[order[k - 1]])) k--;
        if (k == shown) continue;
        if (n < shown) n++;
        memmove(&order[k + 1], &order[k], (size_t)(n - 1 - k) * sizeof *order);
        order[k] = i;
    }
    return n;
}

enum { WATCH_REPORT = 8192, WATCH_SHOWN = 16 };

// Writes the whole report. worst: the result of watchdog_judge.
static inline void watchdog_report(char text[WATCH_REPORT], const Watchdog* w, int worst) {
    const WatchView* v = &w->view[worst];
    const int process_number = (int)heartbeat_row(w->table, worst)->process;
    int order[WATCH_SHOWN];
    snprintf(text, WATCH_REPORT, "%s: ", process.name);
    watchdog_add_rank(text, WATCH_REPORT, w, worst);
    if (v->state == WATCH_GONE)
        append_text(text, WATCH_REPORT,
                    ". It was killed, or ran out of memory: see what it printed last, and the system's log");
    else if (v->state == WATCH_STOPPED)
        append_text(text, WATCH_REPORT, " (--watchdog %g). kill -CONT %d would have let it go on", w->limit,
                    process_number);
    else
        append_text(text, WATCH_REPORT, " (--watchdog %g: a larger one gives more time, 0 never ends a run)", w->limit);
    if (v->state == WATCH_WAITS && v->far)
        append_text(text, WATCH_REPORT, ". No rank of this machine is to blame: look at those that it waits for");
    append_text(text, WATCH_REPORT, "\n");
    const int n = watchdog_order(w, worst, order, WATCH_SHOWN);
    for (int i = 0; i < n; i++) {
        append_text(text, WATCH_REPORT, "  ");
        watchdog_add_rank(text, WATCH_REPORT, w, order[i]);
        append_text(text, WATCH_REPORT, "\n");
    }
    if (w->table->rows - 1 > n)
        append_text(text, WATCH_REPORT, "  and %d ranks more on this machine\n", w->table->rows - 1 - n);
}

static inline void* watchdog_end_job(void* unused) {
    (void)unused;
    if (process.stop) process.stop(EXIT_RUN);
    _exit(EXIT_RUN);
}

// Ends the process, and with it the job, whatever else hangs.
__attribute__((noreturn)) static inline void watchdog_end(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, watchdog_end_job, NULL) == 0) usleep((useconds_t)(WATCH_LAST_WORDS * 1e6));
    _exit(EXIT_RUN);
}

// Not through stderr's buffer, whose lock another thread may have.
static inline void watchdog_write(const char* text) {
    for (size_t done = 0, all = strlen(text); done < all;) {
        const ssize_t n = write(STDERR_FILENO, text + done, all - done);
        if (n <= 0 && errno != EINTR) return;
        if (n > 0) done += (size_t)n;
    }
}

static inline void watchdog_alarm(Watchdog* w, int worst) {
    static char text[WATCH_REPORT];
    int32_t none = 0;
    if (__atomic_compare_exchange_n(&w->table->speaker, &none, w->self + 1, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
        watchdog_report(text, w, worst);
        watchdog_write(text);
    } else {
        usleep((useconds_t)(WATCH_OTHERS * 1e6));
    }
    watchdog_end();
}

// ---- The thread -------------------------------------------------------------------------------------------------

static inline double watchdog_pause(const Watchdog* w) { return fmin(WATCH_PAUSE, WATCH_SHARE * w->limit); }

// Sleeps for a pause. False: the run is over.
static inline bool watchdog_sleep(Watchdog* w) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(watchdog_pause(w) * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&w->lock);
    if (!w->stop) pthread_cond_timedwait(&w->wake, &w->lock, &until);
    const bool goes_on = !w->stop;
    pthread_mutex_unlock(&w->lock);
    return goes_on;
}

static inline void* watchdog_run(void* watch) {
    Watchdog* w = (Watchdog*)watch;
    double last = seconds_now();
    while (watchdog_sleep(w)) {
        const double now = seconds_now();
        for (int i = 0; i < w->table->rows; i++) watchdog_look_at(w, i, fmin(now - last, 2 * watchdog_pause(w)));
        last = now;
        const int worst = watchdog_judge(w);
        if (worst >= 0) watchdog_alarm(w, worst);
    }
    return NULL;
}

// Starts the thread, at slot `self` of a table in which all ranks of this machine have theirs.
static inline void watchdog_begin(Watchdog* w, HeartbeatTable* table, int self, double limit, HeartbeatNames names) {
    pthread_condattr_t clock;
    memset(w, 0, sizeof *w);
    w->table = table;
    w->self = self;
    w->limit = limit;
    w->names = names;
    w->view = (WatchView*)checked_calloc((size_t)table->rows, sizeof *w->view, "the watchdog");
    w->sees = true;
    for (int i = 0; i < table->rows; i++) { // false in containers of their own, or without /proc
        if (heartbeat_row(table, i)->born == 0 || heartbeat_process(heartbeat_row(table, i)) == PROCESS_GONE)
            w->sees = false;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &clock);
    pthread_condattr_destroy(&clock);
    sigset_t all, before; // signals are for the main thread
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&w->thread, NULL, watchdog_run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) die("no thread for --watchdog: %s", strerror(code));
}

// ---- With the other ranks ---------------------------------------------------------------------------------------

static inline const char* watchdog_operation_name(int kind) { return comm_kind_name((CommKind)kind); }

// Writes the name and the members of a group into this rank's slot. All members call it.
static inline void watchdog_group(Watchdog* w, Comm* c, int rank) {
    const int64_t counted = c->size_bytes; // no part of training
    int32_t mine = rank;
    if (!w->table || c->size == 1) return;
    int32_t* ranks = (int32_t*)checked_malloc((size_t)c->size * sizeof *ranks, "the watchdog");
    comm_all_gather(c, ranks, &mine, 1, COMM_INT32);
    c->size_bytes = counted;
    c->row = heartbeat_row(w->table, w->self);
    c->row_group = heartbeat_add_group(w->table, w->self, c->name, ranks, c->size);
    free(ranks);
}

// Makes a table for all ranks of this machine, or for this rank alone where they cannot share one. NULL: no memory.
static inline HeartbeatTable* watchdog_share_table(Comm* machine, int rank, int members) {
    HeartbeatPlace place;
    HeartbeatTable* table = NULL;
    memset(&place, 0, sizeof place);
    if (machine->rank == 0) table = heartbeat_make(&place, machine->size, members, machine->size > 1);
    if (machine->rank == 0 && !table) place.file = -1;
    comm_broadcast(machine, &place, sizeof place, COMM_BYTE, 0);
    if (machine->rank > 0) table = heartbeat_open(&place);
    int32_t all = table != NULL;
    comm_all_reduce(machine, &all, 1, COMM_INT32, COMM_MIN);
    if (machine->rank == 0 && place.file >= 0) close(place.file);
    if (!all) heartbeat_unmap(table);
    if (!all) table = heartbeat_make(&place, 1, members, false);
    if (table) heartbeat_claim(table, all ? machine->rank : 0, rank);
    return table;
}

// Starts the watchdog; limit in seconds, 0: none. action: the name of an action of the schedule. All ranks call it.
static inline void watchdog_open(Watchdog* w, Comm* world, double limit, const char* (*action)(int)) {
    memset(w, 0, sizeof *w);
    if (limit <= 0) return;
    const HeartbeatNames names = {action, watchdog_operation_name};
    Comm machine = comm_split_machine(world);
    HeartbeatTable* table = watchdog_share_table(&machine, world->rank, PHASE_GROUPS * world->size);
    if (!table) die("out of memory: the table of --watchdog");
    const int self = table->rows > 1 ? machine.rank : 0;
    comm_barrier(&machine); // all slots are filled
    comm_free(&machine);
    watchdog_begin(w, table, self, limit, names);
    watchdog_group(w, world, world->rank);
    world->row = heartbeat_row(table, self);
}

// This rank's slot, or NULL.
static inline HeartbeatRow* watchdog_row(const Watchdog* w) {
    return w->table ? heartbeat_row(w->table, w->self) : NULL;
}

// The rank may exit from now on: ranks that still wait for it do so without an alarm.
static inline void watchdog_ending(Watchdog* w) {
    HeartbeatRow* row = watchdog_row(w);
    if (!row) return;
    heartbeat_phase(row, PHASE_ENDING, row->step);
    __atomic_store_n(&row->ended, 1, __ATOMIC_RELAXED);
}

static inline void watchdog_close(Watchdog* w) {
    if (!w->table) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    heartbeat_unmap(w->table);
    free(w->view);
    memset(w, 0, sizeof *w);
}
