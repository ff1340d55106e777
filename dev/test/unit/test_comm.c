/*
test_comm.c: every operation of comm.h against its definition, computed from values that are a function of (rank,
element). Rank 0 prints; a check passes if it passes on every rank.

    ranks: 1 2 3 4 5 8

With one of these words as argument the program does one thing that ends it, to be looked at from outside (a script):
    die         the last rank dies while the others wait for it         1 line of ours, exit status 1
    usage       all ranks find wrong arguments                          1 line, without a rank; status 2
    lonely      only the last rank finds wrong arguments                1 line, within some seconds; status 2
    together    all ranks find the same error                           1 line, without a rank; status 2
    differ      the last rank passes another text                       1 line, status 2
    length      rank 0 sends 12 floats, the last rank expects 7         1 line that names both lengths; status 1
    short       rank 0 sends 5 floats, the last rank expects 7          the same
    peer        a message to a rank that does not exist                 1 line, status 1
    place       prints every rank's share of the machine                status 0
*/
#include "../../../comm/check_same.h"
#include "comm_test.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif

// ----------------------------------------------------------------------------------------------------------------
// Values: element i of rank r, whole numbers in [-100, 100] ([0, 250] for bytes, [-30, 30] for 16-bit floats), whose
// sums every type holds exactly.

static bool is_sixteen(CommType type) { return type == COMM_BF16 || type == COMM_FP16; }

static int64_t value(int rank, int64_t i, CommType type) {
    const uint64_t x = ((uint64_t)rank * 1000003 + (uint64_t)i + 17) * 0x9E3779B97F4A7C15ull;
    if (type == COMM_BYTE) return (int64_t)((x >> 32) % 251);
    return is_sixteen(type) ? (int64_t)((x >> 32) % 61) - 30 : (int64_t)((x >> 32) % 201) - 100;
}

static void put(void* buffer, int64_t i, CommType type, int64_t x) {
    if (type == COMM_FLOAT) ((float*)buffer)[i] = (float)x;
    if (type == COMM_DOUBLE) ((double*)buffer)[i] = (double)x;
    if (type == COMM_INT32) ((int32_t*)buffer)[i] = (int32_t)x;
    if (type == COMM_INT64) ((int64_t*)buffer)[i] = x;
    if (type == COMM_BYTE) ((unsigned char*)buffer)[i] = (unsigned char)x;
    if (type == COMM_BF16) ((uint16_t*)buffer)[i] = f32_to_bf16((float)x);
    if (type == COMM_FP16) ((uint16_t*)buffer)[i] = f32_to_f16((float)x);
}

static bool is(const void* buffer, int64_t i, CommType type, int64_t x) {
    if (type == COMM_FLOAT) return ((const float*)buffer)[i] == (float)x;
    if (type == COMM_DOUBLE) return ((const double*)buffer)[i] == (double)x;
    if (type == COMM_INT32) return ((const int32_t*)buffer)[i] == (int32_t)x;
    if (type == COMM_INT64) return ((const int64_t*)buffer)[i] == x;
    if (type == COMM_BF16) return ((const uint16_t*)buffer)[i] == f32_to_bf16((float)x);
    if (type == COMM_FP16) return ((const uint16_t*)buffer)[i] == f32_to_f16((float)x);
    return ((const unsigned char*)buffer)[i] == (unsigned char)x;
}

static int64_t reduced(int size, int64_t i, CommType type, CommOp op) {
    int64_t result = value(0, i, type);
    for (int rank = 1; rank < size; rank++) {
        const int64_t x = value(rank, i, type);
        result = op == COMM_SUM ? result + x : op == COMM_MAX ? max_i64(result, x) : min_i64(result, x);
    }
    return result;
}

enum { GUARD = 8 }; // elements behind a buffer that nobody may write

static void* buffer_new(int64_t n, CommType type) {
    void* p = checked_malloc((size_t)((n + GUARD) * comm_type_bytes(type)), "a test buffer");
    for (int64_t i = 0; i < n + GUARD; i++) put(p, i, type, 99);
    return p;
}

static bool guard_is_whole(const void* buffer, int64_t n, CommType type) {
    bool ok = true;
    for (int64_t i = n; i < n + GUARD; i++) ok = ok && is(buffer, i, type, 99);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Every operation, blocking or not, against its definition; and what it counts

static bool test_all_reduce(Comm* c, int64_t n, CommType type, CommOp op, bool blocking) {
    void* x = buffer_new(n, type);
    for (int64_t i = 0; i < n; i++) put(x, i, type, value(c->rank, i, type));
    if (blocking) {
        comm_all_reduce(c, x, n, type, op);
    } else {
        CommRequest r = comm_all_reduce_start(c, x, n, type, op);
        comm_wait(&r);
    }
    bool ok = guard_is_whole(x, n, type);
    for (int64_t i = 0; i < n; i++) ok = ok && is(x, i, type, reduced(c->size, i, type, op));
    free(x);
    return ok;
}

static bool test_reduce_scatter(Comm* c, int64_t n, CommType type, bool blocking) {
    void *in = buffer_new(n * c->size, type), *out = buffer_new(n, type);
    for (int64_t i = 0; i < n * c->size; i++) put(in, i, type, value(c->rank, i, type));
    if (blocking) {
        comm_reduce_scatter(c, out, in, n, type);
    } else {
        CommRequest r = comm_reduce_scatter_start(c, out, in, n, type);
        comm_wait(&r);
    }
    bool ok = guard_is_whole(out, n, type);
    for (int64_t i = 0; i < n; i++) ok = ok && is(out, i, type, reduced(c->size, n * c->rank + i, type, COMM_SUM));
    for (int64_t i = 0; i < n * c->size; i++) ok = ok && is(in, i, type, value(c->rank, i, type)); // untouched
    free(in);
    free(out);
    return ok;
}

static bool test_all_gather(Comm* c, int64_t n, CommType type, bool in_place, bool blocking) {
    void *out = buffer_new(n * c->size, type), *apart = buffer_new(n, type);
    void* in = in_place ? (char*)out + n * c->rank * comm_type_bytes(type) : apart;
    for (int64_t i = 0; i < n; i++) put(in, i, type, value(c->rank, i, type));
    if (blocking) {
        comm_all_gather(c, out, in, n, type);
    } else {
        CommRequest r = comm_all_gather_start(c, out, in, n, type);
        comm_wait(&r);
    }
    bool ok = guard_is_whole(out, n * c->size, type);
    for (int rank = 0; rank < c->size; rank++) {
        for (int64_t i = 0; i < n; i++) ok = ok && is(out, rank * n + i, type, value(rank, i, type));
    }
    free(out);
    free(apart);
    return ok;
}

static bool test_broadcast(Comm* c, int64_t n, CommType type, int root, bool blocking) {
    void* x = buffer_new(n, type);
    for (int64_t i = 0; i < n; i++) put(x, i, type, c->rank == root ? value(root, i, type) : 1);
    if (blocking) {
        comm_broadcast(c, x, n, type, root);
    } else {
        CommRequest r = comm_broadcast_start(c, x, n, type, root);
        comm_wait(&r);
    }
    bool ok = guard_is_whole(x, n, type);
    for (int64_t i = 0; i < n; i++) ok = ok && is(x, i, type, value(root, i, type));
    free(x);
    return ok;
}

// Around the ring: to the next rank, from the one before. Both are in flight together: nobody waits for a receiver.
static bool test_ring(Comm* c, int64_t n, CommType type) {
    void *in = buffer_new(n, type), *out = buffer_new(n, type);
    const int before = (c->rank + c->size - 1) % c->size, next = (c->rank + 1) % c->size;
    for (int64_t i = 0; i < n; i++) put(in, i, type, value(c->rank, i, type));
    CommRequest send = comm_send_start(c, in, n, type, next, 5);
    CommRequest receive = comm_receive_start(c, out, n, type, before, 5);
    comm_wait(&send);
    comm_wait(&receive);
    bool ok = guard_is_whole(out, n, type);
    for (int64_t i = 0; i < n; i++) ok = ok && is(out, i, type, value(before, i, type));
    free(in);
    free(out);
    return ok;
}

// The definition of the counters, in integers: size times what a rank sends, by bytes of the whole vector.
static bool counted(Comm* c, int64_t before, int64_t factor, int64_t bytes) {
    const int64_t expected = c->size == 1 ? 0 : factor * bytes;
    const bool ok = c->size_bytes - before == expected && comm_bytes(c) == (double)c->size_bytes / (double)c->size;
    return ok;
}

// All operations on vectors (parts) of n elements.
static void test_operations(Comm* c, const char* label, int64_t n) {
    const int64_t s = c->size;
    bool reduce = true, scatter = true, gather = true, broadcast = true, ring = true, count = true;
    for (int t = COMM_FLOAT; t <= COMM_FP16; t++) {
        const CommType type = (CommType)t;
        const int64_t words = type == COMM_FLOAT || type == COMM_INT32 ? 4 : 8;
        const int64_t bytes = n * (type == COMM_BYTE ? 1 : is_sixteen(type) ? 2 : words);
        for (int blocking = 0; blocking < 2; blocking++) {
            int64_t before = c->size_bytes;
            for (int op = COMM_SUM; op <= COMM_MIN && type != COMM_BYTE; op++) {
                before = c->size_bytes;
                reduce = reduce && test_all_reduce(c, n, type, (CommOp)op, blocking);
                count = count && counted(c, before, 2 * (s - 1), bytes);
            }
            before = c->size_bytes;
            if (type != COMM_BYTE) {
                scatter = scatter && test_reduce_scatter(c, n, type, blocking);
                count = count && counted(c, before, s - 1, bytes * s);
            }
            before = c->size_bytes;
            gather = gather && test_all_gather(c, n, type, false, blocking);
            gather = gather && test_all_gather(c, n, type, true, blocking);
            count = count && counted(c, before, 2 * (s - 1), bytes * s);
            before = c->size_bytes;
            broadcast = broadcast && test_broadcast(c, n, type, (int)(n % s), blocking);
            count = count && counted(c, before, s - 1, bytes);
        }
        const int64_t before = c->size_bytes;
        if (s > 1) ring = ring && test_ring(c, n, type);
        count = count && counted(c, before, s, bytes);
    }
    const long long elements = n;
    check_all(reduce, "%s: all-reduce of %lld: every type, sum, max, min", label, elements);
    check_all(scatter, "%s: reduce-scatter of parts of %lld", label, elements);
    check_all(gather, "%s: all-gather of parts of %lld, apart and in place", label, elements);
    check_all(broadcast, "%s: broadcast of %lld", label, elements);
    if (s > 1) check_all(ring, "%s: messages of %lld around the ring", label, elements);
    check_all(count, "%s: bytes counted, %lld elements: exactly the formulas", label, elements);
}

// Pieces that end in the middle of parts: the same results and counts as in one.
static void test_pieces(void) {
    Comm c = comm_split(&world, 0, world.rank, "pieces");
    const int64_t pieces[] = {1, 24, 1000}, elements[] = {5, 19, 97};
    for (int i = 0; i < 3; i++) {
        char label[64];
        c.piece = pieces[i];
        snprintf(label, sizeof label, "in pieces of %lld bytes", (long long)pieces[i]);
        test_operations(&c, label, elements[i]);
    }
    // How many: 97 parts' elements, 4 bytes each, at 24 bytes a piece.
    float out[97 * 64] = {0};
    c.piece = 24;
    CommRequest r = comm_all_gather_start(&c, out, out + 97 * c.rank, 97, COMM_FLOAT);
    const int expected = c.size == 1 ? 0 : (97 * c.size + 5) / 6;
    bool ok = r.pieces == expected;
#ifdef USE_MPI
    // Every piece has counts of its own, which MPI may read until the end.
    for (int i = 0; i < r.pieces; i++) {
        const int *counts = r.counts + i * 2 * c.size, *starts = counts + c.size;
        for (int element = 6 * i; element < 6 * (i + 1) && element < 97 * c.size; element++) {
            const int owner = element / 97, at = element - 6 * i;
            ok = ok && starts[owner] <= at && at < starts[owner] + counts[owner];
        }
        int sum = 0;
        for (int rank = 0; rank < c.size; rank++) sum += counts[rank];
        ok = ok && sum == (int)min_i64(6, 97 * c.size - 6 * i);
    }
#endif
    comm_wait(&r);
    check_all(ok, "a vector of %d elements goes in %d pieces of 6", 97 * c.size, expected);
    c.piece = 96 * 4; // messages: a whole piece and a short one
    if (c.size > 1) check_all(test_ring(&c, 97, COMM_FLOAT), "a message in two pieces");
    comm_free(&c);
}

// ----------------------------------------------------------------------------------------------------------------
// Floating point: no matter in which order a sum is taken, all ranks have to have the same bits

static void test_bits(int64_t n) {
    float* x = (float*)checked_malloc((size_t)n * sizeof(float), "a test buffer");
    float* first = (float*)checked_malloc((size_t)n * sizeof(float), "a test buffer");
    for (int blocking = 0; blocking < 2; blocking++) {
        bool repeated = true, same = true;
        double error = 0; // of the sum, in units of 2^-24 times the sum of magnitudes
        for (int round = 0; round < 3; round++) {
            for (int64_t i = 0; i < n; i++) x[i] = random_uniform(7, (uint64_t)world.rank, (uint64_t)i) - 0.5f;
            if (blocking) {
                comm_all_reduce(&world, x, n, COMM_FLOAT, COMM_SUM);
            } else {
                CommRequest r = comm_all_reduce_start(&world, x, n, COMM_FLOAT, COMM_SUM);
                comm_wait(&r);
            }
            if (round == 0) memcpy(first, x, (size_t)n * sizeof(float));
            repeated = repeated && memcmp(first, x, (size_t)n * sizeof(float)) == 0;
        }
        for (int64_t i = 0; i < n; i++) {
            double sum = 0, magnitude = 0;
            for (int rank = 0; rank < world.size; rank++) {
                const double term = random_uniform(7, (uint64_t)rank, (uint64_t)i) - 0.5f;
                sum += term;
                magnitude += fabs(term);
            }
            const double e = fabs(x[i] - sum) / (magnitude * 0x1p-24);
            if (!(e <= error)) error = e;
        }
#ifdef USE_MPI
        if (world.size > 1) {
            memcpy(x, first, (size_t)n * sizeof(float));
            MPI_Bcast(x, (int)n, MPI_FLOAT, 0, MPI_COMM_WORLD);
            same = memcmp(first, x, (size_t)n * sizeof(float)) == 0;
        }
#endif
        const char* form = blocking ? "all-reduce" : "all-reduce, started";
        check_all(same, "%s of %lld random floats: the same bits on every rank", form, (long long)n);
        check_all(repeated, "%s of %lld random floats: the same bits when repeated", form, (long long)n);
        // Any order of s - 1 additions: at most s - 1 roundings, each of at most 2^-24 of a partial sum of magnitudes.
        check_all(error <= world.size - 1, "%s of %lld random floats: rounding %.2f <= %d", form, (long long)n, error,
                  world.size - 1);
    }
    free(x);
    free(first);
}

// ----------------------------------------------------------------------------------------------------------------
// Groups

// Rows and columns of a grid with `columns` columns.
static void test_grid(int columns) {
    const int rows = world.size / columns, row = world.rank / columns, column = world.rank % columns;
    Comm in_row = comm_split(&world, row, column, "row"), in_column = comm_split(&world, column, row, "column");
    check_all(in_row.rank == column && in_row.size == columns && in_column.rank == row && in_column.size == rows,
              "%d x %d: ranks in rows and columns", rows, columns);
    int32_t sum[2] = {world.rank, world.rank};
    comm_all_reduce(&in_row, &sum[0], 1, COMM_INT32, COMM_SUM);
    comm_all_reduce(&in_column, &sum[1], 1, COMM_INT32, COMM_SUM);
    const int row_sum = columns * (row * columns) + columns * (columns - 1) / 2;
    const int column_sum = rows * column + columns * (rows * (rows - 1) / 2);
    check_all(sum[0] == row_sum && sum[1] == column_sum, "%d x %d: sums over rows and columns", rows, columns);

    // In flight together in three groups, waited for in another order than started.
    enum { N = 4000 };
    static float a[N], b[N * 8], c[N * 8], d[N], e[N], f[N];
    for (int64_t i = 0; i < N; i++) {
        a[i] = (float)value(world.rank, i, COMM_FLOAT);
        b[N * row + i] = (float)value(world.rank, i + 1, COMM_FLOAT);
        e[i] = (float)value(world.rank, i + 3, COMM_FLOAT);
    }
    for (int64_t i = 0; i < N * world.size; i++) c[i] = (float)value(world.rank, i + 2, COMM_FLOAT);
    CommRequest r[5];
    memset(r, 0, sizeof r);
    r[0] = comm_all_reduce_start(&in_row, a, N, COMM_FLOAT, COMM_SUM);
    r[1] = comm_all_gather_start(&in_column, b, b + N * row, N, COMM_FLOAT);
    r[2] = comm_reduce_scatter_start(&world, d, c, N, COMM_FLOAT);
    if (world.size > 1) {
        r[3] = comm_receive_start(&world, f, N, COMM_FLOAT, (world.rank + 1) % world.size, 9);
        r[4] = comm_send_start(&world, e, N, COMM_FLOAT, (world.rank + world.size - 1) % world.size, 9);
    }
    const bool started = r[0].active == (columns > 1) && r[1].active == (rows > 1) && r[2].active == (world.size > 1);
    for (int i = 0; i < 20; i++) comm_progress(r, 5);
    const int order[5] = {3, 1, 4, 0, 2};
    for (int i = 0; i < 5; i++) comm_wait(&r[order[(i + world.rank) % 5]]); // every rank in an order of its own
    bool ok = started, idle = true;
    for (int i = 0; i < 5; i++) idle = idle && !r[i].active;
    for (int64_t i = 0; i < N; i++) {
        int64_t x = 0;
        for (int k = 0; k < columns; k++) x += value(row * columns + k, i, COMM_FLOAT);
        ok = ok && a[i] == (float)x;
        for (int k = 0; k < rows; k++) ok = ok && b[N * k + i] == (float)value(k * columns + column, i + 1, COMM_FLOAT);
        x = 0;
        for (int k = 0; k < world.size; k++) x += value(k, N * world.rank + i + 2, COMM_FLOAT);
        ok = ok && d[i] == (float)x;
        if (world.size > 1) ok = ok && f[i] == (float)value((world.rank + 1) % world.size, i + 3, COMM_FLOAT);
    }
    check_all(ok && idle, "%d x %d: five requests in three groups, waited for in any order", rows, columns);
    comm_free(&in_row);
    comm_free(&in_column);
}

static void test_split(void) {
    Comm reversed = comm_split(&world, 0, -world.rank, "reversed");
    check_all(reversed.rank == world.size - 1 - world.rank && reversed.size == world.size, "split: ordered by key");
    Comm alone = comm_split(&world, world.rank, 0, "alone");
    bool one = alone.rank == 0 && alone.size == 1 && strcmp(alone.name, "alone") == 0;
#ifdef USE_MPI
    one = one && alone.mpi == MPI_COMM_NULL;
#endif
    check_all(one, "split: a group of one has no communicator");
    test_operations(&alone, "a group of one", 1000);
    comm_barrier(&alone);
    check_all(alone.size_bytes == 0 && alone.waited == 0, "a group of one sends nothing and never waits");
    Comm of_one = comm_split(&alone, 3, 4, "of one");
    check_all(of_one.size == 1 && of_one.rank == 0, "split: a group of one splits into itself");

    // No history is inherited.
    comm_barrier(&world);
    int32_t x[5] = {1, 2, 3, 4, 5};
    comm_all_reduce(&reversed, x, 5, COMM_INT32, COMM_SUM);
    Comm young = comm_split(&reversed, 0, 0, "young");
    check_all(young.size_bytes == 0 && young.waited == 0 && young.piece == COMM_PIECE && young.rank == reversed.rank,
              "split: no history is inherited; equal keys keep the parent's order");

    // The same message in two groups, and with two tags in one, received in another order.
    if (world.size > 1) {
        const int to = world.rank ^ 1, mirror = world.size - 1 - to;
        int32_t mine[3] = {10 + world.rank, 20 + world.rank, 30 + world.rank}, theirs[3] = {0, 0, 0};
        if (to < world.size) {
            CommRequest r[6];
            r[0] = comm_send_start(&world, &mine[0], 1, COMM_INT32, to, 1);
            r[1] = comm_send_start(&reversed, &mine[1], 1, COMM_INT32, mirror, 1);
            r[2] = comm_send_start(&world, &mine[2], 1, COMM_INT32, to, 2);
            r[3] = comm_receive_start(&world, &theirs[2], 1, COMM_INT32, to, 2);
            r[4] = comm_receive_start(&reversed, &theirs[1], 1, COMM_INT32, mirror, 1);
            r[5] = comm_receive_start(&world, &theirs[0], 1, COMM_INT32, to, 1);
            for (int i = 5; i >= 0; i--) comm_wait(&r[i]);
        }
        const bool got = theirs[0] == 10 + to && theirs[1] == 20 + to && theirs[2] == 30 + to;
        check_all(to >= world.size || got, "messages of two groups, and of two tags, are kept apart");
    }
    comm_free(&young);
    comm_free(&of_one);
    comm_free(&alone);
    comm_free(&reversed);
    check_all(reversed.size == 1 && reversed.rank == 0, "freed: a group of one is left");
    comm_free(&reversed); // twice does no harm
}

// Messages in a row between the same two ranks, same tag: they come in the order in which they were started.
static void test_order(void) {
    enum { N = 50 };
    int64_t mine[N], theirs[N];
    CommRequest r[2 * N];
    memset(r, 0, sizeof r);
    const int to = world.rank ^ 1;
    for (int i = 0; i < N; i++) mine[i] = world.rank * 1000 + i, theirs[i] = -1;
    for (int i = 0; i < N && to < world.size; i++) {
        r[i] = comm_receive_start(&world, &theirs[i], 1, COMM_INT64, to, 3);
        r[N + i] = comm_send_start(&world, &mine[i], 1, COMM_INT64, to, 3);
    }
    for (int i = 2 * N - 1; i >= 0; i--) comm_wait(&r[i]);
    bool ok = true;
    for (int i = 0; i < N && to < world.size; i++) ok = ok && theirs[i] == to * 1000 + i;
    check_all(ok, "%d messages in a row arrive in their order", N);
}

// A message to oneself is delivered like any other, and nothing has been sent: it does not count.
static void test_to_oneself(void) {
    enum { N = 300000 }; // more than MPI sends without asking
    float* mine = (float*)checked_malloc(2 * N * sizeof(float), "test");
    float* theirs = mine + N;
    const double before = comm_bytes(&world);
    bool ok = true;
    for (int i = 0; i < N; i++) mine[i] = (float)(i + world.rank), theirs[i] = -1;
    if (world.size > 1) {
        CommRequest receive = comm_receive_start(&world, theirs, N, COMM_FLOAT, world.rank, 3);
        CommRequest send = comm_send_start(&world, mine, N, COMM_FLOAT, world.rank, 3);
        comm_wait(&send);
        comm_wait(&receive);
        ok = memcmp(mine, theirs, N * sizeof(float)) == 0 && comm_bytes(&world) == before;
    }
    check_all(ok, "a message to oneself arrives, and does not count");
    free(mine);
}

// ----------------------------------------------------------------------------------------------------------------
// Waiting, progress, the trace

// The spans of a track in a trace.
static int spans_of(const Trace* trace, const char* track) {
    int n = 0;
    for (int64_t i = 0; i < trace->n; i++) n += strcmp(trace->spans[i].track, track) == 0;
    return n;
}

static void test_waiting(void) {
    CommRequest none;
    memset(&none, 0, sizeof none);
    comm_wait(&none);
    comm_progress(&none, 1);
    check_all(!none.active, "a request that is all zero is no request");

    Trace trace;
    trace_init(&trace, 100);
    world.trace = &trace;
    Comm group = comm_split(&world, 0, world.rank, "group");
    check_all(group.trace == &trace, "a group writes to its parent's trace");
    const int each = world.size > 1; // spans of an operation: none in a group of one
    float x[8] = {0};

    // Rank 0 comes 0.2 s late: the others wait for it, it does not. (Half of it is left for a machine that is busy.)
    comm_barrier(&group);
    const double waited = group.waited, before = seconds_now();
    if (world.rank == 0) usleep(200000);
    const double late = seconds_now() - before;
    comm_barrier(&group);
    const double took = group.waited - waited;
    const bool ok = each == 0 ? took == 0 : world.rank == 0 ? took < late : took > 0.1;
    check_all(ok, "who comes early waits, and it is counted (%.3f s on rank 0)", took);
    check_all(spans_of(&trace, "group") == 2 * each, "trace: one span for an operation");
    bool long_wait = world.rank == 0 || !each;
    for (int64_t i = 0; i < trace.n; i++) {
        const TraceSpan* span = &trace.spans[i];
        if (strcmp(span->track, "wait") == 0 && span->end - span->start > 0.1) long_wait = true;
        if (span->end - span->start < (strcmp(span->track, "wait") == 0 ? COMM_SHORT_WAIT : 0)) long_wait = false;
        if (strcmp(span->name, "barrier") != 0 || span->number != -1) long_wait = false;
    }
    check_all(long_wait, "trace: the wait, and no wait below 20 microseconds");

    // A request that is done is seen by comm_progress, needs no waiting, and is waited for once.
    trace.n = 0;
    CommRequest r = comm_all_reduce_start(&group, x, 8, COMM_FLOAT, COMM_SUM);
    r.number = 42;
    const double limit = seconds_now() + 60;
    while (r.active && r.finished == 0 && seconds_now() < limit) comm_progress(&r, 1);
    const double finished = r.finished, waited_before = group.waited;
    usleep(30000);
    comm_wait(&r);
    const double waited_after = group.waited;
    comm_wait(&r);
    check_all(!each || (finished > r.started && finished < limit),
              "progress: an operation ends while the rank computes");
    check_all(!r.active && group.waited == waited_after && waited_after - waited_before < 0.02,
              "what is done needs no waiting (%.6f s), and the second wait does nothing", waited_after - waited_before);
    bool life = spans_of(&trace, "group") == each;
    for (int64_t i = 0; i < trace.n; i++) {
        const TraceSpan* span = &trace.spans[i];
        if (strcmp(span->track, "group") != 0) continue;
        life = life && span->number == 42 && strcmp(span->name, "all-reduce") == 0 && span->start == r.started &&
               span->end == finished;
    }
    check_all(life, "trace: the life of an operation, from its start until it was seen to be done");

    // An operation that is never looked at lives until its wait. The last rank starts late, so all have to wait.
    trace.n = 0;
    comm_barrier(&group);
    if (world.rank == world.size - 1) usleep(100000);
    r = comm_all_reduce_start(&group, x, 8, COMM_FLOAT, COMM_SUM);
    usleep(20000);
    comm_wait(&r);
    bool both = trace.n >= 2 || !each;
    if (each) {
        const TraceSpan *last = &trace.spans[trace.n - 1], *all = strcmp(last->track, "wait") == 0 ? last - 1 : last;
        both = both && all->start == r.started && all->end - all->start >= 0.02;
        if (all != last) both = both && last->end == all->end && last->start - all->start >= 0.02;
        if (world.rank == 0) both = both && all != last;
    }
    check_all(both, "trace: life and wait of an operation end together, the wait begins later");

    trace.n = 0;
    const char* names[] = {"reduce-scatter", "all-gather", "broadcast", "send", "receive"};
    float all[64] = {0};
    comm_reduce_scatter(&group, x, all, 8, COMM_FLOAT);
    comm_all_gather(&group, all, x, 8, COMM_FLOAT);
    comm_broadcast(&group, x, 8, COMM_FLOAT, 0);
    if (each) {
        CommRequest s = comm_send_start(&group, x, 8, COMM_FLOAT, group.rank, 77);
        CommRequest t = comm_receive_start(&group, all, 8, COMM_FLOAT, group.rank, 77);
        comm_wait(&s);
        comm_wait(&t);
    }
    int found = 0;
    for (int64_t i = 0; i < trace.n; i++) {
        const TraceSpan* span = &trace.spans[i];
        if (strcmp(span->track, "group") != 0) continue;
        if (found < 5 && strcmp(span->name, names[found]) == 0 && span->number == (found < 3 ? -1 : 77)) found++;
    }
    check_all(found == 5 * each, "trace: operations by name, messages with their tag; a message to oneself");
    comm_free(&group);
    world.trace = NULL;
    trace_free(&trace);
}

// What a request holds is given back: the heap does not grow once MPI has what it keeps.
static void test_heap(void) {
#if defined __GLIBC__ && defined __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 33)
    enum { N = 2000 };
    size_t used[3];
    float x[64] = {0};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            CommRequest r = comm_all_gather_start(&world, x, x + world.rank, 1, COMM_FLOAT);
            comm_wait(&r);
        }
        comm_barrier(&world);
        used[round] = mallinfo2().uordblks; // 0 under AddressSanitizer
    }
    // A request holds two blocks, and no block is smaller than 16 bytes.
    const long long grown = (long long)used[2] - (long long)used[1];
    check_all(grown < N * 16, "the heap after %d requests more: %lld bytes", N, grown);
#endif
#endif
}

// ----------------------------------------------------------------------------------------------------------------
// Fingerprints

static void test_fingerprints(void) {
    // FNV-1a's published values: "" and "foobar".
    check_all(comm_hash("", 0) == 0xcbf29ce484222325ull && comm_hash("foobar", 6) == 0x85944171f73967e8ull &&
                  comm_hash("foobar", 6) == hash_string("foobar"),
              "hash: FNV-1a");
    char text[128], again[128];
    comm_build_text(text, sizeof text);
    comm_build_text(again, sizeof again);
    struct stat st;
    unsigned long long size = 0, sum = 0;
    const bool read = stat("/proc/self/exe", &st) == 0 && sscanf(text, "%llu bytes, checksum %llx", &size, &sum) == 2;
    check_all(read && size == (unsigned long long)st.st_size && sum != 0 && strcmp(text, again) == 0, "the build: %s",
              text);
    comm_check_same(&world, "the executable", text, "");
    comm_check_same(&world, "nothing", "", "");
    check_all(true, "equal texts pass");

    char out[204], longer[500];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    check_all(comm_difference("go --steps 20 --lr 1", "go --steps 30 --lr 1") == 3,
              "difference: from the word before it");
    check_all(comm_difference("a.bin\n12 b.bin 34", "a.bin\n12 b.bin 56") == 9, "difference: the file of a size");
    check_all(comm_difference("a\nb c", "a\nb d") == 2, "difference: lines are words");
    check_all(comm_difference("a b", "a b c") == 0 && comm_difference("x a b", "x a b c") == 2,
              "difference: one goes on");
    check_all(comm_difference("ab", "xb") == 0 && comm_difference("", "x") == 0, "difference: at the beginning");
    char other[500];
    memcpy(other, longer, sizeof other);
    other[300] = 'y';
    const bool no_word = comm_difference(longer, other) == 300;
    longer[290] = other[290] = ' ';
    check_all(no_word && comm_difference(longer, other) == 291, "difference: far from the beginning of a word");
    longer[290] = other[290] = 'x';
    other[80] = 'y';
    check_all(comm_difference(longer, other) == 0, "difference: near the beginning of the text");
    other[81] = 'y', other[80] = 'x';
    check_all(comm_difference(longer, other) == 81, "difference: at most 80 characters back");
    comm_excerpt(out, longer, 400);
    const bool whole = strlen(out) == 99;
    comm_excerpt(out, longer, 499 - 200);
    const bool fits = strlen(out) == 200 && out[199] == 'x';
    comm_excerpt(out, longer, 499 - 201);
    check_all(whole && fits && strlen(out) == 203 && strcmp(out + 199, "x...") == 0, "excerpt: at most 200 characters");
    comm_excerpt(out, "a b\nc\td", 2);
    check_all(strcmp(out, "b c d") == 0, "excerpt: on one line");
}

// ----------------------------------------------------------------------------------------------------------------
// Things that end the program

static int run_mode(const char* mode) {
    const int last = world.size - 1;
    if (strcmp(mode, "die") == 0 && world.rank == last) die("the test says so");
    if (strcmp(mode, "usage") == 0) die_usage("the test says so");
    if (strcmp(mode, "lonely") == 0 && world.rank == last) die_usage("the test says so");
    if (strcmp(mode, "together") == 0) comm_abort_all(&world, EXIT_ARGUMENTS, "--tp 7: the test says so");
    if (strcmp(mode, "differ") == 0) {
        const char* mine = world.rank == last ? "train --steps 30 --lr 1" : "train --steps 20 --lr 1";
        comm_check_same(&world, "arguments", mine, "start all ranks alike");
        return 0; // one rank agrees with itself
    }
    if (strcmp(mode, "length") == 0 || strcmp(mode, "short") == 0) {
        float x[12] = {0};
        const int sent = mode[0] == 'l' ? 12 : 5;
        Comm group = comm_split(&world, 0, world.rank, "group");
        CommRequest r;
        memset(&r, 0, sizeof r);
        if (world.rank == 0) r = comm_send_start(&group, x, sent, COMM_FLOAT, last, 4);
        if (world.rank == last) {
            CommRequest receive = comm_receive_start(&group, x, 7, COMM_FLOAT, 0, 4);
            comm_wait(&receive);
        }
        comm_wait(&r);
    }
    if (strcmp(mode, "peer") == 0 && world.rank == last) comm_send_start(&world, NULL, 0, COMM_FLOAT, world.size, 0);
    if (strcmp(mode, "place") == 0) {
        RankPlacement place;
        int32_t mine[MAX_CORES];
        comm_share_cores(&world, &place);
        const int n = cores_of_this_process(mine);
        printf("rank %d: %d machines, rank %d of %d here, %d cores here, %d own, %d threads, host %s\n", world.rank,
               place.machines, place.rank_here, place.ranks_here, place.cores_here, n, place.threads, place.host);
        comm_close(&world);
        return 0;
    }
    comm_barrier(&world); // for the rank that died
    return 0;
}

int main(int argc, char** argv) {
    process.name = "test_comm";
    const bool launched = comm_is_launched();
    comm_open(&world);
    const bool full = !(argc > 1 && strcmp(argv[1], "--short") == 0);
    if (argc > 1 && full) return run_mode(argv[1]);
    check_all(world.size == comm_launched_size() && (launched || world.size == 1) && world.rank < world.size &&
                  process.rank == (world.size > 1 ? world.rank : -1) && strcmp(world.name, "world") == 0,
              "%d rank%s", world.size, world.size == 1 ? "" : "s");
#ifdef USE_MPI
    int initialized = 0;
    MPI_Initialized(&initialized);
    check_all((initialized != 0) == launched && (process.stop != NULL) == launched,
              "MPI is initialised if, and only if, the process was launched");
#endif

    const int64_t sizes[] = {0, 1, 7, 1000, 100003};
    for (int i = 0; i < (full ? 5 : 4); i++) test_operations(&world, "world", sizes[i]);
    if (full) {
        check_all(test_all_reduce(&world, 1000000, COMM_FLOAT, COMM_SUM, true), "all-reduce of a million");
        check_all(test_all_reduce(&world, 1000000, COMM_FLOAT, COMM_SUM, false), "all-reduce of a million, started");
        check_all(test_reduce_scatter(&world, 1000000 / world.size, COMM_FLOAT, true), "reduce-scatter of a million");
        check_all(test_all_gather(&world, 1000000 / world.size, COMM_FLOAT, true, false), "all-gather of a million");
        if (world.size > 1) check_all(test_ring(&world, 1000000, COMM_FLOAT), "messages of a million");
    }
    test_pieces();
    const int64_t bits[] = {1, 3, 1000, 100003};
    for (int i = 0; i < (full ? 4 : 3); i++) test_bits(bits[i]);
    for (int columns = 1; columns <= world.size; columns++) {
        if (world.size % columns == 0) test_grid(columns);
    }
    test_split();
    test_order();
    test_to_oneself();
    while (attempt()) test_waiting();
    test_heap();
    test_fingerprints();

    const bool ok = everywhere(test_count.failed == 0);
    comm_close(&world);
    check_all(world.size == 1 && process.stop == NULL, "closed");
    if (process.rank > 0) return !ok;
    return test_end();
}
