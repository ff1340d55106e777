/*
trainer/graceful_stop.h: a run that a signal asks to stop finishes its step, saves, and exits with a status that asks
for a requeue.

    stop_listen, stop_note    SIGUSR1, SIGTERM, SIGINT and SIGHUP set a flag; a second SIGINT ends the process at once.
                              SIGINT and SIGHUP that are ignored when a run begins (nohup) stay ignored
    stop_agreed               whether all ranks stop after this step
    stop_status               EX_TEMPFAIL of sysexits.h: another attempt may succeed, here one with --resume

mpirun takes SIGTERM and SIGINT as the end of the job, and forwards SIGUSR1 to all ranks (scripts/mpirun.sh).

All ranks have to stop after the same step, though the signal reaches them at different moments, or only one of them. So
each adds its flag to the sum that all ranks make at the end of every step (train_step).

Asynchronous sites (methods/async_schedule.h) have no common sum in every step. A site's flags go to the others in a
non-blocking all-reduce, which starts after the messages of an outer step and is read in the step that merges these. The
merge waits for messages of all sites, so no site waits for the flags, and all stop after the same merging step.
*/
#pragma once

#include "../comm.h"
#include "../parallel.h"
#include <signal.h>

enum { EXIT_REQUEUE = 75 };

static volatile sig_atomic_t stop_signals = 0; // this process was asked to stop

static inline void stop_note(int number) {
    static const char text[] =
        "\nstopping after this step, with a checkpoint if there is --out; Ctrl-C once more ends at once\n";
    static volatile sig_atomic_t interrupted = 0;
    stop_signals = 1;
    if (number != SIGINT) return;
    if (interrupted) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    } else if (process.rank <= 0) {
        const ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        (void)n;
    }
    interrupted = 1;
}

// Installs the handler.
static inline void stop_listen(void) {
    struct sigaction action = {};
    action.sa_handler = stop_note;
    action.sa_flags = SA_RESTART; // no system call fails with EINTR
    sigemptyset(&action.sa_mask);
    static const int signals[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 4; i++) {
        struct sigaction before;
        const bool ignored = sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (i < 2 || !ignored) sigaction(signals[i], &action, NULL);
    }
}

// The exit status of the one rank that requests a requeue; the others end with 0. Launchers kill the remaining ranks
// when one ends with a status other than 0, and report that: so this rank ends last.
static inline int stop_status(void) {
    usleep(500000);
    return EXIT_REQUEUE;
}

// The flags in flight between sites.
typedef struct {
    double* sum; // in device memory, like every non-blocking message between sites
    CommRequest request;
    int64_t due; // the step that reads it; 0: none is in flight
} Stop;

// Waits for the sum. Returns whether some site has set its flag.
static inline bool stop_take(Stop* s) {
    double sum = 0;
    comm_wait(&s->request);
    device_to_host(&sum, s->sum, sizeof sum);
    s->due = 0;
    return sum > 0;
}

static inline void stop_tell(Stop* s, Comm* inter_site, bool stop, int64_t due) {
    const double mine = (double)stop;
    const int64_t counted = inter_site->size_bytes; // no part of training
    if (!s->sum) s->sum = (double*)device_malloc(sizeof mine, "a word to other sites");
    device_from_host(s->sum, &mine, sizeof mine);
    s->request = comm_all_reduce_start(inter_site, s->sum, 1, COMM_DOUBLE, COMM_SUM);
    s->due = due;
    inter_site->size_bytes = counted;
}

// At the end of a step, on all ranks: whether the run ends here. asked: whether the scope was asked, the same on all
// its ranks. inter_site: the ranks at this one's place in the sites. merged: the step that merges what the sites send
// in this one; 0: they send nothing.
static inline bool stop_agreed(Stop* s, Comm* inter_site, Scope scope, int64_t step, int64_t merged, bool asked) {
    if (scope == SCOPE_WORLD || inter_site->size == 1) return asked;
    if (s->due && step >= s->due && stop_take(s)) return true;
    if (merged && !s->due) stop_tell(s, inter_site, asked, merged);
    return s->due && step >= s->due && stop_take(s);
}

// At the end of a run: waits for a sum in flight.
static inline void stop_settle(Stop* s) {
    if (s->due) stop_take(s);
    device_free(s->sum, sizeof *s->sum);
    memset(s, 0, sizeof *s);
}
