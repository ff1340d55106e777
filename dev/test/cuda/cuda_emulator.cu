/*
cuda_emulator.cu: does dev/emulator/cuda_emulator.h do what CUDA does? Each test computes by itself, in plain C, what a
feature of CUDA has to give. So the same tests hold on a GPU, where they test the wrappers of cuda_utils.cuh and
themselves; what only an emulator can show (streams that are as late as may be, launches that are refused) is left out
there.

Everything here is exact: integers, or floats that are small integers. The whole test then runs again in other orders of
threads and blocks, and with kernels that are as late as may be.
*/
#include "cuda_test.h"

#include <algorithm>
#include <string>

static bool is_short = false; // for sanitizers, which are slow
[[maybe_unused]] static bool is_again = false;

typedef std::vector<int> Ints;

// ---- Grids: every thread of every block runs once, and knows who it is ------------------------------------------

__global__ static void count_kernel(int* count, int* number) {
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned i = thread + blockDim.x * blockDim.y * blockDim.z * block;
    atomicAdd(&count[i], 1);
    number[i] = (int)(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y) +
                (int)(100000 * blockIdx.z);
}

static void test_grid(dim3 grid, dim3 block) {
    Ints want;
    for (unsigned b = 0; b < grid.x * grid.y * grid.z; b++)
        for (unsigned t = 0; t < block.x * block.y * block.z; t++) {
            const unsigned digits[6] = {t % block.x, t / block.x % block.y, t / block.x / block.y,
                                        b % grid.x,  b / grid.x % grid.y,   b / grid.x / grid.y};
            int n = 0;
            for (int i = 5; i >= 0; i--) n = 10 * n + (int)digits[i];
            want.push_back(n);
        }
    Device<int> count(Ints(want.size(), 0)), number((int64_t)want.size());
    launch(launch_shape(grid, block), count_kernel, count.p, number.p);
    check(count.get() == Ints(want.size(), 1) && number.get() == want,
          "grid %u %u %u, blocks %u %u %u: each thread once", grid.x, grid.y, grid.z, block.x, block.y, block.z);
}

struct Argument {
    double a;
    char b[3];
};
__global__ static void arguments_kernel(double* out, Argument x, bool yes, int64_t n, const float* null, float* end,
                                        float y, unsigned char c) {
    *out = x.a + x.b[2] + (yes ? 1 : 0) + (double)n + (null == NULL ? 1 : 0) + (end == NULL ? 0 : 1) + y + c;
}
static void test_arguments() {
    Device<double> out(1);
    Device<float> x(100);
    const Argument a = {0.5, {1, 2, 3}};
    launch(launch_shape(1, 1), arguments_kernel, out.p, a, true, (int64_t)1 << 40, (const float*)NULL, x.p + 100, 0.25f,
           (unsigned char)200);
    check(out.get()[0] == 0x1p40 + 206.75, "arguments: structs, NULL, the end of an array, by value");
}

// ---- Shuffles ---------------------------------------------------------------------------------------------------

// A column of `out` for each distance, of __shfl_sync and then of __shfl_xor_sync; a row for each lane.
__global__ static void shuffle_kernel(double* out) {
    const double v = 1.5 * threadIdx.x + 1e9;
    for (int by = 0; by < 32; by++) {
        out[32 * by + threadIdx.x] = __shfl_sync(~0u, v, by);
        out[32 * (32 + by) + threadIdx.x] = __shfl_xor_sync(~0u, v, by);
    }
}
static void test_shuffles() {
    Device<double> out(2 * 32 * 32);
    launch(launch_shape(1, 32), shuffle_kernel, out.p);
    std::vector<double> want;
    for (int i = 0; i < 2 * 32 * 32; i++) want.push_back(1.5 * (i < 1024 ? i / 32 : i / 32 % 32 ^ i % 32) + 1e9);
    check(out.get() == want, "__shfl_sync and __shfl_xor_sync, all distances");
}

// Parts of a warp shuffle on their own: the lower half often, the odd lanes of the upper half once; and a warp that is
// not full.
__global__ static void shuffle_parts_kernel(int* out) {
    const int lane = (int)threadIdx.x % 32;
    int v = (int)threadIdx.x;
    if (threadIdx.x >= 32) {
        v = __shfl_xor_sync(0x000000ffu, v, 5); // 8 threads: 5 ^ i is below 8
    } else if (lane < 16) {
        for (int i = 0; i < 100; i++) v = __shfl_sync(0x0000ffffu, v, (lane + 1) % 16); // in a circle
    } else if (lane % 2 == 1) {
        v = __shfl_xor_sync(0xaaaa0000u, v, 2);
    }
    out[threadIdx.x] = v;
}
template <class T>
__global__ static void shuffle_type_kernel(T* out) {
    const T v = (T)(float)threadIdx.x;
    out[threadIdx.x] = __shfl_xor_sync(~0u, v, 9);
}
template <class T>
static bool shuffles_type() {
    Device<T> out(32);
    launch(launch_shape(1, 32), shuffle_type_kernel<T>, out.p);
    const std::vector<T> got = out.get();
    for (int i = 0; i < 32; i++)
        if ((float)got[(size_t)i] != (float)(i ^ 9)) return false;
    return true;
}
static void test_shuffles_of_parts() {
    Ints want;
    for (int i = 0; i < 40; i++) want.push_back(i % 2 ? i ^ 2 : i);
    for (int i = 0; i < 16; i++) want[i] = (i + 100) % 16;
    for (int i = 32; i < 40; i++) want[i] = 32 + (i % 32 ^ 5);
    Device<int> out(40);
    launch(launch_shape(1, 40), shuffle_parts_kernel, out.p);
    check(out.get() == want, "shuffles: parts of a warp on their own, a warp of 8 threads");
    check(shuffles_type<float>() && shuffles_type<int>() && shuffles_type<unsigned>() && shuffles_type<double>() &&
              shuffles_type<long long>() && shuffles_type<bf16>(),
          "shuffles of float, int, unsigned, double, long long, bf16");
}

// ---- Barriers ---------------------------------------------------------------------------------------------------

// Numbers go round the block, or one warp: thread t hands its own to t + 1, `rounds` times. From thread `leave` on,
// threads return at once.
template <bool warp>
__global__ static void round_kernel(int* out, int rounds, int leave) {
    __shared__ int s[1024];
    const int thread = (int)threadIdx.x;
    if (thread >= leave) return;
    int v = thread;
    for (int i = 0; i < 2 * rounds; i++) {
        if (i % 2 == 0)
            s[(thread + 1) % leave] = v;
        else
            v = s[thread];
        if (warp)
            __syncwarp();
        else
            __syncthreads();
    }
    out[(int)blockIdx.x * leave + thread] = v;
}
static void test_barriers() {
    for (int threads : {1, 2, 31, 32, 33, 64, 100, 256, 1000, 1024}) {
        if (is_short && threads == 1000) continue;
        const int leave = threads > 50 ? threads - 37 : threads, rounds = 3, blocks = is_short ? 3 : 9;
        Ints want;
        for (int i = 0; i < blocks * leave; i++) want.push_back((i % leave + leave * rounds - rounds) % leave);
        Device<int> out((int64_t)want.size()), warps((int64_t)want.size());
        launch(launch_shape((unsigned)blocks, (unsigned)threads), round_kernel<false>, out.p, rounds, leave);
        if (threads <= 32) launch(launch_shape((unsigned)blocks, 32), round_kernel<true>, warps.p, rounds, leave);
        check(out.get() == want && (threads > 32 || warps.get() == want),
              "barriers: blocks of %d threads, of which %d return early", threads, threads - leave);
    }
}

// A thread returns while others wait for it: they go on.
__global__ static void leave_kernel(int* out) {
    const int t = (int)threadIdx.x;
    for (int i = 0; i < 8; i++) {
        if (t % 8 == i) return;
        __syncwarp();
        __syncthreads();
        atomicAdd(&out[i], 1);
    }
}
static void test_leaving() {
    Device<int> out(Ints(8, 0));
    launch(launch_shape(3, 64), leave_kernel, out.p);
    Ints want;
    for (int i = 0; i < 8; i++) want.push_back(3 * 8 * (7 - i));
    check(out.get() == want, "threads return one after the other while the rest meets");
}

// ---- Atomics ----------------------------------------------------------------------------------------------------

struct Atomics {
    int sum;
    unsigned tickets;
    unsigned long long wide;
    float floats;
};
__global__ static void atomics_kernel(Atomics* a, int* taken) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&a->sum, i);
    atomicAdd(&a->floats, 0.5f);
    atomicAdd(&a->wide, 1ull << 33);
    taken[atomicAdd(&a->tickets, 1u)] = i;
}
static void test_atomics() {
    const int blocks = is_short ? 3 : 12, threads = 96, n = blocks * threads;
    Device<Atomics> a(1);
    Device<int> taken(n);
    cuda_check(cudaMemset(a.p, 0, sizeof(Atomics)), "cudaMemset");
    launch(launch_shape((unsigned)blocks, (unsigned)threads), atomics_kernel, a.p, taken.p);
    const Atomics got = a.get()[0];
    check(got.sum == n * (n - 1) / 2 && got.floats == 0.5f * (float)n && got.wide == (unsigned long long)n << 33,
          "atomicAdd of ints, floats and 64 bits");
    Ints order = taken.get();
    std::sort(order.begin(), order.end());
    bool all = true;
    for (int i = 0; i < n; i++) all = all && order[(size_t)i] == i;
    check(all, "atomicAdd gives every value to one thread");
}

// ----------------------------------------------------------------------------------------------------------------
// Tensor cores. PTX ISA, "Matrix fragments for mma.m16n8k16": of A (16 x 16), lane l holds a0, a1 in row l / 4, a2, a3
// in row l / 4 + 8, columns 2 (l % 4) and one more; a4 to a7 the same 8 columns on. Of B (16 x 8), b0, b1 in rows 2 (l
// % 4) and one more, b2, b3 8 rows on, column l / 4. Of C and D (16 x 8), c0, c1 in row l / 4, c2, c3 8 rows on,
// columns as of A.

__global__ static void fragments_kernel(float* d, const bf16* a, const bf16* b, const float* c) {
    const int l = (int)threadIdx.x, row = l / 4, column = 2 * (l % 4);
    bf16 xa[8], xb[4];
    unsigned fa[4], fb[2];
    float fd[4];
    for (int i = 0; i < 8; i++) xa[i] = a[(row + i / 2 % 2 * 8) * 16 + column + i / 4 * 8 + i % 2];
    for (int i = 0; i < 4; i++) xb[i] = b[(column + i / 2 * 8 + i % 2) * 8 + row];
    for (int i = 0; i < 4; i++) fd[i] = c[(row + i / 2 * 8) * 8 + column + i % 2];
    memcpy(fa, xa, 16);
    memcpy(fb, xb, 8);
    mma_m16n8k16(fd, fa, fb);
    for (int i = 0; i < 4; i++) d[(row + i / 2 * 8) * 8 + column + i % 2] = fd[i];
}
static void test_mma() {
    std::vector<bf16> a, b;
    Floats c, want;
    for (int i = 0; i < 256; i++) a.push_back((bf16)(float)((i * 37 + i / 16 * 5) % 23 - 11));
    for (int i = 0; i < 128; i++) b.push_back((bf16)(float)((i * 29 + i / 8 * 3) % 19 - 9));
    for (int i = 0; i < 128; i++) c.push_back((float)(i * 1000 % 77));
    for (int i = 0; i < 128; i++) {
        float sum = c[(size_t)i];
        for (int k = 0; k < 16; k++) sum += (float)a[(size_t)(i / 8 * 16 + k)] * (float)b[(size_t)(k * 8 + i % 8)];
        want.push_back(sum);
    }
    Device<bf16> da(a), db(b);
    Device<float> dc(c), dd(128);
    launch(launch_shape(1, 32), fragments_kernel, dd.p, (const bf16*)da.p, (const bf16*)db.p, (const float*)dc.p);
    check(dd.get() == want, "mma.m16n8k16 of bf16: fragments, product");
}

// Lane l gets of each tile elements 2 (l % 4) and one more of row l / 4; with .trans, of column l / 4. Rows are 48
// bytes apart, and come in another order: ldmatrix gets addresses, not a matrix.
__global__ static void tiles_kernel(uint32_t* out) {
    __shared__ __align__(16) uint16_t s[32][24];
    const int l = (int)threadIdx.x;
    for (int i = 0; i < 8; i++) s[l ^ 8][i] = (uint16_t)(100 * l + i);
    __syncwarp();
    unsigned r[8];
    ldmatrix_x4((unsigned(&)[4])r[0], s[l ^ 8]);
    ldmatrix_x4_trans((unsigned(&)[4])r[4], s[l ^ 8]);
    for (int i = 0; i < 8; i++) out[8 * l + i] = r[i];
}
static void test_ldmatrix() {
    Device<uint32_t> out(256);
    launch(launch_shape(1, 32), tiles_kernel, out.p);
    std::vector<uint32_t> want;
    for (int l = 0; l < 32; l++) {
        const uint32_t row = (uint32_t)l / 4, column = 2 * ((uint32_t)l % 4);
        for (uint32_t i = 0; i < 8; i++) {
            const bool trans = i >= 4;
            const uint32_t at = 800 * (i % 4) + (trans ? 100 * column + row : 100 * row + column);
            want.push_back(at | (at + (trans ? 100 : 1)) << 16);
        }
    }
    check(out.get() == want, "ldmatrix.x4 and .trans: every element in its place");
}

// ---- cp.async: three stages, of which two are under way while one is read ---------------------------------------

__global__ static void pipeline_kernel(float* out, const float* in, int tiles) {
    float* s = dynamic_shared<float>(); // [3][4 * threads]
    const int t = (int)threadIdx.x, size = 4 * (int)blockDim.x;
    const float* mine = in + (int64_t)blockIdx.x * tiles * size;
    float sum = 0;
    for (int k = 0; k < 2; k++) {
        if (k < tiles) copy_async16(s + k * size + 4 * t, mine + k * size + 4 * t);
        copy_async_commit(); // an empty group, too, is one
    }
    for (int k = 0; k < tiles; k++) {
        if (k + 2 < tiles) copy_async16(s + (k + 2) % 3 * size + 4 * t, mine + (k + 2) * size + 4 * t);
        copy_async_commit();
        copy_async_wait<2>();
        __syncthreads();
        for (int i = 0; i < 4; i++) sum += (float)(k + 1) * s[k % 3 * size + (4 * t + 4 + i) % size];
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
static void test_copies() {
    for (int tiles = 1; tiles <= 7; tiles += 3) {
        const int threads = 64, blocks = 5, size = 4 * threads;
        Floats x((size_t)(blocks * tiles * size)), want;
        for (size_t i = 0; i < x.size(); i++) x[i] = (float)(i * 31 % 101);
        for (int b = 0; b < blocks; b++)
            for (int t = 0; t < threads; t++) {
                float sum = 0;
                for (int k = 0; k < tiles; k++)
                    for (int i = 0; i < 4; i++)
                        sum += (float)(k + 1) * x[(size_t)((b * tiles + k) * size + (4 * t + 4 + i) % size)];
                want.push_back(sum);
            }
        Device<float> in(x), out(blocks * threads);
        launch(launch_shape(blocks, threads, 3 * (size_t)size * sizeof(float)), pipeline_kernel, out.p,
               (const float*)in.p, tiles);
        check(out.get() == want, "cp.async: %d tiles through three stages", tiles);
    }
}

#ifndef __CUDACC__
// What no GPU guarantees: before the wait, all bytes are 0xff.
__global__ static void not_before_kernel(int* out, const int* in) {
    int* s = dynamic_shared<int>();
    copy_async16(s, in);
    copy_async_commit();
    copy_async16(s + 4, in + 4);
    copy_async_commit();
    copy_async16(s + 8, in + 8); // in no group
    out[0] = s[0] == -1 && s[4] == -1 && s[8] == -1;
    copy_async_wait<2>();
    out[1] = s[0] == -1;
    copy_async_wait<1>();
    out[2] = s[0] == in[0] && s[3] == in[3] && s[4] == -1;
    copy_async_wait<0>();
    out[3] = s[4] == in[4] && s[8] == -1;
    copy_async_commit();
    copy_async_wait<0>();
    out[4] = s[8] == in[8];
}
static void test_not_before() {
    Device<int> in(Ints(12, 7)), out(5);
    launch(launch_shape(1, 1, 48), not_before_kernel, out.p, (const int*)in.p);
    check(out.get() == Ints(5, 1), "cp.async: nothing comes before its group is waited for");
}
#endif

// ---- bf16, against its definition: the upper half of a float, 7 bits of mantissa --------------------------------

static double value_of_bits(unsigned bits) { return (double)float_of_bits(bits << 16); }
// The nearest number with 7 bits, of two the one with an even mantissa. nearbyint rounds ties to even.
static double nearest_value(double x) {
    if (x == 0 || x - x != 0) return x; // infinite, NaN
    const int unit = std::max(ilogb(x), -126) - 7;
    const double y = ldexp(nearbyint(ldexp(x, -unit)), unit);
    return fabs(y) > 0x1.fep127 ? copysign(INFINITY, x) : y;
}
template <class To, class From>
__global__ static void convert_kernel(To* out, const From* in, int64_t n) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (To)in[i];
}
static bool same(double a, double b) { return a == b ? signbit(a) == signbit(b) : a != a && b != b; }

static void test_bf16() {
    std::vector<bf16> all(65536);
    for (unsigned i = 0; i < 65536; i++) {
        const uint16_t bits = (uint16_t)i;
        memcpy((void*)&all[i], &bits, 2);
    }
    Device<bf16> bits(all);
    Device<float> values(65536);
    launch(launch_shape(256, 256), convert_kernel<float, bf16>, values.p, (const bf16*)bits.p, (int64_t)65536);
    const Floats device = values.get();
    int wrong = 0;
    for (unsigned i = 0; i < 65536; i++)
        wrong += !same(device[i], value_of_bits(i)) || !same((float)all[i], value_of_bits(i));
    check(wrong == 0, "bf16 to float: all 65536, on device and host: %d wrong", wrong);

    // All values, the middles between neighbours, one float up and down of each; and floats of any size.
    Floats x;
    for (unsigned i = 0; i < 65536; i += is_short ? 13 : 1) {
        const double v = value_of_bits(i), next = value_of_bits(i + 1);
        const float both[2] = {(float)v, (float)(v / 2 + next / 2)};
        for (float f : both)
            x.push_back(f), x.push_back(nextafterf(f, -INFINITY)), x.push_back(nextafterf(f, INFINITY));
    }
    for (int64_t i = 0; i < (is_short ? 10000 : 2000000); i++)
        x.push_back(float_of_bits(philox(16, 0, (uint64_t)i).word[0]));
    const int64_t n = (int64_t)x.size();
    Device<float> in(x);
    Device<bf16> out(n);
    launch(launch_shape((unsigned)blocks_for(n, 256), 256), convert_kernel<bf16, float>, out.p, (const float*)in.p, n);
    const std::vector<bf16> got = out.get();
    wrong = 0;
    for (size_t i = 0; i < x.size(); i++) {
        uint16_t b;
        memcpy(&b, &got[i], 2);
        wrong += !same(value_of_bits(b), nearest_value(x[i])) || !same((float)(bf16)x[i], nearest_value(x[i]));
    }
    check(wrong == 0, "float to bf16: %zu floats, to nearest even: %d wrong", x.size(), wrong);
}

// ---- Mathematics and memory accesses that have names ------------------------------------------------------------

__global__ static void names_kernel(float* out, const float* in) {
    out[0] = rsqrtf(in[0]) * 4;
    out[1] = __expf(in[1]) + __fdividef(in[0], in[0] / 2);
    out[2] = (float)max(-1, 3) + (float)min(4u, 5) + max(1.0f, 2.0f) + fmaxf(1, 2);
    out[3] = __uint_as_float(__float_as_uint(in[0]) + (1u << 23));
    const Packed<float, 4> p = load<4>(in + 4);
    Packed<float, 4> q;
    for (int i = 0; i < 4; i++) q[i] = p[3 - i];
    store(out + 4, q);
}
static void test_names() {
    Device<float> in(Floats{16, 0, 1, 0, 1, 2, 3, 4}), out(8);
    launch(launch_shape(1, 1), names_kernel, out.p, (const float*)in.p);
    check(out.get() == Floats({1, 3, 11, 32, 4, 3, 2, 1}), "rsqrtf, __expf, max, Packed...");
}

#include "emulator_host.h"

int main(int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--short") == 0) is_short = true;
        if (strcmp(argv[i], "--again") == 0) is_again = true;
    }
    test_grid(dim3(7), dim3(32));
    test_grid(dim3(1), dim3(1));
    test_grid(dim3(3, 4, 2), dim3(5, 3, 2));
    test_grid(dim3(9, 1, 9), dim3(9, 9, 9));
    test_grid(dim3(is_short ? 3 : 9, 9, 3), dim3(9, 5));
    test_arguments();
    test_shuffles();
    test_shuffles_of_parts();
    test_barriers();
    test_leaving();
    test_atomics();
    test_mma();
    test_ldmatrix();
    test_copies();
    test_bf16();
    test_names();
    test_memory();
    test_device();
    test_async_schedule();
    test_times();
#ifndef __CUDACC__
    test_not_before();
    test_launches();
    test_helpers();
    test_streams();
    test_late_copies();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which would find nothing more
    if (!is_again) {
        for (const char* setting : {"ORDER=1", "ORDER=2", "ORDER=3", "THREADS=1", "DEFER=1"})
            test_again(argv[0], setting);
    }
#endif
#endif
    return test_end();
}
