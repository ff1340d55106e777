/*
cuda_hopper.cu: every function of kernels/hopper.cuh against plain loops. What is made of all of them,
attention_hopper.cuh, is tested in cuda_attention.cu.

The references know nothing of tiles: they take matrices by row and column, and a tile's bytes by the rule that TMA's
documentation has for 128-byte swizzling: bits 4-6 of an address by exclusive or with bits 7-9. Products are compared
with sums in float64. A float sum of n products, in whatever order, is off by at most about n 2^-24 of the sum of their
sizes; tensor cores align the terms of an instruction, and cut instead of rounding, for which 2^-22 is room.

Runs with bf16 in any build. On a GPU of another compute capability than 9.0 there is nothing to
run: it says so. --short: fewer sizes, for the sanitizers.
*/
#include "cuda_test.h"
#include "../../../kernels/hopper.cuh"

#include <string>
#include <sys/wait.h>

static bool is_short = false;
static unsigned seed = 1;
static int random_int(int low, int high) { // both inclusive
    return low + (int)(random_uniform(3, 5, seed++) * (float)(high - low + 1));
}

// ---- Tiles and descriptors --------------------------------------------------------------------------------------

// Where TMA puts an element of a tile: bits 4-6 of the address, exclusive or bits 7-9.
static size_t swizzled(int row, int column) {
    const unsigned plain = (unsigned)(row * 128 + column * 2), address = plain ^ ((plain >> 7 & 7) << 4);
    return address / 2;
}

static void test_places() {
    bool exchanged = true;
    for (int i = 0; i < 64 * 64; i++)
        exchanged = exchanged && tile_place(i / 64, i % 64) == (int)swizzled(i / 64, i % 64);
    check(exchanged, "tile_place: where TMA puts an element");
    // cute::GmmaDescriptor of CUTLASS has the same fields: 14 bits from 0, 16 and 32, the layout in 62 and 63.
    const uint64_t d = tile_descriptor(0x12340, 0x2000, 0x400);
    check((d & 0x3fff) == 0x1234 && (d >> 16 & 0x3fff) == 0x200 && (d >> 32 & 0x3fff) == 0x40 && d >> 62 == 1 &&
              (d & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62)) == 0,
          "tile_descriptor: fields where the hardware has them");
}

// ---- TMA --------------------------------------------------------------------------------------------------------

enum { GUARD = 64 }; // elements before and behind a matrix that no kernel may touch

struct Matrices { // batches, with strides; numbered bits, of which none is that of a NaN
    int columns, rows, batches;
    int64_t row_stride, batch_stride;
    std::vector<uint16_t> bits;
    Matrices(int columns, int rows, int batches)
        : columns(columns), rows(rows), batches(batches),
          row_stride((int64_t)round_up((size_t)columns, 8) + 8 * random_int(0, 2)),
          batch_stride((rows + random_int(0, 2)) * row_stride), bits((size_t)(batches * batch_stride)) {
        for (uint16_t& b : bits) b = (uint16_t)random_int(1, 0x7bff);
    }
    bool inside(int column, int row, int batch) const {
        return column >= 0 && column < columns && row >= 0 && row < rows && batch >= 0 && batch < batches;
    }
    size_t at(int column, int row, int batch) const {
        return (size_t)(batch * batch_stride + row * row_stride + column);
    }
};

// Loads a tile and copies its bytes out; or, the other way round, stores it.
template <bool is_store>
__global__ void tile_kernel(const __grid_constant__ TensorMap map, uint16_t* raw, int column, int row, int batch,
                            int count) {
    __shared__ Barrier loaded;
    uint16_t* tile = dynamic_shared<uint16_t>();
    if (threadIdx.x == 0) {
        loaded.init(1);
        barriers_fence();
    }
    __syncthreads();
    if (is_store) {
        for (int i = threadIdx.x; i < count; i += blockDim.x) tile[i] = raw[i];
        shared_fence();
        __syncthreads();
        if (threadIdx.x == 0) {
            tensor_store(map, tile, column, row, batch);
            tensor_store_commit();
            tensor_store_wait_read<0>();
        }
    } else {
        if (threadIdx.x == 0) {
            loaded.arrive_expect(count * 2);
            tensor_load(tile, map, column, row, batch, loaded);
        }
        loaded.wait(0);
        for (int i = threadIdx.x; i < count; i += blockDim.x) raw[i] = tile[i];
    }
}

static void test_tma(int rounds) {
    bool loads = true, stores = true;
    int outside = 0;
    for (int round = 0; round < rounds; round++) {
        Matrices m(random_int(1, 150), random_int(1, 90), random_int(1, 3));
        static const int boxes[] = {1, 8, 9, 64, 128, 256};
        const int box = round < 6 ? boxes[round] : random_int(1, 256), count = box * 64;
        const int column = 8 * random_int(-9, m.columns / 8), row = random_int(-box, m.rows + 2),
                  batch = random_int(-1, m.batches);
        Device<uint16_t> device(m.bits), raw(count);
        const auto map = [&] {
            return tensor_map((const bf16*)device.p, m.columns, m.rows, m.batches, m.row_stride, m.batch_stride, box);
        };
        const Launch shape = launch_shape(1, 64, (size_t)count * 2);
        launch(shape, tile_kernel<false>, map(), raw.p, column, row, batch, count);
        const std::vector<uint16_t> got = raw.get();
        for (int r = 0; r < box; r++)
            for (int c = 0; c < 64; c++) {
                const bool in = m.inside(column + c, row + r, batch);
                loads = loads && got[swizzled(r, c)] == (in ? m.bits[m.at(column + c, row + r, batch)] : 0);
                outside += !in;
            }
        m.columns = (int)round_up((size_t)m.columns, 8); // a store writes whole 16 bytes
        std::vector<uint16_t> tile((size_t)count), want = m.bits;
        const int to_column = 8 * random_int(0, (m.columns - 1) / 8), to_row = random_int(0, m.rows - 1),
                  to_batch = random_int(0, m.batches - 1);
        for (uint16_t& b : tile) b = (uint16_t)random_int(1, 0x7bff);
        for (int r = 0; r < box; r++)
            for (int c = 0; c < 64; c++)
                if (m.inside(to_column + c, to_row + r, to_batch))
                    want[m.at(to_column + c, to_row + r, to_batch)] = tile[swizzled(r, c)];
        raw.set(tile);
        launch(shape, tile_kernel<true>, map(), raw.p, to_column, to_row, to_batch, count);
        stores = stores && device.get() == want;
    }
    check(loads && outside > 0, "tensor_load: %d random tiles, %d elements outside of the matrix are 0", rounds,
          outside);
    check(stores, "tensor_store: %d random tiles, and nothing else is written", rounds);
}

// A ring of three tiles between a warp that loads and two that read, and send on what they read by TMA: more rounds
// than phases have parities, and more than a ring has places.
enum { RING = 3 };
__global__ void ring_kernel(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, int tiles) {
    __shared__ Barrier full[RING], empty[RING];
    uint16_t *tile = dynamic_shared<uint16_t>(), *out = tile + RING * 512;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) full[i].init(1), empty[i].init(64);
        barriers_fence();
    }
    __syncthreads();
    if (threadIdx.x >= 64) {
        if (threadIdx.x > 64) return;
        for (int t = 0; t < tiles; t++) {
            const int place = t % RING, parity = t / RING % 2;
            empty[place].wait(parity ^ 1);
            full[place].arrive_expect(1024);
            tensor_load(tile + place * 512, from, 0, 8 * t, 0, full[place]);
        }
        return;
    }
    for (int t = 0; t < tiles; t++) {
        const int place = t % RING, parity = t / RING % 2;
        full[place].wait(parity);
        if (threadIdx.x == 0) tensor_store_wait_read<1>();
        barrier_sync(1, 64);
        for (int i = threadIdx.x; i < 512; i += 64)
            out[t % 2 * 512 + (i ^ 1)] = (uint16_t)(tile[place * 512 + i] + t); // neighbours change places
        empty[place].arrive();
        shared_fence();
        barrier_sync(1, 64);
        if (threadIdx.x == 0) {
            tensor_store(to, out + t % 2 * 512, 0, 8 * t, 0);
            tensor_store_commit();
        }
    }
    if (threadIdx.x == 0) tensor_store_wait_read<0>();
}

static void test_ring(int tiles) {
    std::vector<uint16_t> x((size_t)tiles * 512);
    for (uint16_t& b : x) b = (uint16_t)random_int(1, 0x7000);
    Device<uint16_t> from(x), to(tiles * 512);
    launch(launch_shape(1, 96, (RING + 2) * 1024), ring_kernel,
           tensor_map((const bf16*)from.p, 64, tiles * 8, 1, 64, tiles * 512, 8),
           tensor_map((const bf16*)to.p, 64, tiles * 8, 1, 64, tiles * 512, 8), tiles);
    const std::vector<uint16_t> got = to.get();
    bool all = true;
    for (size_t i = 0; i < x.size(); i++) all = all && got[i ^ 1] == (uint16_t)(x[i] + i / 512);
    check(all, "Barrier: %d tiles through a ring of %d, %d phases of each", tiles, RING, tiles / RING);
}

// ---- Named barriers, and stores of fragments --------------------------------------------------------------------

// Warp 0 gives numbers to warp 1, which gives back their doubles, in turn; the third warp has nothing to do with it.
// Warp 0 arrives at two barriers, at which warp 1 waits in the other order.
__global__ void hand_over(int* out, int rounds) {
    __shared__ int given[32], back[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp == 2) return;
    for (int i = 0; i < rounds; i++)
        if (warp == 0) {
            given[lane] = 100 * i + lane;
            barrier_arrive(3, 64);
            barrier_arrive(4, 64);
            barrier_sync(15, 64);
            out[i * 32 + lane] = back[31 - lane];
        } else {
            barrier_sync(4, 64);
            barrier_sync(3, 64);
            back[lane] = 2 * given[(lane + 5) % 32];
            barrier_arrive(15, 64);
        }
}

static void test_named_barriers() {
    Device<int> out(20 * 32);
    launch(launch_shape(1, 96), hand_over, out.p, 20);
    const std::vector<int> got = out.get();
    bool all = true;
    for (int i = 0; i < 20; i++)
        for (int lane = 0; lane < 32; lane++)
            all = all && got[(size_t)(i * 32 + lane)] == 2 * (100 * i + (31 - lane + 5) % 32);
    check(all, "barrier_sync, barrier_arrive: 20 times there and back");
}

__global__ void store_matrix_kernel(uint16_t* out) {
    __shared__ __align__(16) uint16_t s[4 * 8 * 8];
    const int lane = threadIdx.x;
    unsigned r[4];
    for (int tile = 0; tile < 4; tile++) {
        const unsigned first = (unsigned)(tile * 1000 + lane * 2 + 1);
        r[tile] = first | (first + 1) << 16;
    }
    store_matrix_x4(s + (31 - lane) * 8, r); // rows in another order
    __syncwarp();
    for (int i = lane; i < 256; i += 32) out[i] = s[i];
}

static void test_store_matrix() {
    Device<uint16_t> out(256);
    launch(launch_shape(1, 32), store_matrix_kernel, out.p);
    const std::vector<uint16_t> got = out.get();
    bool all = true;
    for (int i = 0; i < 256; i++) {
        const int tile = i / 64, y = i / 8 % 8, x = i % 8;
        all = all && got[(size_t)((31 - tile * 8 - y) * 8 + x)] == tile * 1000 + 1 + 8 * y + x;
    }
    check(all, "store_matrix_x4");
}

// ---- Products ---------------------------------------------------------------------------------------------------

enum Source { ROWS_IN_TILES, COLUMNS_IN_TILES, IN_REGISTERS }; // of A: K-major, MN-major, in registers

// Two floats as 16-bit numbers in one register, the first one in its lower half.
__device__ static unsigned pack_pair(float low, float high) {
    const bf16 pair[2] = {(bf16)low, (bf16)high};
    unsigned bits;
    memcpy(&bits, pair, sizeof bits);
    return bits;
}

// The place of a thread's d[i] in rows of n: the figure of wgmma's D fragment in the PTX ISA.
__device__ static int place_of(int thread, int i, int n) {
    const int lane = thread % 32, row = 16 * (thread / 32) + lane / 4 + (i & 2 ? 8 : 0);
    return row * n + 8 * (i / 4) + 2 * (lane & 3) + (i & 1);
}

// D = C + A B of 64 x 128 by 128 x n. A and B are there as a tile needs them, and in tiles that ordinary stores write.
// K-major: two tiles, 64 k each. MN-major: n / 64 tiles of 128 rows, one behind the other.
template <int half_n, Source source, Major b_major>
__global__ void __launch_bounds__(128, 1)
    wgmma_kernel(const bf16* a, const bf16* b, const float* c, float* out, bool accumulate) {
    constexpr int n = 2 * half_n, K = 128;
    bf16 *a_tiles = dynamic_shared<bf16>(), *b_tiles = a_tiles + 64 * K;
    for (int i = threadIdx.x; i < 64 * K; i += 128) {
        const int row = i / K, k = i % K; // a is 64 x K
        a_tiles[source == COLUMNS_IN_TILES ? tile_place(k, row) : k / 64 * 64 * 64 + tile_place(row, k % 64)] = a[i];
    }
    for (int i = threadIdx.x; i < K * n; i += 128) {
        const int k = i / n, column = i % n; // b is K x n
        b_tiles[b_major == MN_MAJOR ? column / 64 * K * 64 + tile_place(k, column % 64)
                                    : k / 64 * n * 64 + tile_place(column, k % 64)] = b[i];
    }
    shared_fence();
    __syncthreads();
    float d[half_n];
    for (int i = 0; i < half_n; i++) d[i] = c[place_of(threadIdx.x, i, n)];
    unsigned fragment[K / 16][4];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int k = 0; k < K / 16; k++)
        for (int i = 0; i < 4; i++) {
            const bf16* at = a + (16 * warp + lane / 4 + i % 2 * 8) * K + 16 * k + i / 2 * 8 + lane % 4 * 2;
            fragment[k][i] = pack_pair((float)at[0], (float)at[1]);
        }
    warpgroup_fence(d, fragment);
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        const Tile<b_major> right = [&] {
            if constexpr (b_major == MN_MAJOR)
                return tile_mn_major(b_tiles, K).step(k);
            else
                return tile_k_major(b_tiles + k / 4 * n * 64).step(k % 4);
        }();
        const bool add = accumulate || k > 0;
        if constexpr (source == IN_REGISTERS)
            wgmma<bf16>(d, fragment[k], right, add);
        else if constexpr (source == COLUMNS_IN_TILES)
            wgmma<bf16>(d, tile_mn_major(a_tiles, K).step(k), right, add);
        else
            wgmma<bf16>(d, tile_k_major(a_tiles + k / 4 * 64 * 64).step(k % 4), right, add);
    }
    warpgroup_commit();
    warpgroup_wait<0>(d, fragment);
    for (int i = 0; i < half_n; i++) out[place_of(threadIdx.x, i, n)] = d[i];
}

// The largest |got - want| in units of n 2^-22 of the sum of the terms' sizes.
template <int half_n, Source source, Major b_major>
static void test_wgmma() {
    constexpr int n = 2 * half_n, K = 128;
    const std::vector<bf16> a = random_of<bf16>(64 * K, 1), b = random_of<bf16>(K * n, 1);
    const std::vector<float> c = random_of<float>(64 * n, 3);
    Device<bf16> device_a(a), device_b(b);
    Device<float> device_c(c), out(64 * n);
    double worst = 0;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        cuda_check(cudaMemset(out.p, 0xff, 64 * n * sizeof(float)), "cudaMemset");
        launch(launch_shape(1, 128, (64 + n) * K * sizeof(bf16)), wgmma_kernel<half_n, source, b_major>,
               (const bf16*)device_a.p, (const bf16*)device_b.p, (const float*)device_c.p, out.p, accumulate != 0);
        const std::vector<float> got = out.get();
        for (int i = 0; i < 64 * n; i++) {
            double want = accumulate ? (double)c[(size_t)i] : 0, size = fabs(want);
            for (int k = 0; k < K; k++) {
                const double term =
                    (double)(float)a[(size_t)(i / n * K + k)] * (double)(float)b[(size_t)(k * n + i % n)];
                want += term;
                size += fabs(term);
            }
            const double ratio = fabs((double)got[(size_t)i] - want) / ((K + 1) * 0x1p-22 * size);
            if (!(ratio <= worst)) worst = ratio == ratio ? ratio : INFINITY;
        }
    }
    static const char* const sources[] = {"A K-major", "A MN-major", "A in registers"};
    check(worst <= 1, "wgmma bf16 64 x %3d x 16, %-14s B %-8s  %.2f of the bound", n, sources[source],
          b_major == K_MAJOR ? "K-major," : "MN-major,", worst);
}

template <int half_n>
static void test_operands() {
    test_wgmma<half_n, ROWS_IN_TILES, K_MAJOR>();
    test_wgmma<half_n, IN_REGISTERS, K_MAJOR>();
    test_wgmma<half_n, COLUMNS_IN_TILES, K_MAJOR>();
    test_wgmma<half_n, ROWS_IN_TILES, MN_MAJOR>();
    test_wgmma<half_n, IN_REGISTERS, MN_MAJOR>();
    test_wgmma<half_n, COLUMNS_IN_TILES, MN_MAJOR>();
}

// A wait without end is ended, and the message has its line: by the clock on a GPU, where it takes 4 to 9 s, as a
// deadlock on the emulator. In another process, before this one uses the GPU.
__global__ static void endless_kernel() {
    Barrier& barrier = *dynamic_shared<Barrier>();
    if (threadIdx.x == 0) {
        barrier.init(1);
        barriers_fence();
    }
    __syncthreads();
    barrier.wait(0); // this line
}
enum { ENDLESS_LINE = __LINE__ - 2 };

static void test_endless_wait() {
    static char text[1 << 16];
    int status = 0;
    const Quiet quiet = quiet_begin(true);
    const pid_t child = fork();
    if (child == 0) {
#ifdef __CUDACC__
        if (!is_hopper()) _exit(0);
        watch_waits();
#endif
        launch(launch_shape(1, 32, sizeof(Barrier)), endless_kernel);
        cuda_check(cudaDeviceSynchronize(), "a kernel that waits for ever");
        _exit(0);
    }
    waitpid(child, &status, 0);
    quiet_end(&quiet, text, sizeof text);
    if (status == 0) return; // this GPU has no barriers
    check(strstr(text, std::to_string(ENDLESS_LINE).c_str()), "a wait without end: its line is named: %.300s", text);
}

int main(int argc, char** argv) {
    is_short = argc > 1 && strcmp(argv[1], "--short") == 0;
    if (!is_short) test_endless_wait();
    test_places();
    if (!is_hopper()) {
        printf("left out: this GPU has no wgmma and no TMA\n");
        return test_end();
    }
    test_tma(is_short ? 8 : 60);
    test_ring(is_short ? 10 : 64);
    test_named_barriers();
    test_store_matrix();
    test_operands<32>();
    test_operands<64>();
    return test_end();
}
