/*
Appendix rung b: DC-S3GD. (Rung 2 without waiting; rung 1 explains the model.)

    mpicc -O3 -march=native -ffast-math docs/ladder/b_dc_s3gd.c -o b_dc_s3gd -lm && mpirun -np 4 ./b_dc_s3gd

New: in rung 2 no rank computes while the gradients are summed. Here MPI_Iallreduce starts the sum of a step, the next
step's forward and backward passes run, and MPI_Wait asks for the result only then: a step late. Three rules for it:

    synchronous     rung 2's: the sum is waited for at once.
    delayed         the update of step s uses the summed gradient of step s - 1 (Li et al. 2018, Pipe-SGD): a gradient
                    of weights that have meanwhile moved by one update.
    DC-S3GD         Rigazzi 2019, "DC-S3GD: Delay-Compensated Stale-Synchronous SGD for Large-Scale Decentralized Neural
                    Network Training" (arXiv 1911.02516). A rank does not wait for its own update, `delta`, which it
                    computes from its own sequences; the ranks sum these updates instead of gradients. When the sum
                    arrives, the common weights are
                        mean += sum / d
                    but the rank has computed its gradient g at local = the old mean + delta. The distance is known,
                    D = mean - local = sum / d - delta. The gradient at the mean is g + H D to first order, with H the
                    matrix of second derivatives, for which Zheng et al. 2017 (arXiv 1609.08326) take lambda times the
                    diagonal of g g^T, because it costs nothing:
                        g += lambda g g D, element by element,  lambda = 0.2 |g| / |g g D|
                    So the correction is 0.2 times as long as the gradient. (Lengths are those of all weights; threefold
                    takes them tensor by tensor. Rigazzi's optimizer is SGD with momentum; here it is rung 1's AdamW,
                    and each rank has its own m and v.)

The program trains by all three and prints the losses side by side. The first column is rung 1's. The others are other
algorithms, so no bound ties them to it, and what they cost is what there is to see: of 4 ranks, in the mean over the
last 20 steps, the delayed gradient has a 17 % higher loss and DC-S3GD a 5 % higher one, with LAMBDA 0 a 4 % higher
one. So here the rank's own fresh update is what helps, not the correction. Two things hold exactly: all ranks have
the same bits in the shared weights, which the program checks; and on one rank D = 0, so that DC-S3GD is the
synchronous rule.

MPI moves data only inside its own calls, so without a thread for it little of the sum overlaps (docs/async_dp.md).

In threefold: methods/async_dp.h, kernels/async_dp.h (delay_compensate), comm/comm_progress_thread.h.
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
static const float LAMBDA = 0.2f; // the length of the correction, in lengths of the gradient
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

// Lays the weights out in an array and returns it; *size: its number of floats.
static float* layout(Weights* w, long* size) {
    const long whole = T * C + C, block = 2 * C + 4 * C * HS * heads + 2 * C * ffn;
    *size = whole + vocabulary * C + L * block;
    float *array = floats(*size), *memory = array;
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

static double forward(Acts* a, const Weights* w) {
    embed(a->block[0].x, a, w);
    for (int l = 0; l < L; l++) block_forward(l + 1 < L ? a->block[l + 1].x : a->x, &a->block[l], &w->block[l]);
    layernorm_forward(a->norm, a->x, w->norm, N);
    linear_forward(a->logits, a->norm, w->tokens, N, C, vocabulary);
    return cross_entropy(a);
}

// Adds the micro-batch's gradients to g; d: scratch memory.
static void backward(Weights* g, Acts* a, const Weights* w, Acts* d) {
    linear_backward(d->norm, g->tokens, a->logits, a->norm, w->tokens, N, C, vocabulary);
    memset(d->x, 0, sizeof(float) * N * C);
    layernorm_backward(d->x, g->norm, d->norm, a->x, w->norm, N);
    for (int l = L - 1; l >= 0; l--) block_backward(d->x, &g->block[l], &a->block[l], &w->block[l], &d->block[l]);
    embed_backward(g, a, d->x);
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

// g += lambda g g D, D = sum / ranks - delta: what the other ranks have done beyond this one's own update.
static void compensate(float* g, const float* sum, const float* delta, long n, int ranks) {
    double squares = 0.0;
    for (long i = 0; i < n; i++) squares += pow((double)g[i] * g[i] * (sum[i] / ranks - delta[i]), 2);
    if (squares == 0.0) return; // one rank, or the first step
    const float lambda = LAMBDA * (float)sqrt(sum_of_squares(g, n) / squares);
    for (long i = 0; i < n; i++) g[i] += lambda * g[i] * g[i] * (sum[i] / ranks - delta[i]);
}

static float clip(const float* g, long n) {
    const double norm = sqrt(sum_of_squares(g, n));
    return norm > CLIP ? (float)(CLIP / norm) : 1.0f;
}

typedef enum { SYNCHRONOUS, DELAYED, DC_S3GD } Mode;

// Trains and writes down the losses. Returns the weights that all ranks share.
static float* train(Mode mode, double* losses, long* n, int rank, int ranks) {
    Weights w, g;
    Acts a, d;
    long size, length;
    char* text = read_text(&length);
    float *weights = layout(&w, &size), *grads = layout(&g, &size), *m = floats(size), *v = floats(size);
    float *sum = floats(size), *mean = floats(size), *delta = floats(size);
    MPI_Request request = MPI_REQUEST_NULL; // MPI_Wait returns at once where there is none
    draw_weights(&w);
    memcpy(mean, weights, sizeof(float) * (size_t)size);
    allocate(&a);
    allocate(&d);
    for (int step = 0; step < STEPS; step++) {
        losses[step] = 0.0;
        memset(grads, 0, sizeof(float) * (size_t)size);
        for (int micro = 0; micro < MICROS / ranks; micro++) {
            load_batch(&a, text, length, step, rank * (MICROS / ranks) + micro);
            losses[step] += forward(&a, &w);
            backward(&g, &a, &w, &d);
        }
        MPI_Wait(&request, MPI_STATUS_IGNORE); // the sum of the step before
        if (mode == DELAYED && step > 0) adamw(weights, m, v, sum, size, step - 1, clip(sum, size));
        if (mode == DC_S3GD) {
            for (long i = 0; i < size; i++) {
                mean[i] += sum[i] / ranks;
                grads[i] *= ranks; // the mean over this rank's rows
            }
            compensate(grads, sum, delta, size, ranks);
            memcpy(weights, mean, sizeof(float) * (size_t)size);
            adamw(weights, m, v, grads, size, step, clip(grads, size));
            for (long i = 0; i < size; i++) delta[i] = weights[i] - mean[i];
        }
        memcpy(sum, mode == DC_S3GD ? delta : grads, sizeof(float) * (size_t)size);
        MPI_Iallreduce(MPI_IN_PLACE, sum, (int)size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
        if (mode == SYNCHRONOUS) {
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            adamw(weights, m, v, sum, size, step, clip(sum, size));
        }
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Allreduce(MPI_IN_PLACE, losses, STEPS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    *n = size;
    return mode == DC_S3GD ? mean : weights;
}

int main(int argc, char** argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (MICROS % ranks) fail("the number of ranks has to divide MICROS");
    double loss[3][STEPS];
    for (int mode = 0; mode < 3; mode++) {
        long n;
        uint64_t sum = 0, least, most;
        float* weights = train((Mode)mode, loss[mode], &n, rank, ranks);
        for (long i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, weights + i, sizeof bits);
            sum = hash(sum ^ bits);
        }
        MPI_Allreduce(&sum, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
        MPI_Allreduce(&sum, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
        if (least != most) fail("the ranks' weights differ");
    }
    if (rank != 0) return MPI_Finalize();
    for (int step = 0; step < STEPS; step++)
        printf("step %2d loss %.6f delayed %.6f dc-s3gd %.6f\n", step + 1, loss[SYNCHRONOUS][step] / (BATCH * T),
               loss[DELAYED][step] / (BATCH * T), loss[DC_S3GD][step] / (BATCH * T));
    return MPI_Finalize();
}
