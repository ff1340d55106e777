/*
hopper.cuh: the instructions that a Hopper GPU (compute capability 9.0) adds, as functions: matrix products of four
warps with operands in shared memory (wgmma), copies of whole tiles by a copy engine (TMA), and barriers that count
bytes (mbarrier). hopper_emulator.h has the same functions for the CPU, and is stricter than the GPU.

    Barrier                          .init .arrive .arrive_expect .wait; barriers_fence()
    TensorMap, tensor_map()          TMA's description of a matrix in global memory, made by the host
    tensor_load, tensor_store        a tile of up to 256 rows x 64 columns of 16 bits, to and from shared memory
    tile_k_major, tile_mn_major      a tile as operand of a product; .step(k) advances by 16 k
    wgmma<T>(d, a, b, accumulate)    d (+)= A B: 64 x n x 16
    warpgroup_fence/_commit/_wait    around it; shared_fence() between ordinary stores and wgmma or TMA
    barrier_sync, barrier_arrive     named barriers of some warps
    registers_release, _claim        registers from the warps that copy to the warps that multiply
    store_matrix_x4                  stmatrix, the inverse of ldmatrix
    is_hopper()                      whether the device has these instructions

Warpgroup. Four warps, of which the first has a number that is a multiple of 4, multiply together: D (64 x n) += A (64 x
16) B (16 x n), n = 64 or 128. B is read from shared memory, A from there or from registers, D stays in the registers of
the 128 threads: n / 2 floats each. Warp w has rows 16 w to 16 w + 15, with the layout of mma.m16n8k16:

    d[i] of a thread:  row 16 w + lane / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (lane % 4) + i % 2
    a[i], 2 values:    row 16 w + lane / 4 + 8 (i % 2),     k      8 (i / 2) + 2 (lane % 4) and the next

so that d[8 j] to d[8 j + 7], rounded to 16 bits in pairs, are the A of the columns 16 j to 16 j + 15: a product's
result is the next one's operand without leaving its thread. (PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix
Instructions")

A tile in shared memory. Rows of 64 columns of 16 bits, 128 bytes each: all 32 banks. So that eight rows of one column
are in different banks, the eight 16-byte chunks of a row are permuted: chunk c of row r is at the place of chunk c ^ (r
% 8).

    bytes      0    16   32   48   64   80   96  112
    row 0      0    1    2    3    4    5    6    7
    row 1      1    0    3    2    5    4    7    6
    row 2      2    3    0    1    6    7    4    5
    ...
    row 7      7    6    5    4    3    2    1    0       and so on from row 8: every 1024 bytes

TMA writes and reads tiles in this order, wgmma reads it, and tile_place() computes it for ordinary accesses. The
hardware takes the exclusive or of the address's bits 4-6 with its bits 7-9: hence a tile begins at a multiple of 1024
bytes. A matrix of more columns is several tiles.

Operands. Rows of a tile can be rows of A (or columns of B) and its columns k: "K-major", as both are in D = A B^T of
matrices stored by rows. Or the rows are k, and the columns are D's columns (for A, D's rows): "MN-major", a transposed
operand. A 64-bit descriptor holds the address, the distances to the next 8 rows and to the next 64 columns, and the
permutation of chunks. An advance of 16 k is 32 bytes in a K-major tile (the permutation uses the bits of the final
address, so one may begin within a row), and 16 rows in an MN-major one. (The fields: PTX ISA 9.0, "Matrix Descriptor
Format", "Canonical Layouts"; and CUTLASS, mma_sm90_desc.hpp)

Asynchronous. wgmma runs while its threads continue; so registers and shared memory have rules:

    warpgroup_fence(d, a...)      before the first product of a group: earlier writes to these registers are done
    wgmma(d, ...) ...             products into one d need no wait between them
    warpgroup_commit()            these are a group
    warpgroup_wait<n>(d...)       all groups but the last n are done. Before it no thread may read d, change d or a
                                  (which have to stay alive), or overwrite the tiles. PTX forbids reading a, too:
                                  attention_hopper.cuh does (p_of), as two readers of a register change nothing

The arguments are registers, up to four arrays: for the fence all that the group reads and writes, for the wait all that
are done; otherwise the compiler, which does not know of the later accesses, moves other uses across. Groups belong to
the warpgroup, not the thread ("creates a new wgmma-group per warpgroup"): when one of its threads has waited, the tiles
are no longer read, and this thread can signal that to the others.

Two proxies. Ordinary loads and stores access shared memory in one way, TMA and wgmma in another, the asynchronous
proxy. A thread's ordinary stores are visible to that proxy after its shared_fence() and, as always, a barrier between
the writing threads and the thread that starts the copy or product. TMA's loads need no fence: their barrier orders them
for both proxies.

Barrier. Eight bytes of shared memory, with phases 0, 1, 2... A phase is over when `count` threads and all the bytes
that arrive_expect() announced have arrived. wait(parity) returns when the phase of this parity is over: the first use
waits for 0, the second one for 1, the third for 0. A barrier may be at most one phase ahead of any waiting thread; and
wait(1) on a fresh one returns at once, as if the phase before the first were over, so that a producer finds a ring of
buffers empty. After init() call barriers_fence() and __syncthreads().

This is code for compute capability 9.0 and no other (the target is sm_90a: nothing later runs it). A program for
several GPUs compiles this file for all of them; a kernel that is started on another GPU stops with a trap. Check
is_hopper() first, and have a plain kernel as well.

Float sums of a tensor core may differ from a processor's: terms of one instruction may be aligned and truncated, in an
undocumented order.
*/
#pragma once

#include "cuda_utils.cuh"
#ifdef __CUDACC__
#include <cuda.h>
#include <cudaTypedefs.h>
#endif

// ---- Tiles ------------------------------------------------------------------------------------------------------

constexpr int tile_columns = 64;     // numbers of 16 bits: 128 bytes
constexpr int tile_alignment = 1024; // bytes: eight rows

// The place of element (row, column) of a tile, in elements from its beginning.
__host__ __device__ constexpr int tile_place(int row, int column) {
    return row * tile_columns + ((column / 8 ^ row % 8) * 8 + column % 8);
}

// PTX ISA 9.0, "Matrix Descriptor Format": bits 0-13 the address, 16-29 the leading and 32-45 the stride dimension's
// offset, all of them in units of 16 bytes, 62-63 the permutation of chunks: 1 for 128 bytes.
__host__ __device__ constexpr uint64_t tile_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
    return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride >> 4 & 0x3fff) << 32 | (uint64_t)1 << 62;
}

enum Major { K_MAJOR, MN_MAJOR };
template <Major major>
struct Tile {
    uint64_t descriptor;
    // 16 k further: K_MAJOR: k < 4, within 64 columns, of the tile that begins `rows` later; MN_MAJOR: within its rows.
    __device__ Tile step(int k, int rows = 0) const {
        return {descriptor + (major == K_MAJOR ? 2 : 128) * k + 8 * rows};
    }
};

// ---- On a GPU ---------------------------------------------------------------------------------------------------

#ifdef __CUDACC__

// Only the target sm_90a knows these instructions.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER_ASM(...) __trap()
#endif

// A line of the program: as default argument, that of the call.
struct SourceLine {
    const char* file;
    int line;
    __device__ static constexpr SourceLine here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};
#define CALLER_LINE SourceLine at = SourceLine::here()

// In tests, which define LONG_WAITS_END, a wait of more than 4 to 9 s ends the kernel by a store to address 0, and its
// place is printed at exit, from the host's memory, which survives that. (With trap or printf() in a kernel ptxas gives
// up the registers of setmaxnreg, and each wgmma waits for the one before: C7512.)
#ifdef LONG_WAITS_END
struct LongWait {
    int line, block, thread, parity;
};
static LongWait* long_wait;
static __constant__ LongWait* long_wait_place; // the same, for kernels

static inline void print_long_wait(void) {
    const LongWait w = *long_wait;
    if (w.line)
        fprintf(stderr, "line %d of the kernel's file waits for more than 4 s: block %d, thread %d, parity %d\n",
                w.line, w.block, w.thread, w.parity);
}
static inline void watch_waits(void) {
    if (long_wait) return;
    cuda_check(cudaHostAlloc((void**)&long_wait, sizeof *long_wait, cudaHostAllocMapped), "cudaHostAlloc");
    memset(long_wait, 0, sizeof *long_wait);
    cuda_check(cudaMemcpyToSymbol(long_wait_place, &long_wait, sizeof long_wait), "cudaMemcpyToSymbol");
    atexit(print_long_wait);
}
// begin: of the wait, in units of 4.3 s; 0: not yet known
__device__ __forceinline__ void check_time(unsigned& begin, int parity, SourceLine at) {
    HOPPER_ASM(
        "{\n.reg .pred p;\n.reg .u32 now, x;\n.reg .u64 none;\nmov.u32 now, %%globaltimer_hi;\nsetp.eq.u32 p, %0, 0;\n"
        "@p mov.u32 %0, now;\nsub.u32 x, now, %0;\nsetp.ge.u32 p, x, 2;\n@p st.volatile.global.u32 [%1], %2;\n"
        "mov.u32 x, %%ctaid.x;\n@p st.volatile.global.u32 [%1+4], x;\nmov.u32 x, %%tid.x;\n"
        "@p st.volatile.global.u32 [%1+8], x;\n@p st.volatile.global.u32 [%1+12], %3;\n@p membar.sys;\n"
        "mov.u64 none, 0;\n@p st.volatile.global.u32 [none], x;\n}"
        : "+r"(begin)
        : "l"(long_wait_place), "r"(at.line), "r"(parity)
        : "memory");
}
#else
static inline void watch_waits(void) {}
__device__ __forceinline__ void check_time(unsigned&, int, SourceLine) {}
#endif

// A matrix of 16-bit numbers, or several: element (column, row, batch) at base[batch * batch_stride + row * row_stride
// + column]. base and row_stride are multiples of 16 bytes, batch_stride one of row_stride, and nothing overlaps
// (cuda.h, cuTensorMapEncodeTiled). Tiles of 64 columns, box_rows rows (up to 256) and one batch. The part of a tile
// outside the matrix is loaded as 0, and not stored; but TMA writes whole 16 bytes, so that stores need a multiple of 8
// columns (an H100 overwrote what follows a shorter row). Kernels take it as `const __grid_constant__ TensorMap`.
typedef CUtensorMap TensorMap;
template <class T>
static inline TensorMap tensor_map(const T* base, int64_t columns, int64_t rows, int64_t batches, int64_t row_stride,
                                   int64_t batch_stride, int box_rows) {
    static_assert(sizeof(T) == 2, "tiles are of 16-bit numbers");
    watch_waits();
    // The driver's library has the function; with this lookup a program also starts without a driver.
    static PFN_cuTensorMapEncodeTiled_v12000 encode = NULL;
    if (!encode) {
        void* function = NULL;
        cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
        cuda_check(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
            "cudaGetDriverEntryPointByVersion");
#else
        cuda_check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found),
                   "cudaGetDriverEntryPoint");
#endif
        if (found != cudaDriverEntryPointSuccess) die("CUDA: the driver has no cuTensorMapEncodeTiled: it is too old");
        encode = (PFN_cuTensorMapEncodeTiled_v12000)function;
    }
    TensorMap map;
    const cuuint64_t size[3] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)batches};
    const cuuint64_t stride[2] = {(cuuint64_t)row_stride * 2, (cuuint64_t)batch_stride * 2}; // bytes
    const cuuint32_t box[3] = {tile_columns, (cuuint32_t)box_rows, 1}, step[3] = {1, 1, 1};
    const CUresult e = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void*)base, size, stride, box, step,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (e != CUDA_SUCCESS)
        die("CUDA: cuTensorMapEncodeTiled refuses (%d) %lld x %lld x %lld, strides %lld, %lld, boxes of %d rows",
            (int)e, (long long)batches, (long long)rows, (long long)columns, (long long)batch_stride,
            (long long)row_stride, box_rows);
    return map;
}

static inline bool is_hopper() {
    int device = 0, major = 0, minor = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
    return major == 9 && minor == 0;
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
    __device__ __forceinline__ void wait(int parity, CALLER_LINE) {
        unsigned begin = 0;
        for (unsigned over = 0; !over;) {
            HOPPER_ASM("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                       "selp.u32 %0, 1, 0, p;\n}"
                       : "=r"(over)
                       : "r"(shared_address(this)), "r"(parity)
                       : "memory");
            if (!over) check_time(begin, parity, at);
        }
    }
};

// After init(), by the same thread: makes the barriers visible to TMA.
__device__ __forceinline__ void barriers_fence() {
    HOPPER_ASM("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// One thread starts to copy the tile that begins at (column, row, batch); `barrier` waits for its bytes, always 128 *
// box_rows. column is a multiple of 8, as TMA takes addresses that are multiples of 16 bytes. An H100 reports others,
// and stores that begin before the matrix, as illegal instructions; loads may begin anywhere.
__device__ __forceinline__ void tensor_load(void* shared, const TensorMap& map, int column, int row, int batch,
                                            Barrier& barrier) {
    HOPPER_ASM("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
               "[%5];" ::"r"(shared_address(shared)),
               "l"(&map), "r"(column), "r"(row), "r"(batch), "r"(shared_address(&barrier))
               : "memory");
}
// The opposite copy. tensor_store_commit(): this thread's stores since the last commit become a group.
// tensor_store_wait_read<n>(): all of its groups but the last n have been read, so that their shared memory can be
// reused.
__device__ __forceinline__ void tensor_store(const TensorMap& map, const void* shared, int column, int row, int batch) {
    HOPPER_ASM("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(batch), "r"(shared_address(shared))
               : "memory");
}
__device__ __forceinline__ void tensor_store_commit() { HOPPER_ASM("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void tensor_store_wait_read() {
    HOPPER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
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

// Four 8x8 tiles of 16-bit values to shared memory; lane i gives the address of row i % 8 of tile i / 8.
__device__ __forceinline__ void store_matrix_x4(void* row, const unsigned (&r)[4]) {
    HOPPER_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// Registers, or arrays of them, whose reads and writes the compiler must not move across this point: it does not know
// that a product writes them later.
__device__ __forceinline__ void keep_in_place(float& r) { asm volatile("" : "+f"(r)::"memory"); }
__device__ __forceinline__ void keep_in_place(unsigned& r) { asm volatile("" : "+r"(r)::"memory"); }
__device__ __forceinline__ void keep_in_place(Tile<K_MAJOR>&) {} // not written by a product, nor read after its start
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

// The instruction differs for every n in the number and registers of its operands.
template <class T>
struct WgmmaType;
template <>
struct WgmmaType<bf16> {
    static constexpr char name[] = "bf16";
};
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
#define HOPPER_D16(i) HOPPER_D8(i), HOPPER_D8(i + 8)
#define HOPPER_D32(i) HOPPER_D16(i), HOPPER_D16(i + 16)
#define HOPPER_D64(i) HOPPER_D32(i), HOPPER_D32(i + 32)

// d (+)= A B, of bf16, with float sums: d is the thread's n / 2 numbers of 64 x n; A and B tiles in shared
// memory.
template <class T, int half_n, Major a_major, Major b_major>
__device__ __forceinline__ void wgmma(float (&d)[half_n], Tile<a_major> a, Tile<b_major> b, bool accumulate) {
    static_assert(half_n == 32 || half_n == 64, "n is 64 or 128");
    if constexpr (half_n == 32)
        HOPPER_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.%37.%37 "
                   "{" HOPPER_LIST_32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
                   : HOPPER_D32(0)
                   : "l"(a.descriptor), "l"(b.descriptor), "r"((int)accumulate), "n"((int)a_major), "n"((int)b_major),
                     "C"(WgmmaType<T>::name));
    else
        HOPPER_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.%69.%69 "
                   "{" HOPPER_LIST_64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
                   : HOPPER_D64(0)
                   : "l"(a.descriptor), "l"(b.descriptor), "r"((int)accumulate), "n"((int)a_major), "n"((int)b_major),
                     "C"(WgmmaType<T>::name));
}
// The same with A in registers: a, which must not change before the wait.
template <class T, int half_n, Major b_major>
__device__ __forceinline__ void wgmma(float (&d)[half_n], const unsigned (&a)[4], Tile<b_major> b, bool accumulate) {
    static_assert(half_n == 32 || half_n == 64, "n is 64 or 128");
    if constexpr (half_n == 32)
        HOPPER_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.%39.%39 "
                   "{" HOPPER_LIST_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                   : HOPPER_D32(0)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((int)accumulate),
                     "n"((int)b_major), "C"(WgmmaType<T>::name));
    else
        HOPPER_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.%71.%71 "
                   "{" HOPPER_LIST_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
                   : HOPPER_D64(0)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor), "r"((int)accumulate),
                     "n"((int)b_major), "C"(WgmmaType<T>::name));
}

#undef HOPPER_LIST_32
#undef HOPPER_LIST_64
#undef HOPPER_D8
#undef HOPPER_D16
#undef HOPPER_D32
#undef HOPPER_D64
#undef HOPPER_ASM

#else
#include "../dev/emulator/hopper_emulator.h"
#endif
