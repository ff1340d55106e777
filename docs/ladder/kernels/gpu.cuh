/*
gpu.cuh: what every rung of the kernel ladder includes, and all that it includes. Under nvcc: CUDA's headers, and thin
functions for the instructions that C++ cannot express. Under a C++ compiler: the emulator, which runs the same kernels
on the processor and checks what a GPU does not: barriers, fences, copies in flight (dev/emulator/).

    copy_async16, _commit, _wait     cp.async: 16 bytes from global to shared memory (sm_80)
    ldmatrix_x4, ldmatrix_x4_trans   four 8 x 8 squares of 16-bit numbers from shared memory to registers
    mma_m16n8k16                     a warp's product on tensor cores
    Barrier, TensorMap, tensor_load  mbarrier and TMA (sm_90a)
    wgmma, warpgroup_fence ...       products of four warps on tensor cores (sm_90a)
    device(), host()                 arrays to and from the GPU
    launch(), timed()                a kernel, checked; its time, on a GPU
    compare()                        a result against float64: one line of output
    check_attention()                the same for O and lse of rungs 7 to 10, which share one bound; measure_attention()
    check_product()                  and for C of rungs 1 to 6; check_refusal(), measure_product()
    finish()                         the last line of output, and the exit status

kernels/cuda_utils.cuh and kernels/hopper.cuh hold the same instructions for the trainer, and explain the layouts of
fragments and tiles. Source: PTX ISA 9.0.
*/
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#ifdef __CUDACC__
#include <algorithm>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <utility>
#endif

// ---- Tiles in shared memory -------------------------------------------------------------------------------------

// A tile has rows of 64 numbers of 16 bits, 128 bytes: all 32 banks. Chunk c of 16 bytes of row r is at the place of
// chunk c ^ (r % 8), so that eight rows of one column are in different banks. TMA and wgmma take the same order
// (kernels/hopper.cuh draws it), if the tile begins at a multiple of 1024 bytes. In elements from the tile's beginning:
#ifdef __CUDACC__
#define EVERYWHERE __host__ __device__
#else
#define EVERYWHERE
#endif
EVERYWHERE constexpr int tile_place(int row, int column) {
    return row * 64 + ((column / 8 ^ row % 8) * 8 + column % 8);
}

// PTX ISA 9.0, "Matrix Descriptor Format": the address, the distances to the next 64 columns and to the next 8 rows, in
// units of 16 bytes, and the permutation of chunks.
EVERYWHERE constexpr uint64_t tile_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride >> 4 & 0x3fff) << 32 | (uint64_t)1 << 62;
}

// An operand of wgmma. K_MAJOR: the tile's columns are k; MN_MAJOR: its rows are k.
enum Major { K_MAJOR, MN_MAJOR };
template <Major major>
struct Tile {
    uint64_t descriptor;
    // The same tile, 16 k further.
    EVERYWHERE Tile step(int k) const { return {descriptor + (uint64_t)(k * (major == K_MAJOR ? 32 : 2048) >> 4)}; }
};

#ifndef __CUDACC__
#include "../../../dev/emulator/hopper_emulator.h"
#endif

typedef __nv_bfloat16 bf16;

// Ends the program if a call of CUDA has failed.
static inline void cuda_check(cudaError_t e, const char* what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "CUDA: %s failed: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

// ---- The host ---------------------------------------------------------------------------------------------------

// An array of the host, copied to the GPU, and back.
template <class T>
static T* device(const std::vector<T>& x) {
    T* p = NULL;
    cuda_check(cudaMalloc(&p, x.size() * sizeof(T)), "memory of the GPU");
    cuda_check(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice), "a copy to the GPU");
    return p;
}
template <class T>
static std::vector<T> host(const T* p, size_t n) {
    std::vector<T> x(n);
    cuda_check(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost), "a copy from the GPU");
    return x;
}

// kernel<<<grid, block, shared>>>(arguments...), checked. shared: bytes of dynamic shared memory
template <class... P, class... A>
static void launch(dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), const A&... arguments) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
               "shared memory of a kernel");
#ifdef __CUDACC__
    kernel<<<grid, block, shared>>>(arguments...);
    cuda_check(cudaGetLastError(), "launch of a kernel");
#else
    const bool ok = cuda_on_cpu::launch(grid, block, shared, kernel, arguments...);
    cuda_check(ok ? cudaSuccess : cudaErrorInvalidConfiguration, "launch of a kernel");
#endif
}

// The dynamic shared memory of the block.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef __CUDACC__
    extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
    return reinterpret_cast<T*>(dynamic_shared_bytes);
#else
    return reinterpret_cast<T*>(cuda_on_cpu::block->shared);
#endif
}

// The next number in [-1, 1), of a sequence that is the same on all machines (Knuth's MMIX).
static inline float random_number(uint64_t* state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) / (1 << 23) - 1.0);
}

// On a GPU: the median time of 20 runs, and the rate of `amount` of work by it, in `unit`: "TFLOP/s" for scale 1e-12.
template <class F>
static void timed(const char* what, double amount, double scale, const char* unit, F run) {
#ifdef __CUDACC__
    cudaEvent_t begin, end;
    float ms[20];
    cuda_check(cudaEventCreate(&begin), "an event");
    cuda_check(cudaEventCreate(&end), "an event");
    run();
    for (float& t : ms) {
        cuda_check(cudaEventRecord(begin), "an event");
        run();
        cuda_check(cudaEventRecord(end), "an event");
        cuda_check(cudaEventSynchronize(end), "a kernel");
        cuda_check(cudaEventElapsedTime(&t, begin, end), "an event");
    }
    std::sort(ms, ms + 20);
    printf("time %s: %.3f ms, %.1f %s\n", what, ms[10], amount * scale / (ms[10] * 1e-3), unit);
#else
    (void)what, (void)amount, (void)scale, (void)unit, (void)run; // the emulator's time says nothing of a GPU's
#endif
}

struct Results {
    int passed, failed;
};

// Each number of `got` against its own bound. Prints the number that is nearest to its bound, or farthest beyond it.
template <class T>
static void compare(Results* results, const char* what, const std::vector<T>& got, const std::vector<double>& want,
                    const std::vector<double>& bound) {
    size_t worst = 0;
    double most = -1.0;
    for (size_t i = 0; i < want.size(); i++) {
        const double ratio = fabs((double)(float)got[i] - want[i]) / bound[i];
        if (ratio <= most) continue;
        worst = i;
        most = ratio == ratio ? ratio : INFINITY; // NaN is the largest error of all
        if (ratio != ratio) break;
    }
    const bool ok = most <= 1.0;
    printf("%-4s %-36s error %.1e  bound %.1e  at %zu of %zu\n", ok ? "ok" : "FAIL", what,
           fabs((double)(float)got[worst] - want[worst]), bound[worst], worst, want.size());
    (ok ? results->passed : results->failed)++;
}

static inline int finish(const Results* results) {
    printf("%d passed, %d failed\n", results->passed, results->failed);
    return results->failed > 0;
}

// ---- Instructions -----------------------------------------------------------------------------------------------

// W numbers that are loaded and stored as one, up to 16 bytes, aligned to their size.
template <class T, int W>
struct alignas(sizeof(T) * W) Packed {
    T v[W];
    __device__ T& operator[](int i) { return v[i]; }
    __device__ const T& operator[](int i) const { return v[i]; }
};
template <int W, class T>
__device__ __forceinline__ Packed<T, W> load(const T* p) {
    return *reinterpret_cast<const Packed<T, W>*>(p);
}
template <class T, int W>
__device__ __forceinline__ void store(T* p, const Packed<T, W>& v) {
    *reinterpret_cast<Packed<T, W>*>(p) = v;
}

// Sum and maximum over the lanes whose indices differ only in the bits below `lanes`, a power of 2.
__device__ __forceinline__ float lanes_sum(float v, int lanes = 32) {
    for (int i = lanes / 2; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}
__device__ __forceinline__ float lanes_max(float v, int lanes = 32) {
    for (int i = lanes / 2; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
    return v;
}

// 2^x within 2 units in the last place; 0 for results below 2^-126.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif

// d += A B: a 16x8 tile of floats, A 16x16 (rows of k), B 16x8 (columns of k), of bf16; one warp.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    cuda_on_cpu::mma<bf16>(d, a, b);
#endif
}

// Four 8x8 squares of 16-bit values from shared memory; lane i gives the address of row i % 8 of square i / 8.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    cuda_on_cpu::ldmatrix<false>(r, row);
#endif
}

// The same, each square transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
#else
    cuda_on_cpu::ldmatrix<true>(r, row);
#endif
}

// Starts to copy 16 bytes from global to shared memory.
__device__ __forceinline__ void copy_async16(void* shared, const void* global) {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
#else
    cuda_on_cpu::cp_async(shared, global);
#endif
}

// The copies since the last commit become a group.
__device__ __forceinline__ void copy_async_commit() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    cuda_on_cpu::cp_async_commit();
#endif
}

// Waits for all groups but the last `pending` ones.
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#else
    cuda_on_cpu::finish_copies(pending);
#endif
}

// ---- Instructions of Hopper GPUs (sm_90a); kernels/hopper.cuh has the rules ---------------------------------------

#ifdef __CUDACC__

// Only the target sm_90a knows these instructions.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER_ASM(...) __trap()
#endif

// A matrix of 16-bit numbers, or several: element (column, row, batch) at base[batch * batch_stride + row * row_stride
// + column]. base and row_stride are multiples of 16 bytes, batch_stride one of row_stride, and nothing overlaps
// (cuda.h, cuTensorMapEncodeTiled). Tiles of 64 columns, box_rows rows (up to 256) and one batch. The part of a tile
// outside the matrix is loaded as 0. Kernels take it as `const __grid_constant__ TensorMap`.
typedef CUtensorMap TensorMap;
template <class T>
static inline TensorMap tensor_map(const T* base, int64_t columns, int64_t rows, int64_t batches, int64_t row_stride,
                                   int64_t batch_stride, int box_rows) {
    static_assert(sizeof(T) == 2, "tiles are of 16-bit numbers");
    // The driver's library has the function; with this lookup a program also starts without a driver.
    static PFN_cuTensorMapEncodeTiled_v12000 encode = NULL;
    if (!encode) {
        void* function = NULL;
        cudaDriverEntryPointQueryResult found;
        cuda_check(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
            "cudaGetDriverEntryPointByVersion");
        if (found != cudaDriverEntryPointSuccess) cuda_check(cudaErrorInsufficientDriver, "TMA");
        encode = (PFN_cuTensorMapEncodeTiled_v12000)function;
    }
    TensorMap map;
    const cuuint64_t size[3] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)batches};
    const cuuint64_t stride[2] = {(cuuint64_t)row_stride * 2, (cuuint64_t)batch_stride * 2}; // bytes
    const cuuint32_t box[3] = {64, (cuuint32_t)box_rows, 1}, step[3] = {1, 1, 1};
    const CUresult e = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void*)base, size, stride, box, step,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    cuda_check(e == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
    return map;
}

struct Barrier {
    uint64_t state;

    __device__ __forceinline__ void init(int count) {
        HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(count) : "memory");
    }
    __device__ __forceinline__ void arrive() {
        HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
    }
    // Arrives, and announces that TMA will bring `bytes` bytes in this phase.
    __device__ __forceinline__ void arrive_expect(int bytes) {
        HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                   : "memory");
    }
    __device__ __forceinline__ void wait(int parity) {
        for (unsigned over = 0; !over;)
            HOPPER_ASM("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                       "selp.u32 %0, 1, 0, p;\n}"
                       : "=r"(over)
                       : "r"(shared_address(this)), "r"(parity)
                       : "memory");
    }
};

// After init(), by the same thread: makes the barriers visible to TMA.
__device__ __forceinline__ void barriers_fence() {
    HOPPER_ASM("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// One thread starts to copy the tile that begins at (column, row, batch); `barrier` waits for its bytes, always 128 *
// box_rows. column is a multiple of 8, as TMA takes addresses that are multiples of 16 bytes.
__device__ __forceinline__ void tensor_load(void* shared, const TensorMap& map, int column, int row, int batch,
                                            Barrier& barrier) {
    HOPPER_ASM("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
               "[%5];" ::"r"(shared_address(shared)),
               "l"(&map), "r"(column), "r"(row), "r"(batch), "r"(shared_address(&barrier))
               : "memory");
}
// Makes this thread's writes to shared memory visible to TMA and wgmma.
__device__ __forceinline__ void shared_fence() { HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barrier `id` (1 to 15; 0 is __syncthreads()) of `threads` threads, whole warps. barrier_arrive() does not wait.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
    HOPPER_ASM("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
    HOPPER_ASM("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Called by the whole warpgroup; a multiple of 8 from 24 to 256. The kernel needs __launch_bounds__(threads, 1).
template <int registers>
__device__ __forceinline__ void registers_release() {
    HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void registers_claim() {
    HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Registers, or arrays of them, whose reads and writes the compiler must not move across this point: it does not know
// that a product writes them later.
__device__ __forceinline__ void keep_in_place(float& r) { asm volatile("" : "+f"(r)::"memory"); }
__device__ __forceinline__ void keep_in_place(unsigned& r) { asm volatile("" : "+r"(r)::"memory"); }
template <class T, int n>
__device__ __forceinline__ void keep_in_place(T (&r)[n]) {
#pragma unroll
    for (int i = 0; i < n; i++) keep_in_place(r[i]);
}

template <class... R>
__device__ __forceinline__ void warpgroup_fence(R&... registers) {
    (keep_in_place(registers), ...);
    HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() { HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending, class... R>
__device__ __forceinline__ void warpgroup_wait(R&... done) {
    HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    (keep_in_place(done), ...);
}

// Keeps the arithmetic that produces these results, none of which is below 0, before the next warpgroup_wait(), beside
// the products in flight. ptxas moves a wait up across arithmetic, but not across an access of memory: so here is a
// store for results below 0, which never occur.
template <int n>
__device__ __forceinline__ void finish_before_wait(const float (&result)[n]) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < n; i++) bits |= __float_as_uint(result[i]);
    HOPPER_ASM("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0xffffffff;\n@p st.shared.u32 [%1], %0;\n}" ::"r"(bits), "r"(0)
               : "memory");
}

// A tile whose columns are k; rows as many as the product takes: 64 of A, n of B.
__device__ __forceinline__ Tile<K_MAJOR> tile_k_major(const void* shared) {
    return {tile_descriptor(shared_address(shared), 16, 1024)}; // no next 64 columns, as a product takes 16
}
// A tile whose rows are k, `rows` of them; where the product takes more than 64 columns, the next tile follows it in
// memory.
__device__ __forceinline__ Tile<MN_MAJOR> tile_mn_major(const void* shared, int rows) {
    return {tile_descriptor(shared_address(shared), (uint32_t)rows * 128, 1024)};
}

// The instruction differs for every n in the number and registers of its operands. The rungs take two of them.
#define HOPPER_LIST_32                                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                                             \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HOPPER_LIST_64                                                                                                 \
    HOPPER_LIST_32                                                                                                     \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"                                 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HOPPER_D8(i)                                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define HOPPER_D32(i) HOPPER_D8(i), HOPPER_D8(i + 8), HOPPER_D8(i + 16), HOPPER_D8(i + 24)

// d (+)= A B, of bf16 (T), with float sums: d is the thread's 64 numbers of 64 x 128; A and B tiles in shared memory
// whose columns are k.
template <class T>
__device__ __forceinline__ void wgmma(float (&d)[64], Tile<K_MAJOR> a, Tile<K_MAJOR> b, bool accumulate) {
    HOPPER_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
               "{" HOPPER_LIST_64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
               : HOPPER_D32(0), HOPPER_D32(32)
               : "l"(a.descriptor), "l"(b.descriptor), "r"((int)accumulate));
}
// The same for 64 x 64, with A in registers, which must not change before the wait, and a B whose rows are k.
template <class T>
__device__ __forceinline__ void wgmma(float (&d)[32], const unsigned (&a)[4], Tile<MN_MAJOR> b, bool accumulate) {
    HOPPER_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
               "{" HOPPER_LIST_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
               : HOPPER_D32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((int)accumulate));
}

#undef HOPPER_LIST_32
#undef HOPPER_LIST_64
#undef HOPPER_D8
#undef HOPPER_D32
#undef HOPPER_ASM

#endif

// ---- Attention, for rungs 7 to 10: the check and the time ---------------------------------------------------------

// Q, K, V and O are (B, T, NH, HS): B sequences of T rows, NH heads of HS numbers in each. lse is (B, NH, T).
enum { HS = 64 };
struct Heads {
    int B, T, NH;
};
typedef void (*AttentionFunction)(bf16* o, float* lse, const bf16* q, const bf16* k, const bf16* v, Heads s);

// The bound. u = 2^-8: a rounding to bf16. f = 2^-22: an operation in float, 2^-24, or an addition of a tensor core,
// which cuts off the last bits of the smaller number; or the exponential, 2 units in the last place. Let A be the
// largest sum of |q_d k_d| / sqrt(HS) of a row. A score's sum has HS = 64 terms: an error of 64 f A. The argument of an
// exponential, at most 2 A, is rounded up to four times: 8 f A. P may be a product of as many exponentials as there are
// tiles, at most T, and sums have at most T terms. Together, as a relative error of a term of a sum over keys, to first
// order,
//
//     E = f (72 A + 2 T + 4),     |error of lse| <= E + f |lse|
//     |error of O| <= u |O| + (2 E + p_error) sum_j P_ij |v_j|        2 E, as O is a quotient of two such sums

// Numbers below 3 in Q and 1 in K and V; in the first column such that a row's scores rise by `rise` from the first key
// to the last, and their maximum from tile to tile. Or they fall.
struct AttentionInput {
    std::vector<bf16> q, k, v;
};
static inline AttentionInput random_heads(Heads s, float rise) {
    const size_t n = (size_t)s.B * s.T * s.NH * HS;
    AttentionInput x = {std::vector<bf16>(n), std::vector<bf16>(n), std::vector<bf16>(n)};
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        const bool first = i % HS == 0;
        const float t = (float)(i / HS / s.NH % s.T) / (float)s.T;
        x.q[i] = (bf16)(first ? 8.0f : 3 * random_number(&state));
        x.k[i] = (bf16)(first ? rise * t : random_number(&state));
        x.v[i] = (bf16)random_number(&state);
    }
    return x;
}

struct AttentionReference { // in float64
    std::vector<double> o, o_bound, lse, lse_bound;
};
// Row `row` of lse, and the row of O that belongs to it.
static inline void reference_row(AttentionReference* r, const AttentionInput& x, size_t row, Heads s, double p_error) {
    const double u = 0x1p-8, f = 0x1p-22;
    const size_t T = (size_t)s.T, NH = (size_t)s.NH, i = row % T, stride = NH * HS;
    const size_t head = row / T / NH * T * stride + row / T % NH * HS, at = head + i * stride;
    std::vector<double> p(i + 1);
    double A = 0.0, top = -INFINITY, sum = 0.0;
    for (size_t j = 0; j <= i; j++) {
        double sizes = 0.0;
        for (size_t d = 0; d < HS; d++) {
            const double term = (double)(float)x.q[at + d] * (float)x.k[head + j * stride + d] / 8; // 8: sqrt(HS)
            p[j] += term;
            sizes += fabs(term);
        }
        top = fmax(top, p[j]);
        A = fmax(A, sizes);
    }
    for (const double score : p) sum += exp(score - top);
    const double E = f * (72 * A + 2 * s.T + 4), lse = top + log(sum);
    r->lse[row] = lse;
    r->lse_bound[row] = E + f * fabs(lse);
    for (size_t d = 0; d < HS; d++) {
        double sizes = 0.0;
        for (size_t j = 0; j <= i; j++) {
            const double term = exp(p[j] - lse) * (float)x.v[head + j * stride + d];
            r->o[at + d] += term;
            sizes += fabs(term);
        }
        r->o_bound[at + d] = u * fabs(r->o[at + d]) + (2 * E + p_error) * sizes;
    }
}

// p_error: the relative error of P by rounding: 0 or u
static inline void check_attention(Results* results, Heads s, float rise, double p_error, AttentionFunction attention) {
    const AttentionInput x = random_heads(s, rise);
    const size_t n = x.q.size(), rows = n / HS;
    const std::vector<double> zeros(n), zero_rows(rows);
    AttentionReference r = {zeros, zeros, zero_rows, zero_rows};
    for (size_t row = 0; row < rows; row++) reference_row(&r, x, row, s, p_error);
    bf16 *q = device(x.q), *k = device(x.k), *v = device(x.v), *out = device(std::vector<bf16>(n, (bf16)NAN));
    float* stats = device(std::vector<float>(rows, NAN));
    attention(out, stats, q, k, v, s);
    char what[64];
    snprintf(what, sizeof what, "O   B %d T %d heads %d rise %g", s.B, s.T, s.NH, (double)rise);
    compare(results, what, host(out, n), r.o, r.o_bound);
    memcpy(what, "lse", 3);
    compare(results, what, host(stats, rows), r.lse, r.lse_bound);
    for (void* p : {(void*)q, (void*)k, (void*)v, (void*)out, (void*)stats}) cuda_check(cudaFree(p), "cudaFree");
}

static inline void measure_attention(Heads s, AttentionFunction attention) {
    const AttentionInput x = random_heads(s, 0.0f); // constants would take less power, at a higher clock
    bf16 *q = device(x.q), *k = device(x.k), *v = device(x.v), *out = device(x.q);
    float* lse = device(std::vector<float>(x.q.size() / HS));
    const double flop = 2.0 * (double)x.q.size() * (s.T + 1);
    timed("attention", flop, 1e-12, "TFLOP/s", [&] { attention(out, lse, q, k, v, s); });
    for (void* p : {(void*)q, (void*)k, (void*)v, (void*)out, (void*)lse}) cuda_check(cudaFree(p), "cudaFree");
}

// ---- Matrix product, for rungs 1 to 6: the check and the time -----------------------------------------------------

// C = A B^T: A (M, K), B (N, K), of bf16, by rows; C (M, N), float. It is the trainer's linear layer: x w^T.
struct Shape {
    int M, N, K;
};
// Returns NULL, or, without a product, which shapes it takes.
typedef const char* (*ProductFunction)(float* c, const bf16* a, const bf16* b, Shape s);

// The bound. A product of two bf16, of 8-bit significands, is exact in float, which has 24. A sum of K terms has K - 1
// additions, each off by at most unit times the sum of the terms' sizes, whatever the order (Higham 2002, section 4.2):
// together K unit sum |a b|. unit = 2^-24 where additions round to the nearest float. A tensor core adds 16 terms and
// the sum so far at once, cut at the last place of the largest, 2^-23 of it (Fasi et al. 2021, of A100 and before): 17
// cuts and one of the result for 16 terms are 18/16 2^-23 a term, for which unit = 2^-22 is room.
static inline void check_product(Results* results, Shape s, double unit, ProductFunction product) {
    const size_t M = (size_t)s.M, N = (size_t)s.N, K = (size_t)s.K;
    std::vector<bf16> a(M * K), b(N * K);
    std::vector<double> want(M * N), bound(M * N);
    uint64_t state = 1;
    for (bf16& x : a) x = (bf16)random_number(&state);
    for (bf16& x : b) x = (bf16)random_number(&state);
    for (size_t i = 0; i < M * N; i++) {
        double sizes = 0.0;
        for (size_t k = 0; k < K; k++) {
            const double term = (double)(float)a[i / N * K + k] * (double)(float)b[i % N * K + k];
            want[i] += term;
            sizes += fabs(term);
        }
        bound[i] = (double)K * unit * sizes;
    }
    bf16 *device_a = device(a), *device_b = device(b);
    float* c = device(std::vector<float>(M * N, NAN));
    char what[64];
    snprintf(what, sizeof what, "C   M %d N %d K %d", s.M, s.N, s.K);
    const char* refusal = product(c, device_a, device_b, s);
    if (refusal) fprintf(stderr, "%s: %s\n", what, refusal);
    compare(results, what, host(c, M * N), want, bound);
    for (void* p : {(void*)device_a, (void*)device_b, (void*)c}) cuda_check(cudaFree(p), "cudaFree");
}

// A shape that a rung does not take; memory is not touched.
static inline void check_refusal(Results* results, Shape s, ProductFunction product) {
    const char* refusal = product(NULL, NULL, NULL, s);
    printf("%-4s M %d N %d K %d is refused: %s\n", refusal ? "ok" : "FAIL", s.M, s.N, s.K, refusal ? refusal : "no");
    (refusal ? results->passed : results->failed)++;
}

static inline void measure_product(Shape s, ProductFunction product) {
#ifdef __CUDACC__                                               // the emulator would need minutes
    std::vector<bf16> x((size_t)(s.M > s.N ? s.M : s.N) * s.K); // for both; constants would take less power, at a
    uint64_t state = 1;                                         // higher clock
    for (bf16& number : x) number = (bf16)random_number(&state);
    bf16 *a = device(x), *b = device(x);
    float* c = device(std::vector<float>((size_t)s.M * s.N));
    timed("product", 2.0 * s.M * s.N * s.K, 1e-12, "TFLOP/s", [&] { product(c, a, b, s); });
    for (void* p : {(void*)a, (void*)b, (void*)c}) cuda_check(cudaFree(p), "cudaFree");
#else
    (void)s, (void)product;
#endif
}
