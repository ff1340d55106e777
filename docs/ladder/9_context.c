/*
Rung 9, beyond the trainer: context parallel. (Rung 2 with another cut; rung 1 explains the model, rung 2 the ranks.)

    mpicc -O3 -march=native -ffast-math docs/ladder/9_context.c -o 9_context -lm
    mpirun -np 4 ./9_context               # or 1, 2, 8, 16 ranks: 2 n divides T

New: rung 2 cuts the batch, so a rank has at least one whole sequence. Here n ranks cut every sequence, and each has
T / n of its positions: 1/n of every array of activations. Only attention looks at other rows: a query needs the keys
and values of all earlier positions. They travel round the ring of ranks (ring attention; Liu et al. 2023, arXiv
2310.01889), the queries stay. In turn i of n a rank's queries attend to the keys and values of rank - i, modulo n,
while these are sent on to rank + 1. The weights' gradients are sums over rows, so they are summed as in rung 2.

Forward. A row's softmax is complete after the last turn only (online softmax; Milakov and Gimelshein 2018). Until then
a row has the largest score so far, m, the sum l of exp(score - m), and the sum o of exp(score - m) value. A turn whose
largest score is m' > m scales l and o by exp(m - m') first. At the end out = o / l. Of the probabilities, rung 1's
T x T numbers, only lse = m + log l, a number a row and head, is kept: p = exp(score - lse).

Backward. D = sum over keys of p dp, rung 1's mean, is needed before a row's keys have all been seen. As dp = dout value
and out = sum of p value, it is D = dout out, which the rank has. In each turn, with scale = 1 / sqrt(HS),
    dvalue += p dout,   dscore = p (dout value - D) scale,   dquery += dscore key,   dkey += dscore query
dkey and dvalue are sums over the ranks' queries: they follow their keys and values and collect a summand at each rank.
After turn n - 1 they are at the rank before their own, and the last message, number n, brings them home.
What goes wrong here leaves the forward pass, and so the first loss, right; and on one rank all of it is right:
    dkey and dvalue are kept where they are after n - 1 messages, a rank short of home
    p is of a turn's own log-sum-exp, so that a row's p add up to 1 in each turn, not in all turns together
    D is of a turn's own out, not of the row's
    every turn uses the keys and values of turn 0, which autograd has saved (huggingface/diffusers, issue 14265)

Order. If rank r had the r-th of n parts, its queries would see all keys of the ranks before it and none of those after
it. In units of (T/n)^2 pairs of query and key, rank r has r + 1/2 to compute and the last rank n - 1/2, for which all
wait: on average n/2 of n - 1/2 is work, and (n - 1) / (2n - 1) of the time is idle, 3/7 with 4 ranks. In zigzag order
(Zhu's ring-flash-attention) a sequence has 2 n chunks, and rank r the r-th from the start and the r-th from the end: a
rank sees, of those before it, one chunk with both of its own, of those after it, both chunks with its late one. That is
half of the pairs in each turn, for every rank. A target is the byte after its input, also where a chunk ends: it is
found before the cut.

Messages. Keys and values of a block and micro-batch are 2 (N/n) C floats. They are sent n - 1 times forward and n - 1
times backward, their gradients n times backward: in a step, whose micro-batches have BATCH T rows, a rank sends
    4 bytes x L x 2 BATCH T C (3n - 2) / n      n = 4: 1,310,720 bytes
and the sum of P floats, if MPI sums by a ring, 4 bytes x 2 P (n - 1) / n: 327,360 bytes. A turn computes (T/n)^2 / 2
pairs for T/n keys sent, so the longer the sequence the better the messages hide behind the work.

In threefold: nothing; its t ranks cut rows between matrices (rung 6), but each sees whole sequences in attention. The
option in Megatron-LM is --context-parallel-size.
*/
#include <math.h>
#include <mpi.h>
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
static int rank, ranks, own, rows; // own: the rank's positions of a sequence, T / ranks; rows: MICRO own; set by main
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

static void add(float* x, const float* y, long n) { // x += y
    for (long i = 0; i < n; i++) x[i] += y[i];
}

// The position in its sequence of row j of rank r's: chunk r of the 2 ranks chunks, then the r-th from the end.
static int position(int r, int j) {
    const int chunk = own / 2;
    return j < chunk ? r * chunk + j : (2 * ranks - 1 - r) * chunk + j - chunk;
}

// How many of rank r's rows of a sequence are at positions up to `last`. They are its first ones.
static int visible(int r, int last) {
    int n = 0;
    while (n < own && position(r, n) <= last) n++;
    return n;
}

// Starts to send n floats to the next rank of the ring and to receive as many from the one before; request: of both.
// Messages between two ranks arrive in the order in which they were sent, so keys and gradients do not get mixed up.
static void pass_on(const float* out, float* in, int n, MPI_Request request[2]) {
    MPI_Irecv(in, n, MPI_FLOAT, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD, &request[0]);
    MPI_Isend(out, n, MPI_FLOAT, (rank + 1) % ranks, 0, MPI_COMM_WORLD, &request[1]);
}

static void swap(float** x, float** y) {
    float* z = *x;
    *x = *y;
    *y = z;
}

static float dot(const float* x, const float* y) { // of two rows of a head
    float sum = 0.0f;
    for (int i = 0; i < HS; i++) sum += x[i] * y[i];
    return sum;
}

// x (rows, heads, 2, HS): the keys and values of qkv (rows, heads, 3, HS), without the queries.
static void keys_and_values(float* x, const float* qkv) {
    for (int i = 0; i < rows * heads; i++) memcpy(x + i * 2 * HS, qkv + (i * 3 + 1) * HS, sizeof(float) * 2 * HS);
}

// A turn: the keys and values kv (rows, heads, 2, HS) of rank `from` join the softmax of this rank's queries. max, sum
// (rows, heads) and out (rows, heads, HS): m, l and o of the comment on top.
static void attend(float* out, float* max, float* sum, const float* qkv, const float* kv, int from) {
    const int row = heads * 2 * HS;
    for (int n = 0; n < rows; n++) {
        const int seen = visible(from, position(rank, n % own));
        for (int h = 0; h < heads; h++) {
            const int i = n * heads + h;
            const float *q = qkv + i * 3 * HS, *k = kv + n / own * own * row + h * 2 * HS; // + HS: value; + row: next
            float score[T], top = max[i];
            for (int s = 0; s < seen; s++) {
                score[s] = dot(q, k + s * row) / sqrtf(HS);
                top = fmaxf(top, score[s]);
            }
            const float scale = expf(max[i] - top);
            max[i] = top;
            sum[i] *= scale;
            for (int j = 0; j < HS; j++) out[i * HS + j] *= scale;
            for (int s = 0; s < seen; s++) {
                const float p = expf(score[s] - top);
                sum[i] += p;
                for (int j = 0; j < HS; j++) out[i * HS + j] += p * k[s * row + HS + j];
            }
        }
    }
}

// A turn of the backward pass, with the same kv. D (rows, heads). Adds to dqkv's queries and to dkv (as kv).
static void attend_backward(float* dqkv, float* dkv, const float* dout, const float* D, const float* lse,
                            const float* qkv, const float* kv, int from) {
    const int row = heads * 2 * HS;
    for (int n = 0; n < rows; n++) {
        const int seen = visible(from, position(rank, n % own));
        for (int h = 0; h < heads; h++) {
            const int i = n * heads + h, begin = n / own * own * row + h * 2 * HS;
            const float *q = qkv + i * 3 * HS, *dy = dout + i * HS;
            float* dq = dqkv + i * 3 * HS;
            for (int s = 0; s < seen; s++) {
                const float *k = kv + begin + s * row, *v = k + HS;
                float *dk = dkv + begin + s * row, *dv = dk + HS;
                const float p = expf(dot(q, k) / sqrtf(HS) - lse[i]);
                const float dscore = p * (dot(dy, v) - D[i]) / sqrtf(HS);
                for (int j = 0; j < HS; j++) dv[j] += p * dy[j];
                for (int j = 0; j < HS; j++) dq[j] += dscore * k[j];
                for (int j = 0; j < HS; j++) dk[j] += dscore * q[j];
            }
        }
    }
}

// Causal attention over the sequences of all ranks. qkv (rows, heads, 3, HS): query, key, value of this rank's
// positions; out (rows, heads, HS): weighted mean of values; lse (rows, heads). The first maximum is a number below all
// scores. Turn 0 replaces it in every row, as its keys are the rank's own, and a query sees at least its own.
static void attention_forward(float* out, float* lse, const float* qkv) {
    const int n = rows * heads * 2 * HS;
    float *kv = floats(n), *next = floats(n), *max = lse, *sum = floats(rows * heads);
    keys_and_values(kv, qkv);
    memset(out, 0, sizeof(float) * (size_t)(rows * heads * HS));
    for (int i = 0; i < rows * heads; i++) max[i] = -1e30f;
    for (int turn = 0; turn < ranks; turn++) {
        MPI_Request request[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        if (turn + 1 < ranks) pass_on(kv, next, n, request);
        attend(out, max, sum, qkv, kv, (rank - turn + ranks) % ranks);
        MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
        swap(&kv, &next);
    }
    for (int i = 0; i < rows * heads; i++) {
        for (int j = 0; j < HS; j++) out[i * HS + j] /= sum[i];
        lse[i] = max[i] + logf(sum[i]);
    }
    free(kv);
    free(next);
    free(sum);
}

// dqkv (rows, heads, 3, HS). While a turn computes its summand `dkv`, the sums of the ranks before arrive.
static void attention_backward(float* dqkv, const float* dout, const float* out, const float* lse, const float* qkv) {
    const int n = rows * heads * 2 * HS;
    float *kv = floats(n), *next = floats(n), *dkv = floats(n), *sent = floats(n), *arrived = floats(n);
    float* D = floats(rows * heads);
    MPI_Request request[2], sums[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL}; // of kv, of the sums
    keys_and_values(kv, qkv);
    memset(dqkv, 0, sizeof(float) * (size_t)(rows * heads * 3 * HS));
    for (int i = 0; i < rows * heads; i++) D[i] = dot(dout + i * HS, out + i * HS);
    for (int turn = 0; turn < ranks; turn++) {
        request[0] = request[1] = MPI_REQUEST_NULL;
        if (turn + 1 < ranks) pass_on(kv, next, n, request);
        memset(dkv, 0, sizeof(float) * (size_t)n);
        attend_backward(dqkv, dkv, dout, D, lse, qkv, kv, (rank - turn + ranks) % ranks);
        MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
        MPI_Waitall(2, sums, MPI_STATUSES_IGNORE);
        add(dkv, arrived, n); // zeros in turn 0
        pass_on(dkv, arrived, n, sums);
        swap(&kv, &next);
        swap(&dkv, &sent);
    }
    MPI_Waitall(2, sums, MPI_STATUSES_IGNORE); // those that arrived last are home
    for (int i = 0; i < rows * heads; i++)
        memcpy(dqkv + (i * 3 + 1) * HS, arrived + i * 2 * HS, sizeof(float) * 2 * HS);
    free(kv);
    free(next);
    free(dkv);
    free(sent);
    free(arrived);
    free(D);
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
    float *x, *norm1, *qkv, *lse, *att, *mid, *norm2, *fc, *gelu;
} BlockActs;

typedef struct { // a micro-batch, of which `rows` rows are this rank's: N is that of one rank
    int input[N], target[N];
    BlockActs block[L];
    float *x, *norm; // (rows, C): the last block's output, and its norm
    float* logits;   // (rows, vocabulary), then their gradient
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
        b->x = floats(rows * C);
        b->norm1 = floats(rows * C);
        b->qkv = floats(rows * 3 * HS * heads);
        b->lse = floats(rows * heads);
        b->att = floats(rows * HS * heads);
        b->mid = floats(rows * C);
        b->norm2 = floats(rows * C);
        b->fc = floats(rows * ffn);
        b->gelu = floats(rows * ffn);
    }
    a->x = floats(rows * C);
    a->norm = floats(rows * C);
    a->logits = floats(rows * vocabulary);
}

// x (rows, C): the block's output; a->x is its input.
static void block_forward(float* x, BlockActs* a, const Block* w) {
    layernorm_forward(a->norm1, a->x, w->norm1, rows);
    linear_forward(a->qkv, a->norm1, w->qkv, rows, C, 3 * HS * heads);
    attention_forward(a->att, a->lse, a->qkv);
    linear_forward(a->mid, a->att, w->proj, rows, HS * heads, C);
    add(a->mid, a->x, rows * C);
    layernorm_forward(a->norm2, a->mid, w->norm2, rows);
    linear_forward(a->fc, a->norm2, w->fc, rows, C, ffn);
    gelu_forward(a->gelu, a->fc, rows * ffn);
    linear_forward(x, a->gelu, w->out, rows, ffn, C);
    add(x, a->mid, rows * C);
}

// dx (rows, C): at first the gradient of the block's output, at the end of its input. d: scratch memory, for gradients.
static void block_backward(float* dx, Block* g, BlockActs* a, const Block* w, BlockActs* d) {
    linear_backward(d->gelu, g->out, dx, a->gelu, w->out, rows, ffn, C);
    gelu_backward(d->gelu, a->fc, rows * ffn);
    linear_backward(d->norm2, g->fc, d->gelu, a->norm2, w->fc, rows, C, ffn);
    layernorm_backward(dx, g->norm2, d->norm2, a->mid, w->norm2, rows);
    linear_backward(d->att, g->proj, dx, a->att, w->proj, rows, HS * heads, C);
    attention_backward(d->qkv, d->att, a->att, a->lse, a->qkv);
    linear_backward(d->norm1, g->qkv, d->qkv, a->norm1, w->qkv, rows, C, 3 * HS * heads);
    layernorm_backward(dx, g->norm1, d->norm1, a->x, w->norm1, rows);
}

static void embed(float* x, const Acts* a, const Weights* w) {
    for (int n = 0; n < rows; n++) {
        memcpy(x + n * C, w->tokens + a->input[n] * C, sizeof(float) * C);
        add(x + n * C, w->positions + position(rank, n % own) * C, C);
    }
}

static void embed_backward(Weights* g, const Acts* a, const float* dx) {
    for (int n = 0; n < rows; n++) {
        add(g->tokens + a->input[n] * C, dx + n * C, C);
        add(g->positions + position(rank, n % own) * C, dx + n * C, C);
    }
}

// The sum of the rows' losses, -log(softmax(logits)[target]). Replaces the logits by their gradient in the mean over
// all rows of the step: (softmax - 1 at the target) / rows.
static double cross_entropy(Acts* a) {
    double loss = 0.0;
    for (int n = 0; n < rows; n++) {
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
    layernorm_forward(a->norm, a->x, w->norm, rows);
    linear_forward(a->logits, a->norm, w->tokens, rows, C, vocabulary);
    return cross_entropy(a);
}

// Adds the micro-batch's gradients to g; d: scratch memory.
static void backward(Weights* g, Acts* a, const Weights* w, Acts* d) {
    linear_backward(d->norm, g->tokens, a->logits, a->norm, w->tokens, rows, C, vocabulary);
    memset(d->x, 0, sizeof(float) * (size_t)(rows * C));
    layernorm_backward(d->x, g->norm, d->norm, a->x, w->norm, rows);
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

// This rank's rows of micro-batch `micro` of a step: sequences that begin at random places. The target of a byte is the
// one after it.
static void load_batch(Acts* a, const char* text, long length, int step, int micro) {
    for (int n = 0; n < rows; n++) {
        uint64_t sequence = (uint64_t)(step * BATCH + micro * MICRO + n / own);
        long at = (long)(hash(sequence) % (uint64_t)(length - T)) + position(rank, n % own);
        a->input[n] = text[at] & (V - 1);
        a->target[n] = text[at + 1] & (V - 1);
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
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (T % (2 * ranks)) fail("twice the number of ranks has to divide T, which is 32");
    own = T / ranks;
    rows = MICRO * own;
    Weights w, g;
    Acts a, d;
    long size, length;
    char* text = read_text(&length);
    float *weights = layout(&w, &size), *grads = layout(&g, &size), *m = floats(size), *v = floats(size);
    draw_weights(&w);
    allocate(&a);
    allocate(&d);
    for (int step = 0; step < STEPS; step++) {
        double loss = 0.0;
        memset(grads, 0, sizeof(float) * (size_t)size);
        for (int micro = 0; micro < MICROS; micro++) {
            load_batch(&a, text, length, step, micro);
            loss += forward(&a, &w);
            backward(&g, &a, &w, &d);
        }
        MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, grads, (int)size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double norm = sqrt(sum_of_squares(grads, size));
        adamw(weights, m, v, grads, size, step, norm > CLIP ? (float)(CLIP / norm) : 1.0f);
        if (rank == 0) printf("step %2d loss %.6f norm %.6f\n", step + 1, loss / (BATCH * T), norm);
    }
    return MPI_Finalize();
}
