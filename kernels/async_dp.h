/*
async_dp.h: the arithmetic of asynchronous data parallelism on weights and gradients; float32, element by element. A
replica (or a site of several) has local parameters, and sends its progress to the others now and then.

Delay compensation (DC-ASGD, Zheng et al. 2017, arXiv 1609.08326). A delayed gradient, in flight for a step, belongs to
the weights `from`, and is used at the weights `to`, a distance D = to - from away. A Taylor series gives its value
there:

    g(from + D) ~ g(from) + H D,      and the Hessian H ~ lambda diag(g g^T):      g += lambda g g D

The square of a gradient stands for the curvature, as in Adam and in Fisher's information, and costs nothing.
delay_squares serves to choose lambda such that the correction is a fixed part of the gradient, lambda = lambda0 |g| /
|g g D|.

Outer steps (DiLoCo, Douillard et al. 2023, arXiv 2311.08105). M sites train on their own for H steps. A site's
pseudo-gradient is global minus local parameters; their mean, D = factor sum with factor = 1 / M, makes one step of
Nesterov's momentum on the global parameters (base):

    v = momentum v + D,      base -= lr (D + momentum v)

The local parameters (own) then become the global ones, or a mix of both if the sum was delayed and they have changed
since.

Eager updates (Kale et al. 2025, arXiv 2502.12996) do not wait for the sum: a site combines the others' last
pseudo-gradients with its own new one: D = factor ((sum - old) + fresh), where `old` is its own part of the last sum.

Quantised differences. A pseudo-gradient of 8 or 4 bits a number is four or eight times shorter: q = x / scale, rounded,
with a scale for each block of 64. With 2 bits q is a sign and one of two levels of |x|, whichever is nearer: the mean
of the |x| above the mean of all |x|, and that of the others, which stand in the place of the scale. The rounding error
is kept in `residue` and added to the next x (error feedback, Seide et al. 2014; Karimireddy et al. 2019, arXiv
1901.09847). So after any number of outer steps, the sum of the sent values plus the residue is the sum of the inputs,
and errors do not add up.

Sparse differences (SparseLoCo, Sarfi et al. 2025, arXiv 2508.15706). Of each chunk of 4096 numbers only the top_k
largest are sent, as index and quantised value; the others stay in the residue. With x = value + decay residue and decay
< 1 the residue forgets what was never sent, and takes the place of the outer momentum. The levels of 2 bits, the size
of a partial chunk and who wins a tie are not the paper's.

All replicas have to get the same bits from the same numbers, on any kind of machine. A compiler may or may not fuse a
product and a sum into one multiply-add, which rounds once instead of twice; so every product below is rounded
separately (rounded_product), except in delay_squares.
*/
#pragma once

#include "global_norm.h"
#include "outer_format.h"

// A zero that compilers cannot know to be zero.
static inline uint32_t hidden_zero(void) {
    static volatile uint32_t zero = 0;
    return zero;
}

// ---- Sums and differences ---------------------------------------------------------------------------------------

// out = a - b (n). out may be a or b.
static inline void difference(float* out, const float* a, const float* b, int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) out[i] = a[i] - b[i];
}

// out += factor x (n)
static inline void add_scaled(float* RESTRICT out, const float* RESTRICT x, float factor, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) out[i] += rounded_product(factor, x[i], zero);
}

// x *= factor (n)
static inline void scale_by(float* x, float factor, int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

// own = share own + (1 - share) base (n). own: the local parameters, base: the global ones. share = 0 copies, whatever
// own was.
static inline void mix(float* RESTRICT own, const float* RESTRICT base, float share, int64_t n) {
    const float rest = 1.0f - share;
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float mixed = rounded_product(share, own[i], zero) + rounded_product(rest, base[i], zero);
        own[i] = share == 0 ? base[i] : mixed;
    }
}

// ---- Delay compensation -----------------------------------------------------------------------------------------

// (g g (to - from))^2, in float64: usually only the last product is rounded.
static inline double square_of_correction(SumArrays a, int64_t i) {
    const double d = (double)a.x[i] * a.x[i] * ((double)a.y[i] - (double)a.z[i]);
    return d * d;
}
static inline double block_corrections(SumArrays a, int64_t at, int n) {
    return block_sum(square_of_correction, a, at, n);
}

// *sum += sum of (g g (to - from))^2 (n each), in float64.
static inline void delay_squares(double* sum, const float* g, const float* to, const float* from, int64_t n) {
    const SumArrays a = {g, to, from};
    *sum += sum_of_blocks(block_corrections, a, n);
}

// g += lambda g g (to - from) (n each)
static inline void delay_compensate(float* RESTRICT g, const float* RESTRICT to, const float* RESTRICT from,
                                    float lambda, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++)
        g[i] +=
            rounded_product(rounded_product(lambda, g[i], zero), rounded_product(g[i], to[i] - from[i], zero), zero);
}

// ---- Outer steps ------------------------------------------------------------------------------------------------

// One element of Nesterov's step, with D = factor sum.
static inline void outer_element(float* base, float* velocity, float sum, float factor, float lr, float momentum,
                                 uint32_t zero) {
    const float D = rounded_product(factor, sum, zero), v = rounded_product(momentum, *velocity, zero) + D;
    *velocity = v;
    *base -= rounded_product(lr, D + rounded_product(momentum, v, zero), zero);
}

// base, velocity (n) from sum (n), the sum of all sites' pseudo-gradients.
static inline void outer_update(float* RESTRICT base, float* RESTRICT velocity, const float* RESTRICT sum, float factor,
                                float lr, float momentum, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) outer_element(base + i, velocity + i, sum[i], factor, lr, momentum, zero);
}

// The same with this site's new pseudo-gradient `fresh` in place of `old`. For a single site (sum is old) the sum is
// exactly fresh.
static inline void eager_update(float* RESTRICT base, float* RESTRICT velocity, const float* sum, const float* old,
                                const float* fresh, float factor, float lr, float momentum, int64_t n) {
    const uint32_t zero = hidden_zero();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++)
        outer_element(base + i, velocity + i, (sum[i] - old[i]) + fresh[i], factor, lr, momentum, zero);
}

// ---- Quantised differences --------------------------------------------------------------------------------------

// The head of n numbers, NaN if one of them is not finite.
static inline uint32_t quant_head(const float* x, int n, int bits) {
    uint32_t top = 0; // the bits of the largest |x|: these sort like the numbers, then infinity, then NaNs
    for (int i = 0; i < n; i++) {
        const uint32_t size = bits_of_float(x[i]) & 0x7FFFFFFF;
        top = size > top ? size : top;
    }
    if (top >= 0x7F800000) return bits == 2 ? 0x7FC07FC0 : 0x7FC00000;
    const float largest = float_of_bits(top);
    if (bits > 2) return bits_of_float(largest / (float)((1 << (bits - 1)) - 1));
    if (!(largest > 0)) return 0;
    uint64_t all = 0, upper = 0, above = 0;
    for (int i = 0; i < n; i++) all += quant_units(x[i], largest);
    for (int i = 0; i < n; i++) {
        const uint64_t units = quant_units(x[i], largest), is_above = units * (uint64_t)n > all;
        upper += is_above * units;
        above += is_above;
    }
    const uint32_t low = quant_level(all - upper, (uint64_t)n - above, largest);
    return low | (above ? quant_level(upper, above, largest) : low) << 16;
}

static inline void quantize_block(uint8_t* RESTRICT packed, float* RESTRICT residue, float* RESTRICT value, int n,
                                  int bits, float decay) {
    float x[QUANT_BLOCK] = {0};
    uint32_t code[QUANT_BLOCK];
    const uint32_t zero = hidden_zero();
    const int per_byte = 8 / bits;
    for (int i = 0; i < n; i++) x[i] = value[i] + rounded_product(decay, residue[i], zero);
    const uint32_t head = quant_head(x, n, bits);
    for (int i = 0; i < QUANT_BLOCK; i++) code[i] = quant_code(x[i], head, bits);
    memcpy(packed, &head, sizeof head);
    packed += sizeof head;
    for (int j = 0; j < QUANT_BLOCK / per_byte; j++) {
        uint32_t byte = 0;
        for (int k = 0; k < per_byte; k++) byte |= code[j * per_byte + k] << k * bits;
        packed[j] = (uint8_t)byte;
    }
    for (int i = 0; i < n; i++) {
        value[i] = quant_value(code[i], head, bits, zero);
        residue[i] = x[i] - value[i]; // 8 and 4 bits: exact, as the two are 0 or within a factor of 2
    }
}

// packed (quant_bytes(n, bits)) = x = value + decay residue (n each), quantised; value becomes the dequantised x, and
// residue the rest. A block with a number that is not finite becomes NaN.
static inline void quantize(uint8_t* RESTRICT packed, float* RESTRICT residue, float* RESTRICT value, int64_t n,
                            int bits, float decay) {
    const int64_t blocks = (n + QUANT_BLOCK - 1) / QUANT_BLOCK, room = quant_bytes(1, bits);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * QUANT_BLOCK;
        quantize_block(packed + b * room, residue + at, value + at, (int)min_i64(QUANT_BLOCK, n - at), bits, decay);
    }
}

// out (n) += the dequantised numbers
static inline void dequantize_add(float* RESTRICT out, const uint8_t* RESTRICT packed, int64_t n, int bits) {
    const uint32_t zero = hidden_zero();
    const int64_t blocks = (n + QUANT_BLOCK - 1) / QUANT_BLOCK, room = quant_bytes(1, bits);
    const int per_byte = 8 / bits;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t* block = packed + b * room;
        float* to = out + b * QUANT_BLOCK;
        const int count = (int)min_i64(QUANT_BLOCK, n - b * QUANT_BLOCK);
        uint32_t head;
        memcpy(&head, block, sizeof head);
        block += sizeof head;
        for (int i = 0; i < count; i++) {
            const uint32_t code = block[i / per_byte] >> i % per_byte * bits & ((1u << bits) - 1);
            to[i] += quant_value(code, head, bits, zero);
        }
    }
}

// ---- Sparse differences -----------------------------------------------------------------------------------------

static inline void put_field(uint32_t* words, int64_t at, uint32_t field) {
    const uint64_t moved = (uint64_t)field << at % 32;
    words[at / 32] |= (uint32_t)moved;
    if (moved >> 32) words[at / 32 + 1] |= (uint32_t)(moved >> 32);
}

// The count-th largest of the n |x|, as bits: found bit by bit, from the highest one.
static inline uint32_t sparse_threshold(const float* x, int n, int count) {
    uint32_t threshold = 0;
    for (int bit = 30; bit >= 0; bit--) {
        const uint32_t next = threshold | 1u << bit;
        int reach = 0;
        for (int i = 0; i < n; i++) reach += (bits_of_float(x[i]) & 0x7FFFFFFF) >= next;
        if (reach >= count) threshold = next;
    }
    return threshold;
}

// The indices of the count largest |x|, in order; of equal ones the first are taken.
static inline void sparse_select(int* index, const float* x, int n, int count) {
    const uint32_t threshold = sparse_threshold(x, n, count);
    int ties = count, taken = 0;
    for (int i = 0; i < n; i++) ties -= (bits_of_float(x[i]) & 0x7FFFFFFF) > threshold;
    for (int i = 0; i < n; i++) {
        const uint32_t size = bits_of_float(x[i]) & 0x7FFFFFFF;
        const bool tied = size == threshold && ties > 0;
        ties -= tied;
        if (tied || size > threshold) index[taken++] = i;
    }
}

static inline void sparsify_chunk(uint32_t* packed, float* residue, float* value, int n, int bits, int top_k,
                                  float decay) {
    const int count = sparse_count(n, top_k), width = sparse_width(bits);
    const uint32_t zero = hidden_zero();
    float x[SPARSE_CHUNK], sent[SPARSE_CHUNK];
    int index[SPARSE_CHUNK];
    for (int i = 0; i < n; i++) x[i] = value[i] + rounded_product(decay, residue[i], zero);
    sparse_select(index, x, n, count);
    for (int j = 0; j < count; j++) sent[j] = x[index[j]];
    const uint32_t head = bits < 32 ? quant_head(sent, count, bits) : 0;
    memset(packed, 0, (size_t)sparse_bytes(n, bits, top_k));
    memcpy(packed, bits < 32 ? (const void*)&head : (const void*)sent,
           (bits < 32 ? 1 : (size_t)count) * sizeof *packed);
    packed += bits < 32 ? 1 : count;
    memcpy(residue, x, (size_t)n * sizeof(float));
    memset(value, 0, (size_t)n * sizeof(float));
    for (int j = 0; j < count; j++) {
        uint32_t field = (uint32_t)index[j];
        if (bits < 32) {
            const uint32_t code = quant_code(sent[j], head, bits);
            sent[j] = quant_value(code, head, bits, zero);
            field |= code << SPARSE_INDEX_BITS;
        }
        put_field(packed, (int64_t)j * width, field);
        value[index[j]] = sent[j];
        residue[index[j]] = x[index[j]] - sent[j];
    }
}

// packed (sparse_bytes(n, bits, top_k)) = the top_k of each 4096 numbers of x = value + decay residue (n each),
// quantised if bits < 32; value becomes what was sent, else 0, and residue the rest. Numbers that are not finite are
// larger than all others and, if bits < 32, make what is sent of their chunk NaN.
static inline void sparsify(uint8_t* RESTRICT packed, float* RESTRICT residue, float* RESTRICT value, int64_t n,
                            int bits, int top_k, float decay) {
    const int64_t room = sparse_bytes(SPARSE_CHUNK, bits, top_k);
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += SPARSE_CHUNK)
        sparsify_chunk((uint32_t*)(void*)(packed + at / SPARSE_CHUNK * room), residue + at, value + at,
                       (int)min_i64(SPARSE_CHUNK, n - at), bits, top_k, decay);
}

// out (n) += the numbers that were sent
static inline void sparse_add(float* RESTRICT out, const uint8_t* RESTRICT packed, int64_t n, int bits, int top_k) {
    const int64_t room = sparse_bytes(SPARSE_CHUNK, bits, top_k);
    const int width = sparse_width(bits);
    const uint32_t zero = hidden_zero();
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += SPARSE_CHUNK) {
        const uint32_t* head = (const uint32_t*)(const void*)(packed + at / SPARSE_CHUNK * room);
        const int count = sparse_count(min_i64(SPARSE_CHUNK, n - at), top_k);
        const uint32_t* fields = head + (bits < 32 ? 1 : count);
        for (int j = 0; j < count; j++) {
            const uint32_t field = get_field(fields, (int64_t)j * width, width);
            const float sent =
                bits < 32 ? quant_value(field >> SPARSE_INDEX_BITS, *head, bits, zero) : float_of_bits(head[j]);
            out[at + (field & (SPARSE_CHUNK - 1))] += sent;
        }
    }
}
