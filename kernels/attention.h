/*
attention.h: causal attention on the CPU, forward, backward and token by token, with grouped key/value heads.

    S = Q K^T / sqrt(HS),   P = softmax of S over the keys j <= i,   O = P V           for one head: Q, K, V are (T, HS)

Query head h reads key/value head h / (NH / NKV): NKV = NH is ordinary attention, NKV = 1 multi-query attention (Shazeer
2019), anything between grouped-query attention (Ainslie et al. 2023).

No T x T matrix is ever in memory (FlashAttention; Dao et al. 2022, Dao 2023). Queries and keys are cut into blocks of
64. A block of queries goes through the blocks of keys and keeps, for each query, the largest score m so far, l = sum
e^(s - m) and O = sum e^(s - m) v; when a larger score comes, l and O are scaled to the new m (online softmax; Milakov
and Gimelshein 2018). For the backward pass only lse = m + log l is kept, (T) numbers: with it
P = e^(S - lse) is recomputed from Q and K, and then, with D_i = sum_d dO_id O_id,

    dV = P^T dO,   dP = dO V^T,   dS = P (dP - D),   dQ = dS K / sqrt(HS),   dK = dS^T Q / sqrt(HS).

Layout. Scores are transposed in scratch, scores[key][query]: the softmax runs over 64 queries side by side and never
adds within a vector. And all seven products have one form, C += A B, in which rows of C and B are whole vectors and A
is read one operand at a time, by rows or by columns (attention_product.h). Blocks are copied to scratch, padded with
zeros to 64 rows and whole vectors, so that no loop has a remainder.

bf16. Rounded are, as in the kernels of GPUs (attention.cuh): P and dS, as operands of the second products, and the
results O, dQ, dK, dV. Sums, the softmax, its l (of P before it is rounded), D and lse are float32. 1/sqrt(HS)
multiplies the scores and the sums of dQ and dK; in float32 it multiplies Q, in the copy, which would be a rounding
more. Where an operand of a product is a pair of neighbours along k (attention_product.h), they are neighbours in a row
of Q, K, V, dO for S and dP, and of P and dS for dV and dK; where k runs from row to row (the right factors of dV, dK,
dQ and O; P for O, dS for dQ), two rows are joined (pair_rows).

Generating text. A token's keys and values never change, since earlier tokens do not see later ones. So they are kept in
a cache, and each new token needs one row of queries against it: O(T) work instead of O(T^2). Each key is then used once
by each query head that reads it: the time is that of reading the cache, hence fewer key/value heads than query heads
(Shazeer 2019). attention_decode computes this row, with plain dot products and the same online softmax, 64 keys at a
time.

Bits. Blocks are cut from the start of the sequence and every sum is taken by one thread in the order of the tokens, in
bf16 as attention_product.h says. So no bit depends on the number of threads or on the other sequences, and no output on
later tokens.
*/
#pragma once

#include "attention_product.h"
#include "fast_math.h"

// ---- Heads, blocks, scratch -------------------------------------------------------------------------------------

// B sequences of T tokens; NH query heads and NKV key/value heads of HS channels.
typedef struct {
    int B, T, NH, NKV, HS;
} Heads;

typedef struct {
    int B, T, NH, NKV, HS;
    int blocks; // in a sequence
    int width;  // a row in scratch has these: HS rounded up to whole vectors; in bf16 to whole tiles
    int depth;  // operands of it that are multiplied
    float scale;
} AttShape;

static inline AttShape attention_shape(Heads h) {
    AttShape s = {h.B, h.T, h.NH, h.NKV, h.HS, 0, 0, 0, 1.0f / sqrtf((float)h.HS)};
    s.blocks = (h.T + ATT_BLOCK - 1) / ATT_BLOCK;
    s.width = (int)round_up((size_t)h.HS, IN_WORDS ? (size_t)ATT_STEP : (size_t)ATT_LANES);
    s.depth = IN_WORDS ? s.width / ATT_PACK : (int)round_up((size_t)h.HS, ATT_TURN);
    return s;
}

// What 1/sqrt(HS) multiplies: float32: Q, as it is copied. bf16: the scores, since Q would have to be rounded again.
static inline float query_scale(const AttShape* s) { return IN_BF16 ? 1.0f : s->scale; }
static inline float score_scale(const AttShape* s) { return IN_BF16 ? s->scale : 1.0f; }

// One head of one sequence in memory: row t is at data + t * stride.
typedef struct {
    const floatX* data;
    int64_t stride;
} ConstHead;

typedef struct {
    floatX* data;
    int64_t stride;
} Head;

// Head `head` of sequence b in a (B*T, heads * HS) array.
static inline int64_t head_offset(const AttShape* s, int64_t b, int heads, int head) {
    return (b * s->T * heads + head) * s->HS;
}
static inline ConstHead const_head(const floatX* array, const AttShape* s, int b, int heads, int head) {
    const ConstHead h = {array + head_offset(s, b, heads, head), (int64_t)heads * s->HS};
    return h;
}
static inline Head mutable_head(floatX* array, const AttShape* s, int b, int heads, int head) {
    const Head h = {array + head_offset(s, b, heads, head), (int64_t)heads * s->HS};
    return h;
}

// Rows in block `index` that are inside the sequence.
static inline int block_rows(const AttShape* s, int index) {
    return s->T - index * ATT_BLOCK < ATT_BLOCK ? s->T - index * ATT_BLOCK : ATT_BLOCK;
}

// A block of 64 rows in scratch, as operands of products whose k runs along rows, and from row to row.
typedef struct {
    AttNumber* rows;   // (ATT_BLOCK, width)
    AttOperand* pairs; // (ATT_BLOCK / 2, width) words of rows 2t and 2t + 1; where operands are floats, rows
} AttMatrix;

// Scores, and what is made of them: as they are summed, and rounded to operands.
typedef struct {
    float* sums; // (ATT_BLOCK keys, ATT_BLOCK queries)
    AttMatrix m; // where operands are floats, m.rows are sums
} AttScores;

// rows (ATT_BLOCK, width) = block `index` of the head, in float32 times scale; zeros beyond T and HS. Columns beyond HS
// are multiplied, too, but reach no result.
static inline void load_block(AttNumber* rows, ConstHead head, int index, const AttShape* s, float scale) {
    const int n = block_rows(s, index), width = s->width;
    const floatX* from = head.data + (int64_t)index * ATT_BLOCK * head.stride;
    for (int t = 0; t < n; t++, from += head.stride) {
        AttNumber* RESTRICT to = rows + t * width;
        for (int d = 0; d < s->HS; d++) to[d] = att_load(from[d], scale);
        for (int d = s->HS; d < width; d++) to[d] = att_number(0.0f);
    }
    memset(rows + n * width, 0, sizeof(AttNumber) * (size_t)((ATT_BLOCK - n) * width));
}

// The words of m, (ATT_BLOCK, width), from its rows.
static inline void pair_rows(const AttMatrix* m, int width) {
    const int rows = IN_WORDS ? ATT_BLOCK : 0;
    for (int t = 0; t < rows; t += 2)
        matmul_join((MatmulWord*)m->pairs + t / 2 * width, (const floatX*)m->rows + t * width, width, width);
}

// The rows of s->m from s->sums; of a block on the diagonal only the columns that were computed. (Within the loops that
// compute them it would take longer.)
static inline void round_scores(const AttScores* s, bool diagonal) {
    const int keys = IN_BF16 ? ATT_BLOCK : 0;
    for (int j = 0; j < keys; j++) {
        const float* sums = s->sums + j * ATT_BLOCK;
        AttNumber* rows = s->m.rows + j * ATT_BLOCK; // may be the same
#pragma omp simd
        for (int i = diagonal ? column_begin(j) : 0; i < ATT_BLOCK; i++) rows[i] = att_number(sums[i]);
    }
}

// rows_t (depth, ATT_BLOCK) = the transpose of rows.
static inline void transpose_block(AttOperand* rows_t, const AttNumber* rows, const AttShape* s) {
    transpose(rows_t, (const AttOperand*)rows, s->width / ATT_PACK, ATT_BLOCK, s->depth);
}

// Block `index` of the head = scale * block (ATT_BLOCK, width).
static inline void store_block(Head head, int index, const float* block, const AttShape* s, float scale) {
    floatX* to = head.data + (int64_t)index * ATT_BLOCK * head.stride;
    for (int t = 0; t < block_rows(s, index); t++) {
        for (int d = 0; d < s->HS; d++) to[t * head.stride + d] = to_floatX(scale * block[t * s->width + d]);
    }
}

// Takes the next n floats (rounded up to a cache line) of scratch; with NULL for memory only counts them.
typedef struct {
    float* memory;
    size_t used;
} Scratch;

static inline float* scratch_take(Scratch* scratch, size_t n) {
    float* p = scratch->memory ? scratch->memory + scratch->used : NULL;
    scratch->used += round_up(n, 16);
    return p;
}

// Room for n numbers as operands.
static inline AttOperand* scratch_operands(Scratch* scratch, size_t n) {
    return (AttOperand*)scratch_take(scratch, n / ATT_PACK);
}

static inline AttMatrix scratch_matrix(Scratch* scratch, size_t n) {
    AttOperand* rows = scratch_operands(scratch, n);
    const AttMatrix m = {(AttNumber*)rows, IN_WORDS ? scratch_operands(scratch, n) : rows};
    return m;
}

static inline AttScores scratch_scores(Scratch* scratch) {
    const size_t n = ATT_BLOCK * ATT_BLOCK;
    float* sums = scratch_take(scratch, n);
    const AttMatrix m = {(AttNumber*)sums, (AttOperand*)sums};
    const AttScores s = {sums, IN_WORDS ? scratch_matrix(scratch, n) : m};
    return s;
}

static inline float* scratch_memory(size_t n) {
    float* p = (float*)aligned_alloc(64, n * sizeof(float));
    if (!p) die("out of memory: %.1f MB for a thread's share of attention", (double)n * sizeof(float) / 1e6);
    return p;
}

// scores[key][query] = -infinity where the key comes after the query, in a block on the diagonal.
static inline void mask_scores(float* scores) {
    for (int j = 0; j < ATT_BLOCK; j++) {
        for (int i = column_begin(j); i < j; i++) scores[j * ATT_BLOCK + i] = -INFINITY;
    }
}

// ---- Forward ----------------------------------------------------------------------------------------------------

// Online softmax over the next block of keys: scores become e^(scale (s - max)), max and sum (ATT_BLOCK) are updated,
// factor scales sums made with the former max.
static inline void softmax_block(float* RESTRICT scores, float* RESTRICT max, float* RESTRICT sum,
                                 float* RESTRICT factor, float scale, bool diagonal) {
    float shift[ATT_BLOCK];
    if (diagonal) mask_scores(scores);
    for (int i = 0; i < ATT_BLOCK; i++) factor[i] = max[i];
    for (int j = 0; j < ATT_BLOCK; j++) {
#pragma omp simd
        for (int i = diagonal ? column_begin(j) : 0; i < ATT_BLOCK; i++) {
            const float s = scores[j * ATT_BLOCK + i];
            max[i] = s > max[i] ? s : max[i];
        }
    }
#pragma omp simd
    for (int i = 0; i < ATT_BLOCK; i++) {
        factor[i] = fast_exp(scale * (factor[i] - max[i]));
        sum[i] *= factor[i];
        shift[i] = scale * max[i];
    }
    for (int j = 0; j < ATT_BLOCK; j++) {
#pragma omp simd
        for (int i = diagonal ? column_begin(j) : 0; i < ATT_BLOCK; i++) {
            const float p = fast_exp(scale * scores[j * ATT_BLOCK + i] - shift[i]);
            scores[j * ATT_BLOCK + i] = p;
            sum[i] += p;
        }
    }
}

// A block of queries, and its sums over the keys so far.
typedef struct {
    AttOperand* q_t;  // (depth, ATT_BLOCK)
    float* out;       // (ATT_BLOCK, width), not yet divided by sum
    float *max, *sum; // (ATT_BLOCK) m and l of the header
} QueryState;

// A task has several blocks of queries, so that a block of keys, once copied, is used several times.
enum { ATT_TASK_BLOCKS = 4 };

typedef struct {
    QueryState state[ATT_TASK_BLOCKS];
    AttNumber *q, *k; // (ATT_BLOCK, width)
    AttMatrix v;
    AttScores p;
    float* factor; // (ATT_BLOCK)
} ForwardScratch;

static inline size_t forward_scratch(ForwardScratch* f, float* memory, const AttShape* s) {
    const size_t block = (size_t)ATT_BLOCK * (size_t)s->width;
    Scratch scratch = {memory, 0};
    for (int i = 0; i < ATT_TASK_BLOCKS; i++) {
        f->state[i].q_t = scratch_operands(&scratch, block);
        f->state[i].out = scratch_take(&scratch, block);
        f->state[i].max = scratch_take(&scratch, ATT_BLOCK);
        f->state[i].sum = scratch_take(&scratch, ATT_BLOCK);
    }
    f->q = (AttNumber*)scratch_operands(&scratch, block);
    f->k = (AttNumber*)scratch_operands(&scratch, block);
    f->v = scratch_matrix(&scratch, block);
    f->p = scratch_scores(&scratch);
    f->factor = scratch_take(&scratch, ATT_BLOCK);
    return scratch.used;
}

// A block of queries against a block of keys.
static inline void attention_forward_pair(const ForwardScratch* f, const QueryState* q, const AttShape* s,
                                          bool diagonal) {
    const int width = s->width;
    block_product(f->p.sums, ATT_BLOCK, (const AttOperand*)f->k, width / ATT_PACK, 1, q->q_t, ATT_BLOCK, ATT_BLOCK,
                  s->depth, false, diagonal ? UPPER_RESULT : WHOLE);
    softmax_block(f->p.sums, q->max, q->sum, f->factor, score_scale(s), diagonal);
    round_scores(&f->p, diagonal);
    pair_rows(&f->p.m, ATT_BLOCK);
    for (int t = 0; t < ATT_BLOCK; t++) {
        for (int d = 0; d < width; d++) q->out[t * width + d] *= f->factor[t];
    }
    block_product(q->out, width, f->p.m.pairs, 1, ATT_BLOCK, f->v.pairs, width, width, ATT_BLOCK / ATT_PACK, true,
                  diagonal ? LOWER_FACTOR : WHOLE);
}

// Blocks [first, end) of queries of head h of sequence b.
static inline void attention_forward_task(floatX* out, float* lse, const floatX* qkv, const AttShape* s,
                                          const ForwardScratch* f, int b, int h, int first, int end) {
    const int heads = s->NH + 2 * s->NKV, kv = s->NH + h / (s->NH / s->NKV), width = s->width;
    for (int i = first; i < end; i++) {
        const QueryState* q = &f->state[i - first];
        load_block(f->q, const_head(qkv, s, b, heads, h), i, s, query_scale(s));
        transpose_block(q->q_t, f->q, s);
        memset(q->out, 0, sizeof(float) * (size_t)(ATT_BLOCK * width));
        for (int t = 0; t < ATT_BLOCK; t++) {
            q->max[t] = -FLT_MAX;
            q->sum[t] = 0.0f;
        }
    }
    for (int j = 0; j < end; j++) {
        load_block(f->k, const_head(qkv, s, b, heads, kv), j, s, 1.0f);
        load_block(f->v.rows, const_head(qkv, s, b, heads, kv + s->NKV), j, s, 1.0f);
        pair_rows(&f->v, width);
        for (int i = j > first ? j : first; i < end; i++) attention_forward_pair(f, &f->state[i - first], s, i == j);
    }
    for (int i = first; i < end; i++) {
        const QueryState* q = &f->state[i - first];
        float* to = lse + ((int64_t)b * s->NH + h) * s->T + (int64_t)i * ATT_BLOCK;
        for (int t = 0; t < ATT_BLOCK; t++) {
            const float inverse = 1.0f / q->sum[t];
            for (int d = 0; d < width; d++) q->out[t * width + d] *= inverse;
        }
        store_block(mutable_head(out, s, b, s->NH, h), i, q->out, s, 1.0f);
        for (int t = 0; t < block_rows(s, i); t++) to[t] = score_scale(s) * q->max[t] + logf(q->sum[t]);
    }
}

// out (B*T, NH*HS) and lse (B, NH, T), log sum_j e^S_ij, from qkv (B*T, (NH + 2 NKV) * HS): in each row the query
// heads, the key heads, the value heads. B, T, NH, NKV, HS >= 1, NH a multiple of NKV. Ends the program when out of
// memory.
static inline void attention_forward(floatX* out, float* lse, const floatX* qkv, Heads size) {
    const AttShape s = attention_shape(size);
    const int NH = s.NH;
    const int64_t heads = (int64_t)s.B * NH, parts = (s.blocks + ATT_TASK_BLOCKS - 1) / ATT_TASK_BLOCKS;
    attention_choose_unit();
#pragma omp parallel
    {
        ForwardScratch f;
        float* memory = scratch_memory(forward_scratch(&f, NULL, &s));
        forward_scratch(&f, memory, &s);
        attention_begin();
        // The last parts of the sequences, which have the most keys, run first: the tasks left for the end are small.
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < heads * parts; task++) {
            const int b = (int)(task % heads / NH), h = (int)(task % NH);
            const int first = (int)(parts - 1 - task / heads) * ATT_TASK_BLOCKS;
            const int end = first + ATT_TASK_BLOCKS < s.blocks ? first + ATT_TASK_BLOCKS : s.blocks;
            attention_forward_task(out, lse, qkv, &s, &f, b, h, first, end);
        }
        attention_end();
        free(memory);
    }
}

// ---- Backward ---------------------------------------------------------------------------------------------------

typedef struct {
    AttMatrix q, dout;        // a block of queries: (ATT_BLOCK, width)
    AttOperand *q_t, *dout_t; // transposed (depth, ATT_BLOCK)
    float *dq, *lse, *dot;    // (ATT_BLOCK, width); (ATT_BLOCK) log sum exp, and D of the header
    AttMatrix k;              // the task's blocks of keys: (blocks, ATT_BLOCK, width)
    AttNumber* v;
    float *dk, *dv;
    AttScores p, ds;
} BackwardScratch;

static inline size_t backward_scratch(BackwardScratch* f, float* memory, const AttShape* s, int key_blocks) {
    const size_t block = (size_t)ATT_BLOCK * (size_t)s->width;
    Scratch scratch = {memory, 0};
    f->q = scratch_matrix(&scratch, block);
    f->q_t = scratch_operands(&scratch, block);
    f->dout = scratch_matrix(&scratch, block);
    f->dout_t = scratch_operands(&scratch, block);
    f->dq = scratch_take(&scratch, block);
    f->lse = scratch_take(&scratch, ATT_BLOCK);
    f->dot = scratch_take(&scratch, ATT_BLOCK);
    f->k = scratch_matrix(&scratch, block * (size_t)key_blocks);
    f->v = (AttNumber*)scratch_operands(&scratch, block * (size_t)key_blocks);
    f->dk = scratch_take(&scratch, block * (size_t)key_blocks);
    f->dv = scratch_take(&scratch, block * (size_t)key_blocks);
    f->p = scratch_scores(&scratch);
    f->ds = scratch_scores(&scratch);
    return scratch.used;
}

typedef struct {
    floatX* dqkv;
    const floatX *dout, *qkv, *out;
    const float* lse;
} BackwardArrays;

// A thread's unit of work: the gradients of these blocks, of one sequence and one key/value head.
typedef struct {
    int b, kv;              // sequence, key/value head
    int head, head_end;     // query heads: one, or all that share kv
    int query, query_end;   // blocks of queries
    int key, key_end;       // blocks of keys
    bool want_dq, want_dkv; // the task owns these gradients: all their terms are in its ranges
} BackwardTask;

static inline void load_query_block(const BackwardScratch* f, const BackwardArrays* x, const AttShape* s, int b, int h,
                                    int block) {
    const int rows = block_rows(s, block), width = s->width;
    const ConstHead out = const_head(x->out, s, b, s->NH, h), dout = const_head(x->dout, s, b, s->NH, h);
    load_block(f->q.rows, const_head(x->qkv, s, b, s->NH + 2 * s->NKV, h), block, s, query_scale(s));
    load_block(f->dout.rows, dout, block, s, 1.0f);
    transpose_block(f->q_t, f->q.rows, s);
    transpose_block(f->dout_t, f->dout.rows, s);
    pair_rows(&f->q, width);
    pair_rows(&f->dout, width);
    const float* lse = x->lse + ((int64_t)b * s->NH + h) * s->T + (int64_t)block * ATT_BLOCK;
    for (int i = 0; i < ATT_BLOCK; i++) f->lse[i] = i < rows ? lse[i] : 0.0f; // beyond T: p = 1, but dout = 0
    for (int i = 0; i < ATT_BLOCK; i++) f->dot[i] = 0.0f;
    for (int i = 0; i < rows; i++) {
        const int64_t at = ((int64_t)block * ATT_BLOCK + i) * out.stride;
        float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
        for (int d = 0; d < s->HS; d++) dot += to_float(out.data[at + d]) * to_float(dout.data[at + d]);
        f->dot[i] = dot;
    }
}

// Block `query` of queries against block `key` of keys: p and ds, and with them dq, dk and dv.
static inline void attention_backward_pair(const BackwardScratch* f, const AttShape* s, const BackwardTask* task,
                                           int query, int key) {
    const int width = s->width, n = ATT_BLOCK, row = width / ATT_PACK; // row: operands in a row of k and v
    const bool diagonal = query == key;
    const size_t at = (size_t)(n * width) * (size_t)(key - task->key); // the block's offset in k, v, dk, dv
    const AttPart result = diagonal ? UPPER_RESULT : WHOLE;
    const AttMatrix k = {f->k.rows + at, f->k.pairs + at / ATT_PACK};
    block_product(f->p.sums, n, (const AttOperand*)k.rows, row, 1, f->q_t, n, n, s->depth, false, result);
    block_product(f->ds.sums, n, (const AttOperand*)(f->v + at), row, 1, f->dout_t, n, n, s->depth, false, result);
    if (diagonal) mask_scores(f->p.sums);
    const float scale = score_scale(s);
    for (int j = 0; j < n; j++) {
        float *RESTRICT p = f->p.sums + j * n, *RESTRICT ds = f->ds.sums + j * n;
        const float *RESTRICT lse = f->lse, *RESTRICT dot = f->dot;
#pragma omp simd
        for (int i = diagonal ? column_begin(j) : 0; i < n; i++) {
            p[i] = fast_exp(scale * p[i] - lse[i]);
            ds[i] = p[i] * (ds[i] - dot[i]);
        }
    }
    round_scores(&f->p, diagonal);
    round_scores(&f->ds, diagonal);
    const AttOperand *p = (const AttOperand*)f->p.m.rows, *ds = (const AttOperand*)f->ds.m.rows;
    const int K = n / ATT_PACK;
    const AttPart by_key = diagonal ? UPPER_FACTOR : WHOLE, by_query = diagonal ? LOWER_FACTOR : WHOLE;
    if (task->want_dkv) {
        block_product(f->dv + at, width, p, K, 1, f->dout.pairs, width, width, K, true, by_key);
        block_product(f->dk + at, width, ds, K, 1, f->q.pairs, width, width, K, true, by_key);
    }
    if (!task->want_dq) return;
    pair_rows(&f->ds.m, n);
    block_product(f->dq, width, f->ds.m.pairs, 1, n, k.pairs, width, width, K, true, by_query);
}

static inline void attention_backward_task(const BackwardArrays* x, const AttShape* s, const BackwardScratch* f,
                                           const BackwardTask* task) {
    const int heads = s->NH + 2 * s->NKV, k_head = s->NH + task->kv, v_head = k_head + s->NKV;
    const size_t block = (size_t)ATT_BLOCK * (size_t)s->width;
    for (int j = task->key; j < task->key_end; j++) {
        const size_t at = block * (size_t)(j - task->key);
        const AttMatrix k = {f->k.rows + at, f->k.pairs + at / ATT_PACK};
        load_block(k.rows, const_head(x->qkv, s, task->b, heads, k_head), j, s, 1.0f);
        pair_rows(&k, s->width);
        load_block(f->v + at, const_head(x->qkv, s, task->b, heads, v_head), j, s, 1.0f);
        if (!task->want_dkv) continue;
        memset(f->dk + at, 0, sizeof(float) * block);
        memset(f->dv + at, 0, sizeof(float) * block);
    }
    for (int h = task->head; h < task->head_end; h++) {
        for (int i = task->query; i < task->query_end; i++) {
            load_query_block(f, x, s, task->b, h, i);
            memset(f->dq, 0, sizeof(float) * block);
            for (int j = task->key; j < task->key_end && j <= i; j++) attention_backward_pair(f, s, task, i, j);
            if (task->want_dq) store_block(mutable_head(x->dqkv, s, task->b, heads, h), i, f->dq, s, s->scale);
        }
    }
    if (!task->want_dkv) return;
    for (int j = task->key; j < task->key_end; j++) {
        const size_t at = block * (size_t)(j - task->key);
        store_block(mutable_head(x->dqkv, s, task->b, heads, k_head), j, f->dk + at, s, score_scale(s));
        store_block(mutable_head(x->dqkv, s, task->b, heads, v_head), j, f->dv + at, s, 1.0f);
    }
}

// How the work is cut. dq sums over keys, dk and dv over queries, and no two tasks may add to one sum. A task with a
// whole key/value head makes them together in 5 products per pair of blocks; where that gives too few tasks for the
// threads, tasks of one block of queries make dq (3 products) and tasks of one block of keys make dk and dv (4). Every
// sum has the same terms in the same order either way, so the choice changes no bit.
static inline bool whole_heads(const AttShape* s, int threads) {
    const int64_t n = (int64_t)s->B * s->NKV, rounds = (n + threads - 1) / threads;
    return 5 * rounds * threads <= 7 * n;
}

static inline int64_t backward_tasks(const AttShape* s, bool whole) {
    return (int64_t)s->B * (whole ? s->NKV : (s->NKV + s->NH) * s->blocks);
}

// Task number `index`; larger ones first: all queries of a group against early keys, ..., late queries, ...
static inline BackwardTask backward_task(const AttShape* s, bool whole, int64_t index) {
    const int group = s->NH / s->NKV, n = s->blocks;
    const int64_t kv_heads = (int64_t)s->B * s->NKV, q_heads = (int64_t)s->B * s->NH;
    if (whole || index < kv_heads * n) {
        const int b = (int)(index % kv_heads / s->NKV), kv = (int)(index % s->NKV), j = (int)(index / kv_heads);
        const BackwardTask heads = {b, kv, kv * group, (kv + 1) * group, 0, n, 0, n, true, true};
        const BackwardTask keys = {b, kv, kv * group, (kv + 1) * group, j, n, j, j + 1, false, true};
        return whole ? heads : keys;
    }
    index -= kv_heads * n;
    const int b = (int)(index % q_heads / s->NH), h = (int)(index % s->NH), i = n - 1 - (int)(index / q_heads);
    const BackwardTask queries = {b, h / group, h, h + 1, i, i + 1, 0, i + 1, true, false};
    return queries;
}

// dqkv, overwritten, from dout and the inputs and outputs of attention_forward. Shapes and conditions as there;
// gradients have their arrays' shapes. Ends the program when out of memory.
static inline void attention_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                      const float* lse, Heads size) {
    const AttShape s = attention_shape(size);
    const BackwardArrays x = {dqkv, dout, qkv, out, lse};
    const bool whole = whole_heads(&s, openmp_threads());
    attention_choose_unit();
#pragma omp parallel
    {
        BackwardScratch f;
        float* memory = scratch_memory(backward_scratch(&f, NULL, &s, s.blocks));
        backward_scratch(&f, memory, &s, s.blocks);
        attention_begin();
#pragma omp for schedule(dynamic, 1)
        for (int64_t index = 0; index < backward_tasks(&s, whole); index++) {
            const BackwardTask task = backward_task(&s, whole, index);
            attention_backward_task(&x, &s, &f, &task);
        }
        attention_end();
        free(memory);
    }
}

// ---- Generating text --------------------------------------------------------------------------------------------

// out (HS) of one query q (HS) against `rows` keys and values, which are `stride` numbers apart. sums (HS): scratch.
static inline void decode_head(floatX* RESTRICT out, float* RESTRICT sums, const floatX* q, const floatX* keys,
                               const floatX* values, int64_t stride, int rows, int HS) {
    const float scale = 1.0f / sqrtf((float)HS);
    float max = -INFINITY, sum = 0.0f, p[ATT_BLOCK];
    for (int d = 0; d < HS; d++) sums[d] = 0.0f;
    for (int first = 0; first < rows; first += ATT_BLOCK) {
        const int n = rows - first < ATT_BLOCK ? rows - first : ATT_BLOCK;
        const floatX *k = keys + first * stride, *v = values + first * stride;
        const float former = max;
        for (int j = 0; j < n; j++) {
            float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
            for (int d = 0; d < HS; d++) dot += to_float(q[d]) * to_float(k[j * stride + d]);
            p[j] = scale * dot;
            max = p[j] > max ? p[j] : max;
        }
        const float factor = fast_exp(former - max); // 0 for the first block
        sum *= factor;
        for (int d = 0; d < HS; d++) sums[d] *= factor;
#pragma omp simd
        for (int j = 0; j < n; j++) p[j] = fast_exp(p[j] - max);
        for (int j = 0; j < n; j++) {
            sum += p[j];
            for (int d = 0; d < HS; d++) sums[d] += p[j] * to_float(v[j * stride + d]);
        }
    }
    const float inverse = 1.0f / sum;
    for (int d = 0; d < HS; d++) out[d] = to_floatX(sums[d] * inverse);
}

// out (NH * HS) of the token at `position`, from 0, of one sequence, from its row of qkv ((NH + 2 NKV) * HS). A row of
// cache (T_max, 2 NKV * HS), T_max > position, is the key heads and the value heads of a token: rows before `position`
// belong to the earlier tokens, row `position` is written here. NH, NKV, HS as for attention_forward; B and T are not
// read.
static inline void attention_decode(floatX* out, floatX* cache, const floatX* qkv, int position, Heads size) {
    const int NH = size.NH, NKV = size.NKV, HS = size.HS;
    const int64_t stride = (int64_t)2 * NKV * HS;
    float* sums = scratch_memory(round_up((size_t)NH * (size_t)HS, 16));
    memcpy(cache + position * stride, qkv + (int64_t)NH * HS, (size_t)stride * sizeof(floatX));
#pragma omp parallel for schedule(static)
    for (int h = 0; h < NH; h++) {
        const floatX *keys = cache + (int64_t)(h / (NH / NKV)) * HS, *values = keys + (int64_t)NKV * HS;
        decode_head(out + (int64_t)h * HS, sums + (int64_t)h * HS, qkv + (int64_t)h * HS, keys, values, stride,
                    position + 1, HS);
    }
    free(sums);
}

// Rows 0 .. T - 1 of cache, as attention_decode leaves them, from the rows of qkv of a whole sequence. B is not read.
static inline void attention_fill_cache(floatX* cache, const floatX* qkv, Heads size) {
    const int64_t queries = (int64_t)size.NH * size.HS, stride = (int64_t)2 * size.NKV * size.HS;
    for (int t = 0; t < size.T; t++)
        memcpy(cache + t * stride, qkv + t * (queries + stride) + queries, (size_t)stride * sizeof(floatX));
}
