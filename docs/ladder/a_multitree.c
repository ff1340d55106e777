/*
Appendix rung a: MultiTree. (Rung 2 with another all-reduce; rung 1 explains the model.)

    mpicc -O3 -march=native -ffast-math docs/ladder/a_multitree.c -o a_multitree -lm
    mpirun -np 4 ./a_multitree              # or: mpirun -np 4 ./a_multitree mpi

New: the ring of rung 2 uses one link of each rank and passes every chunk through all ranks. MultiTree (Huang et al.
2021, "Communication algorithm-architecture co-design for distributed deep learning", ISCA) uses all links of the
network that there is: here a torus of ROWS x COLUMNS ranks, whose rows and columns are rings. (In a ring of two ranks
both neighbours are the same one; that is one link in each direction.)

Each rank is the root of a tree that spans the network and carries the root's chunk of the array. All trees grow at the
same time, step by step. In a step every link can be used once. One tree after the other adds one rank, to which a free
link leads from a rank that was in the tree at the beginning of the step, round and round, until no tree finds a link.
Then the next step begins; after S steps all trees are complete. They are the schedule:

    reduce-scatter, S turns: in turn S - 1 - s a child that joined in step s sends its sum of the chunk to its parent,
                    which adds it. A child joins after its parent, so it has its own children's sums by then.
    all-gather, S turns: in turn s a parent sends the complete chunk to the child that joined in step s.

MPI_Isend and MPI_Irecv start to send and to receive, and return at once; MPI_Waitall waits for both.

A rank sends as much as in a ring, the least there is, in 2 S turns instead of 2 (d - 1); no turn uses a link twice. On
2 x 2 ranks S = 2 and d - 1 = 3; on 8 x 8 S = 17 and d - 1 = 63. The torus is only imagined here: all ranks are on one
machine, and MPI is not told which ranks are linked.

In threefold: comm/collectives/multitree.h grows the trees for any network, comm/collectives/plan.h proves the table.
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
    ROWS = 2, // of the torus of ranks
    COLUMNS = 2,
    RANKS = ROWS * COLUMNS,
    EDGES = RANKS * (RANKS - 1), // of all trees together
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

typedef struct { // in step `step` the tree with this root reaches the rank `child`, from `parent`
    int step, root, parent, child;
} Edge;

typedef struct {
    int steps, n;
    Edge edge[EDGES];          // in the order in which they were added
    bool inside[RANKS][RANKS]; // (root, rank)
} Trees;

// The rank that is one link away: to the north, the south, the west or the east.
static int neighbour(int rank, int direction) {
    const int row = rank / COLUMNS, column = rank % COLUMNS;
    if (direction == 0) return (row + ROWS - 1) % ROWS * COLUMNS + column;
    if (direction == 1) return (row + 1) % ROWS * COLUMNS + column;
    if (direction == 2) return row * COLUMNS + (column + COLUMNS - 1) % COLUMNS;
    return row * COLUMNS + (column + 1) % COLUMNS;
}

// Adds one rank to a tree: parents are tried in the order in which they joined, from the root on. busy (from, to):
// links that are used in this step.
static bool add_child(Trees* t, int root, bool (*busy)[RANKS]) {
    for (int i = -1; i < t->n; i++) {
        if (i >= 0 && (t->edge[i].root != root || t->edge[i].step == t->steps)) continue;
        const int parent = i < 0 ? root : t->edge[i].child;
        for (int direction = 0; direction < 4; direction++) {
            const int child = neighbour(parent, direction);
            if (busy[parent][child] || t->inside[root][child]) continue;
            busy[parent][child] = t->inside[root][child] = true;
            t->edge[t->n++] = (Edge){t->steps, root, parent, child};
            return true;
        }
    }
    return false;
}

static void grow_trees(Trees* t) {
    memset(t, 0, sizeof *t);
    for (int root = 0; root < RANKS; root++) t->inside[root][root] = true;
    for (; t->n < EDGES; t->steps++) {
        bool busy[RANKS][RANKS] = {{false}}, grown = true;
        while (grown) {
            grown = false;
            for (int root = 0; root < RANKS; root++) grown |= add_child(t, root, busy);
        }
    }
}

// The messages of a turn, into list; returns their number. The reduce-scatter runs the steps backwards, from the
// children to the parents.
static int turn_messages(const Trees* t, int turn, Edge* list) {
    const int step = turn < t->steps ? t->steps - 1 - turn : turn - t->steps;
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        if (t->edge[i].step == step) list[n++] = t->edge[i];
    }
    return n;
}

static void print_schedule(const Trees* t) {
    Edge list[EDGES];
    for (int turn = 0; turn < 2 * t->steps; turn++) {
        const bool reduces = turn < t->steps;
        const int n = turn_messages(t, turn, list);
        printf("turn %d %s", turn + 1, reduces ? "adds  " : "copies");
        for (int i = 0; i < n; i++) {
            const int from = reduces ? list[i].child : list[i].parent, to = reduces ? list[i].parent : list[i].child;
            printf("  %d>%d chunk %d", from, to, list[i].root);
        }
        printf("\n");
    }
}

// x (n) = the sum of the ranks' x, by the trees.
static void multitree_all_reduce(float* x, long n, int rank, const Trees* t) {
    const long room = n / RANKS + 1; // of a chunk
    float* arrived = floats(EDGES * room);
    for (int turn = 0; turn < 2 * t->steps; turn++) {
        const bool reduces = turn < t->steps;
        Edge list[EDGES];
        MPI_Request request[2 * EDGES];
        int requests = 0, messages = turn_messages(t, turn, list);
        for (int pass = 0; pass < 2; pass++) { // messages start in the first pass and are used in the second
            for (int i = 0; i < messages; i++) {
                const int from = reduces ? list[i].child : list[i].parent, to = list[i].parent + list[i].child - from;
                const long first = n * list[i].root / RANKS, count = n * (list[i].root + 1) / RANKS - first;
                float* in = arrived + i * room;
                if (pass == 0 && from == rank)
                    MPI_Isend(x + first, (int)count, MPI_FLOAT, to, i, MPI_COMM_WORLD, &request[requests++]);
                if (to != rank) continue;
                if (pass == 0)
                    MPI_Irecv(in, (int)count, MPI_FLOAT, from, i, MPI_COMM_WORLD, &request[requests++]);
                else if (reduces)
                    add(x + first, in, count);
                else
                    memcpy(x + first, in, sizeof(float) * (size_t)count);
            }
            if (pass == 0) MPI_Waitall(requests, request, MPI_STATUSES_IGNORE);
        }
    }
    free(arrived);
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
    if (ranks != RANKS) fail("this program is for ROWS x COLUMNS ranks");
    const bool by_mpi = argc > 1 && strcmp(argv[1], "mpi") == 0;
    Trees trees;
    grow_trees(&trees);
    if (rank == 0) print_schedule(&trees);
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
        for (int micro = 0; micro < MICROS / ranks; micro++) {
            load_batch(&a, text, length, step, rank * (MICROS / ranks) + micro);
            loss += forward(&a, &w);
            backward(&g, &a, &w, &d);
        }
        MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        if (by_mpi) MPI_Allreduce(MPI_IN_PLACE, grads, (int)size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (!by_mpi) multitree_all_reduce(grads, size, rank, &trees);
        double norm = sqrt(sum_of_squares(grads, size));
        adamw(weights, m, v, grads, size, step, norm > CLIP ? (float)(CLIP / norm) : 1.0f);
        if (rank == 0) printf("step %2d loss %.6f norm %.6f\n", step + 1, loss / (BATCH * T), norm);
    }
    return MPI_Finalize();
}
