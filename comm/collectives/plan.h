/*
plan.h: an all-reduce, reduce-scatter or all-gather as a table. The vector is cut into chunks; a row of the table, a
transfer, is a step, a sender, a receiver and chunks, which the receiver adds to its own or stores in their place. A
transfer sends the sender's values at the beginning of the step. The ring and MultiTree are two tables, and the check,
cost, drawing, simulation and execution (comm/comm_planned.h) are the same for both.

    all-reduce       every rank begins with a vector of its own and ends with the sum of all
    reduce-scatter   rank r ends with its part of the sum: the chunks [r k, (r + 1) k), k = chunks / ranks
    all-gather       rank r begins with these chunks, and every rank ends with all of them

plan_check proves a table, chunk by chunk, by executing it with sets of ranks in place of numbers: {3} is rank 3's
vector, {1, 3} a sum of two. It checks that

    - every rank's vector is in every result, once
    - no value is overwritten by one that does not contain it, and no rank sends a value that it does not have
    - all ranks end with the same bits: their values were added in the same order, or copied (addition is commutative,
      so the order of its two operands is ignored)
    - in a plan that promises it (exclusive), no link is used by more transfers in a step than it has room for

Nor can ranks deadlock: both ends of a transfer are in one row, so they agree on its step, and a step depends only on
the steps before.
*/
#pragma once

#include "topology.h"

typedef enum { PLAN_ALL_REDUCE, PLAN_REDUCE_SCATTER, PLAN_ALL_GATHER, PLAN_KINDS } PlanKind;

static inline const char* plan_kind_name(PlanKind kind) {
    static const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather"};
    return names[kind];
}

typedef struct {
    int32_t step, chunk, chunks; // chunks [chunk, chunk + chunks)
    int16_t from, to;
    bool add; // to its own; else in its place
} Transfer;

typedef struct {
    char name[40];
    PlanKind kind;
    int ranks, steps, chunks; // chunks have the same size, up to one element
    bool exclusive;           // no link is used beyond its room in a step (plan_room)
    int64_t n, capacity;
    Transfer* transfers; // (n), by step
    // The links of a transfer, if the plan chooses them: link[way[i]] to link[way[i + 1] - 1]; or NULL: the link
    // between the two ranks, and if there is none the network's routes.
    int64_t* way; // (n + 1)
    int32_t* link;
} Plan;

static inline void plan_init(Plan* plan, const char* name, PlanKind kind, int ranks, int chunks) {
    memset(plan, 0, sizeof *plan);
    snprintf(plan->name, sizeof plan->name, "%s", name);
    plan->kind = kind;
    plan->ranks = ranks;
    plan->chunks = chunks;
}

static inline void plan_free(Plan* plan) {
    free(plan->transfers);
    free(plan->way);
    free(plan->link);
    memset(plan, 0, sizeof *plan);
}

static inline void plan_add(Plan* plan, int step, int from, int to, int chunk, int chunks, bool add) {
    plan->transfers =
        (Transfer*)checked_reserve(plan->transfers, &plan->capacity, plan->n + 1, sizeof(Transfer), "a plan");
    const Transfer t = {step, chunk, chunks, (int16_t)from, (int16_t)to, add};
    plan->transfers[plan->n++] = t;
    if (step >= plan->steps) plan->steps = step + 1;
}

// Where chunk c of a vector of n elements begins; c = chunks: its end. If parts belong to ranks, n is a multiple of
// their number.
static inline int64_t plan_chunk_start(const Plan* plan, int64_t n, int64_t c) {
    const int64_t parts = plan->kind == PLAN_ALL_REDUCE ? 1 : plan->ranks, chunks = plan->chunks / parts;
    const int64_t part = n / parts, per = part / chunks, left = part % chunks; // the first `left` chunks have one more
    return c / chunks * part + c % chunks * per + min_i64(c % chunks, left);
}

// Sorts the transfers of a plan without ways by step, stably.
static inline void plan_sort(Plan* plan) {
    int64_t* next = (int64_t*)checked_calloc((size_t)plan->steps + 1, sizeof(int64_t), "a plan");
    Transfer* sorted = (Transfer*)checked_malloc((size_t)plan->n * sizeof(Transfer), "a plan");
    for (int64_t i = 0; i < plan->n; i++) next[plan->transfers[i].step + 1]++;
    for (int s = 0; s < plan->steps; s++) next[s + 1] += next[s];
    for (int64_t i = 0; i < plan->n; i++) sorted[next[plan->transfers[i].step]++] = plan->transfers[i];
    free(plan->transfers);
    free(next);
    plan->transfers = sorted;
    plan->capacity = plan->n;
}

// Slabs, the pieces into which the executor (comm/comm_planned.h) cuts each chunk, whose bytes are given: each goes
// through the plan by itself, after the one before. Only if transfers carry one chunk each: several are one message.
enum { PLAN_SLAB = 256 << 10, PLAN_SLABS = 64 };

static inline int plan_slabs(bool single, int64_t chunk_bytes) {
    return single ? (int)max_i64(1, min_i64(PLAN_SLABS, (chunk_bytes + PLAN_SLAB - 1) / PLAN_SLAB)) : 1;
}

static inline bool plan_is_single(const Plan* plan) {
    for (int64_t i = 0; i < plan->n; i++) {
        if (plan->transfers[i].chunks > 1) return false;
    }
    return true;
}

// The transfers that a link carries in one step: a step lasts as long as a chunk takes on the slowest link.
static inline int plan_room(const Link* link, double slowest) {
    return (int)fmin(link->bandwidth / slowest * (1 + 1e-9), 1 << 30);
}

// ---- Check ------------------------------------------------------------------------------------------------------

typedef struct {
    const Plan* plan;
    int words;       // a set of ranks takes these
    uint64_t* sets;  // (ranks, words): the vectors in each rank's value
    uint64_t* sent;  // (ranks, words): those of the step's senders at its beginning
    uint64_t* order; // (ranks): a number for the order of the additions: equal numbers, equal bits
    uint64_t* sent_order;
} PlanProof;

static inline bool set_is_full(const uint64_t* set, int words, int ranks) {
    for (int w = 0; w < words; w++) {
        const int left = ranks - 64 * w;
        if (set[w] != (left >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << left) - 1)) return false;
    }
    return true;
}

static inline bool set_is_empty(const uint64_t* set, int words) {
    for (int w = 0; w < words; w++) {
        if (set[w]) return false;
    }
    return true;
}

static inline bool plan_fail(const Plan* plan, const Transfer* t, int chunk, Error* error, const char* what) {
    return fail(error, "%s, %s: step %d, chunk %d from rank %d to rank %d: %s", plan->name, plan_kind_name(plan->kind),
                t->step, chunk, t->from, t->to, what);
}

// A number that identifies a sum: from the numbers of its two operands, in either order (the mixing is splitmix64's).
static inline uint64_t proof_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static inline uint64_t proof_sum(uint64_t a, uint64_t b) {
    return proof_mix((a < b ? a : b) + proof_mix(a < b ? b : a));
}

// The value of a chunk on each rank at the start: its vector; of an all-gather all or nothing.
static inline void proof_begin(PlanProof* p, int chunk) {
    const Plan* plan = p->plan;
    const int ranks = plan->ranks, owner = (int)((int64_t)chunk * ranks / plan->chunks);
    memset(p->sets, 0, (size_t)ranks * (size_t)p->words * sizeof(uint64_t));
    for (int r = 0; r < ranks; r++) {
        uint64_t* set = p->sets + (size_t)r * (size_t)p->words;
        p->order[r] = plan->kind == PLAN_ALL_GATHER ? 1 : proof_mix((uint64_t)r + 1);
        for (int i = 0; i < ranks; i++) {
            if (plan->kind == PLAN_ALL_GATHER ? r == owner : r == i) set[i / 64] |= (uint64_t)1 << (i % 64);
        }
    }
}

// Executes the transfers rows[0 .. n) of one step on one chunk.
static inline bool proof_step(PlanProof* p, int chunk, const int32_t* rows, int n, Error* error) {
    const size_t words = (size_t)p->words;
    const Plan* plan = p->plan;
    for (int i = 0; i < n; i++) {
        const Transfer* t = &plan->transfers[rows[i]];
        uint64_t* sent = p->sent + (size_t)t->from * words;
        memcpy(sent, p->sets + (size_t)t->from * words, words * sizeof(uint64_t));
        p->sent_order[t->from] = p->order[t->from];
        if (set_is_empty(sent, p->words)) return plan_fail(plan, t, chunk, error, "it is not there yet");
    }
    for (int i = 0; i < n; i++) {
        const Transfer* t = &plan->transfers[rows[i]];
        const uint64_t* came = p->sent + (size_t)t->from * words;
        uint64_t* set = p->sets + (size_t)t->to * words;
        if (t->add && set_is_empty(set, p->words))
            return plan_fail(plan, t, chunk, error, "there is nothing to add it to");
        for (size_t w = 0; w < words; w++) {
            if (t->add && (set[w] & came[w])) return plan_fail(plan, t, chunk, error, "something is added twice");
            if (!t->add && (set[w] & ~came[w]))
                return plan_fail(plan, t, chunk, error, "what it takes the place of is lost");
            set[w] |= came[w];
        }
        const uint64_t order = p->sent_order[t->from];
        p->order[t->to] = t->add ? proof_sum(p->order[t->to], order) : order;
    }
    return true;
}

static inline bool proof_end(const PlanProof* p, int chunk, Error* error) {
    const Plan* plan = p->plan;
    const int owner = (int)((int64_t)chunk * plan->ranks / plan->chunks);
    for (int r = 0; r < plan->ranks; r++) {
        if (plan->kind == PLAN_REDUCE_SCATTER && r != owner) continue;
        if (!set_is_full(p->sets + (size_t)r * (size_t)p->words, p->words, plan->ranks))
            return fail(error, "%s, %s: rank %d ends without the whole of chunk %d", plan->name,
                        plan_kind_name(plan->kind), r, chunk);
        if (plan->kind == PLAN_ALL_REDUCE && p->order[r] != p->order[0])
            return fail(error, "%s: ranks 0 and %d have added up chunk %d in two orders: their bits may differ",
                        plan->name, r, chunk);
    }
    return true;
}

// The rows of every chunk, in order: rows[first[c]] to rows[first[c + 1] - 1].
static inline void plan_by_chunk(const Plan* plan, int64_t** first, int32_t** rows) {
    int64_t* next = (int64_t*)checked_calloc((size_t)plan->chunks + 2, sizeof(int64_t), "a proof");
    for (int64_t i = 0; i < plan->n; i++) {
        for (int c = 0; c < plan->transfers[i].chunks; c++) next[plan->transfers[i].chunk + c + 2]++;
    }
    for (int c = 0; c < plan->chunks; c++) next[c + 2] += next[c + 1];
    *rows = (int32_t*)checked_malloc((size_t)next[plan->chunks + 1] * sizeof(int32_t), "a proof");
    for (int64_t i = 0; i < plan->n; i++) {
        for (int c = 0; c < plan->transfers[i].chunks; c++)
            (*rows)[next[plan->transfers[i].chunk + c + 1]++] = (int32_t)i;
    }
    *first = next;
}

static inline bool plan_check_rows(const Plan* plan, Error* error) {
    if (plan->ranks < 1 || plan->ranks > NETWORK_LARGEST || plan->chunks < 1 || plan->n > INT32_MAX ||
        (plan->kind != PLAN_ALL_REDUCE && plan->chunks % plan->ranks != 0))
        return fail(error, "%s: %d chunks for %d ranks, %lld rows", plan->name, plan->chunks, plan->ranks,
                    (long long)plan->n);
    for (int64_t i = 0; i < plan->n; i++) {
        const Transfer* t = &plan->transfers[i];
        if (t->from < 0 || t->from >= plan->ranks || t->to < 0 || t->to >= plan->ranks || t->from == t->to ||
            t->step < 0 || t->step >= plan->steps || t->chunk < 0 || t->chunks < 1 ||
            t->chunks > plan->chunks - t->chunk || (i > 0 && t->step < t[-1].step))
            return plan_fail(plan, t, t->chunk, error, "no such step, rank or chunk, or out of order");
    }
    return true;
}

// Checks the sums (above).
static inline bool plan_check_sums(const Plan* plan, Error* error) {
    PlanProof p;
    int64_t* first;
    int32_t* rows;
    bool ok = true;
    plan_by_chunk(plan, &first, &rows);
    p.plan = plan;
    p.words = (plan->ranks + 63) / 64;
    const size_t ranks = (size_t)plan->ranks, words = ranks * (size_t)p.words;
    p.sets = (uint64_t*)checked_malloc(2 * (words + ranks) * sizeof(uint64_t), "a proof");
    p.sent = p.sets + words;
    p.order = p.sent + words;
    p.sent_order = p.order + ranks;
    for (int c = 0; c < plan->chunks && ok; c++) {
        proof_begin(&p, c);
        for (int64_t i = first[c], end; i < first[c + 1] && ok; i = end) {
            for (end = i + 1; end < first[c + 1] && plan->transfers[rows[end]].step == plan->transfers[rows[i]].step;)
                end++;
            ok = proof_step(&p, c, rows + i, (int)(end - i), error);
        }
        ok = ok && proof_end(&p, c, error);
    }
    free(p.sets);
    free(first);
    free(rows);
    return ok;
}

// Checks that ways begin and end where the transfers do, and the exclusive use of links.
static inline bool plan_check_links(const Plan* plan, const Network* net, Error* error) {
    const double slowest = network_slowest(net);
    int* used = (int*)checked_calloc((size_t)net->links + 1, sizeof(int), "a proof");
    int* step = (int*)checked_calloc((size_t)net->links + 1, sizeof(int), "a proof"); // the step counted in `used`, + 1
    bool ok = true;
    for (int64_t i = 0; i < plan->n && ok; i++) {
        const Transfer* t = &plan->transfers[i];
        const int64_t length = plan->way ? plan->way[i + 1] - plan->way[i] : 1;
        int at = t->from;
        for (int64_t k = 0; k < length && ok; k++) {
            const int l = plan->way ? plan->link[plan->way[i] + k] : network_link(net, t->from, t->to);
            if (l < 0 || l >= net->links || net->link[l].from != at)
                ok = plan_fail(plan, t, t->chunk, error, "there is no such link");
            else {
                at = net->link[l].to;
                used[l] = step[l] == t->step + 1 ? used[l] + 1 : 1;
                step[l] = t->step + 1;
                if (used[l] > plan_room(&net->link[l], slowest))
                    ok = plan_fail(plan, t, t->chunk, error, "a link is used twice in the step");
            }
        }
        if (ok && at != t->to) ok = plan_fail(plan, t, t->chunk, error, "its way ends elsewhere");
    }
    free(used);
    free(step);
    return ok;
}

// The whole proof (above). net may be NULL if the plan is not exclusive.
static inline bool plan_check(const Plan* plan, const Network* net, Error* error) {
    if (net && net->ranks != plan->ranks)
        return fail(error, "%s is a plan for %d ranks, network %s has %d", plan->name, plan->ranks, net->name,
                    net->ranks);
    if (!plan_check_rows(plan, error)) return false;
    if (plan->exclusive && net && !plan_check_links(plan, net, error)) return false;
    return plan_check_sums(plan, error);
}
