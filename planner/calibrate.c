/*
calibrate.c: measures this machine for the planner: the times of the trainer's kernels, of sums and messages between
ranks, and how much ranks slow each other down. measured_device.h explains the lines that it writes.

    scripts/mpirun.sh -np 8 build/calibrate --out machine.txt     as many ranks as the largest mesh to be planned
    build/calibrate --out machine.txt                             without MPI: one rank

Theory: each kernel is measured under the conditions of a training step.

    memory       the inputs of an operation fit a core's L2 cache; weights and saved activations come from a large pool
                 of memory, as they are in no core's cache when their block runs
    neighbours   a kernel of one thread is measured while every core has a rank that does the same, each for the same
                 time (measured_device.h: one), in CPU seconds; no other rank spins
    waiting      all ranks begin a collective at once. Messages go around one half of the ranks; with more ranks than
                 cores the other half computes, so that a waiting rank shares its core, as in a step. The speed of k
                 ranks is measured while the others wait for a message, as in a pipeline, relative to one rank per core
                 with the others asleep, measured at the same time

The machine's speed changes from minute to minute where others use it too. So all points are measured in rounds, and the
medians over the rounds are written, as steps are reported by their median.
*/
#include "../comm.h"
#include "../comm/cpu_affinity.h"
#include "../kernels/kernels.h"
#include "../util/options.h"
#include "measured_device.h"
#include "median.h"

enum { POOL = 34 << 20, RECENT = 3 << 17, SMALL = 1 << 20, TOKENS = 1 << 16, WIDTH = 256, LARGEST_ROUNDS = 15 };

typedef struct {
    Comm world;
    Comm cores;             // the ranks that compute at once where one thread a rank is measured
    Comm group[8], half[8]; // the first 2, 4, 8 ... ranks, and the halves of these
    int groups, group_size[8];
    RankPlacement place;
    bool computes, lone; // this rank takes part in measuring "one"; it measures "all"
    float *pool, *recent, *small;
    int32_t* tokens;
    int64_t at, at_recent;
    double window; // seconds of a measurement, unless one call takes longer
    double sink;
    int rounds, round;
    double started, share_done; // for the progress line
    Measured m;                 // on rank 0; its points in the order of their measurement
    int next;                   // point
    double* times;              // (points, LARGEST_ROUNDS)
    int room;
} Bench;

// ---- Operands ---------------------------------------------------------------------------------------------------

static float* filled(int64_t n, float size) {
    float* x = (float*)checked_malloc((size_t)n * sizeof(float), "calibration");
    for (int64_t i = 0; i < n; i++) x[i] = size * (2 * random_uniform(1, 0, (uint64_t)(i % 100003)) - 1);
    return x;
}

// n floats that were used long ago, so that they are in no cache.
static float* old(Bench* b, int64_t n) {
    if (b->at + n > POOL) b->at = 0;
    float* x = b->pool + b->at;
    b->at += (int64_t)round_up((size_t)n, 16);
    return x;
}

// n floats that were used recently: in a core's L2 cache if they fit.
static float* fresh(Bench* b, int64_t n) {
    if (n > RECENT) return old(b, n);
    if (b->at_recent + n > RECENT) b->at_recent = 0;
    float* x = b->recent + b->at_recent;
    b->at_recent += (int64_t)round_up((size_t)n, 16);
    return x;
}

// ---- Kernels ----------------------------------------------------------------------------------------------------

typedef struct Case {
    MeasuredPoint point;
    void (*run)(Bench*, const struct Case*);
    double work; // value = seconds, or seconds / work (per element), or work / seconds (a rate)
} Case;

static void run_product(Bench* b, const Case* c) {
    const int m = (int)c->point.at[0], n = (int)c->point.at[1], k = (int)c->point.at[2];
    const int64_t mk = (int64_t)m * k, nk = (int64_t)n * k, mn = (int64_t)m * n;
    if (c->point.second == 0) linear_forward(fresh(b, mn), fresh(b, mk), old(b, nk), NULL, m, k, n);
    if (c->point.second == 1) linear_backward_input(fresh(b, mn), fresh(b, mk), old(b, nk), m, n, k);
    if (c->point.second == 2) linear_backward_weight(old(b, mn), fresh(b, mk), old(b, nk), k, n, m);
}

static void run_attention(Bench* b, const Case* c) {
    const int T = (int)c->point.at[0], HS = (int)c->point.at[1], NH = 8, B = 1;
    const int64_t n = (int64_t)B * T * NH * HS;
    if (c->point.second == 0)
        attention_forward(fresh(b, n), b->small, fresh(b, 3 * n), B, T, NH, NH, HS);
    else
        attention_backward(fresh(b, 3 * n), fresh(b, n), old(b, 3 * n), old(b, n), b->small, B, T, NH, NH, HS);
}

// Runs a kernel on `elements` in rows of WIDTH, except where rows consist of heads.
static void run_memory(Bench* b, const Case* c) {
    const int64_t n = (int64_t)c->point.at[0];
    const int R = (int)(n / WIDTH), C = WIDTH;
    float *w = b->small, *mean = b->small + 4 * WIDTH, *rstd = mean + R;
    double sum = 0;
    const TensorRange whole = whole_range(n);
    const OptimizerStep step = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 10, 1};
    switch (c->point.second) {
    case KERNEL_NORM: layernorm_forward(fresh(b, n), mean, rstd, fresh(b, n), w, w + C, R, C, 1e-5f); break;
    case KERNEL_RESIDUAL_NORM: {
        float* branch = fresh(b, n);
        residual_layernorm_forward(old(b, n), old(b, n), mean, rstd, old(b, n), branch, w, w, w + C, R, C, 1e-5f);
        break;
    }
    case KERNEL_RESIDUAL: residual_forward(old(b, n), old(b, n), fresh(b, n), w, R, C); break;
    case KERNEL_NORM_BACKWARD:
        layernorm_backward(fresh(b, n), w + 2 * C, w + 3 * C, fresh(b, n), old(b, n), w, mean, rstd, R, C);
        break;
    case KERNEL_ACTIVATION: gelu_forward(old(b, n), fresh(b, n), n); break;
    case KERNEL_ACTIVATION_BACKWARD: gelu_backward(fresh(b, n), fresh(b, n), old(b, n), n); break;
    case KERNEL_ROPE: rope_forward(fresh(b, n), old(b, 64 * 32), R / 64, 64, C / 32, 32, C); break;
    case KERNEL_ROPE_BACKWARD: rope_backward(fresh(b, n), old(b, 64 * 32), R / 64, 64, C / 32, 32, C); break;
    case KERNEL_EMBEDDING: {
        float* x = fresh(b, n);
        embedding_forward(x, b->tokens, old(b, (int64_t)C * WIDTH), R, C, 0, WIDTH);
        position_forward(x, old(b, 65536), 0, R, 65536 / WIDTH, C);
        break;
    }
    case KERNEL_EMBEDDING_BACKWARD: {
        float* dx = fresh(b, n);
        embedding_backward(old(b, (int64_t)C * WIDTH), dx, b->tokens, R, C, 0, WIDTH);
        position_backward(old(b, 65536), dx, 0, R, 65536 / WIDTH, C);
        break;
    }
    case KERNEL_CLASSIFIER: crossentropy_fused(mean, fresh(b, n), b->tokens, 1e-3f, R, WIDTH, WIDTH); break;
    case KERNEL_CLASSIFIER_PARTS: {
        float* logits = fresh(b, n);
        crossentropy_max(mean, logits, R, WIDTH, WIDTH);
        crossentropy_sum(rstd, rstd + R, logits, mean, b->tokens, R, WIDTH, WIDTH, 0);
        crossentropy_backward(logits, mean, rstd, b->tokens, 1e-3f, R, WIDTH, WIDTH, 0);
        break;
    }
    case KERNEL_ADD: accumulate(fresh(b, n), fresh(b, n), n); break;
    case KERNEL_ZERO: device_zero(old(b, n), (size_t)n * sizeof(float)); break;
    case KERNEL_SQUARES: sum_of_squares(&sum, old(b, n), &whole, 1); break;
    case KERNEL_OPTIMIZER: adamw_update(old(b, n), NULL, old(b, n), old(b, n), old(b, n), &whole, 1, &step); break;
    case KERNEL_OTHER: memcpy(old(b, n), old(b, n), (size_t)n * sizeof(float)); break;
    case KERNEL_BIAS: linear_backward_bias(w, fresh(b, n), R, C); break;
    case KERNEL_COPY: device_copy(fresh(b, n), old(b, n), (size_t)n * sizeof(float)); break;
    case KERNEL_RMS_NORM: rmsnorm_forward(fresh(b, n), rstd, fresh(b, n), w, R, C, 1e-5f); break;
    case KERNEL_RESIDUAL_RMS_NORM: {
        float* branch = fresh(b, n);
        residual_rmsnorm_forward(old(b, n), old(b, n), rstd, old(b, n), branch, NULL, w, R, C, 1e-5f);
        break;
    }
    case KERNEL_RMS_NORM_BACKWARD:
        rmsnorm_backward(fresh(b, n), w + 2 * C, fresh(b, n), old(b, n), w, rstd, R, C);
        break;
    case KERNEL_SWIGLU: swiglu_forward(old(b, n), fresh(b, 2 * n), R, C); break;
    case KERNEL_SWIGLU_BACKWARD: swiglu_backward(fresh(b, 2 * n), fresh(b, n), old(b, 2 * n), R, C); break;
    }
    b->sink += sum;
}

// ---- Synchronisation --------------------------------------------------------------------------------------------

// All ranks continue at about the same time; early ranks sleep, and take no core from the others.
static void nap_until_all_come(Comm* c) {
    CommRequest r = comm_start(comm_request(c, COMM_BARRIER, NULL, NULL, 0, COMM_BYTE));
    while (!comm_is_done(&r)) usleep(2000);
    comm_wait(&r);
}

// The moment at which all ranks of c begin.
static double begin_at(Comm* c) {
    double at = seconds_now() + 3e-5 * c->size;
    comm_all_reduce(c, &at, 1, COMM_DOUBLE, COMM_MAX);
    return at;
}

static void show_progress(Bench* b, double share) {
    const double took = seconds_now() - b->started;
    if (b->world.rank > 0 || share < b->share_done + 0.01) return;
    b->share_done = share;
    printf("\r%3.0f %%, %.0f s left ", 100 * share, took / share * (1 - share));
    fflush(stdout);
}

// Rank 0: notes one round's value of the next point.
static void note(Bench* b, MeasuredPoint point, double value) {
    if (b->world.rank > 0) return;
    if (b->round == 0) {
        measured_add(&b->m, point);
        if (b->m.points > b->room)
            b->times = (double*)checked_grow(b->times, &b->room, 256, LARGEST_ROUNDS * sizeof(double), "calibration");
    }
    b->times[b->next++ * LARGEST_ROUNDS + b->round] = value;
}

// Runs the case until the window is over, at least once; seconds of one run. For a rank with one thread CPU seconds,
// which exclude other programs on its core.
static double time_of(Bench* b, const Case* c, double from, bool one) {
    int calls = 0;
    while (seconds_now() < from) {}
    const double before = one ? thread_seconds() : seconds_now();
    do c->run(b, c), calls++;
    while (seconds_now() - from < b->window);
    return ((one ? thread_seconds() : seconds_now()) - before) / calls;
}

// Mean seconds of the case over the ranks of c, which run it at the same time.
static double seconds_of(Bench* b, Comm* c, const Case* x) {
    x->run(b, x); // warm-up: allocates its memory
    double seconds = time_of(b, x, begin_at(c), x->point.first == THREADS_ONE);
    comm_all_reduce(c, &seconds, 1, COMM_DOUBLE, COMM_SUM);
    return seconds / c->size;
}

static void measure_case(Bench* b, Comm* c, const Case* x) {
    const double seconds = seconds_of(b, c, x);
    const bool rate = x->point.table == MEASURED_PRODUCT || x->point.table == MEASURED_ATTENTION;
    note(b, x->point, rate ? x->work / seconds : seconds / x->work);
}

static void measure_products(Bench* b, Comm* c, int first) {
    static const double rows[] = {32, 64, 128, 256, 512, 1024}, columns[] = {32, 64, 128, 256, 512, 1024};
    for (int i = 0; i < 3 * 6 * 6 * 6; i++) {
        const double m = rows[i / 36 % 6], n = columns[i / 6 % 6], k = columns[i % 6];
        const Case x = {measured_point(MEASURED_PRODUCT, first, i / 216, m, n, k, 0), run_product,
                        2 * k * measured_padded(&b->m, m, n, first == THREADS_ALL ? b->m.cores : 1)};
        measure_case(b, c, &x);
    }
}

static void measure_others(Bench* b, Comm* c, int first) {
    static const double lengths[] = {64, 128, 256, 512, 1024}, heads[] = {16, 32, 64, 128};
    for (int i = 0; i < 2 * 5 * 4; i++) {
        const double T = lengths[i / 4 % 5], HS = heads[i % 4], pairs = 8 * T * T / 2;
        const Case x = {measured_point(MEASURED_ATTENTION, first, i / 20, T, HS, 0, 0), run_attention,
                        pairs * HS * (i / 20 ? 10 : 4)};
        measure_case(b, c, &x);
    }
    for (int i = 0; i < MEASURED_KERNELS * 5; i++) {
        const double n = (double)(16384 << i % 5 * 2);
        const Case x = {measured_point(MEASURED_MEMORY, first, i / 5, n, 0, 0, 0), run_memory, n};
        measure_case(b, c, &x);
    }
}

// ---- Ranks ------------------------------------------------------------------------------------------------------

static void run_collective(Comm* c, MeasuredCall call, int kind, float* x, float* y, int64_t n) {
    CommRequest r;
    const int64_t part = n / c->size;
    if (kind == 0) r = comm_describe_all_reduce(c, x, n, COMM_FLOAT, COMM_SUM);
    if (kind == 1) r = comm_request(c, COMM_REDUCE_SCATTER, y, x, part * c->size, COMM_FLOAT);
    if (kind == 2) r = comm_request(c, COMM_ALL_GATHER, x, y, part * c->size, COMM_FLOAT);
    if (call == COLLECTIVE_WAITED) {
        comm_run(r);
        return;
    }
    r = comm_start(r);
    comm_wait(&r);
}

// Mean seconds of a collective over a window, on rank 0.
static void measure_collective(Bench* b, Comm* c, MeasuredCall call, int kind, int64_t bytes) {
    const int64_t n = bytes / (int64_t)sizeof(float);
    double seconds = 0;
    for (int calls = 1;; calls *= 4) {
        const double from = begin_at(c);
        while (seconds_now() < from) {}
        for (int i = 0; i < calls; i++) run_collective(c, call, kind, old(b, n), old(b, n), n);
        seconds = (seconds_now() - from) / calls;
        double most = seconds * calls;
        comm_all_reduce(c, &most, 1, COMM_DOUBLE, COMM_MAX);
        seconds = most / calls;
        if (most > 4 * b->window) break;
    }
    note(b, measured_point(MEASURED_COLLECTIVE, call, kind, c->size, (double)bytes, 0, 0), seconds);
}

static void measure_collectives(Bench* b, Comm* c) {
    for (int64_t bytes = 1024; bytes <= (int64_t)64 << 20; bytes *= 4) {
        for (int kind = 0; kind < 3; kind++) {
            measure_collective(b, c, COLLECTIVE_WAITED, kind, bytes);
            measure_collective(b, c, COLLECTIVE_STARTED, kind, bytes);
        }
    }
}

// A block's work on a weight, forward and backward, that is used rarely.
static void run_layer(Bench* b) {
    Case x = {measured_point(MEASURED_PRODUCT, THREADS_ONE, 0, 128, 512, 512, 0), run_product, 1};
    for (; x.point.second < 3; x.point.second++) run_product(b, &x);
}

// One message that goes around the ranks of c; seconds from one rank to the next. `of`: ranks of the machine.
static void measure_messages(Bench* b, Comm* c, int of) {
    for (int64_t bytes = 1024; bytes <= 16 << 20; bytes *= 4) {
        const int64_t n = bytes / (int64_t)sizeof(float);
        const int turns = (int)max_i64(2, 20 / c->size * (262144 / (bytes + 65536) + 1));
        const int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
        const double from = begin_at(c);
        double seconds;
        for (int i = 0; i < turns; i++) {
            CommRequest in = comm_receive_start(c, old(b, n), n, COMM_FLOAT, before, 0), out;
            if (c->rank > 0) comm_wait(&in);
            out = comm_send_start(c, fresh(b, n), n, COMM_FLOAT, next, 0);
            comm_wait(&out);
            if (c->rank == 0) comm_wait(&in);
        }
        seconds = (seconds_now() - from) / turns / c->size;
        note(b, measured_point(MEASURED_MESSAGE, 0, 0, of, (double)bytes, 0, 0), seconds);
    }
}

// With more ranks than cores, waiting ranks share cores with computing ones, and a message is seen only when its
// receiver is scheduled. So one half of c sends messages while the other one computes.
static void measure_messages_shared(Bench* b, Comm* c, Comm* half) {
    if (c->size <= b->place.cores_here) {
        measure_messages(b, c, c->size);
        return;
    }
    if (c->rank < c->size / 2) measure_messages(b, half, c->size);
    CommRequest end = comm_start(comm_request(c, COMM_BARRIER, NULL, NULL, 0, COMM_BYTE));
    while (c->rank >= c->size / 2 && !comm_is_done(&end)) run_layer(b);
    comm_wait(&end);
}

// How often per second each of k ranks of c runs it, while the others wait for a message, or sleep.
static double speed_of(Bench* b, Comm* c, int k, bool sleep, double window) {
    // The computing ranks are spread over the machine, and differ from round to round.
    const bool computes = (c->rank * 5 + b->round * 3) % c->size < k;
    double calls = 0, zero = 0;
    comm_barrier(c);
    const double from = begin_at(c) + 1e-3;
    while (computes && seconds_now() < from) {}
    while (computes && seconds_now() < from + window) run_layer(b), calls++;
    const double took = seconds_now() - from;
    while (!computes && sleep && seconds_now() < from + window) usleep(2000);
    comm_all_reduce(c, &zero, 1, COMM_DOUBLE, COMM_SUM); // the others wait here for the last one
    if (computes) calls /= took;
    comm_all_reduce(c, &calls, 1, COMM_DOUBLE, COMM_SUM);
    return calls / k;
}

// Each k relative to one rank per core, while the others sleep: the condition of "one".
static void measure_speeds(Bench* b, Comm* c) {
    const int cores = (int)min_i64(b->place.cores_here, c->size);
    for (int k = 1; k <= c->size; k++) {
        const double some = speed_of(b, c, k, false, 0.06), one = speed_of(b, c, cores, true, 0.06);
        note(b, measured_point(MEASURED_SPEED, 0, 0, c->size, k, 0, 0), some / one);
    }
}

// ---- All measurements -------------------------------------------------------------------------------------------

static void round_of(Bench* b, int round) {
    const double rounds = b->rounds;
    Comm self = {};
    self.size = 1;
    self.name = "alone";
    b->round = round;
    b->next = 0;
    nap_until_all_come(&b->world);
    if (b->lone) {
        device_set_threads(b->place.cores_here);
        measure_products(b, &self, THREADS_ALL);
        show_progress(b, (round + 0.25) / rounds);
        measure_others(b, &self, THREADS_ALL);
        device_set_threads(1);
    }
    nap_until_all_come(&b->world);
    show_progress(b, (round + 0.35) / rounds);
    if (b->computes) {
        measure_products(b, &b->cores, THREADS_ONE);
        show_progress(b, (round + 0.6) / rounds);
        measure_others(b, &b->cores, THREADS_ONE);
    }
    nap_until_all_come(&b->world);
    show_progress(b, (round + 0.7) / rounds);
    for (int g = 0; g < b->groups; g++) {
        nap_until_all_come(&b->world);
        if (b->world.rank < b->group_size[g]) measure_speeds(b, &b->group[g]);
        if (b->world.rank < b->group_size[g]) measure_messages_shared(b, &b->group[g], &b->half[g]);
        if (b->world.rank < b->group_size[g]) measure_collectives(b, &b->group[g]);
        show_progress(b, (round + 0.7 + 0.3 * (g + 1) / b->groups) / rounds);
    }
}

// The medians of the rounds, to three digits, as more are not significant.
static void take_medians(Bench* b) {
    for (int i = 0; i < b->m.points; i++) {
        double* t = b->times + i * LARGEST_ROUNDS;
        char digits[32];
        snprintf(digits, sizeof digits, "%.3g", median_of(t, b->rounds));
        b->m.point[i].value = strtod(digits, NULL);
    }
}

static void open_bench(Bench* b) {
    const int size = b->world.size, rank = b->world.rank;
    const int cores = (int)min_i64(size, b->place.cores_here);
    b->lone = rank == 0;
    b->computes = rank < cores;
    // The memory of a rank after a first exchange, before any allocation.
    double x[1] = {1};
    comm_all_reduce(&b->world, x, 1, COMM_DOUBLE, COMM_SUM);
    if (size > 1) {
        CommRequest in = comm_receive_start(&b->world, x, 1, COMM_DOUBLE, (rank + size - 1) % size, 0);
        double y = 1;
        CommRequest out = comm_send_start(&b->world, &y, 1, COMM_DOUBLE, (rank + 1) % size, 0);
        comm_wait(&in), comm_wait(&out);
    }
    double resident = (double)device_peak_bytes();
    comm_all_reduce(&b->world, &resident, 1, COMM_DOUBLE, COMM_MAX);
    measured_init(&b->m);
    const MatmulKernel* kernel = matmul_best_kernel();
    b->m.cores = b->place.cores_here;
    b->m.resident = resident;
    b->m.tile_rows = kernel->mr;
    b->m.tile_columns = kernel->nr;
    b->cores = comm_split(&b->world, b->computes ? 0 : 1, rank, "cores");
    for (int n = 2; n <= size; n *= 2) {
        b->group_size[b->groups] = n;
        const int half = rank < n / 2 ? 0 : 1;
        b->half[b->groups] = comm_split(&b->world, rank < n ? half : 2, rank, "half of the ranks");
        b->group[b->groups++] = comm_split(&b->world, rank < n ? 0 : 1, rank, "ranks");
    }
    b->pool = filled(POOL, 0.1f);
    b->recent = filled(RECENT, 0.1f);
    b->small = filled(SMALL, 0.1f);
    b->tokens = (int32_t*)checked_malloc(TOKENS * sizeof(int32_t), "calibration");
    for (int i = 0; i < TOKENS; i++) b->tokens[i] = (int32_t)(random_uniform(1, 8, (uint64_t)i) * WIDTH);
}

int main(int argc, char** argv) {
    device_limit_thread_spin(argv);
    device_flush_denormals();
    process.name = "calibrate";
    static Bench bench;
    Bench* b = &bench;
    const char* out = NULL;
    int64_t rounds = 5;
    bool help = false;
    Option table[] = {
        option_string("out", &out, "FILE", "where the lines go; without it they are printed"),
        option_int("rounds", &rounds, 1, LARGEST_ROUNDS, "how often everything is measured"),
        option_flag("help", &help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    Error error;
    comm_open(&b->world);
    if (!options_parse(table, n, argc, argv, &error)) die_usage("%s", error.text);
    if (help) {
        if (b->world.rank == 0) options_help(table, n, stdout);
        comm_close(&b->world);
        return 0;
    }
    comm_share_cores(&b->world, &b->place);
    b->rounds = (int)rounds;
    b->window = 3e-3;
    open_bench(b);
    device_set_threads(1);
    b->started = seconds_now();
    for (int r = 0; r < b->rounds; r++) round_of(b, r);
    nap_until_all_come(&b->world);
    const double peak = b->world.rank == 0 ? fma_peak_flops(b->place.cores_here, 0.2) : 0;
    nap_until_all_come(&b->world);
    if (b->world.rank == 0) {
        take_medians(b);
        FILE* f = out ? fopen(out, "w") : stdout;
        if (!f) die("--out %s: cannot write: %s", out, strerror(errno));
        printf("\r%d lines in %.0f s      \n", b->m.points, seconds_now() - b->started);
        bool ok = fprintf(f, "peak %.4g TFLOP/s\nmemory %.4g GB\n", peak / 1e12, device_bytes() / 1e9) > 0;
        ok = measured_write(&b->m, f) && ok;
        ok = (out ? fclose(f) : fflush(f)) == 0 && ok;
        if (!ok) die("cannot write: %s", strerror(errno));
    }
    comm_close(&b->world);
    return b->sink == -1;
}
