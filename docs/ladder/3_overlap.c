/*
Rung 3 of 8: data parallel, overlapped. (Rung 2 explains ranks and the all-reduce.)

    mpicc -O3 -march=native -ffast-math docs/ladder/3_overlap.c -o 3_overlap -lm && mpirun -np 4 ./3_overlap

New: rung 2 computes, then sends, and its processors wait for the network. But the gradient of the last block is
complete long before that of the first one: its sum can travel while the blocks before it are computed. So the array of
gradients is cut into buckets, one a block and one for the rest, and a bucket's all-reduce starts as soon as its
gradient is complete, in the backward pass of the last micro-batch (the ones before only add to it).
    MPI_Iallreduce    starts an all-reduce and returns at once, with a request to wait for
    MPI_Testall       asks whether requests are complete, which also gives MPI time to move their data
    MPI_Waitall       waits for them; MPI_REQUEST_NULL is a request with nothing to wait for
All ranks have to start their collectives (operations of all ranks of a group, as an all-reduce is) in the same order,
which they do, as they run the same program. The bucket of the rest is last: the embedding ends the backward pass.

Most MPI libraries move data only inside their functions, so here little of the time is hidden; the GPU library NCCL
moves data by kernels of its own, beside those that compute. What starts when is the same there.

In threefold: parallel/stage.h (grad_bucket_ready), data.h (start_grad_sync, finish_grad_sync); PyTorch's
DistributedDataParallel does the same (Li et al. 2020).
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
static const int heads = NH, ffn = F, vocabulary = V; // the part of the model that is computed here: all of it
static const float LEARNING_RATE = 3e-3f, BETA1 = 0.9f, BETA2 = 0.95f, EPSILON = 1e-8f, DECAY = 0.1f, CLIP = 1.0f;
static const char* const TEXT = "docs/ladder/1_one_process.c"; // this file is the text that all rungs learn

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
    float *x, *norm; // (N, C): the last block's output, and its norm
    float* logits;   // (N, vocabulary), then their gradient
} Acts;

static float* take(float** memory, long n) {
    float* x = *memory;
    *memory += n;
    return x;
}

// Lays the weights out in an array and returns it: first what is in no block, which is bucket 0, then block l as bucket
// l + 1. Bucket b begins at first[b]; first[L + 1] is the size of the array.
static float* layout(Weights* w, long first[L + 2]) {
    const long whole = T * C + C, block = 2 * C + 4 * C * HS * heads + 2 * C * ffn;
    for (int b = 0; b < L + 2; b++) first[b] = b == 0 ? 0 : whole + vocabulary * C + (b - 1) * block;
    float *array = floats(first[L + 1]), *memory = array;
    w->positions = take(&memory, T * C);
    w->norm = take(&memory, C);
    w->tokens = take(&memory, vocabulary * C);
    for (int l = 0; l < L; l++) {
        Block* b = &w->block[l];
        b->norm1 = take(&memory, C);
        b->norm2 = take(&memory, C);
        b->qkv = take(&memory, 3 * HS * heads * C);
        b->proj = take(&memory, C * HS * heads);
        b->fc = take(&memory, ffn * C);
        b->out = take(&memory, C * ffn);
    }
    return array;
}

// A matrix w (O, I); tensor: its number.
static void draw(float* w, int tensor, int O, int I) {
    for (int i = 0; i < O * I; i++) w[i] = initial(tensor, i, 0.08f);
}

static void draw_weights(Weights* w) {
    draw(w->tokens, 0, V, C);
    draw(w->positions, 1, T, C);
    for (int i = 0; i < C; i++) w->norm[i] = 1.0f;
    for (int l = 0; l < L; l++) {
        Block* b = &w->block[l];
        for (int i = 0; i < C; i++) b->norm1[i] = b->norm2[i] = 1.0f;
        draw(b->qkv, 4 * l + 2, 3 * C, C);
        draw(b->proj, 4 * l + 3, C, C);
        draw(b->fc, 4 * l + 4, F, C);
        draw(b->out, 4 * l + 5, C, F);
    }
}

static void allocate(Acts* a) {
    for (int l = 0; l < L; l++) {
        BlockActs* b = &a->block[l];
        b->x = floats(N * C);
        b->norm1 = floats(N * C);
        b->qkv = floats(N * 3 * HS * heads);
        b->probs = floats(MICRO * heads * T * T);
        b->att = floats(N * HS * heads);
        b->mid = floats(N * C);
        b->norm2 = floats(N * C);
        b->fc = floats(N * ffn);
        b->gelu = floats(N * ffn);
    }
    a->x = floats(N * C);
    a->norm = floats(N * C);
    a->logits = floats(N * vocabulary);
}

// x (N, C): the block's output; a->x is its input.
static void block_forward(float* x, BlockActs* a, const Block* w) {
    layernorm_forward(a->norm1, a->x, w->norm1, N);
    linear_forward(a->qkv, a->norm1, w->qkv, N, C, 3 * HS * heads);
    attention_forward(a->att, a->probs, a->qkv);
    linear_forward(a->mid, a->att, w->proj, N, HS * heads, C);
    add(a->mid, a->x, N * C);
    layernorm_forward(a->norm2, a->mid, w->norm2, N);
    linear_forward(a->fc, a->norm2, w->fc, N, C, ffn);
    gelu_forward(a->gelu, a->fc, N * ffn);
    linear_forward(x, a->gelu, w->out, N, ffn, C);
    add(x, a->mid, N * C);
}

// dx (N, C): at first the gradient of the block's output, at the end of its input. d: scratch memory, for gradients.
static void block_backward(float* dx, Block* g, BlockActs* a, const Block* w, BlockActs* d) {
    linear_backward(d->gelu, g->out, dx, a->gelu, w->out, N, ffn, C);
    gelu_backward(d->gelu, a->fc, N * ffn);
    linear_backward(d->norm2, g->fc, d->gelu, a->norm2, w->fc, N, C, ffn);
    layernorm_backward(dx, g->norm2, d->norm2, a->mid, w->norm2, N);
    linear_backward(d->att, g->proj, dx, a->att, w->proj, N, HS * heads, C);
    attention_backward(d->qkv, d->att, a->probs, a->qkv);
    linear_backward(d->norm1, g->qkv, d->qkv, a->norm1, w->qkv, N, C, 3 * HS * heads);
    layernorm_backward(dx, g->norm1, d->norm1, a->x, w->norm1, N);
}

static void embed(float* x, const Acts* a, const Weights* w) {
    for (int n = 0; n < N; n++) {
        memcpy(x + n * C, w->tokens + a->input[n] * C, sizeof(float) * C);
        add(x + n * C, w->positions + n % T * C, C);
    }
}

static void embed_backward(Weights* g, const Acts* a, const float* dx) {
    for (int n = 0; n < N; n++) {
        add(g->tokens + a->input[n] * C, dx + n * C, C);
        add(g->positions + n % T * C, dx + n * C, C);
    }
}

// The sum of the rows' losses, -log(softmax(logits)[target]). Replaces the logits by their gradient in the mean over
// all rows of the step: (softmax - 1 at the target) / rows.
static double cross_entropy(Acts* a) {
    double loss = 0.0;
    for (int n = 0; n < N; n++) {
        float *logits = a->logits + n * vocabulary, max = logits[0], sum = 0.0f;
        for (int v = 0; v < vocabulary; v++) max = fmaxf(max, logits[v]);
        for (int v = 0; v < vocabulary; v++) sum += expf(logits[v] - max);
        loss += logf(sum) + max - logits[a->target[n]];
        for (int v = 0; v < vocabulary; v++) logits[v] = expf(logits[v] - max) / sum / (BATCH * T);
        logits[a->target[n]] -= 1.0f / (BATCH * T);
    }
    return loss;
}

// The sums of gradients that are in flight.
typedef struct {
    float* grads;
    long first[L + 2];
    MPI_Request request[L + 1];
} Buckets;

// Bucket b of the gradients is complete on this rank: its sum over the ranks starts.
static void start_bucket(Buckets* k, int b) {
    int done, n = (int)(k->first[b + 1] - k->first[b]);
    MPI_Iallreduce(MPI_IN_PLACE, k->grads + k->first[b], n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &k->request[b]);
    MPI_Testall(L + 1, k->request, &done, MPI_STATUSES_IGNORE);
}

static double forward(Acts* a, const Weights* w) {
    embed(a->block[0].x, a, w);
    for (int l = 0; l < L; l++) block_forward(l + 1 < L ? a->block[l + 1].x : a->x, &a->block[l], &w->block[l]);
    layernorm_forward(a->norm, a->x, w->norm, N);
    linear_forward(a->logits, a->norm, w->tokens, N, C, vocabulary);
    return cross_entropy(a);
}

// Adds the micro-batch's gradients to g; d: scratch memory. `last`: after it the gradients are complete.
static void backward(Weights* g, Acts* a, const Weights* w, Acts* d, Buckets* k, bool last) {
    linear_backward(d->norm, g->tokens, a->logits, a->norm, w->tokens, N, C, vocabulary);
    memset(d->x, 0, sizeof(float) * N * C);
    layernorm_backward(d->x, g->norm, d->norm, a->x, w->norm, N);
    for (int l = L - 1; l >= 0; l--) {
        block_backward(d->x, &g->block[l], &a->block[l], &w->block[l], &d->block[l]);
        if (last) start_bucket(k, l + 1);
    }
    embed_backward(g, a, d->x);
    if (last) start_bucket(k, 0);
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

int main(int argc, char** argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (MICROS % ranks) fail("the number of ranks has to divide MICROS");
    const int micros = MICROS / ranks; // of this rank
    Weights w, g;
    Acts a, d;
    Buckets k;
    long length;
    char* text = read_text(&length);
    float* weights = layout(&w, k.first);
    k.grads = layout(&g, k.first);
    const long size = k.first[L + 1];
    float *m = floats(size), *v = floats(size);
    for (int b = 0; b <= L; b++) k.request[b] = MPI_REQUEST_NULL;
    draw_weights(&w);
    allocate(&a);
    allocate(&d);
    for (int step = 0; step < STEPS; step++) {
        double loss = 0.0;
        memset(k.grads, 0, sizeof(float) * (size_t)size);
        for (int micro = 0; micro < micros; micro++) {
            load_batch(&a, text, length, step, rank * micros + micro);
            loss += forward(&a, &w);
            backward(&g, &a, &w, &d, &k, micro == micros - 1);
        }
        MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Waitall(L + 1, k.request, MPI_STATUSES_IGNORE);
        double norm = sqrt(sum_of_squares(k.grads, size));
        adamw(weights, m, v, k.grads, size, step, norm > CLIP ? (float)(CLIP / norm) : 1.0f);
        if (rank == 0) printf("step %2d loss %.6f norm %.6f\n", step + 1, loss / (BATCH * T), norm);
    }
    return MPI_Finalize();
}
