/*
test_comm.c: every operation of comm.h against its definition, computed from values that are a function of (rank,
element). Rank 0 prints; a check passes if it passes on every rank.

    ranks: 1 2 3 4 5 8
*/
#include "../../../comm/check_same.h"
#include "comm_test.h"
#include "comm_values.h"

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

// ---- Every operation, blocking or not, against its definition, and the bytes that it counts ---------------------

// n: of a part. in_place: of an all-gather. A broadcast blocks, and comes from rank n % size.
static bool test_operation(Comm* c, CommKind kind, int64_t n, CommType type, CommOp op, bool blocking, bool in_place) {
    const int64_t ins = kind == COMM_REDUCE_SCATTER ? n * c->size : n, outs = kind == COMM_ALL_GATHER ? n * c->size : n;
    const int root = (int)(n % c->size);
    char *apart = (char*)buffer_new(ins, type), *out = (char*)buffer_new(outs, type), *in = apart;
    if (kind == COMM_ALL_REDUCE || kind == COMM_BROADCAST) in = out;
    if (in_place) in = out + n * c->rank * comm_type_bytes(type);
    for (int64_t i = 0; i < ins; i++) put(in, i, type, value(c->rank, i, type));
    CommRequest r = {};
    if (kind == COMM_BROADCAST) comm_broadcast(c, out, n, type, root);
    if (kind == COMM_ALL_REDUCE && blocking) comm_all_reduce(c, out, n, type, op);
    if (kind == COMM_ALL_REDUCE && !blocking) r = comm_all_reduce_start(c, out, n, type, op);
    if (kind == COMM_REDUCE_SCATTER && blocking) comm_reduce_scatter(c, out, in, n, type);
    if (kind == COMM_REDUCE_SCATTER && !blocking) r = comm_reduce_scatter_start(c, out, in, n, type);
    if (kind == COMM_ALL_GATHER && blocking) comm_all_gather(c, out, in, n, type);
    if (kind == COMM_ALL_GATHER && !blocking)
        r = comm_start(comm_request(c, COMM_ALL_GATHER, out, in, n * c->size, type));
    comm_wait(&r);
    bool ok = guard_is_whole(out, outs, type);
    for (int64_t i = 0; i < outs; i++) {
        int64_t expected = value(root, i, type);
        if (kind == COMM_ALL_REDUCE) expected = reduced(c->size, i, type, op);
        if (kind == COMM_REDUCE_SCATTER) expected = reduced(c->size, n * c->rank + i, type, COMM_SUM);
        if (kind == COMM_ALL_GATHER) expected = value((int)(i / n), i % n, type);
        ok = ok && is(out, i, type, expected);
    }
    if (kind == COMM_REDUCE_SCATTER) { // in is unchanged
        for (int64_t i = 0; i < ins; i++) ok = ok && is(in, i, type, value(c->rank, i, type));
    }
    free(apart);
    free(out);
    return ok;
}

// Around the ring: to the next rank, from the one before. Both are in flight together: no rank waits for a receiver.
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

// All operations on vectors (parts) of n elements. Bytes are counted in integers: size times what a rank sends.
static void test_operations(Comm* c, const char* label, int64_t n) {
    static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_BROADCAST, COMM_SEND};
    const int64_t s = c->size;
    for (int k = 0; k < (s > 1 ? 5 : 4); k++) {
        const CommKind kind = kinds[k];
        bool ok = true;
        for (int i = 0; i < 6 * 3 * 2 * 2; i++) {
            const CommType type = (CommType)(i % 6);
            const CommOp op = (CommOp)(i / 6 % 3);
            const bool blocking = i / 18 % 2, in_place = i / 36 && kind == COMM_ALL_GATHER;
            const bool sums = kind == COMM_ALL_REDUCE || kind == COMM_REDUCE_SCATTER;
            if (sums && (type == COMM_BYTE || (op != COMM_SUM && is_sixteen(type)))) continue;
            const int64_t before = c->size_bytes, bytes = n * comm_type_bytes(type);
            ok = ok &&
                 (kind == COMM_SEND ? test_ring(c, n, type) : test_operation(c, kind, n, type, op, blocking, in_place));
            int64_t counted = (s - 1) * bytes; // a broadcast
            if (kind == COMM_ALL_REDUCE) counted = 2 * (s - 1) * bytes;
            if (kind == COMM_REDUCE_SCATTER || kind == COMM_ALL_GATHER) counted = (s - 1) * s * bytes;
            if (kind == COMM_SEND) counted = s * bytes;
            ok = ok && c->size_bytes - before == counted && comm_bytes(c) == (double)c->size_bytes / (double)s;
        }
        check_all(ok, "%s: %s of %lld elements, every type; bytes counted", label, comm_kind_name(kind), (long long)n);
    }
}

// ---- Floating point: no matter in which order a sum is taken, all ranks have to have the same bits --------------

static void test_bits(int64_t n, bool blocking) {
    float* x = (float*)checked_malloc(2 * (size_t)n * sizeof(float), "a test buffer");
    float* of_zero = x + n;
    bool ok = true;
    for (int64_t i = 0; i < n; i++) x[i] = random_uniform(7, (uint64_t)world.rank, (uint64_t)i) - 0.5f;
    CommRequest r = {};
    if (blocking)
        comm_all_reduce(&world, x, n, COMM_FLOAT, COMM_SUM);
    else
        r = comm_all_reduce_start(&world, x, n, COMM_FLOAT, COMM_SUM);
    comm_wait(&r);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0, magnitude = 0;
        for (int rank = 0; rank < world.size; rank++) {
            const double term = random_uniform(7, (uint64_t)rank, (uint64_t)i) - 0.5f;
            sum += term;
            magnitude += fabs(term);
        }
        // At most size - 1 roundings, each of at most 2^-24 of a partial sum of magnitudes.
        ok = ok && fabs(x[i] - sum) <= (world.size - 1) * magnitude * 0x1p-24;
    }
    memcpy(of_zero, x, (size_t)n * sizeof(float));
#ifdef USE_MPI
    if (world.size > 1) MPI_Bcast(of_zero, (int)n, MPI_FLOAT, 0, MPI_COMM_WORLD);
#endif
    ok = ok && memcmp(of_zero, x, (size_t)n * sizeof(float)) == 0;
    check_all(ok, "all-reduce of %lld random floats, %s: rounding; the same bits on every rank", (long long)n,
              blocking ? "blocking" : "started");
    free(x);
}

// ---- Groups -----------------------------------------------------------------------------------------------------

// Rows and columns of a grid with `columns` columns.
static void test_grid(int columns) {
    const int rows = world.size / columns, row = world.rank / columns, column = world.rank % columns;
    Comm in_row = comm_split(&world, row, column, "row", COMM_WIDE),
         in_column = comm_split(&world, column, row, "column", COMM_WIDE);
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
    r[1] = comm_start(comm_request(&in_column, COMM_ALL_GATHER, b, b + N * row, N * in_column.size, COMM_FLOAT));
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
    Comm reversed = comm_split(&world, 0, -world.rank, "reversed", COMM_WIDE);
    check_all(reversed.rank == world.size - 1 - world.rank && reversed.size == world.size, "split: ordered by key");
    Comm alone = comm_split(&world, world.rank, 0, "alone", COMM_WIDE);
    bool one = alone.rank == 0 && alone.size == 1 && strcmp(alone.name, "alone") == 0;
#ifdef USE_MPI
    one = one && alone.mpi == MPI_COMM_NULL;
#endif
    check_all(one, "split: a group of one has no communicator");
    test_operations(&alone, "a group of one", 1000);
    comm_barrier(&alone);
    check_all(alone.size_bytes == 0 && alone.waited == 0, "a group of one sends nothing and never waits");
    Comm of_one = comm_split(&alone, 3, 4, "of one", COMM_WIDE);
    check_all(of_one.size == 1 && of_one.rank == 0, "split: a group of one splits into itself");

    // No history is inherited.
    comm_barrier(&world);
    int32_t x[5] = {1, 2, 3, 4, 5};
    comm_all_reduce(&reversed, x, 5, COMM_INT32, COMM_SUM);
    Comm young = comm_split(&reversed, 0, 0, "young", COMM_WIDE);
    check_all(young.size_bytes == 0 && young.waited == 0 && young.rank == reversed.rank,
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
    for (int i = 0; i < N; i++) {
        mine[i] = world.rank * 1000 + i;
        if (to >= world.size) continue;
        r[i] = comm_receive_start(&world, &theirs[i], 1, COMM_INT64, to, 3);
        r[N + i] = comm_send_start(&world, &mine[i], 1, COMM_INT64, to, 3);
    }
    for (int i = 2 * N - 1; i >= 0; i--) comm_wait(&r[i]);
    bool ok = true;
    for (int i = 0; i < N; i++) ok = ok && (to >= world.size || theirs[i] == to * 1000 + i);
    check_all(ok, "%d messages in a row arrive in their order", N);
}

// ---- Waiting, progress, the trace -------------------------------------------------------------------------------

// The group's spans are these names in this order, each with this number.
static bool group_spans_are(const Trace* trace, const char* const* names, int n, int number) {
    int found = 0;
    for (int64_t i = 0; i < trace->n; i++) {
        const TraceSpan* span = &trace->spans[i];
        if (strcmp(span->track, "group") != 0) continue;
        if (found == n || strcmp(span->name, names[found]) != 0 || span->number != number) return false;
        found++;
    }
    return found == n;
}

static void test_waiting(void) {
    static const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "barrier"};
    static const char* const messages[] = {"send", "receive"};
    CommRequest none = {};
    comm_wait(&none);
    comm_progress(&none, 1);
    check_all(!none.active, "a request that is all zero is no request");

    Trace trace;
    trace_init(&trace, 100);
    world.trace = &trace;
    Comm group = comm_split(&world, 0, world.rank, "group", COMM_WIDE);
    const bool several = world.size > 1; // a group of one has no spans
    float x[8] = {0}, all[64] = {0};
    comm_all_reduce(&group, x, 8, COMM_FLOAT, COMM_SUM);
    comm_reduce_scatter(&group, x, all, 8, COMM_FLOAT);
    comm_all_gather(&group, all, x, 8, COMM_FLOAT);
    comm_broadcast(&group, x, 8, COMM_FLOAT, 0);
    comm_barrier(&group);
    check_all(group_spans_are(&trace, names, several ? 5 : 0, -1), "trace: operations by name");
    trace.n = 0;
    if (several) {
        CommRequest send = comm_send_start(&group, x, 8, COMM_FLOAT, group.rank, 77);
        CommRequest receive = comm_receive_start(&group, all, 8, COMM_FLOAT, group.rank, 77);
        comm_wait(&send);
        comm_wait(&receive);
    }
    check_all(group_spans_are(&trace, messages, several ? 2 : 0, 77), "trace: messages with their tag");

    // Rank 0 is late: the others wait for it. A request that is done is seen by comm_progress.
    trace.n = 0;
    const double waited = group.waited;
    if (world.rank == 0) usleep(100000);
    CommRequest r = comm_all_reduce_start(&group, x, 8, COMM_FLOAT, COMM_SUM);
    r.number = 42;
    if (world.rank == world.size - 1) comm_wait(&r);
    while (r.active && r.finished == 0) comm_progress(&r, 1);
    const double finished = r.finished, took = group.waited - waited;
    comm_wait(&r);
    comm_wait(&r);
    check_all(!several || world.rank < world.size - 1 || took > 0.03, "a rank that waits counts it: %.3f s", took);
    check_all(!several || strcmp(r.backend->name, "MPI") == 0, "MPI executes it");
    const TraceSpan* span = &trace.spans[0];
    check_all(!r.active && (!several || (group_spans_are(&trace, names, 1, 42) && span->start == r.started &&
                                         span->end == finished && finished > r.started)),
              "trace: an operation lasts from its start until it was seen to be done");
    bool waits = true; // the other spans
    for (int64_t i = 1; i < trace.n; i++) {
        span = &trace.spans[i];
        waits = waits && strcmp(span->track, "wait") == 0 && span->end - span->start >= COMM_SHORT_WAIT;
    }
    check_all(waits, "trace: no wait below 20 microseconds");
    comm_free(&group);
    world.trace = NULL;
    trace_free(&trace);
}

// ---- Fingerprints -----------------------------------------------------------------------------------------------

static void test_fingerprints(void) {
    // FNV-1a's published values: "" and "foobar".
    check_all(hash_bytes("", 0) == 0xcbf29ce484222325ull && hash_bytes("foobar", 6) == 0x85944171f73967e8ull &&
                  hash_bytes("foobar", 6) == hash_string("foobar"),
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
}

int main(int argc, char** argv) {
    process.name = "test_comm";
    const bool launched = comm_is_launched();
    comm_open(&world);
    const bool full = !(argc > 1 && strcmp(argv[1], "--short") == 0);
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
    for (int i = 1; i < (full ? 5 : 4); i++) {
        test_bits(sizes[i], false);
        test_bits(sizes[i], true);
    }
    for (int columns = 1; columns <= world.size; columns++) {
        if (world.size % columns == 0) test_grid(columns);
    }
    test_split();
    test_order();
    while (attempt()) test_waiting();
    test_fingerprints();

    const bool ok = everywhere(test_count.failed == 0);
    comm_close(&world);
    check_all(world.size == 1 && process.stop == NULL, "closed");
    if (process.rank > 0) return !ok;
    return test_end();
}
