/*
cuda_hopper_bugs.cu: what dev/emulator/hopper_emulator.h says of mistakes with wgmma, TMA and barriers, and that it says
nothing where there is none.

One small kernel uses all of hopper.cuh: 64 x 64 sums of A B^T, 128 columns in two steps through one stage of shared
memory, then a product of registers and a tile that was stored the ordinary way; the result goes to D through a tile, by
TMA. Each bug is one line of it that is left out or wrong. How they are run and judged: cuda_bugs.h. For emulated GPUs
only.
*/
#include "../../../kernels/hopper.cuh"
#include "cuda_bugs.h"

// Mistakes with barriers, copies, products and registers.
enum { NONE, NO_INIT, NO_BARRIERS_FENCE, NO_SYNC_AFTER_INIT, INIT_TWICE, BARRIER_OVERWRITTEN, ONE_ARRIVAL_TOO_MANY };
enum { NO_ARRIVAL = 10, TOO_FEW_BYTES, TOO_MANY_BYTES, WRONG_PARITY, PARITY_OF_TWO, OTHER_COUNT, COUNT_NO_WARPS };
enum { NOT_WAITED_FOR_FULL = 20, READ_BEFORE_FULL, NOT_WAITED_FOR_EMPTY, NOBODY_WAITS_FOR_LOAD };
enum { TWO_LOADS_TO_ONE_PLACE = 30, TILE_NOT_ALIGNED, TILE_PAST_THE_END, COLUMN_NOT_ALIGNED, STORE_BEFORE_MATRIX };
enum { STORE_OF_SHORT_ROWS = 40, STORE_NOT_WAITED_FOR, STORE_NOT_COMMITTED, STORE_OVERWRITTEN, LOAD_OVER_STORE };
enum { NO_FENCE_BEFORE_STORE = 50 };
enum { NO_WARPGROUP_FENCE = 60, NO_COMMIT, WAITS_FOR_TOO_FEW, NO_WAIT, SUMS_READ_TOO_EARLY, SUMS_CHANGED, A_CHANGED };
enum { NO_FENCE_BEFORE_PRODUCT = 70, FENCE_AFTER_BARRIER, FENCE_OF_ONE_THREAD, FENCE_BEFORE_STORES };
enum { NO_BARRIER_BEFORE_PRODUCT = 80, TWO_WARPS, OTHER_OPERANDS, STEP_TOO_FAR, OTHER_SUMS_OVERLAP };
enum { TILE_STORED_TOO_EARLY = 90 };
enum { TOO_MANY_REGISTERS = 100, ONE_WARP_KEEPS_ITS_REGISTERS };

static unsigned pack_pair(float low, float high) { // low is in the lower half
    const bf16 pair[2] = {(bf16)low, (bf16)high};
    unsigned bits;
    memcpy(&bits, pair, sizeof bits);
    return bits;
}

struct Tiles {
    bf16 a[4096], b[4096], c[4096], d[4096], spare[4096];
};

struct Maps {
    TensorMap a, b, d;
};

static void small_init(Barrier& full, Barrier& empty, int mistake) {
    if (mistake != NO_INIT) full.init(1);
    if (mistake == INIT_TWICE) full.init(1); // <-- here
    empty.init(1);
    if (mistake != NO_BARRIERS_FENCE) barriers_fence();
    if (mistake == BARRIER_OVERWRITTEN) full.state = 1;
}

// What one thread does: brings A and B, 64 columns at a time.
static void small_copies(Tiles& s, const Maps& maps, Barrier& full, Barrier& empty, int mistake) {
    for (int k = 0; k < 2; k++) {
        if (mistake != NOT_WAITED_FOR_EMPTY) empty.wait((k & 1) ^ 1);                         // <-- here
        full.arrive_expect(16384 - (mistake == TOO_FEW_BYTES) + (mistake == TOO_MANY_BYTES)); // <-- here
        bf16* to = mistake == TILE_PAST_THE_END ? s.spare + 512 : s.a;
        if (mistake == TILE_NOT_ALIGNED) to = s.a + 504;
        tensor_load(to, maps.a, 64 * k + 4 * (mistake == COLUMN_NOT_ALIGNED), 0, 0, full);           // <-- here
        if (mistake == TWO_LOADS_TO_ONE_PLACE) tensor_load(s.a, maps.a, 0, 0, 0, full);              // <-- here
        tensor_load(s.b, maps.b, 64 * k, 0, 0, full);                                                // <-- here
        if (mistake == ONE_ARRIVAL_TOO_MANY) full.arrive();                                          // <-- here
        if (mistake == NOBODY_WAITS_FOR_LOAD && k == 1) tensor_load(s.spare, maps.a, 0, 0, 0, full); // <-- here
    }
}

// The sums of a warpgroup, through a tile, to D.
static void small_store(Tiles& s, const Maps& maps, const float (&sums)[32], Barrier& full, int thread, int mistake) {
    const int row = thread / 32 * 16 + thread % 16, column = thread % 32 / 16 * 8;
    for (int q = 0; q < 4; q++) {
        const unsigned r[4] = {pack_pair(sums[8 * q], sums[8 * q + 1]), pack_pair(sums[8 * q + 2], sums[8 * q + 3]),
                               pack_pair(sums[8 * q + 4], sums[8 * q + 5]),
                               pack_pair(sums[8 * q + 6], sums[8 * q + 7])};
        store_matrix_x4(s.d + tile_place(row, 16 * q + column), r);
    }
    if (mistake != NO_FENCE_BEFORE_STORE) shared_fence();
    barrier_sync(1, 128);
    if (thread != 0) return;
    tensor_store(maps.d, s.d, 0, mistake == STORE_BEFORE_MATRIX ? -1 : 0, 0); // <-- here
    if (mistake == LOAD_OVER_STORE) {
        full.arrive_expect(8192);
        tensor_load(s.d, maps.a, 0, 0, 0, full); // <-- here
    }
    if (mistake != STORE_NOT_COMMITTED) tensor_store_commit();
    if (mistake == STORE_OVERWRITTEN) s.d[4000] = (bf16)7.0f;
    if (mistake != STORE_NOT_WAITED_FOR) tensor_store_wait_read<0>();
}

__global__ static void small(const __grid_constant__ Maps maps, const bf16* c, float* out, int mistake) {
    __shared__ Barrier full, empty;
    Tiles& s = *dynamic_shared<Tiles>();
    if (threadIdx.x == 0) small_init(full, empty, mistake);
    if (mistake != NO_SYNC_AFTER_INIT) __syncthreads();
    const int thread = (int)threadIdx.x - 128;
    if (thread < 0) {
        if (mistake != ONE_WARP_KEEPS_ITS_REGISTERS || threadIdx.x >= 32) registers_release<24>(); // <-- here
        if (thread != -128) return;
        small_copies(s, maps, full, empty, mistake);
        return;
    }
    if (thread >= 128) { // the third warpgroup leaves its registers to the second one
        if (mistake != TOO_MANY_REGISTERS) return registers_release<24>();
        return registers_claim<248>(); // <-- here
    }
    registers_claim<256>(); // <-- here
    float registers[48], (&sums)[32] = (float(&)[32])registers;
    if (mistake == TWO_WARPS && thread >= 64) return;
    if (mistake == FENCE_BEFORE_STORES) shared_fence();
    for (int i = thread; i < 4096; i += 128) s.c[tile_place(i / 64, i % 64)] = c[i]; // <-- here
    bool fences =
        mistake != NO_FENCE_BEFORE_PRODUCT && mistake != FENCE_AFTER_BARRIER && mistake != FENCE_BEFORE_STORES;
    if (mistake == FENCE_OF_ONE_THREAD) fences = thread == 126; // here, all others have stored
    if (fences) shared_fence();
    int threads = mistake == COUNT_NO_WARPS ? 100 : 128;
    if (mistake == OTHER_COUNT && thread < 32) threads = 96;
    if (mistake != NO_BARRIER_BEFORE_PRODUCT && mistake != TWO_WARPS) barrier_sync(1, threads); // <-- here
    for (int k = 0; k < 2; k++) {
        const int parity = mistake == PARITY_OF_TWO ? 2 : k ^ (mistake == WRONG_PARITY);
        const bf16* early = s.a + tile_place(thread % 32, 1 + thread / 32);
        float read = mistake == READ_BEFORE_FULL && k == 1 ? (float)*early : 0; // <-- here
        if (mistake != NOT_WAITED_FOR_FULL) full.wait(parity);                  // <-- here
        if (mistake != READ_BEFORE_FULL && k == 1) read = (float)*early;        // <-- here
        if (mistake != NO_WARPGROUP_FENCE) warpgroup_fence(sums);               // <-- here
        for (int i = 0; i < 4; i++) {
            const int step = mistake == STEP_TOO_FAR ? i + 1 : i;
            const Tile<K_MAJOR> b = tile_k_major(mistake == OTHER_OPERANDS && thread == 127 ? s.a : s.b);
            wgmma<bf16>(sums, tile_k_major(s.a).step(step), b.step(step), k > 0 || i > 0); // <-- here
            if (mistake == SUMS_CHANGED) sums[3] = 1;
        }
        if (mistake != NO_COMMIT) warpgroup_commit();
        const float first = sums[0]; // not there yet
        if (mistake == WAITS_FOR_TOO_FEW)
            warpgroup_wait<1>(sums); // <-- here
        else if (mistake != NO_WAIT)
            warpgroup_wait<0>(sums); // <-- here
        if (k == 1) out[thread] = read + (mistake == SUMS_READ_TOO_EARLY ? first : sums[0]);
        if (thread == 0 && mistake != NO_ARRIVAL) empty.arrive();
    }
    unsigned fragment[4][4]; // of A: the sums' own places
    for (int i = 0; i < 16; i++) fragment[i / 4][i % 4] = pack_pair(sums[2 * i], sums[2 * i + 1]);
    warpgroup_fence(sums, fragment); // <-- here
    for (int i = 0; i < 4; i++) {
        wgmma<bf16>(sums, fragment[i], tile_mn_major(s.c, 64).step(i), true); // <-- here
        if (mistake == FENCE_AFTER_BARRIER && thread == 0) shared_fence();
    }
    if (mistake == OTHER_SUMS_OVERLAP)
        wgmma<bf16>((float(&)[32])registers[16], fragment[0], tile_k_major(s.c), true); // <-- here
    if (mistake == A_CHANGED) fragment[2][1] = 0;
    if (mistake == TILE_STORED_TOO_EARLY) s.c[5 * thread] = (bf16)2.0f; // <-- here
    warpgroup_commit();                                                 // <-- here
    warpgroup_wait<0>(sums, fragment);                                  // <-- here
    out[thread] += sums[0];
    small_store(s, maps, sums, full, thread, mistake);
}

static void multiply(float* out, const float* in, int mistake) {
    bf16 *all, host[5 * 4096];
    cuda_check(cudaMalloc(&all, sizeof host), "cudaMalloc");
    float x[N];
    cuda_check(cudaMemcpy(x, in, sizeof x, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int i = 0; i < 5 * 4096; i++) host[i] = (bf16)(x[i % 251 + i % 5] - 1.5f);
    cuda_check(cudaMemcpy(all, host, sizeof host, cudaMemcpyHostToDevice), "cudaMemcpy");
    bf16* d = all + 4 * 4096;
    cuda_check(cudaMemset(d, 0xff, 8192), "cudaMemset");
    const Maps maps = {tensor_map(all, 128, 32, 1, 128, 4096, 64), tensor_map(all + 4096, 128, 60, 1, 128, 8192, 64),
                       tensor_map(d, mistake == STORE_OF_SHORT_ROWS ? 60 : 64, 64, 1, 64, 4096, 64)};
    launch(launch_shape(1, 384, sizeof(Tiles)), small, maps, (const bf16*)all + 3 * 4096, out, mistake);
    cuda_check(cudaMemcpy(host, d, 8192, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int i = 0; i < 128; i++) x[i] = (float)host[i * 32];
    cuda_check(cudaMemcpy(out + 128, x, 128 * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
    cuda_check(cudaFree(all), "cudaFree");
}
template <int mistake>
static void with(float* out, const float* in, bool right) {
    multiply(out, in, right ? NONE : mistake);
}

// What the host says wrongly of a matrix.
template <int stride, int shift, int box_rows, int rows>
static void map_of(float*, const float*, bool right) {
    bf16* p;
    cuda_check(cudaMalloc(&p, 64 * 64 * 2), "cudaMalloc");
    if (right)
        tensor_map(p, 64, 64, 1, 64, 4096, 64);
    else
        tensor_map(p + shift, 64, rows, 1, stride, rows * stride, box_rows);
    cuda_check(cudaFree(p), "cudaFree");
}

#define SMALL(mistake) #mistake, NULL, with < mistake>, 0
#define SAYS(text) text, text, text, NULL, "small"
#define HOST_SAYS(text) text, text, text, NULL, NULL
static const Bug bugs[] = {
    {SMALL(NO_INIT), SAYS("no init() of this barrier")},
    {SMALL(NO_BARRIERS_FENCE), SAYS("no barriers_fence() after init()")},
    {SMALL(NO_SYNC_AFTER_INIT), NULL, NULL, "data race", "CUDA_ON_CPU_ORDER", NULL},
    {SMALL(INIT_TWICE), SAYS("it was set up at")},
    {SMALL(BARRIER_OVERWRITTEN), SAYS("or its memory was overwritten")},
    {SMALL(ONE_ARRIVAL_TOO_MANY), SAYS("all 1 threads of the phase have arrived, and it waits for 16384 more bytes")},
    {SMALL(NO_ARRIVAL), SAYS("1 of 1 arrivals and 0 bytes are missing")},
    {SMALL(TOO_FEW_BYTES), SAYS("brings 1 bytes more than its barrier expects")},
    {SMALL(TOO_MANY_BYTES), SAYS("0 of 1 arrivals and 1 bytes are missing")},
    {SMALL(WRONG_PARITY), SAYS("to which the tensor_load of")},
    {SMALL(PARITY_OF_TWO), SAYS("a parity is 0 or 1")},
    {SMALL(OTHER_COUNT), SAYS("while others came to one of")},
    {SMALL(COUNT_NO_WARPS), SAYS("100 threads are not some warps")},
    {SMALL(NOT_WAITED_FOR_FULL), SAYS("to which the tensor_load of")},
    {SMALL(READ_BEFORE_FULL), "", "", "data race", NULL, "small"},
    {SMALL(NOT_WAITED_FOR_EMPTY), SAYS("all 1 threads of the phase have arrived, and it waits for")},
    {SMALL(NOBODY_WAITS_FOR_LOAD), SAYS("tensor_load: the block ends without a wait for it")},
    {SMALL(TWO_LOADS_TO_ONE_PLACE), SAYS("tensor_load to where the one of")},
    {SMALL(TILE_NOT_ALIGNED), SAYS("is not a multiple of 1024")},
    {SMALL(TILE_PAST_THE_END), SAYS("are not in dynamic shared memory")},
    {SMALL(COLUMN_NOT_ALIGNED), SAYS("column 4 is not a multiple of 8")},
    {SMALL(STORE_BEFORE_MATRIX), SAYS("tensor_store: it begins before the matrix")},
    {SMALL(STORE_OF_SHORT_ROWS), SAYS("tensor_store: rows of 60 numbers, no multiple of 8")},
    {SMALL(STORE_NOT_WAITED_FOR), SAYS("its thread ends without tensor_store_wait_read()")},
    {SMALL(STORE_NOT_COMMITTED), SAYS("its thread ends without tensor_store_wait_read()")},
    {SMALL(STORE_OVERWRITTEN), SAYS("was overwritten before tensor_store_wait_read()")},
    {SMALL(LOAD_OVER_STORE), SAYS("overwrites what the tensor_store of")},
    {SMALL(NO_FENCE_BEFORE_STORE), SAYS("tensor_store reads byte 24576 of shared memory")},
    {SMALL(NO_WARPGROUP_FENCE), SAYS("no warpgroup_fence() in its group")},
    {SMALL(NO_COMMIT), SAYS("is still under way (in a later group, or without commit)")},
    {SMALL(WAITS_FOR_TOO_FEW), SAYS("is still under way (in a later group, or without commit)")},
    {SMALL(NO_WAIT), SAYS("overwrites what the wgmma of")},
    {SMALL(SUMS_READ_TOO_EARLY), SAYS("")},
    {SMALL(SUMS_CHANGED), SAYS("was changed while a product is under way to it")},
    {SMALL(A_CHANGED), SAYS("has changed its part of A before warpgroup_wait()")},
    {SMALL(NO_FENCE_BEFORE_PRODUCT), SAYS("which was stored without shared_fence() and barrier")},
    {SMALL(FENCE_AFTER_BARRIER), SAYS("which was stored without shared_fence() and barrier")},
    {SMALL(FENCE_OF_ONE_THREAD), NULL, NULL, NULL, "CUDA_ON_CPU_FENCES", "small"},
    {SMALL(FENCE_BEFORE_STORES), NULL, NULL, NULL, "CUDA_ON_CPU_FENCES", "small"},
    {SMALL(NO_BARRIER_BEFORE_PRODUCT), NULL, NULL, "data race", NULL, NULL},
    {SMALL(TWO_WARPS), SAYS("wait 64 of the 128 threads of a warpgroup")},
    {SMALL(OTHER_OPERANDS), SAYS("its operands are not those of the warpgroup's other threads")},
    {SMALL(STEP_TOO_FAR), SAYS("which is not a multiple of 1024")},
    {SMALL(OTHER_SUMS_OVERLAP), SAYS("a part of its d is a part of another product's d")},
    {SMALL(TILE_STORED_TOO_EARLY), "wgmma, before it is waited for, reads byte",
     "wgmma, before it is waited for, reads byte", "data race", NULL, "small"},
    {SMALL(TOO_MANY_REGISTERS), SAYS("want 528 registers, of 504")},
    {SMALL(ONE_WARP_KEEPS_ITS_REGISTERS), SAYS("wait 96 of the 128 threads of a warpgroup")},
    {"stride of 15 bytes", NULL, map_of<60, 0, 64, 64>, 0, HOST_SAYS("strides that are not multiples of 16 bytes")},
    {"rows of 56 of 64", NULL, map_of<56, 0, 64, 64>, 0, HOST_SAYS("rows that overlap")},
    {"base of 2 bytes", NULL, map_of<64, 1, 64, 63>, 0, HOST_SAYS("a base that is not a multiple of 16 bytes")},
    {"box of 257 rows", NULL, map_of<64, 0, 257, 64>, 0, HOST_SAYS("boxes of less than 1 or more than 256 rows")},
    {"rows past the end", NULL, map_of<64, 0, 64, 65>, 0, HOST_SAYS("a matrix that is not in device memory")},
};

int main(int argc, char** argv) { return bugs_main(argc, argv, __FILE__, bugs, (int)(sizeof bugs / sizeof *bugs)); }
