/*
trainer/graceful_stop.h: a run that is asked to stop finishes its step, saves, and ends in a way that says: run me
again. And a run that has not saved for a while does so without being asked.

SIGUSR1, SIGTERM, SIGINT and SIGHUP ask. Slurm sends a signal before the time limit (sbatch --signal), a cloud sends
SIGTERM before it takes a machine, people press Ctrl-C or close the terminal. The handler notes it, no more; what comes
while a run already stops changes nothing, but for a second SIGINT, which ends the process at once. SIGINT and SIGHUP
that are ignored when a run begins (a shell's background, nohup) stay so. Then the run ends after a step with a
checkpoint in --out and with exit status 75, EX_TEMPFAIL of sysexits.h: a failure that another attempt mends, here one
with --resume.

    scripts/mpirun.sh    turns Ctrl-C, SIGHUP and SIGTERM into SIGUSR1 where it has a terminal; a second one ends the job
    mpirun of Open MPI   forwards SIGUSR1 to all ranks. SIGTERM and SIGINT it takes as "end the job": the ranks get SIGTERM, and one
                         second later SIGKILL (odls_base_sigkill_timeout). So send SIGUSR1 to mpirun, or any to a rank
    mpirun of MPICH      forwards SIGUSR1 too; SIGTERM and SIGINT end the job
    srun                 forwards all to all ranks (SIGINT: a second Ctrl-C within a second); sbatch --signal and scancel --signal
                         reach the ranks without it

The ranks have to stop after the same step, though the signal reaches them at different moments, or only one of them. So
each adds whether it was asked to a sum that all make at the end of every step anyway (train_step), and all see the
same. In the same way the main rank, whose clock alone counts, says that a save is due (--save-minutes).

Sites that do not wait for each other (methods/async_schedule.h) do not make such a sum together in every step. There
the sum of a site is told to the others by a non-blocking sum of its own, which is started in a step in which the site
sends something, behind it, and looked at in the step in which that is merged: the others have come as far then, since
what they sent is waited for. So nobody waits for this, and all stop after the same step: one with such a merging, at
most a round and its delay after the signal.
*/
#ifndef GRACEFUL_STOP_H
#define GRACEFUL_STOP_H

#include "../comm.h"
#include "../parallel.h"
#include <poll.h>
#include <signal.h>

enum { EXIT_REQUEUE = 75 };

static volatile sig_atomic_t stop_signals = 0; // this process was asked to stop

static inline void stop_note(int number) {
    static const char text[] =
        "\nstopping after this step, with a checkpoint if there is --out; Ctrl-C once more ends at once\n";
    static volatile sig_atomic_t interrupted = 0;
    struct pollfd ready = {STDERR_FILENO, POLLOUT, 0};
    stop_signals = 1;
    if (number != SIGINT) return;
    if (interrupted) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    } else if (process.rank <= 0 && poll(&ready, 1, 0) == 1) { // else nobody reads
        const ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        (void)n;
    }
    interrupted = 1;
}

// From now on these signals ask.
static inline void stop_listen(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = stop_note;
    action.sa_flags = SA_RESTART; // no call fails for it
    sigemptyset(&action.sa_mask);
    static const int signals[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 4; i++) {
        struct sigaction before;
        const bool ignored = sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (i < 2 || !ignored) sigaction(signals[i], &action, NULL);
    }
}

// The exit status of the one rank that says it for all; the others end with 0. Launchers kill what is still there when
// a rank ends with another status than 0, and would report that: so it comes last.
static inline int stop_status(void) {
    fflush(stdout);
    usleep(500000);
    return EXIT_REQUEUE;
}

// Whether the run is to end after a step, and whether it is to be saved there.
typedef struct {
    bool stop, save;
} Asked;

// What sites have on its way about it.
typedef struct {
    double* sum; // stop, save; in device memory, like all that sites send without waiting
    CommRequest request;
    int64_t due; // the step in which it is looked at; 0: there is none
} Stop;

// Waits for the sum. Returns what some site was asked.
static inline Asked stop_take(Stop* s) {
    double sums[2] = {0, 0};
    comm_wait(&s->request);
    device_to_host(sums, s->sum, sizeof sums);
    s->due = 0;
    const Asked all = {sums[0] > 0, sums[1] > 0};
    return all;
}

static inline void stop_tell(Stop* s, Comm* far, bool stop, bool save, int64_t due) {
    const double mine[2] = {(double)stop, (double)save};
    const int64_t counted = far->size_bytes; // no part of training
    if (!s->sum) s->sum = (double*)device_malloc(sizeof mine, "a word to other sites");
    device_from_host(s->sum, mine, sizeof mine);
    s->request = comm_all_reduce_start(far, s->sum, 2, COMM_DOUBLE, COMM_SUM);
    s->due = due;
    far->size_bytes = counted;
}

// At the end of a step, on all ranks: whether the run ends or is saved here. asked: what a rank of the scope was asked,
// the same on all of them. far: the ranks at this one's place in the sites. merged: the step in which what sites send
// in this one will have been merged; 0: they send nothing.
static inline Asked stop_agreed(Stop* s, Comm* far, Scope scope, int64_t step, int64_t merged, Asked asked) {
    Asked all = {false, false};
    if (scope == SCOPE_WORLD || far->size == 1) return asked;
    if (s->due && step >= s->due) all = stop_take(s);
    if (all.stop) return all;
    if (merged && !s->due) stop_tell(s, far, asked.stop, asked.save && !all.save, merged);
    return s->due && step >= s->due ? stop_take(s) : all;
}

// At the end of a run: nothing is left on its way.
static inline void stop_settle(Stop* s) {
    if (s->due) stop_take(s);
    device_free(s->sum, 2 * sizeof *s->sum);
    memset(s, 0, sizeof *s);
}

#endif
