/*
comm_planned.h: executes collective plans (comm/collectives/collectives.h): an all-reduce, reduce-scatter or all-gather
of a group is then done not by MPI's or NCCL's collectives, but by point-to-point messages from its plan's table.
comm_use_plan gives a group a plan; from then on its operations follow them, started and waited for like others.

A rank's program is its part of the table, as rows: send these chunks to that rank, or receive from it and add, or
receive in place. In a step sends come before receives. A row waits for the rows before it that touch the same chunks: a
send for their receives, a receive for these and for sends in flight from there. Everything else runs as soon as
possible: steps are replaced by these dependencies (compiled once, comm_plan_compile).

Host memory, MPI. Rows are cut into slabs: slab k of every chunk goes through the whole plan by itself, so while one
slab is being added the next is in flight, and the operands are still in the cache. Received sums wait in a few buffers,
and are added in the order of the rows, whichever arrives first: the bits do not depend on timing. Receives are posted
in the order of rows as buffers become free, so the first unfinished one always has one, and its sender depends on
earlier rows only: no deadlock. Work other than MPI's is done inside comm_progress or comm_wait.

16-bit floats are added in float32 and rounded after every addition, as elsewhere.
*/
#pragma once

#include "collectives/plan.h"
#include "comm_mpi.h"
#include "comm_types.h"

enum {
    PLAN_BUFFERS = 64,       // for received sums, at most, ...
    PLAN_BUFFERED = 8 << 20, // ... and this many bytes in all, unless two of them are more
    PLAN_TAGS = 32767,       // the limit that every MPI allows
    PLAN_AT_ONCE = 16        // operations of a group in flight with distinct tags
};

typedef struct {
    int32_t step, chunk, chunks, peer;
    int32_t number;       // among the messages from one rank to the other
    int32_t waits;        // rows before it that it waits for
    int32_t first, nexts; // rows that wait for it: after[first .. first + nexts)
    bool send, add;
} CommRow;

// One rank's program.
typedef struct {
    Plan shape; // without transfers
    int rank, rows, edges, capacity;
    CommRow* row;
    int32_t* after;
    bool single;       // no row of any rank has more than one chunk, so chunks can be cut
    int most_messages; // from any rank to another
} CommPlan;

// The programs of a group. of[kind].rows = 0: there is none.
typedef struct CommPlans {
    CommPlan of[PLAN_KINDS];
    int started;                        // operations so far: the same number on all ranks
    MPI_Comm mpi;                       // separate: their messages match no others
    struct PlanRun* last[PLAN_AT_ONCE]; // the user of each of PLAN_AT_ONCE ranges of tags
} CommPlans;

// ---- Compile ----------------------------------------------------------------------------------------------------

typedef struct {
    int32_t from, to;
} CommEdge;

typedef struct {
    CommEdge* edge;
    int n, capacity;
} CommEdges;

static inline void comm_edge(CommEdges* list, CommPlan* p, int from, int to) {
    if (from < 0 || (list->n > 0 && list->edge[list->n - 1].from == from && list->edge[list->n - 1].to == to)) return;
    if (list->n == list->capacity)
        list->edge = (CommEdge*)checked_grow(list->edge, &list->capacity, 64, sizeof(CommEdge), "a plan");
    const CommEdge edge = {from, to};
    list->edge[list->n++] = edge;
    p->row[to].waits++;
    p->row[from].nexts++;
}

static inline void comm_plan_add_row(CommPlan* p, const Transfer* t, bool send, int* numbers) {
    if (p->rows == p->capacity) p->row = (CommRow*)checked_grow(p->row, &p->capacity, 64, sizeof(CommRow), "a plan");
    const int peer = send ? t->to : t->from;
    const CommRow row = {t->step, t->chunk, t->chunks, peer, numbers[2 * peer + send]++, 0, 0, 0, send, t->add};
    p->row[p->rows++] = row;
}

// The dependencies of rows: for each chunk, the last row that wrote it, and the rows that read it since (a list through
// `before`).
static inline void comm_plan_find_edges(CommPlan* p, CommEdges* edges) {
    typedef struct {
        int32_t row, before;
    } Reader;
    const int chunks = p->shape.chunks;
    int32_t* writer = (int32_t*)checked_malloc((size_t)chunks * 2 * sizeof(int32_t), "a plan");
    int32_t* readers = writer + chunks;
    Reader* reader = NULL;
    int n = 0, capacity = 0;
    for (int c = 0; c < 2 * chunks; c++) writer[c] = -1;
    for (int i = 0; i < p->rows; i++) {
        for (int c = p->row[i].chunk; c < p->row[i].chunk + p->row[i].chunks; c++) {
            comm_edge(edges, p, writer[c], i);
            if (p->row[i].send) {
                if (n == capacity) reader = (Reader*)checked_grow(reader, &capacity, 64, sizeof(Reader), "a plan");
                const Reader one = {i, readers[c]};
                reader[n] = one;
                readers[c] = n++;
                continue;
            }
            for (int k = readers[c]; k >= 0; k = reader[k].before) comm_edge(edges, p, reader[k].row, i);
            readers[c] = -1;
            writer[c] = i;
        }
    }
    free(reader);
    free(writer);
}

// The facts that must be the same on all ranks.
static inline void comm_plan_survey(CommPlan* p, const Plan* plan) {
    int* messages = (int*)checked_calloc((size_t)plan->ranks * (size_t)plan->ranks, sizeof(int), "a plan");
    p->single = plan_is_single(plan);
    p->most_messages = 1;
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        const int n = ++messages[(size_t)t->from * (size_t)plan->ranks + (size_t)t->to];
        if (n > p->most_messages) p->most_messages = n;
    }
    free(messages);
}

// The rows of one rank, and their dependencies.
static inline CommPlan comm_plan_compile(const Plan* plan, int rank) {
    CommPlan p = {};
    p.shape = *plan;
    p.shape.transfers = NULL;
    p.shape.way = NULL;
    p.shape.link = NULL;
    p.rank = rank;
    comm_plan_survey(&p, plan);
    int* numbers = (int*)checked_calloc((size_t)plan->ranks * 2, sizeof(int), "a plan");
    for (int64_t i = 0, end; i < plan->n; i = end) {
        for (end = i; end < plan->n && plan->transfers[end].step == plan->transfers[i].step;) end++;
        for (int sends = 1; sends >= 0; sends--) {
            for (int64_t k = i; k < end; k++) {
                const Transfer* t = &plan->transfers[k];
                if ((sends ? t->from : t->to) == rank) comm_plan_add_row(&p, t, sends, numbers);
            }
        }
    }
    free(numbers);
    CommEdges edges = {NULL, 0, 0};
    comm_plan_find_edges(&p, &edges);
    p.edges = edges.n;
    p.after = (int32_t*)checked_malloc((size_t)edges.n * sizeof(int32_t), "a plan");
    for (int i = 0, first = 0; i < p.rows; i++) {
        p.row[i].first = first;
        first += p.row[i].nexts;
        p.row[i].nexts = 0;
    }
    for (int i = 0; i < edges.n; i++) {
        CommRow* from = &p.row[edges.edge[i].from];
        p.after[from->first + from->nexts++] = edges.edge[i].to;
    }
    free(edges.edge);
    return p;
}

static inline void comm_plan_free(CommPlan* p) {
    free(p->row);
    free(p->after);
    memset(p, 0, sizeof *p);
}

// ---- Which operations follow a plan -----------------------------------------------------------------------------

// The plan that an operation follows, or NULL. All ranks get the same answer.
static inline const CommPlan* comm_plan_of(const CommRequest* r) {
    const bool floats = r->type == COMM_FLOAT || r->type == COMM_BF16;
    const bool sums = floats && r->op == COMM_SUM;
    const CommPlan* plan = NULL;
    if (!r->comm->plans || r->n == 0) return NULL;
    if (r->kind == COMM_ALL_REDUCE && sums) plan = &r->comm->plans->of[PLAN_ALL_REDUCE];
    if (r->kind == COMM_REDUCE_SCATTER && sums) plan = &r->comm->plans->of[PLAN_REDUCE_SCATTER];
    if (r->kind == COMM_ALL_GATHER) plan = &r->comm->plans->of[PLAN_ALL_GATHER];
    return plan && plan->rows ? plan : NULL;
}

// Elements [*start, *start + the result) of the vector: slab k of `slabs` of a row.
static inline int64_t comm_row_elements(const CommPlan* p, const CommRow* row, int64_t n, int k, int slabs,
                                        int64_t* start) {
    const int64_t from = plan_chunk_start(&p->shape, n, row->chunk);
    const int64_t all = plan_chunk_start(&p->shape, n, row->chunk + row->chunks) - from;
    *start = from + all * k / slabs;
    return all * (k + 1) / slabs - all * k / slabs;
}

static inline bool plan_row_sums(const CommRow* row) { return !row->send && row->add; }

// The bytes that comm_bytes counts for an operation that follows a plan, times the size of the group.
static inline int64_t comm_plan_size_bytes(const CommRequest* r, const CommPlan* p) {
    int64_t sent = 0, start;
    for (int i = 0; i < p->rows; i++) {
        if (p->row[i].send) sent += comm_row_elements(p, &p->row[i], r->n, 0, 1, &start);
    }
    return sent * comm_type_bytes(r->type) * r->comm->size;
}

// ---- Host memory: MPI -------------------------------------------------------------------------------------------

#ifdef USE_MPI
// An operation in flight. An item is a slab of a row: number row * slabs + slab.
typedef struct PlanRun {
    struct PlanRun* next_run; // in the job's list of unfinished runs, ...
    bool listed;              // ... whether it is in the list
    const CommPlan* plan;
    Comm* comm;
    CommType type;
    int64_t n, left; // left: unfinished items
    int slabs, tag;
    char *vector, *own; // own: a copy that a reduce-scatter works on, or NULL
    int32_t* waits;     // (items)
    char** came;        // (items): the buffer of a sum in flight or received; NULL
    bool* there;        // (items)
    int next;           // the first item that may be a sum with its receive not posted
    char* buffers;
    char** free_buffer; // (frees)
    int frees;
    int flying; // messages
    MPI_Request* request;
    int32_t* item; // (flying): the item of the message
    int* indices;  // scratch for MPI
} PlanRun;

static inline void plan_run_post(PlanRun* run, int item, char* buffer) {
    const CommRow* row = &run->plan->row[item / run->slabs];
    int64_t start;
    const int64_t n = comm_row_elements(run->plan, row, run->n, item % run->slabs, run->slabs, &start);
    const int tag = run->tag + row->number * run->slabs + item % run->slabs;
    const MPI_Datatype type = comm_mpi_type(run->type);
    MPI_Comm mpi = run->comm->plans->mpi;
    MPI_Request* q = &run->request[run->flying];
    if (n > INT32_MAX) die("a message of %lld elements is too long: cut the model into more ranks", (long long)n);
    comm_mpi_check(row->send ? MPI_Isend(buffer, (int)n, type, row->peer, tag, mpi, q)
                             : MPI_Irecv(buffer, (int)n, type, row->peer, tag, mpi, q),
                   run->comm, "a planned message");
    run->item[run->flying++] = item;
}

// sum += in (n).
static inline void plan_add_up(char* sum, const char* in, int64_t n, CommType type) {
    if (type != COMM_FLOAT) {
        comm_add_sixteen((const uint16_t*)in, (uint16_t*)sum, n);
        return;
    }
    float* RESTRICT a = (float*)sum;
    const float* RESTRICT b = (const float*)in;
    for (int64_t i = 0; i < n; i++) a[i] += b[i];
}

static inline void plan_run_end_item(PlanRun* run, int item);
static inline void plan_run_begin_item(PlanRun* run, int item);

// Starts an item without dependencies; a sum whose message has arrived, and an empty one, end at once.
static inline void plan_run_begin_item(PlanRun* run, int item) {
    const CommRow* row = &run->plan->row[item / run->slabs];
    int64_t start;
    const int64_t n = comm_row_elements(run->plan, row, run->n, item % run->slabs, run->slabs, &start);
    char* place = run->vector + start * comm_type_bytes(run->type);
    if (n > 0 && !plan_row_sums(row)) {
        plan_run_post(run, item, place);
        return;
    }
    if (n > 0) {
        if (!run->there[item]) return;
        plan_add_up(place, run->came[item], n, run->type);
        run->free_buffer[run->frees++] = run->came[item];
    }
    plan_run_end_item(run, item);
}

static inline void plan_run_end_item(PlanRun* run, int item) {
    const CommRow* row = &run->plan->row[item / run->slabs];
    run->left--;
    for (int i = 0; i < row->nexts; i++) {
        const int next = run->plan->after[row->first + i] * run->slabs + item % run->slabs;
        if (--run->waits[next] == 0) plan_run_begin_item(run, next);
    }
}

// Posts receives of sums, in their order, as long as there are buffers.
static inline void plan_run_receive(PlanRun* run) {
    const int items = run->plan->rows * run->slabs;
    for (; run->next < items && run->frees > 0; run->next++) {
        const CommRow* row = &run->plan->row[run->next / run->slabs];
        int64_t start;
        if (!plan_row_sums(row)) continue;
        if (comm_row_elements(run->plan, row, run->n, run->next % run->slabs, run->slabs, &start) == 0) continue;
        run->came[run->next] = run->free_buffer[--run->frees];
        plan_run_post(run, run->next, run->came[run->next]);
    }
}

// A message was sent or received.
static inline void plan_run_message(PlanRun* run, int item) {
    heartbeat_move(run->comm->row);
    if (!plan_row_sums(&run->plan->row[item / run->slabs])) {
        plan_run_end_item(run, item);
        return;
    }
    run->there[item] = true;
    if (run->waits[item] == 0) plan_run_begin_item(run, item);
}

// Advances an operation; wait: until it is over. Returns whether it is; then it is removed from the job's list.
static inline bool plan_run_advance(PlanRun* run, bool wait) {
    if (!run->listed) return true;
    while (run->left > 0) {
        int n = 0;
        plan_run_receive(run);
        if (run->flying == 0) die("internal error: plan %s waits for nothing", run->plan->shape.name);
        const int code = wait ? MPI_Waitsome(run->flying, run->request, &n, run->indices, MPI_STATUSES_IGNORE)
                              : MPI_Testsome(run->flying, run->request, &n, run->indices, MPI_STATUSES_IGNORE);
        comm_mpi_check(code, run->comm, "a planned message");
        if (n == 0) return false;
        for (int i = 0; i < n; i++) { // from indices to items
            const int place = run->indices[i];
            run->indices[i] = run->item[place];
            run->item[place] = -1;
        }
        int kept = 0;
        for (int i = 0; i < run->flying; i++) {
            if (run->item[i] < 0) continue;
            run->item[kept] = run->item[i];
            run->request[kept++] = run->request[i];
        }
        run->flying = kept;
        for (int i = 0; i < n; i++) plan_run_message(run, run->indices[i]);
    }
    PlanRun** list = &run->comm->job->runs;
    while (*list != run) list = &(*list)->next_run;
    *list = run->next_run;
    run->listed = false;
    return true;
}

// Whether operations by plan are in flight. Then every wait calls comm_plans_advance meanwhile: other ranks may need
// messages of these plans before they reach what this rank waits for.
static inline bool comm_plans_run(const Comm* c) { return c->job && c->job->runs; }

static inline void comm_plans_advance(const Comm* c) {
    for (PlanRun *run = c->job->runs, *next; run; run = next) {
        next = run->next_run;
        plan_run_advance(run, false);
    }
}

// Before a blocking call of MPI: advances plans until all members have reached it. Then no rank in it waits for a plan.
static inline void comm_plans_meet(const Comm* c) {
    MPI_Request all;
    int met = 0;
    if (!c->job->planned) return; // the same on all ranks
    comm_mpi_check(MPI_Ibarrier(c->mpi, &all), c, "barrier");
    while (!met) {
        comm_mpi_check(MPI_Test(&all, &met, MPI_STATUS_IGNORE), c, "barrier");
        if (!met) comm_plans_advance(c);
    }
}

static inline void plan_run_wait(PlanRun* run) {
    if (run->comm->job->runs == run && !run->next_run) plan_run_advance(run, true); // the only run: MPI may block
    while (run->listed) comm_plans_advance(run->comm);
}

// The vector that a plan works on, from the operation's buffers.
static inline void plan_run_take(PlanRun* run, const CommRequest* r) {
    const size_t bytes = (size_t)(r->n * comm_type_bytes(r->type)), part = bytes / (size_t)r->comm->size;
    run->vector = (char*)r->out;
    if (r->kind == COMM_REDUCE_SCATTER) {
        run->vector = run->own = (char*)checked_malloc(bytes, "a reduce-scatter by plan");
        memcpy(run->own, r->in, bytes);
    } else if (r->kind == COMM_ALL_GATHER && r->in != run->vector + (size_t)r->comm->rank * part) {
        memcpy(run->vector + (size_t)r->comm->rank * part, r->in, part);
    }
}

// Buffers for sums.
static inline void plan_run_take_buffers(PlanRun* run, size_t largest, int sums) {
    int n = (int)min_i64(PLAN_BUFFERS, max_i64(2, PLAN_BUFFERED / (int64_t)max_i64(1, (int64_t)largest)));
    if (n > sums) n = sums;
    run->buffers = (char*)checked_malloc((size_t)n * largest, "messages");
    run->free_buffer = (char**)checked_malloc((size_t)n * sizeof(char*), "messages");
    for (run->frees = 0; run->frees < n; run->frees++)
        run->free_buffer[run->frees] = run->buffers + (size_t)run->frees * largest;
}

// The slabs of a chunk: the same number on all ranks, and within the number of tags.
static inline int comm_plan_slabs(const CommPlan* p, int64_t chunk_bytes) {
    return (int)max_i64(1, min_i64(plan_slabs(p->single, chunk_bytes), PLAN_TAGS / PLAN_AT_ONCE / p->most_messages));
}

static inline bool comm_plan_takes(const CommRequest* r) { return !r->on_device && comm_plan_of(r); }

static inline void comm_plan_start(CommRequest* r) {
    const CommPlan* p = comm_plan_of(r);
    CommPlans* plans = r->comm->plans;
    const int64_t element = comm_type_bytes(r->type), chunk = (r->n + p->shape.chunks - 1) / p->shape.chunks * element;
    PlanRun* run = (PlanRun*)checked_calloc(1, sizeof *run, "a plan");
    run->plan = p;
    run->comm = r->comm;
    run->type = r->type;
    run->n = r->n;
    run->slabs = comm_plan_slabs(p, chunk);
    PlanRun** place = &plans->last[plans->started++ % PLAN_AT_ONCE]; // the last user of these tags has to be over
    if (*place) plan_run_wait(*place);
    *place = run;
    run->tag = (int)(place - plans->last) * (PLAN_TAGS / PLAN_AT_ONCE);
    run->next_run = r->comm->job->runs;
    r->comm->job->runs = run;
    run->listed = true;
    const size_t items = (size_t)p->rows * (size_t)run->slabs;
    int64_t largest = 0, start;
    int sums = 0;
    run->left = (int64_t)items;
    run->waits = (int32_t*)checked_malloc(items * sizeof(int32_t), "a plan");
    run->came = (char**)checked_calloc(items, sizeof(char*), "a plan");
    run->there = (bool*)checked_calloc(items, sizeof(bool), "a plan");
    run->request = (MPI_Request*)checked_malloc(items * sizeof(MPI_Request), "a plan");
    run->item = (int32_t*)checked_malloc(items * 2 * sizeof(int32_t), "a plan");
    run->indices = run->item + items;
    for (size_t i = 0; i < items; i++) {
        const CommRow* row = &p->row[i / (size_t)run->slabs];
        run->waits[i] = row->waits;
        if (!plan_row_sums(row)) continue;
        sums++;
        largest = max_i64(largest,
                          element * comm_row_elements(p, row, r->n, (int)(i % (size_t)run->slabs), run->slabs, &start));
    }
    plan_run_take(run, r);
    plan_run_take_buffers(run, round_up((size_t)largest, 64), sums);
    r->run = run;
    for (size_t i = 0; i < items; i++) {
        const CommRow* row = &p->row[i / (size_t)run->slabs]; // run->waits may have become 0 meanwhile
        if (row->waits == 0) plan_run_begin_item(run, (int)i);
    }
    plan_run_advance(run, false);
}

// Whether an operation could start without waiting for an earlier one.
static inline bool comm_plan_may_start(const CommRequest* r) {
    const CommPlans* plans = r->comm->plans;
    return !comm_plan_of(r) || !plans->last[plans->started % PLAN_AT_ONCE];
}

static inline bool comm_plan_is_done(CommRequest* r) { return !r->run || plan_run_advance(r->run, false); }

static inline void comm_plan_wait(CommRequest* r) {
    PlanRun* run = r->run;
    if (!run) return;
    CommPlans* plans = run->comm->plans;
    plan_run_wait(run);
    for (int i = 0; i < PLAN_AT_ONCE; i++) {
        if (plans->last[i] == run) plans->last[i] = NULL;
    }
    if (run->own) {
        const size_t part = (size_t)(run->n * comm_type_bytes(run->type)) / (size_t)run->comm->size;
        memcpy(r->out, run->own + (size_t)run->comm->rank * part, part);
    }
    free(run->buffers);
    free(run->own);
    free(run->waits);
    free(run->came);
    free(run->there);
    free(run->request);
    free(run->item);
    free(run->free_buffer);
    free(run);
    r->run = NULL;
}

// MPI's own operations, while other ranks may wait for plans of this one.
static inline void comm_mpi_start_beside_plans(CommRequest* r) {
    if (r->blocking) comm_plans_meet(r->comm);
    comm_mpi_start(r);
}

static inline void comm_mpi_wait_beside_plans(CommRequest* r) {
    while (comm_plans_run(r->comm) && !comm_mpi_is_done(r)) comm_plans_advance(r->comm);
    comm_mpi_wait(r);
}
#endif

// ---- A group's plans --------------------------------------------------------------------------------------------

#ifdef USE_MPI
static inline CommPlans* comm_plans_of(Comm* c) {
    if (c->plans) return c->plans;
    c->plans = (CommPlans*)checked_calloc(1, sizeof(CommPlans), "the plans of a group");
    comm_mpi_check(MPI_Comm_dup(c->mpi, &c->plans->mpi), c, "the plans of a group");
    return c->plans;
}

// Implements comm_use_plan for an idle group.
static inline void comm_plan_adopt(Comm* c, const Plan* plan) {
    if (plan->ranks != c->size)
        die("internal error: a plan for %d ranks in group \"%s\" of %d", plan->ranks, c->name, c->size);
    if (!c->thread) c->job->planned = true; // the thread advances its own plans
    CommPlan* mine = &comm_plans_of(c)->of[plan->kind];
    comm_plan_free(mine);
    *mine = comm_plan_compile(plan, c->rank);
    if (mine->most_messages > PLAN_TAGS / PLAN_AT_ONCE)
        die_usage("the plan %s sends %d messages between two ranks, more than MPI can tell apart: choose another "
                  "--allreduce",
                  plan->name, mine->most_messages);
}

static inline void comm_free_plans(Comm* c) {
    if (!c->plans) return;
    for (int kind = 0; kind < PLAN_KINDS; kind++) comm_plan_free(&c->plans->of[kind]);
    comm_mpi_check(MPI_Comm_free(&c->plans->mpi), c, "free");
    free(c->plans);
    c->plans = NULL;
}
#endif
