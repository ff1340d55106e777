/*
Rung 8 of 8: three dimensions. (Rungs 2 to 7 explain one each.)

    mpicc -O3 -march=native -ffast-math docs/ladder/8_three_dimensions.c -o 8_three_dimensions -lm
    mpirun -np 4 ./8_three_dimensions 2 2      # t = p = 2, d = 4 / (t p) = 1; with -np 8 d = 2

New: all together. rank = (stage d + data_rank) t + tensor_rank: tensor ranks, which exchange most, are neighbours. Each
replica pushes its share of the micro-batches through its pipeline, and a bucket's sum over the replicas starts inside
the table, in the stage's last backward pass. What several ranks hold (norms, positions, tokens) counts once in
the norm of the gradient, and its gradient is the sum of all holders' (start_bucket, squares_of_shard).

And CAAT-Net (Lamprecht et al. 2025), in sum_shared, with a third argument, such as 0.5: after a row parallel matrix
only that part of the channels is summed, and sent. Each rank has its own stream (all N rows) and norms: another model.

In threefold: train_gpt.cu wires the three; parallel/caat.h; ./train_gpt --explain says who holds what.
*/
#include <math.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = 4,                  // blocks
    C = 32,                 // channels of the residual stream
    NH = 4,                 // attention heads
    HS = C / NH,            // channels of a head
    F = 4 * C,              // channels between the two matrices of the mlp
    V = 128,                // vocabulary: the characters of ASCII
    T = 32,                 // positions of a sequence
    BATCH = 16,             // sequences of a step
    MICRO = 2,              // sequences of a micro-batch
    N = MICRO * T,          // rows of a micro-batch
    MICROS = BATCH / MICRO, // micro-batches of a step
    STEPS = 100,
};
static int shared;                       // channels that tensor ranks sum: all C, or in a CAAT-Net less
static int heads, ffn, vocabulary, rows; // this rank's parts of NH, F, V and N; set once, by main, as is the mesh
static const float LEARNING_RATE = 3e-3f, BETA1 = 0.9f, BETA2 = 0.95f, EPSILON = 1e-8f, DECAY = 0.1f, CLIP = 1.0f;
static const char* const TEXT = "docs/ladder/1_one_process.c"; // this file is the text that all rungs learn

static struct {
    int t, d, p, tensor_rank, data_rank, stage, blocks; // blocks: L / p
    bool first, last;                                   // stage
    MPI_Comm tensor, data, ends;                        // ends: the first and the last stage
} mesh;

// ---- helpers

static void fail(const char* what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

// n floats, all zero.
static float* floats(long n) {
    float* x = (float*)calloc((size_t)n, sizeof(float));
    if (!x) fail("no memory");
    return x;
}

// SplitMix64 (Steele et al. 2014): a different, random looking number for every x.
static uint64_t hash(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// The initial value of an element, of a normal distribution (Box and Muller), is a formula of the numbers of tensor and
// element, so a rank that holds a part of the tensor draws the same values.
static float initial(int tensor, long element, float deviation) {
    uint64_t h = hash(((uint64_t)tensor << 32) + (uint64_t)element);
    double u = (double)((h >> 32) + 1) / 4294967297.0, angle = (double)(h & 0xffffffff) * 6.283185307 / 4294967296.0;
    return deviation * (float)(sqrt(-2.0 * log(u)) * cos(angle));
}

// x = the sum over the ranks of the replica.
static void sum_over_tensor(float* x, long n) {
    MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, mesh.tensor);
}

// Returns all N rows of x, of which each tensor rank has `rows`; they are valid until the next call.
static const float* gather_rows(const float* x) {
    static float all[N * C];
    if (shared < C) return x; // CAAT-Net: all rows of this rank's own stream
    MPI_Allgather(x, rows * C, MPI_FLOAT, all, rows * C, MPI_FLOAT, mesh.tensor);
    return all;
}

// x (rows, C) = this rank's rows of the sum of all tensor ranks' partial (N, C). CAAT-Net: its own partial.
static void reduce_scatter_rows(float* x, const float* partial) {
    if (shared < C) memcpy(x, partial, sizeof(float) * N * C);
    if (shared == C) MPI_Reduce_scatter_block(partial, x, rows * C, MPI_FLOAT, MPI_SUM, mesh.tensor);
}

// CAAT-Net: x (N, C) = the ranks' sum of partial for shared channels; for the others this rank's own values, times
// sqrt(t), the size that a sum would have. Forwards x is a branch's output (attention or mlp), backwards its gradient.
static const float* sum_shared(float* x, const float* partial) {
    static float sum[N * C];
    for (int n = 0; n < N; n++) memcpy(sum + n * shared, partial + n * C, sizeof(float) * (size_t)shared);
    sum_over_tensor(sum, N * shared);
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < C; i++)
            x[n * C + i] = i < shared ? sum[n * shared + i] : sqrtf((float)mesh.t) * partial[n * C + i];
    }
    return x;
}

static void sum_branch(float* x, const float* partial) {
    if (shared < C) sum_shared(x, partial);
    if (shared == C) reduce_scatter_rows(x, partial);
}

static const float* branch_gradient(const float* dx) {
    static float gradient[N * C];
    return shared < C ? sum_shared(gradient, dx) : gather_rows(dx);
}

// ---- kernels

// out (R, C) = (x - mean) / standard deviation * w, of every row x of C values.
static void layernorm_forward(float* out, const float* x, const float* w, int R) {
    for (int n = 0; n < R; n++, x += C, out += C) {
        float mean = 0.0f, variance = 0.0f;
        for (int i = 0; i < C; i++) mean += x[i] / C;
        for (int i = 0; i < C; i++) variance += (x[i] - mean) * (x[i] - mean) / C;
        float scale = 1.0f / sqrtf(variance + 1e-5f);
        for (int i = 0; i < C; i++) out[i] = (x[i] - mean) * scale * w[i];
    }
}

// With u = (x - mean) scale and e = dout w: dx += scale (e - mean of e - u mean of e u). Adds to dx, because x also
// continues in the residual stream, and to dw, because the rows share w.
static void layernorm_backward(float* dx, float* dw, const float* dout, const float* x, const float* w, int R) {
    for (int n = 0; n < R; n++, x += C, dx += C, dout += C) {
        float mean = 0.0f, variance = 0.0f, mean_e = 0.0f, mean_eu = 0.0f;
        for (int i = 0; i < C; i++) mean += x[i] / C;
        for (int i = 0; i < C; i++) variance += (x[i] - mean) * (x[i] - mean) / C;
        float scale = 1.0f / sqrtf(variance + 1e-5f);
        for (int i = 0; i < C; i++) {
            float u = (x[i] - mean) * scale;
            dw[i] += dout[i] * u;
            mean_e += dout[i] * w[i] / C;
            mean_eu += dout[i] * w[i] * u / C;
        }
        for (int i = 0; i < C; i++) dx[i] += scale * (dout[i] * w[i] - mean_e - (x[i] - mean) * scale * mean_eu);
    }
}

// out (R, O) = x (R, I) times the transpose of w (O, I).
static void linear_forward(float* out, const float* x, const float* w, int R, int I, int O) {
    for (int n = 0; n < R; n++) {
        for (int o = 0; o < O; o++) {
            float sum = 0.0f;
            for (int i = 0; i < I; i++) sum += x[n * I + i] * w[o * I + i];
            out[n * O + o] = sum;
        }
    }
}

// dx (R, I) = dout (R, O) times w; dw += the transpose of dout times x.
static void linear_backward(float* dx, float* dw, const float* dout, const float* x, const float* w, int R, int I,
                            int O) {
    memset(dx, 0, sizeof(float) * (size_t)(R * I));
    for (int n = 0; n < R; n++) {
        for (int o = 0; o < O; o++) {
            float d = dout[n * O + o];
            for (int i = 0; i < I; i++) dx[n * I + i] += d * w[o * I + i];
            for (int i = 0; i < I; i++) dw[o * I + i] += d * x[n * I + i];
        }
    }
}

// Causal attention. qkv (N, heads, 3, HS): query, key, value; probs (MICRO, heads, T, T): softmax (exp / the row's sum)
// of query times key / sqrt(HS) over the positions up to the query's own; out (N, heads, HS): weighted mean of values.
static void attention_forward(float* out, float* probs, const float* qkv) {
    const int row = heads * 3 * HS;
    for (int b = 0; b < MICRO; b++) {
        for (int h = 0; h < heads; h++) {
            const float* q = qkv + b * T * row + h * 3 * HS; // query; + HS: key; + 2 HS: value; + row: next position
            for (int t = 0; t < T; t++) {
                float *p = probs + ((b * heads + h) * T + t) * T, *y = out + ((b * T + t) * heads + h) * HS, sum = 0.0f;
                for (int s = 0; s <= t; s++) {
                    float score = 0.0f;
                    for (int i = 0; i < HS; i++) score += q[t * row + i] * q[s * row + HS + i];
                    sum += p[s] = expf(score / sqrtf(HS)); // scores are small here; real kernels subtract their maximum
                }
                memset(y, 0, sizeof(float) * HS);
                for (int s = 0; s <= t; s++) {
                    p[s] /= sum;
                    for (int i = 0; i < HS; i++) y[i] += p[s] * q[s * row + 2 * HS + i];
                }
            }
        }
    }
}

// dp = dout times value is the gradient of a probability p = exp(score) / sum. A score changes its own exp and the sum
// of the row: dscore = p (dp - mean), with mean = the sum of p dp over the row; then the division by sqrt(HS).
static void attention_backward(float* dqkv, const float* dout, const float* probs, const float* qkv) {
    const int row = heads * 3 * HS;
    memset(dqkv, 0, sizeof(float) * (size_t)N * (size_t)row);
    for (int b = 0; b < MICRO; b++) {
        for (int h = 0; h < heads; h++) {
            const float* q = qkv + b * T * row + h * 3 * HS;
            float* dq = dqkv + b * T * row + h * 3 * HS;
            for (int t = 0; t < T; t++) {
                const float *p = probs + ((b * heads + h) * T + t) * T, *dy = dout + ((b * T + t) * heads + h) * HS;
                float dp[T], mean = 0.0f;
                for (int s = 0; s <= t; s++) {
                    dp[s] = 0.0f;
                    for (int i = 0; i < HS; i++) dp[s] += dy[i] * q[s * row + 2 * HS + i];
                    for (int i = 0; i < HS; i++) dq[s * row + 2 * HS + i] += p[s] * dy[i];
                    mean += p[s] * dp[s];
                }
                for (int s = 0; s <= t; s++) {
                    float dscore = p[s] * (dp[s] - mean) / sqrtf(HS);
                    for (int i = 0; i < HS; i++) dq[t * row + i] += dscore * q[s * row + HS + i];
                    for (int i = 0; i < HS; i++) dq[s * row + HS + i] += dscore * q[t * row + i];
                }
            }
        }
    }
}

// GELU, approximated by x times the logistic function of 1.702 x (Hendrycks and Gimpel 2016).
static void gelu_forward(float* out, const float* x, long n) {
    for (long i = 0; i < n; i++) out[i] = x[i] / (1.0f + expf(-1.702f * x[i]));
}

static void gelu_backward(float* dx, const float* x, long n) { // dx holds dout when it is called
    for (long i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + expf(-1.702f * x[i]));
        dx[i] *= s + 1.702f * x[i] * s * (1.0f - s);
    }
}

static void add(float* x, const float* y, long n) { // x += y
    for (long i = 0; i < n; i++) x[i] += y[i];
}

// ---- the model

typedef struct {          // a block's weights, or their gradients
    float *norm1, *norm2; // (C)
    float* qkv;           // (heads x 3 x HS, C)
    float* proj;          // (C, heads x HS)
    float* fc;            // (ffn, C)
    float* out;           // (C, ffn)
} Block;

typedef struct {      // all weights, or all gradients: pointers into one array
    float* positions; // (T, C)
    float* norm;      // (C)
    float* tokens;    // (vocabulary, C)
    Block block[L];
} Weights;

typedef struct { // what a block keeps for the backward pass, in the order of block_forward; mid: x + proj att
    float *x, *norm1, *qkv, *probs, *att, *mid, *norm2, *fc, *gelu;
} BlockActs;

typedef struct { // a micro-batch
    int input[N], target[N];
    BlockActs block[L];
    float *x, *norm;     // (rows, C): the last block's output, and its norm
    float* dx;           // (rows, C): the gradient: arrives from the stage after, leaves to the stage before
    float* partial;      // (N, C): scratch memory
    float* logits;       // (N, vocabulary), then their gradient
    MPI_Request sent[2]; // the messages with x and dx
} Acts;

static float* take(float** memory, long n) {
    float* x = *memory;
    *memory += n;
    return x;
}

// Bucket b begins with what is not cut, positions and norms; of it whole(b) floats are equal on all tensor ranks.
static long uncut(int b) { return b == 0 ? mesh.first * T * C + mesh.last * C : 2 * C; }
static long whole(int b) { return shared == C ? uncut(b) : (b == 0) * mesh.first * T * C; }

// Lays the weights out in an array and returns it: first what is in no block, which is bucket 0, then block l as bucket
// l + 1. Bucket b begins at first[b]; first[L / p + 1] is the size of the array. Lengths are multiples of d.
static float* layout(Weights* w, long first[L + 2]) {
    first[0] = 0;
    for (int b = 0; b <= mesh.blocks; b++) {
        long tokens = mesh.first || mesh.last ? vocabulary * C : 0;
        long length = uncut(b) + (b == 0 ? tokens : 4 * C * HS * heads + 2 * C * ffn);
        first[b + 1] = first[b] + (length + mesh.d - 1) / mesh.d * mesh.d;
    }
    float *array = floats(first[mesh.blocks + 1]), *memory = array;
    w->positions = take(&memory, mesh.first * T * C);
    w->norm = take(&memory, mesh.last * C);
    w->tokens = take(&memory, vocabulary * C);
    for (int l = 0; l < mesh.blocks; l++) {
        Block* b = &w->block[l];
        memory = array + first[l + 1];
        b->norm1 = take(&memory, C);
        b->norm2 = take(&memory, C);
        b->qkv = take(&memory, 3 * HS * heads * C);
        b->proj = take(&memory, C * HS * heads);
        b->fc = take(&memory, ffn * C);
        b->out = take(&memory, C * ffn);
    }
    return array;
}

// Of a matrix (O, I) this rank's 1/t: of the rows (column parallel) or of the columns (row parallel).
static void draw(float* w, int tensor, int O, int I, bool by_rows) {
    const int part = by_rows ? O / mesh.t : I / mesh.t;
    for (int o = 0; o < O; o++) {
        for (int i = 0; i < I; i++) {
            if ((by_rows ? o : i) / part == mesh.tensor_rank) *w++ = initial(tensor, o * I + i, 0.08f);
        }
    }
}

static void draw_weights(Weights* w) {
    if (mesh.first || mesh.last) draw(w->tokens, 0, V, C, true);
    for (int i = 0; i < mesh.first * T * C; i++) w->positions[i] = initial(1, i, 0.08f);
    for (int i = 0; i < mesh.last * C; i++) w->norm[i] = 1.0f;
    for (int l = 0; l < mesh.blocks; l++) {
        Block* b = &w->block[l];
        const int tensor = 4 * (mesh.stage * mesh.blocks + l);
        for (int i = 0; i < C; i++) b->norm1[i] = b->norm2[i] = 1.0f;
        draw(b->qkv, tensor + 2, 3 * C, C, true);
        draw(b->proj, tensor + 3, C, C, false);
        draw(b->fc, tensor + 4, F, C, true);
        draw(b->out, tensor + 5, C, F, false);
    }
}

static void allocate(Acts* a) {
    for (int l = 0; l < mesh.blocks; l++) {
        BlockActs* b = &a->block[l];
        b->x = floats(rows * C);
        b->norm1 = floats(rows * C);
        b->qkv = floats(N * 3 * HS * heads);
        b->probs = floats(MICRO * heads * T * T);
        b->att = floats(N * HS * heads);
        b->mid = floats(rows * C);
        b->norm2 = floats(rows * C);
        b->fc = floats(N * ffn);
        b->gelu = floats(N * ffn);
    }
    a->x = floats(rows * C);
    a->norm = floats(rows * C);
    a->dx = floats(rows * C);
    a->sent[0] = a->sent[1] = MPI_REQUEST_NULL;
    a->partial = floats(N * C);
    a->logits = floats(N * vocabulary);
}

// x (rows, C): the block's output; a->x is its input. partial (N, C): scratch memory.
static void block_forward(float* x, BlockActs* a, const Block* w, float* partial) {
    layernorm_forward(a->norm1, a->x, w->norm1, rows);
    linear_forward(a->qkv, gather_rows(a->norm1), w->qkv, N, C, 3 * HS * heads);
    attention_forward(a->att, a->probs, a->qkv);
    linear_forward(partial, a->att, w->proj, N, HS * heads, C);
    sum_branch(a->mid, partial);
    add(a->mid, a->x, rows * C);
    layernorm_forward(a->norm2, a->mid, w->norm2, rows);
    linear_forward(a->fc, gather_rows(a->norm2), w->fc, N, C, ffn);
    gelu_forward(a->gelu, a->fc, N * ffn);
    linear_forward(partial, a->gelu, w->out, N, ffn, C);
    sum_branch(x, partial);
    add(x, a->mid, rows * C);
}

// dx (rows, C): at first the gradient of the block's output, at the end of its input. d: scratch memory, for gradients.
static void block_backward(float* dx, Block* g, BlockActs* a, const Block* w, BlockActs* d, float* partial) {
    linear_backward(d->gelu, g->out, branch_gradient(dx), a->gelu, w->out, N, ffn, C);
    gelu_backward(d->gelu, a->fc, N * ffn);
    linear_backward(partial, g->fc, d->gelu, gather_rows(a->norm2), w->fc, N, C, ffn);
    reduce_scatter_rows(d->norm2, partial);
    layernorm_backward(dx, g->norm2, d->norm2, a->mid, w->norm2, rows);
    linear_backward(d->att, g->proj, branch_gradient(dx), a->att, w->proj, N, HS * heads, C);
    attention_backward(d->qkv, d->att, a->probs, a->qkv);
    linear_backward(partial, g->qkv, d->qkv, gather_rows(a->norm1), w->qkv, N, C, 3 * HS * heads);
    reduce_scatter_rows(d->norm1, partial);
    layernorm_backward(dx, g->norm1, d->norm1, a->x, w->norm1, rows);
}

// The row of this rank's part of the vocabulary that belongs to a byte, or -1 if another rank has it.
static int row_of(int byte) {
    int row = byte - mesh.tensor_rank * vocabulary;
    return row >= 0 && row < vocabulary ? row : -1;
}

static void embed(float* x, const Acts* a, const Weights* w, float* partial) {
    for (int n = 0; n < N; n++) {
        int row = row_of(a->input[n]);
        memset(partial + n * C, 0, sizeof(float) * C);
        if (row >= 0) memcpy(partial + n * C, w->tokens + row * C, sizeof(float) * C);
    }
    if (shared < C) sum_over_tensor(partial, N * C);
    reduce_scatter_rows(x, partial);
    for (int n = 0; n < rows; n++) add(x + n * C, w->positions + (mesh.tensor_rank * rows + n) % T * C, C);
}

static void embed_backward(Weights* g, const Acts* a, float* dx) {
    for (int n = 0; n < rows; n++) add(g->positions + (mesh.tensor_rank * rows + n) % T * C, dx + n * C, C);
    if (shared < C) sum_over_tensor(dx, N * C);
    const float* all = gather_rows(dx);
    for (int n = 0; n < N; n++) {
        int row = row_of(a->input[n]);
        if (row >= 0) add(g->tokens + row * C, all + n * C, C);
    }
}

// The sum of the rows' losses, -log(softmax(logits)[target]). Replaces the logits by their gradient in the mean over
// all rows of the step: (softmax - 1 at the target) / rows.
static double cross_entropy(Acts* a) {
    float max[N], sum[2 * N] = {0.0f}, *target = sum + N; // sum and target: one message
    double loss = 0.0;
    for (int n = 0; n < N; n++) {
        max[n] = a->logits[n * vocabulary];
        for (int v = 0; v < vocabulary; v++) max[n] = fmaxf(max[n], a->logits[n * vocabulary + v]);
    }
    MPI_Allreduce(MPI_IN_PLACE, max, N, MPI_FLOAT, MPI_MAX, mesh.tensor);
    for (int n = 0; n < N; n++) {
        int row = row_of(a->target[n]);
        for (int v = 0; v < vocabulary; v++) sum[n] += expf(a->logits[n * vocabulary + v] - max[n]);
        if (row >= 0) target[n] = a->logits[n * vocabulary + row];
    }
    sum_over_tensor(sum, 2 * N);
    for (int n = 0; n < N; n++) {
        float* logits = a->logits + n * vocabulary;
        int row = row_of(a->target[n]);
        loss += logf(sum[n]) + max[n] - target[n];
        for (int v = 0; v < vocabulary; v++) logits[v] = expf(logits[v] - max[n]) / sum[n] / (BATCH * T);
        if (row >= 0) logits[row] -= 1.0f / (BATCH * T);
    }
    return loss;
}

typedef struct {
    float *grads, *shard; // of all ranks' sum, this rank's 1/d of each bucket: bucket b begins at first[b] / d
    long first[L + 2];
    MPI_Request request[L + 1];
} Buckets;

// Bucket b of the gradients is complete on this rank: its sum over the ranks starts.
static void start_bucket(Buckets* k, int b) {
    if (b == 0 && mesh.p > 1 && (mesh.first || mesh.last)) {
        MPI_Allreduce(MPI_IN_PLACE, k->grads + uncut(0), vocabulary * C, MPI_FLOAT, MPI_SUM, mesh.ends);
    }
    int done, n = (int)(k->first[b + 1] - k->first[b]) / mesh.d;
    sum_over_tensor(k->grads + k->first[b], whole(b));
    MPI_Ireduce_scatter_block(k->grads + k->first[b], k->shard + k->first[b] / mesh.d, n, MPI_FLOAT, MPI_SUM, mesh.data,
                              &k->request[b]);
    MPI_Testall(L + 1, k->request, &done, MPI_STATUSES_IGNORE);
}

static const int OUTPUT = 0, GRADIENT = 1; // kinds of messages, MPI's tags: the oldest message of a kind is received
static int rank_of(int stage) { return (stage * mesh.d + mesh.data_rank) * mesh.t + mesh.tensor_rank; }

static void start_send(Acts* a, const float* x, int stage, int kind) {
    MPI_Isend(x, rows * C, MPI_FLOAT, rank_of(stage), kind, MPI_COMM_WORLD, &a->sent[kind]);
}

static void receive(float* x, int stage, int kind) {
    MPI_Recv(x, rows * C, MPI_FLOAT, rank_of(stage), kind, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// This stage's part of the forward pass. Returns the loss on the last stage, elsewhere 0.
static double forward(Acts* a, const Weights* w) {
    if (mesh.first) embed(a->block[0].x, a, w, a->partial);
    if (!mesh.first) receive(a->block[0].x, mesh.stage - 1, OUTPUT);
    for (int l = 0; l < mesh.blocks; l++)
        block_forward(l + 1 < mesh.blocks ? a->block[l + 1].x : a->x, &a->block[l], &w->block[l], a->partial);
    if (!mesh.last) {
        start_send(a, a->x, mesh.stage + 1, OUTPUT);
        return 0.0;
    }
    layernorm_forward(a->norm, a->x, w->norm, rows);
    linear_forward(a->logits, gather_rows(a->norm), w->tokens, N, C, vocabulary);
    return cross_entropy(a);
}

// Adds the micro-batch's gradients to g; d: scratch memory. `last`: after it the gradients are complete.
static void backward(Weights* g, Acts* a, const Weights* w, Acts* d, Buckets* k, bool last) {
    if (mesh.last) {
        linear_backward(d->partial, g->tokens, a->logits, gather_rows(a->norm), w->tokens, N, C, vocabulary);
        reduce_scatter_rows(d->norm, d->partial);
        memset(a->dx, 0, sizeof(float) * (size_t)(rows * C));
        layernorm_backward(a->dx, g->norm, d->norm, a->x, w->norm, rows);
    } else {
        receive(a->dx, mesh.stage + 1, GRADIENT);
    }
    for (int l = mesh.blocks - 1; l >= 0; l--) {
        block_backward(a->dx, &g->block[l], &a->block[l], &w->block[l], &d->block[l], d->partial);
        if (last) start_bucket(k, l + 1);
    }
    if (mesh.first) embed_backward(g, a, a->dx);
    if (!mesh.first) start_send(a, a->dx, mesh.stage - 1, GRADIENT);
    if (last) start_bucket(k, 0);
}

typedef struct { // an entry of the table
    char kind;   // F: forward, B: backward
    int micro;
} Action;

// The 1F1B table of a stage: 2 micros actions. With printed, also as text.
static void make_schedule(Action* actions, int stage, int micros, bool printed) {
    int ahead = mesh.p - 1 - stage, f = 0, b = 0; // passes so far
    if (printed) printf("stage %d ", stage);
    for (int i = 0; i < 2 * micros; i++) {
        bool forward = f < micros && f - b <= ahead;
        actions[i].kind = forward ? 'F' : 'B';
        actions[i].micro = forward ? f++ : b++;
        if (printed) printf(" %c%d%s", actions[i].kind, actions[i].micro, i + 1 < 2 * micros ? "" : "\n");
    }
}

// ---- a training step

// Reads the text; *n: its number of characters.
static char* read_text(long* n) {
    static char text[1 << 20];
    FILE* file = fopen(TEXT, "rb");
    *n = file ? (long)fread(text, 1, sizeof(text), file) : 0;
    if (*n < 2 * T || fclose(file))
        fail("docs/ladder/1_one_process.c cannot be read: run this program from the project's root");
    return text;
}

// Micro-batch `micro` of a step: sequences that begin at random places. The target of a byte is the one after it.
static void load_batch(Acts* a, const char* text, long length, int step, int micro) {
    for (int n = 0; n < N; n++) {
        uint64_t sequence = (uint64_t)(step * BATCH + micro * MICRO + n / T);
        long begin = (long)(hash(sequence) % (uint64_t)(length - T));
        a->input[n] = text[begin + n % T] & (V - 1);
        a->target[n] = text[begin + n % T + 1] & (V - 1);
    }
}

static double sum_of_squares(const float* x, long n) {
    double sum = 0.0;
    for (long i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}

// The squares of this rank's shards. What all tensor ranks hold as a whole is counted on the first one only, and
// tokens on the first stage only.
static double squares_of_shard(const Buckets* k) {
    double sum = 0.0;
    for (int b = 0; b <= mesh.blocks; b++) {
        const long n = (k->first[b + 1] - k->first[b]) / mesh.d, before = n * mesh.data_rank; // before the shard
        long begin = mesh.tensor_rank > 0 && before < whole(b) ? whole(b) : before, end = before + n;
        if (b == 0 && !mesh.first && end > uncut(0)) end = uncut(0);
        if (begin < end) sum += sum_of_squares(k->shard + k->first[b] / mesh.d + begin - before, end - begin);
    }
    return sum;
}

// AdamW (Loshchilov and Hutter 2019); m, v: moving means of the gradient, which is g times scale, and of its square.
static void adamw(float* w, float* m, float* v, const float* g, long n, int step, float scale) {
    const float correct1 = 1.0f - powf(BETA1, step + 1), correct2 = 1.0f - powf(BETA2, step + 1); // m, v begin at 0
    for (long i = 0; i < n; i++) {
        float d = g[i] * scale;
        m[i] = BETA1 * m[i] + (1.0f - BETA1) * d;
        v[i] = BETA2 * v[i] + (1.0f - BETA2) * d * d;
        w[i] -= LEARNING_RATE * (m[i] / correct1 / (sqrtf(v[i] / correct2) + EPSILON) + DECAY * w[i]);
    }
}

static void make_mesh(int rank, int ranks, int t, int p, float fraction) {
    if (t < 1 || NH % t || p < 1 || L % p || ranks % (t * p) || MICROS % (ranks / (t * p)))
        fail("usage: mpirun -np RANKS ./8_three_dimensions T P: T divides the heads, P the blocks, T P the ranks");
    if (!(fraction >= 0.0f && fraction <= 1.0f)) fail("the part of the channels that is summed is from 0 to 1");
    mesh.t = t;
    mesh.p = p;
    mesh.d = ranks / (t * p);
    mesh.tensor_rank = rank % t;
    mesh.data_rank = rank / t % mesh.d;
    mesh.stage = rank / t / mesh.d;
    mesh.blocks = L / p;
    mesh.first = mesh.stage == 0;
    mesh.last = mesh.stage == p - 1;
    shared = t > 1 ? (int)(fraction * C) : C;
    heads = NH / t;
    ffn = F / t;
    vocabulary = V / t;
    rows = shared < C ? N : N / t;
    MPI_Comm_split(MPI_COMM_WORLD, rank / t, rank, &mesh.tensor);
    MPI_Comm_split(MPI_COMM_WORLD, mesh.stage * t + mesh.tensor_rank, rank, &mesh.data);
    MPI_Comm_split(MPI_COMM_WORLD, mesh.first || mesh.last ? rank % (t * mesh.d) : MPI_UNDEFINED, rank, &mesh.ends);
}

int main(int argc, char** argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int t = argc > 1 ? atoi(argv[1]) : 2, p = argc > 2 ? atoi(argv[2]) : 2;
    make_mesh(rank, ranks, t, p, argc > 3 ? (float)atof(argv[3]) : 1.0f);
    const int d = mesh.d, micros = MICROS / d, slots = p - mesh.stage; // micro-batches in flight
    Weights w, g;
    Acts slot[L], da; // slots <= p <= L
    Action actions[2 * MICROS];
    Buckets k;
    long length;
    char* text = read_text(&length);
    float* weights = layout(&w, k.first);
    k.grads = layout(&g, k.first);
    const long size = k.first[mesh.blocks + 1];
    float *m = floats(size / d), *v = floats(size / d);
    k.shard = floats(size / d);
    for (int b = 0; b <= L; b++) k.request[b] = MPI_REQUEST_NULL;
    draw_weights(&w);
    for (int i = 0; i < slots; i++) allocate(&slot[i]);
    allocate(&da);
    for (int s = 0; s < mesh.p; s++) make_schedule(actions, s, micros, rank == 0);
    make_schedule(actions, mesh.stage, micros, false);
    for (int step = 0; step < STEPS; step++) {
        double loss = 0.0;
        memset(k.grads, 0, sizeof(float) * (size_t)size);
        for (int i = 0; i < 2 * micros; i++) {
            Acts* a = &slot[actions[i].micro % slots];
            if (actions[i].kind == 'F') {
                MPI_Waitall(2, a->sent, MPI_STATUSES_IGNORE); // of the slot's micro-batch before
                load_batch(a, text, length, step, mesh.data_rank * micros + actions[i].micro);
                loss += forward(a, &w) / mesh.t; // all tensor ranks have the same
            } else {
                backward(&g, a, &w, &da, &k, actions[i].micro == micros - 1);
            }
        }
        MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Waitall(L + 1, k.request, MPI_STATUSES_IGNORE);
        double squares = squares_of_shard(&k);
        MPI_Allreduce(MPI_IN_PLACE, &squares, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        const double norm = sqrt(squares);
        for (int b = 0; b <= mesh.blocks; b++) {
            const long n = (k.first[b + 1] - k.first[b]) / d, at = k.first[b] / d;
            float *bucket = weights + k.first[b], scale = norm > CLIP ? (float)(CLIP / norm) : 1.0f;
            adamw(bucket + mesh.data_rank * n, m + at, v + at, k.shard + at, n, step, scale);
            MPI_Iallgather(MPI_IN_PLACE, 0, MPI_FLOAT, bucket, (int)n, MPI_FLOAT, mesh.data, &k.request[b]);
        }
        MPI_Waitall(L + 1, k.request, MPI_STATUSES_IGNORE);
        if (rank == 0) printf("step %2d loss %.6f norm %.6f\n", step + 1, loss / (BATCH * T), norm);
    }
    for (int i = 0; i < slots; i++) MPI_Waitall(2, slot[i].sent, MPI_STATUSES_IGNORE);
    return MPI_Finalize();
}
