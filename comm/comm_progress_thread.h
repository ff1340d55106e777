/*
comm_progress_thread.h: operations that make progress while the rank computes.

MPI moves large messages only inside its calls, and a plan (comm_planned.h) takes its next step only when its runner is
called. A rank that computes for a second without a call delays all that wait for its part: a long message is hidden
behind computation on paper only. comm_open_thread gives a group a thread of this process, which only runs the group's
operations. comm_start puts an operation into a queue, and returns; comm_wait sleeps until the thread signals that it is
over; comm_progress and comm_is_done only poll.

    rank's thread     start . . . . computes . . . . . . . . wait   deliver
    group's thread        \ begin  poll  poll  poll  end /

Ownership. The thread has its own communicator, a duplicate, which no other thread uses, and its own CommJob, so that
its plans in flight are in no list of the rank's thread. The rank's thread counts bytes, writes the trace and copies
from and to the device. They share the queue and the completion flag and time of each operation, under one lock. While
an operation is in flight its buffers, and its request, are the thread's.

Order. Operations begin in the order in which they were started, which is the same on all members, and then are all in
flight at once. All of them use MPI's nonblocking calls, also for the blocking forms (comm_all_reduce): their sums are,
bit for bit, those of comm_all_reduce_start without a thread. The number of plans in flight is limited by their tags;
the others wait in the queue.

Cost. A thread that only polled would take half of the core that it shares with the computation: a poll is a system call
for all connections. So it sleeps between two polls, and until something is started; in an urgent group, whose
operations are waited for soon (of half a micro-batch), for less, and not while its rank waits. The rest is the work
itself: copies, and the sums.

Use. A thread is for groups with MPI as backend. A group of one needs none, and NCCL's operations are on a stream, which
needs no help. The MPI must support MPI_THREAD_MULTIPLE. Without a thread operations still make progress in
comm_progress.

An error in the thread ends the job, as one elsewhere does (comm_stop): of two threads that die at once only one calls
MPI.
*/
#pragma once

#include "comm_mpi.h"
#include "comm_planned.h"
#include "comm_types.h"
#ifdef USE_MPI
#include <pthread.h>
#include <sched.h>

// Seconds between two polls of an urgent group, and of others.
#define COMM_THREAD_URGENT 100e-6
#define COMM_THREAD_PAUSE 300e-6

// An operation, as the thread has it.
typedef struct CommTask {
    struct CommTask* next; // started later: in the queue, then in the list in flight
    CommRequest request;   // in the thread's group; owned by the thread until it is over
    bool over;
} CommTask;

typedef struct CommThread {
    struct CommThread* next; // in the job's list
    Comm comm;               // the group as the thread sees it, ...
    CommJob job;             // ... and the job
    bool urgent;             // comm_open_thread
    pthread_t thread;
    pthread_mutex_t lock; // guards the fields below, and `over`
    pthread_cond_t work, ended;
    CommTask *first, *last; // the queue
    bool awaited;           // the rank waits for an operation
    bool stop;              // the thread has to end
} CommThread;

// ---- The thread -------------------------------------------------------------------------------------------------

// Dequeues the next operation; NULL if there is none that can begin.
static inline CommTask* comm_thread_take(CommThread* t) {
    CommTask* task = t->first;
    if (!task || !comm_plan_may_start(&task->request)) return NULL;
    t->first = task->next;
    task->next = NULL;
    return task;
}

static inline void comm_thread_begin(CommTask* task) {
    if (comm_plan_of(&task->request))
        comm_plan_start(&task->request);
    else
        comm_mpi_start(&task->request);
}

// Whether it is over; then everything that it held except its memory is free.
static inline bool comm_thread_ends(CommTask* task) {
    CommRequest* r = &task->request;
    if (!comm_plan_is_done(r) || !comm_mpi_is_done(r)) return false;
    comm_plan_wait(r);
    comm_mpi_wait(r);
    r->finished = seconds_now();
    return true;
}

// Polls all in flight, and returns those that are over, which leave the list.
static inline CommTask* comm_thread_poll(CommTask** flying) {
    CommTask* over = NULL;
    for (CommTask** place = flying; *place;) {
        CommTask* task = *place;
        if (!comm_thread_ends(task)) {
            place = &task->next;
            continue;
        }
        *place = task->next;
        task->next = over;
        over = task;
    }
    return over;
}

// The pause between two polls, or until something is started.
static inline void comm_thread_rest(CommThread* t) {
    struct timespec until;
    if (t->urgent && t->awaited) {
        pthread_mutex_unlock(&t->lock);
        sched_yield();
        pthread_mutex_lock(&t->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)((t->urgent ? COMM_THREAD_URGENT : COMM_THREAD_PAUSE) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&t->work, &t->lock, &until);
}

static inline void* comm_thread_run(void* thread) {
    CommThread* t = (CommThread*)thread;
    CommTask* flying = NULL; // in flight, in the order of their starts
    pthread_mutex_lock(&t->lock);
    while (!t->stop) {
        CommTask *task = comm_thread_take(t), *over = NULL, **end = &flying;
        if (!task && !flying) {
            pthread_cond_wait(&t->work, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        if (task) {
            comm_thread_begin(task);
            while (*end) end = &(*end)->next;
            *end = task;
        } else {
            over = comm_thread_poll(&flying);
        }
        const bool rests = !task && !over;
        pthread_mutex_lock(&t->lock);
        for (CommTask* next; over; over = next) {
            next = over->next; // the rank now owns and frees it
            over->over = true;
            pthread_cond_broadcast(&t->ended);
        }
        if (rests && !t->stop) comm_thread_rest(t);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

// ---- The rank ---------------------------------------------------------------------------------------------------

static inline bool comm_thread_takes(const CommRequest* r) { return !r->on_device && r->comm->thread; }

// Puts an operation into the queue of its group's thread.
static inline void comm_thread_start(CommRequest* r) {
    CommThread* t = r->comm->thread;
    CommTask* task = (CommTask*)checked_calloc(1, sizeof *task, "an operation");
    task->request = *r;
    task->request.comm = &t->comm;
    task->request.blocking = false;
    r->task = task;
    if (t->comm.plans != r->comm->plans) t->comm.plans = r->comm->plans; // both change while nothing is in flight
    pthread_mutex_lock(&t->lock);
    if (t->first)
        t->last->next = task;
    else
        t->first = task;
    t->last = task;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static inline bool comm_thread_is_done(CommRequest* r) {
    if (!r->task) return true;
    CommThread* t = r->comm->thread;
    pthread_mutex_lock(&t->lock);
    const bool over = r->task->over;
    pthread_mutex_unlock(&t->lock);
    if (over) r->finished = r->task->request.finished;
    return over;
}

static inline void comm_thread_wait(CommRequest* r) {
    if (!r->task) return;
    CommThread* t = r->comm->thread;
    while (comm_plans_run(r->comm) && !comm_thread_is_done(r)) comm_plans_advance(r->comm); // plans of other groups
    pthread_mutex_lock(&t->lock);
    if (!r->task->over) {
        t->awaited = true;
        pthread_cond_signal(&t->work);
        while (!r->task->over) pthread_cond_wait(&t->ended, &t->lock);
        t->awaited = false;
    }
    pthread_mutex_unlock(&t->lock);
    r->finished = r->task->request.finished;
    free(r->task);
    r->task = NULL;
}

// ---- Begin and end ----------------------------------------------------------------------------------------------

static inline void comm_thread_new(Comm* c, bool urgent) {
    CommThread* t = (CommThread*)checked_calloc(1, sizeof *t, "a thread");
    pthread_condattr_t clock;
    t->urgent = urgent;
    t->job = *c->job;
    t->job.runs = NULL;
    t->job.thread = NULL;
    t->comm = *c;
    t->comm.job = &t->job;
    t->comm.trace = NULL;
    comm_mpi_check(MPI_Comm_dup(c->mpi, &t->comm.mpi), c, "a thread");
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&t->work, &clock);
    pthread_cond_init(&t->ended, NULL);
    pthread_condattr_destroy(&clock);
    const int code = pthread_create(&t->thread, NULL, comm_thread_run, t);
    if (code != 0) die("no thread for the messages of group \"%s\": %s", c->name, strerror(code));
    t->next = c->job->thread;
    c->job->thread = t;
    c->thread = t;
}

// Ends the thread at once; its operations in flight are abandoned.
static inline void comm_thread_stop(CommThread* t) {
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static inline void comm_thread_join(CommThread* t) {
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->ended);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

// All members call it, with nothing in flight.
static inline void comm_free_thread(Comm* c) {
    CommThread* t = c->thread;
    if (!t) return;
    CommThread** place = &c->job->thread;
    while (*place != t) place = &(*place)->next;
    *place = t->next;
    MPI_Comm mpi = t->comm.mpi;
    comm_thread_stop(t);
    comm_thread_join(t);
    comm_mpi_check(MPI_Comm_free(&mpi), c, "free");
    c->thread = NULL;
}

// Ends all remaining threads at the end of the job.
static inline void comm_free_threads(CommJob* job) {
    for (CommThread* t = job->thread; t; t = t->next) comm_thread_stop(t);
    for (CommThread *t = job->thread, *next; t; t = next) {
        next = t->next;
        comm_thread_join(t);
    }
    job->thread = NULL;
}

// True if all ranks call it, within COMM_TOGETHER seconds.
static inline bool comm_all_come(void) {
    MPI_Request request;
    int all = 0;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
    for (const double end = seconds_now() + COMM_TOGETHER; !all && seconds_now() < end; usleep(1000))
        MPI_Test(&request, &all, MPI_STATUS_IGNORE);
    return all;
}

// If several threads end the process one of them does, and the others wait here for good.
static pthread_mutex_t comm_ending = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

// process.stop: a rank that dies ends all ranks, which would wait for it for ever. Wrong arguments (die_usage) are
// found by all ranks, and rank 0 reports them: all end without an abort, unless this rank turns out to be the only one.
static inline void comm_stop(int status) {
    int finalized = 0;
    pthread_mutex_lock(&comm_ending);
    MPI_Finalized(&finalized);
    if (finalized) return;
    if (status == EXIT_ARGUMENTS && comm_all_come()) {
        comm_free_threads(comm_job);
        MPI_Finalize();
        return;
    }
    if (status == EXIT_ARGUMENTS)
        print_message("rank %d: wrong arguments or files, which other ranks do not have: start all ranks the same way",
                      process.rank);
    usleep(200000); // MPICH's mpirun drops unread output of this rank when the job is aborted
    MPI_Abort(MPI_COMM_WORLD, status);
}

// From now on a thread of this process runs the group's operations, which make progress while the caller computes, if
// it is available and of use, see above. All members call it, with nothing in flight. Plans may come before or after.
// urgent: what is started is waited for before long.
static inline void comm_open_thread(Comm* c, bool urgent) {
    if (c->size > 1 && !c->nccl && c->job->threads && !c->thread) comm_thread_new(c, urgent);
}

// Whether MPI supports several threads at once, without which there is no group thread.
static inline bool comm_can_thread(const Comm* c) { return c->job && c->job->threads; }
#endif
