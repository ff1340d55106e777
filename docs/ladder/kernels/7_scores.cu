/*
Rung 7 of the kernel ladder: attention in three passes, with the scores in memory. (Rungs 1 to 6 build a matrix product;
7 to 10 build on them.)

    nvcc -std=c++17 -O3 -arch=sm_90a docs/ladder/kernels/7_scores.cu -o 7_scores       # on a GPU; or emulated:
    g++ -std=gnu++17 -O2 -pthread -x c++ docs/ladder/kernels/7_scores.cu -o 7_scores -ldl

A head has a row of HS = 64 numbers of Q for each of T queries, and one of K and of V for each key:

    S = Q K^T / sqrt(HS),   P_ij = e^S_ij / sum_k e^S_ik over the keys k <= i (causal),   O = P V
    lse_i = log sum_k e^S_ik, for the backward pass, which makes P again from S

Each line is a kernel: the scores, a thread each; the softmax, a warp a row; and O, a thread a number of it. The softmax
subtracts the row's largest score, which changes nothing in P, so that no exponential overflows. Here and in all rungs
the exponential is the GPU's 2^x: scores are multiplied by log2 e / sqrt(HS), here when they are written, later in 2^x.

The count, for each of the T (T + 1) / 2 scores of a head: 4 HS = 256 FLOP, half of them for S, half for O. A score is a
float that is written, read three times by the softmax, replaced by its P, and read again: 6 x 4 = 24 bytes of memory,
11 FLOP for each byte, where a GPU has tens to hundreds. Q, K and V are read as in rung 1, two numbers a multiply-add,
from the caches; they have little memory beside the 12 T bytes of a row's scores, which grow with T squared.

What limits it: loads, as in rung 1; with better products it would be the scores' bytes. The next rung writes no score.

Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1. In threefold: kernels/attention.h, which does this a row at a
time, on the CPU.
*/
#include "gpu.cuh"

enum { THREADS = 128 };              // of a block
static const double P_ERROR = 0x0p0; // P stays float
static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
static const float SCALE = LOG2_E / 8; // log2 e / sqrt(HS)

// Where a head begins in Q, K, V and O, and the distance of its rows. head: of all B * NH
__device__ __forceinline__ int64_t head_begin(Heads s, int head) {
    return ((int64_t)(head / s.NH) * s.T * s.NH + head % s.NH) * HS;
}
__device__ __forceinline__ int row_stride(Heads s) { return s.NH * HS; }

// ---- The kernels -----------------------------------------------------------------------------------------------

// scores (B * NH, T, T) = S; a thread a score. Keys after their query have none.
__global__ static void scores_kernel(float* scores, const bf16* q, const bf16* k, Heads s) {
    const int j = (int)(blockIdx.x * blockDim.x + threadIdx.x), i = (int)blockIdx.y, head = (int)blockIdx.z;
    if (j > i) return;
    const bf16* query = q + head_begin(s, head) + (int64_t)i * row_stride(s);
    const bf16* key = k + head_begin(s, head) + (int64_t)j * row_stride(s);
    float sum = 0.0f;
    for (int d = 0; d < HS; d++) sum += (float)query[d] * (float)key[d];
    scores[((int64_t)head * s.T + i) * s.T + j] = sum * SCALE;
}

// Rows of S become rows of P; a warp a row.
__global__ static void softmax_kernel(float* scores, float* lse, Heads s) {
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x) / 32, lane = (int)threadIdx.x % 32, head = (int)blockIdx.y;
    if (i >= s.T) return;
    float *row = scores + ((int64_t)head * s.T + i) * s.T, top = -FLT_MAX, sum = 0.0f;
    for (int j = lane; j <= i; j += 32) top = fmaxf(top, row[j]);
    top = lanes_max(top);
    for (int j = lane; j <= i; j += 32) sum += exp2_fast(row[j] - top);
    sum = lanes_sum(sum);
    for (int j = lane; j <= i; j += 32) row[j] = exp2_fast(row[j] - top) / sum;
    if (lane == 0) lse[(int64_t)head * s.T + i] = LN_2 * (top + log2f(sum));
}

// O = P V; a thread a number of O.
__global__ static void values_kernel(bf16* o, const float* p, const bf16* v, Heads s) {
    const int d = (int)threadIdx.x, i = (int)blockIdx.x, head = (int)blockIdx.y;
    const float* row = p + ((int64_t)head * s.T + i) * s.T;
    const bf16* value = v + head_begin(s, head) + d;
    float sum = 0.0f;
    for (int j = 0; j <= i; j++) sum += row[j] * (float)value[(int64_t)j * row_stride(s)];
    o[head_begin(s, head) + (int64_t)i * row_stride(s) + d] = (bf16)sum;
}

// o (B, T, NH, HS), lse (B, NH, T)
static void attention(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Heads s) {
    const unsigned heads = (unsigned)(s.B * s.NH), T = (unsigned)s.T;
    float* scores = NULL;
    cuda_check(cudaMallocAsync(&scores, sizeof(float) * heads * T * T, 0), "memory for the scores");
    launch(dim3((T + THREADS - 1) / THREADS, T, heads), THREADS, 0, scores_kernel, scores, q, k, s);
    launch(dim3((T * 32 + THREADS - 1) / THREADS, heads), THREADS, 0, softmax_kernel, scores, lse, s);
    launch(dim3(T, heads), HS, 0, values_kernel, o, scores, v, s);
    cuda_check(cudaFreeAsync(scores, 0), "freeing the scores");
}

int main() {
    Results results = {0, 0};
    check_attention(&results, {1, 1, 1}, 0.0f, P_ERROR, attention);
    check_attention(&results, {2, 200, 2}, 0.0f, P_ERROR, attention);
    check_attention(&results, {1, 520, 1}, 20.0f, P_ERROR, attention);
    check_attention(&results, {1, 300, 1}, -20.0f, P_ERROR, attention);
    measure_attention({8, 1024, 12}, attention);
    return finish(&results);
}
