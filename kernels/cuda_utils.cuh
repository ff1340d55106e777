/*
cuda_utils.cuh: all that the kernels need of CUDA beyond the language itself. The same source is compiled by nvcc for a
GPU, and by any C++ compiler for the CPU, where cuda_emulator.h replaces CUDA.

    floatX                  the type of parameters and activations: bf16 or float (make PRECISION=...)
    device_malloc ...       memory, copies and properties of a GPU
    launch()                kernel<<<grid, block>>>(...), checked
    dynamic_shared()        extern __shared__
    Packed                  several numbers that move as one, up to 16 bytes
    warp_sum, block_sum     reductions, in a fixed order
    exp2_fast, mma, ldmatrix, copy_async, store_global   the only inline PTX of the project besides hopper.cuh's
    device_scratch()        memory for partial sums

Rules for kernels. Whole warps reach a collective: guard the work, not the warp. Lanes run apart: shared memory between
them needs __syncwarp(); a shuffle is no fence. 16-bit floats are for memory; arithmetic is in float. Reductions have a
fixed order, without float atomics: the same input gives the same bits.
*/
#pragma once

#include "../util/base.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <type_traits>
#include <utility>
#else
#include "../dev/emulator/cuda_emulator.h"
#endif

typedef __nv_bfloat16 bf16;

#if !defined(PRECISION_FP32) && !defined(PRECISION_BF16)
#define PRECISION_BF16
#endif
#if defined(PRECISION_BF16)
typedef bf16 floatX;
#else
typedef float floatX;
#endif
static inline float to_float(floatX x) { return (float)x; } // as on the CPU (floatx.h)
static inline floatX to_floatX(float x) { return (floatX)x; }

// Ends the run if a call of the CUDA runtime has failed.
static inline void cuda_check(cudaError_t e, const char* what) {
    if (e != cudaSuccess)
        die("CUDA: %s failed: %s%s", what, cudaGetErrorString(e),
            e == cudaErrorNoKernelImageForDevice
                ? "; the program was built for other GPUs: build it here, or name this one by make GPU_ARCH="
                : "");
}

// The same for a call that takes memory.
static inline void cuda_check_memory(cudaError_t e, size_t bytes, const char* what) {
    if (e == cudaErrorMemoryAllocation)
        die("out of GPU memory: %.1f MB for %s; use a smaller --micro-batch or model", (double)bytes / 1e6, what);
    cuda_check(e, what);
}

// ---- The device: kernels/device.h on a GPU -----------------------------------------------------------------------

// Returns zeroed memory, to be freed by device_free.
static inline void* device_malloc(size_t bytes, const char* what) {
    void* p = NULL;
    if (bytes == 0) return NULL;
    cuda_check_memory(cudaMalloc(&p, bytes), bytes, what);
    cuda_check(cudaMemset(p, 0, bytes), what);
    return p;
}

static inline void device_free(void* p, size_t bytes) {
    (void)bytes;
    if (p) cuda_check(cudaFree(p), "cudaFree");
}

static inline void device_from_host(void* device, const void* host, size_t bytes) {
    cuda_check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "a copy to the GPU");
}
static inline void device_to_host(void* host, const void* device, size_t bytes) {
    cuda_check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "a copy from the GPU");
}
static inline void device_copy(void* to, const void* from, size_t bytes) {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, 0), "a copy on the GPU");
}
static inline void device_zero(void* p, size_t bytes) {
    if (bytes > 0) cuda_check(cudaMemsetAsync(p, 0, bytes, 0), "zeroing memory");
}

// Whether p is in device memory, which MPI cannot read.
static inline bool device_holds(const void* p) {
    cudaPointerAttributes about;
    if (!p || cudaPointerGetAttributes(&about, p) != cudaSuccess) return false;
    return about.type == cudaMemoryTypeDevice;
}

// Waits for all kernels and copies that were started, but not for messages of other ranks that no work depends on yet.
static inline void device_synchronize(void) { cuda_check(cudaStreamSynchronize(0), "work on the GPU"); }

// To be called before anything else on the device: selects the GPU of this rank, the rank_here-th on this machine.
// Where there are fewer GPUs than ranks, some share one. Without a GPU the run ends with a one-line error.
static inline void device_open(int rank_here) {
    int count = 0;
    const cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0)
        die("no CUDA device (%s): this program needs an NVIDIA GPU and its driver; make DEVICE=cpu builds one that "
            "does not",
            e != cudaSuccess ? cudaGetErrorString(e) : "none is there");
    cuda_check(cudaSetDevice(rank_here % count), "taking the GPU");
}

// Bytes of memory that nothing uses now.
static inline double device_free_bytes(void) {
    size_t unused = 0, total = 0;
    cuda_check(cudaMemGetInfo(&unused, &total), "the size of the GPU's memory");
    return (double)unused;
}

// Bytes of it that all processes use now: CUDA counts no peak of a process.
static inline int64_t device_peak_bytes(void) {
    size_t unused = 0, total = 0;
    cuda_check(cudaMemGetInfo(&unused, &total), "the size of the GPU's memory");
    return (int64_t)(total - unused);
}

static inline int device_count(void) {
    int count = 1;
    cuda_check(cudaGetDeviceCount(&count), "the number of GPUs");
    return count;
}

// The number of ranks on this machine that share the memory of a device.
static inline int device_ranks_sharing(int ranks_here) { return (ranks_here + device_count() - 1) / device_count(); }

// "NVIDIA H200": the GPU's name by the driver.
static inline void device_name(char* name, size_t size) {
    cudaDeviceProp about;
    int device = 0;
    const bool known = cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&about, device) == cudaSuccess;
    snprintf(name, size, "%s", known ? about.name : "a GPU, which is not here");
}

// ---- Launches ---------------------------------------------------------------------------------------------------

struct Launch {
    dim3 grid, block;
    size_t shared;       // bytes of dynamic shared memory
    cudaStream_t stream; // 0: the compute stream
};

static inline Launch launch_shape(dim3 grid, dim3 block, size_t shared = 0) {
    const Launch l = {grid, block, shared, 0};
    return l;
}

// launch(launch_shape(blocks, threads), kernel, arguments...) on the compute stream, which is the default stream, or on
// the shape's. A failure ends the run and names the kernel's function.
template <class... P, class... A>
void launch(const Launch& l, void (*kernel)(P...), A&&... arguments) {
    if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0) return; // nothing to do
    // A block has 48 KB without asking. That counts static memory, too, padded to the alignment of dynamic_shared(): 16
    // KB are left for it.
    if (l.shared > 32 << 10)
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l.shared),
                   "shared memory of a kernel");
#ifdef __CUDACC__
    cudaLaunchConfig_t c = {};
    c.gridDim = l.grid;
    c.blockDim = l.block;
    c.dynamicSmemBytes = l.shared;
    c.stream = l.stream;
    cuda_check(cudaLaunchKernelEx(&c, kernel, std::forward<A>(arguments)...), "launch of a kernel");
#else
    const bool ok = cuda_on_cpu::launch_on(l.stream, l.grid, l.block, l.shared, kernel, std::forward<A>(arguments)...);
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

// Device memory for partial sums, the same block for all kernels: they run one after the other. Its contents are not
// kept from one call of a kernel's function to the next. It grows on demand.
static inline void* device_scratch(size_t bytes) {
    static void* block = NULL;
    static size_t size = 0;
    if (bytes <= size) return block;
    // In the order of the stream, where plain cudaFree would wait for all streams, and so for messages of other ranks.
    if (block) cuda_check(cudaFreeAsync(block, 0), "cudaFreeAsync");
    size = round_up(bytes, (size_t)1 << 20);
    cuda_check_memory(cudaMallocAsync(&block, size, 0), size, "partial sums");
    return block;
}

// NCCL's sums and gathers (comm/comm_nccl.h) that the host has started and not waited for yet.
static inline int* collectives_in_flight(void) {
    static int n = 0;
    return &n;
}

// The most multiprocessors (CTAs) that a sum of a wide group may take: COLLECTIVE_CTAS of the environment; 0: NCCL's
// own number.
static inline int collective_ctas(void) {
    const char* s = getenv("COLLECTIVE_CTAS");
    const int n = s ? atoi(s) : 0;
    if (s && *s && (n < 1 || n > 64 || s[strspn(s, "0123456789")]))
        die("the environment variable COLLECTIVE_CTAS is %s; it can be 1 to 64", s);
    return n;
}

static inline int blocks_for(int64_t n, int per_block) { return (int)((n + per_block - 1) / per_block); }

// ---- Memory -----------------------------------------------------------------------------------------------------

// W numbers that are loaded and stored as one, aligned to their size: 16 bytes where W = widest<T>.
template <class T>
constexpr int widest = 16 / (int)sizeof(T);
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

// The same for global memory only, with 16 bytes as one access for certain: nvcc 13.0 sometimes cuts store() into
// accesses of 4 bytes, or 2 (dev/test/system/check_assembly.py checks it).
template <class T, int W>
__device__ __forceinline__ void store_global(T* p, const Packed<T, W>& v) {
#ifdef __CUDACC__
    if constexpr (sizeof(T) * W == 16) {
        uint4 u;
        memcpy(&u, &v, sizeof u);
        asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(p)), "r"(u.x), "r"(u.y),
                     "r"(u.z), "r"(u.w)
                     : "memory");
        return;
    }
#endif
    store(p, v);
}

// True if rows of n elements that begin at p can be read 16 bytes at a time.
template <class T>
static inline bool can_pack(const T* p, int64_t n) {
    return (uintptr_t)p % 16 == 0 && n % widest<T> == 0; // NULL can
}

// ---- Reductions -------------------------------------------------------------------------------------------------

__device__ __forceinline__ float warp_sum(float v) {
    for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
    for (int i = 16; i > 0; i /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, i));
    return v;
}

// ----------------------------------------------------------------------------------------------------------------
// Instructions that C++ cannot express: the exponential, tensor cores, asynchronous copies (sm_80 and later)

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

// e^x: relative error 2^-22 and, from the rounding of the exponent, |x| 2^-24, like __expf; 0 for results below 2^-126.
// __expf takes three instructions more, for such results.
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(1.44269504f * x); }

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

// Four 8x8 tiles of 16-bit values from shared memory; lane i gives the address of row i % 8 of tile i / 8.
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

// The same, each tile transposed.
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
