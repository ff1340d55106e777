/*
cuda_bugs.cu: kernels with one bug each. Does dev/emulator/cuda_emulator.h see them, and nothing where there is none?

Every kernel here has an argument `right`: with it, it is correct; without it, it has the bug that it is named after.
How each is run and judged: cuda_bugs.h. The table at the end says what each build has to say.

For emulated GPUs only: on a real one, most of these would go unnoticed, and the others end all work on the GPU.
*/
#include "cuda_bugs.h"

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

// ---- Threads that do not meet -----------------------------------------------------------------------------------

__global__ static void divergent_barrier(float* out, const float* in, int, bool right) {
    __shared__ float s[THREADS];
    s[threadIdx.x] = in[INDEX];
    if (right || threadIdx.x < 32) {
        __syncthreads(); // <-- here
    } else {
        __syncthreads(); // <-- here
    }
    out[INDEX] = s[THREADS - 1 - threadIdx.x];
}

__global__ static void deadlock(float* out, const float* in, int, bool right) {
    const bool early = !right && threadIdx.x % 2 == 0 && threadIdx.x < 32;
    if (early) __syncwarp(); // <-- here
    __syncthreads();         // <-- here
    if (!early) __syncwarp();
    out[INDEX] = in[INDEX];
}

__global__ static void different_collectives(float* out, const float* in, int, bool right) {
    float v = in[INDEX];
    if (right || threadIdx.x % 32 < 16)
        v += __shfl_xor_sync(~0u, v, 1); // <-- here
    else
        v += __shfl_sync(~0u, v, 0); // <-- here
    out[INDEX] = v;
}

__global__ static void caller_not_in_mask(float* out, const float* in, int, bool right) {
    float v = in[INDEX];
    if (threadIdx.x % 2 == 1) v += __shfl_xor_sync(right ? 0xaaaaaaaau : 0x55555555u, v, 2); // <-- here
    out[INDEX] = v;
}

__global__ static void different_masks(float* out, const float* in, int, bool right) {
    float v = in[INDEX];
    v += __shfl_xor_sync(right || threadIdx.x % 32 < 16 ? ~0u : 0xffff0001u, v, 1); // <-- here
    out[INDEX] = v;
}

__global__ static void lane_has_left(float* out, const float* in, int, bool right) {
    if (!right && threadIdx.x % 32 >= 30) return;
    out[INDEX] = in[INDEX] + __shfl_xor_sync(~0u, in[INDEX], 16); // <-- here
}

__global__ static void lane_takes_no_part(float* out, const float* in, int, bool right) {
    float v = in[INDEX];
    if (threadIdx.x % 32 < 16) v += __shfl_sync(0x0000ffffu, v, (int)threadIdx.x % 32 + !right); // <-- here
    out[INDEX] = v;
}

__global__ static void part_of_a_warp_multiplies(float* out, const float*, int, bool right) {
    float d[4] = {};
    const unsigned a[4] = {}, b[2] = {};
    if (right || threadIdx.x < 40) mma_m16n8k16(d, a, b); // <-- here
    out[INDEX] = d[0];
}

// ---- Races ------------------------------------------------------------------------------------------------------

// Right by chance as long as threads run in their order.
__global__ static void missing_barrier(float* out, const float* in, int, bool right) {
    __shared__ float s[THREADS];
    s[threadIdx.x] = in[INDEX]; // <-- here
    if (right) __syncthreads();
    out[INDEX] = s[threadIdx.x / 2]; // <-- here
}

// A warp that is fast begins the next round while others still read.
__global__ static void missing_second_barrier(float* out, const float* in, int, bool right) {
    __shared__ float s[2];
    float sum = 0;
    for (int i = 0; i < 3; i++) {
        if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = in[INDEX + i]; // <-- here
        __syncthreads();
        sum += s[1 - threadIdx.x / 32]; // <-- here
        if (right) __syncthreads();
    }
    out[INDEX] = sum;
}

// Two buffers in turn need one barrier a round; one that is used every second round needs the other.
__global__ static void two_buffers_one_too_few(float* out, const float* in, int, bool right) {
    __shared__ float s[2][THREADS];
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        float* now = s[right ? i % 2 : 0];
        now[threadIdx.x] = in[INDEX] + (float)i; // <-- here
        __syncthreads();
        sum += now[(threadIdx.x + 32) % THREADS]; // <-- here
    }
    out[INDEX] = sum;
}

// A number goes to thread threadIdx ^ other. In between threads meet: in a way that suffices, or not.
enum Meeting { NOTHING, SHUFFLE, HALF_WARPS, WARPS, BLOCK };
__device__ static void meet(Meeting how) {
    if (how == SHUFFLE) __shfl_sync(~0u, 1, 0); // which is no fence
    if (how == HALF_WARPS) __syncwarp(threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u);
    if (how == WARPS) __syncwarp();
    if (how == BLOCK) __syncthreads();
}
template <Meeting wrong, Meeting enough, int other>
__global__ static void exchange(float* out, const float* in, int, bool right) {
    __shared__ float s[THREADS];
    s[threadIdx.x] = in[INDEX]; // <-- here
    meet(right ? enough : wrong);
    out[INDEX] = s[threadIdx.x ^ other]; // <-- here
}

__global__ static void race_between_blocks(float* out, const float* in, int, bool right) {
    out[INDEX] = in[INDEX];
    if (threadIdx.x == 0 && right) atomicAdd(&out[N], 1.0f);
    if (threadIdx.x == 0 && !right) out[N] += 1; // <-- here
}

// Blocks above each other in a grid of 2 x 2.
__global__ static void race_of_rows(float* out, const float* in, int, bool right) {
    const int x = blockIdx.x * THREADS + threadIdx.x, y = blockIdx.y;
    out[right ? y * 2 * THREADS + x : x] = in[y * 2 * THREADS + x]; // <-- here
}

// Right by chance as long as blocks run in their order.
__global__ static void needs_blocks_in_order(float* out, const float* in, int, bool right) {
    float sum = 0;
    for (unsigned b = 0; b < blockIdx.x; b++) sum += in[b * THREADS + threadIdx.x];
    if (!right && blockIdx.x > 0) sum = out[INDEX - THREADS]; // <-- here
    out[INDEX] = sum + in[INDEX];                             // <-- here
}

// The last block adds up what all have left. The fence comes between a block's sum and its count.
__global__ static void missing_fence(float* out, const float* in, int, bool right) {
    unsigned* count = (unsigned*)&out[N];
    __shared__ bool last;
    if (threadIdx.x == 0) {
        out[N + 1 + blockIdx.x] = in[INDEX]; // <-- here
        if (right) __threadfence();
        last = atomicAdd(count, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    float sum = 0;
    if (last)
        for (unsigned b = 0; b < gridDim.x; b++) sum += out[N + 1 + b]; // <-- here
    if (last) out[threadIdx.x] = sum;
}

// A thread has waited for its own copies; those of others need a barrier.
__global__ static void copies_of_other_threads(float* out, const float* in, int, bool right) {
    float* s = dynamic_shared<float>();
    copy_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x); // <-- here
    copy_async_commit();
    copy_async_wait<0>();
    if (right) __syncthreads();
    out[INDEX] = s[N - 1 - INDEX]; // <-- here
}

__global__ static void copy_into_a_buffer_in_use(float* out, const float* in, int, bool right) {
    float* s = dynamic_shared<float>();
    float sum = 0;
    for (int i = 0; i < 2; i++) {
        copy_async16(s + 4 * threadIdx.x, in + 4 * (threadIdx.x ^ (unsigned)i)); // <-- here
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        sum += s[(4 * threadIdx.x + 128 + (unsigned)i) % N]; // <-- here
        if (right) __syncthreads();
    }
    out[INDEX] = sum;
}

// ---- Values that are not there yet ------------------------------------------------------------------------------

// Without a commit; without a wait (pending -1), or with one that leaves the copy's group pending.
template <bool commits, int pending>
__global__ static void copy_too_early(float* out, const float* in, int, bool right) {
    float* s = dynamic_shared<float>();
    copy_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x);
    if (right || commits) copy_async_commit();
    if (right || pending == 0) copy_async_wait<0>();
    if (!right && pending == 1) copy_async_wait<1>();
    __syncthreads();
    out[INDEX] = s[4 * threadIdx.x + 1];
}

__global__ static void uninitialized_global(float* out, const float* in, int, bool right) {
    if (right || threadIdx.x > 0) out[INDEX] = in[INDEX];
}

__global__ static void uninitialized_dynamic_shared(float* out, const float* in, int, bool right) {
    float* s = dynamic_shared<float>();
    if (right || threadIdx.x > 0) s[threadIdx.x] = in[INDEX];
    __syncthreads();
    out[INDEX] = s[threadIdx.x ^ 32];
}

// What was there before would be right: the kernel before it, or the block before it on the same core, has left it.
__global__ static void uninitialized_static_shared(float* out, const float* in, int, bool right) {
    __shared__ float s[THREADS];
    if (right || threadIdx.x > 0) s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[INDEX] = s[threadIdx.x ^ 32];
}

// ---- Memory that is not the kernel's ----------------------------------------------------------------------------

__global__ static void reads_past_the_end(float* out, const float* in, int n, bool right) {
    out[INDEX] = in[right ? INDEX : INDEX + n]; // <-- here
}

__global__ static void writes_past_the_end(float* out, const float* in, int, bool right) {
    out[INDEX] = in[INDEX];
    if (!right && INDEX == 0) out[N + 5 + 2] = 1; // <-- here
}

__global__ static void writes_before_the_begin(float* out, const float* in, int, bool right) {
    out[INDEX] = in[INDEX];
    if (!right && INDEX == 0) out[-3] = 1; // <-- here
}

__global__ static void static_shared_out_of_bounds(float* out, const float* in, int, bool right) {
    __shared__ float s[THREADS / 8];
    float* volatile p = s;
    if (threadIdx.x % 8 == 0) p[threadIdx.x / (right ? 8 : 7)] = in[INDEX]; // <-- here
    __syncthreads();
    out[INDEX] = s[threadIdx.x / 8];
}

// The kernel is launched with four bytes too few.
__global__ static void dynamic_shared_out_of_bounds(float* out, const float* in, int, bool right) {
    float* s = dynamic_shared<float>();
    if (right && threadIdx.x == THREADS - 1) return;
    s[threadIdx.x] = in[INDEX]; // <-- here
    out[INDEX] = s[threadIdx.x];
}

template <int row, int column>
__global__ static void ldmatrix_from(float* out, const float*, int, bool right) {
    __shared__ __align__(16) bf16 s[32][8];
    for (int i = threadIdx.x; i < 32 * 8; i += THREADS) s[i / 8][i % 8] = (bf16)1.0f;
    __syncthreads();
    unsigned r[4];
    ldmatrix_x4(r, s[threadIdx.x % 32] + (right ? 0 : 8 * row + column)); // <-- here
    out[INDEX] = (float)(r[0] + r[1] + r[2] + r[3]);
}

template <int shift>
__global__ static void copy_from(float* out, const float* in, int, bool right) {
    float* s = dynamic_shared<float>();
    copy_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x + (right ? 0 : shift)); // <-- here
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    out[INDEX] = s[threadIdx.x];
}

__global__ static void misaligned_load(float* out, const float* in, int, bool right) {
    const Packed<float, 4> v = load<4>(in + 4 * (threadIdx.x / 2) + (right ? 0 : 1)); // <-- here
    out[INDEX] = v[0];
}

__global__ static void copy_the_wrong_way(float* out, const float* in, int, bool right) {
    float* s = dynamic_shared<float>();
    s[threadIdx.x] = in[INDEX];
    __syncthreads();
    out[INDEX] = s[threadIdx.x];
    if (!right && threadIdx.x == 0) copy_async16(out + 4 * blockIdx.x, s); // <-- here
}

__global__ static void null_pointer(float* out, const float* in, int, bool right) {
    const float* volatile p = right ? in : NULL;
    out[INDEX] = p[INDEX]; // <-- here
}

__device__ static __attribute__((noinline)) float recursion(const float* in, int depth) { // <-- here
    volatile float a[200];
    for (int i = 0; i < 200; i++) a[i] = in[i]; // <-- here
    return depth == 0 ? a[5] : recursion(in, depth - 1) + a[depth % 200];
}
__global__ static void stack_overflow(float* out, const float* in, int, bool right) {
    out[INDEX] = recursion(in, right ? 5 : 10000);
}

struct Indirect {
    const float* p;
};
__global__ static void copies_indirectly(float* out, Indirect in) {
    out[INDEX] = in.p[INDEX]; // <-- here
}

// ---- The host's bugs --------------------------------------------------------------------------------------------

__global__ static void plus_one(float* out, const float* in, int, bool) { out[INDEX] = in[INDEX] + 1; }
static void one_more(float* out, const float* in) { launch(launch_shape(BLOCKS, THREADS), plus_one, out, in, N, true); }

static void rows_of_blocks(float* out, const float* in, bool right) {
    launch(launch_shape(dim3(2, 2), THREADS), race_of_rows, out, in, N, right);
}

static void host_reads_device(float* out, const float* in, bool right) {
    one_more(out, in);
    float x = 0;
    if (right)
        cuda_check(cudaMemcpy(&x, out + 3, sizeof x, cudaMemcpyDeviceToHost), "cudaMemcpy");
    else
        x = *(volatile float*)(out + 3); // <-- here
    printf("%g\n", x);
}

static void kernel_gets_host_pointer(float* out, const float* in, bool right) {
    const std::vector<float> host(N, 1.0f);
    one_more(out, right ? in : host.data());
}

static void use_after_free(float* out, const float* in, bool right) {
    float* copy = device_floats(N);
    cuda_check(cudaMemcpy(copy, in, N * sizeof(float), cudaMemcpyDeviceToDevice), "cudaMemcpy");
    if (!right) cuda_check(cudaFree(copy), "cudaFree");
    launch(launch_shape(BLOCKS, THREADS), copies_indirectly, out, Indirect{copy});
    if (right) cuda_check(cudaFree(copy), "cudaFree");
}

// A message to another rank and back is a copy on another stream, here: out = in, then two kernels and a message more.
static void overlapped(float* out, const float* in, bool wait_for_kernel, bool wait_for_message, bool wait_to_reuse) {
    cudaStream_t stream;
    cudaEvent_t computed, sent;
    float *a = device_floats(N), *b = device_floats(N);
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    cuda_check(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming), "cudaEventCreate");
    cuda_check(cudaEventCreateWithFlags(&sent, cudaEventDisableTiming), "cudaEventCreate");
    cuda_check(cudaMemset(b, 0, N * sizeof(float)), "cudaMemset");
    one_more(a, in);
    cuda_check(cudaEventRecord(computed, 0), "cudaEventRecord");
    if (wait_for_kernel) cuda_check(cudaStreamWaitEvent(stream, computed, 0), "cudaStreamWaitEvent");
    cuda_check(cudaMemcpyAsync(b, a, N * sizeof(float), cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
    cuda_check(cudaEventRecord(sent, stream), "cudaEventRecord");
    if (wait_to_reuse) cuda_check(cudaStreamWaitEvent(0, sent, 0), "cudaStreamWaitEvent");
    cuda_check(cudaMemsetAsync(a, 0, N * sizeof(float), 0), "cudaMemsetAsync");
    if (wait_for_message) cuda_check(cudaStreamWaitEvent(0, sent, 0), "cudaStreamWaitEvent");
    one_more(out, b);
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    cuda_check(cudaFree(a), "cudaFree");
    cuda_check(cudaFree(b), "cudaFree");
    cuda_check(cudaEventDestroy(computed), "cudaEventDestroy");
    cuda_check(cudaEventDestroy(sent), "cudaEventDestroy");
    cuda_check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}
static void message_not_waited_for(float* out, const float* in, bool right) { overlapped(out, in, true, right, right); }
static void kernel_not_waited_for(float* out, const float* in, bool right) { overlapped(out, in, right, true, true); }
static void buffer_used_again(float* out, const float* in, bool right) { overlapped(out, in, true, true, right); }

static void work_that_waits(float* out, const float* in, bool right) {
    cudaStream_t stream;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    cuda_on_cpu::stream_push(stream, [=] { return right || cudaStreamSynchronize(stream) == cudaSuccess; });
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    cuda_check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    one_more(out, in);
}

// ---- All of them, and what each build has to say ----------------------------------------------------------------

static const Bug bugs[] = {
    {KERNEL(divergent_barrier), 0, ALWAYS("__syncthreads, while others wait at __syncthreads")},
    {KERNEL(deadlock), 0, ALWAYS("deadlock")},
    {KERNEL(different_collectives), 0, ALWAYS("while others wait at")},
    {KERNEL(caller_not_in_mask), 0, ALWAYS("the calling lane is not in the mask")},
    {KERNEL(different_masks), 0, ALWAYS("__shfl_xor_sync for 0xffff0001, while others wait for 0xffffffff")},
    {KERNEL(lane_has_left), 0, ALWAYS("which takes no part")},
    {KERNEL(lane_takes_no_part), 0, ALWAYS("__shfl_sync: lane 15 reads lane 16, which takes no part")},
    {KERNEL(part_of_a_warp_multiplies), 0, ALWAYS("mma: lanes ffffff00 of the warp are missing")},
    {KERNEL(missing_barrier), 0, RACE},
    {KERNEL(missing_second_barrier), 0, RACE},
    {KERNEL(two_buffers_one_too_few), 0, RACE},
    {"missing_syncwarp", exchange<NOTHING, WARPS, 1>, NULL, 0, RACE_IN("exchange")},
    {"shuffle_is_no_fence", exchange<SHUFFLE, WARPS, 1>, NULL, 0, NULL, NULL, "data race", NULL, "exchange"},
    {"syncwarp_of_a_part", exchange<HALF_WARPS, WARPS, 16>, NULL, 0, RACE_IN("exchange")},
    {"barrier_of_a_warp", exchange<WARPS, BLOCK, 32>, NULL, 0, RACE_IN("exchange")},
    {KERNEL(race_between_blocks), 0, HIDDEN_RACE},
    {"race_of_rows", NULL, rows_of_blocks, 0, NULL, NULL, "data race", NULL, "race_of_rows"},
    {KERNEL(needs_blocks_in_order), 0, RACE},
    {KERNEL(missing_fence), 0, HIDDEN_RACE},
    {KERNEL(copies_of_other_threads), N * 4, RACE},
    {KERNEL(copy_into_a_buffer_in_use), N * 4, RACE},
    {"missing_wait", copy_too_early<true, -1>, NULL, N * 4, ALWAYS("")},
    {"waits_for_too_few", copy_too_early<true, 1>, NULL, N * 4, ALWAYS("")},
    {"missing_commit", copy_too_early<false, 0>, NULL, N * 4, ALWAYS("")},
    {KERNEL(uninitialized_global), 0, ALWAYS("")},
    {KERNEL(uninitialized_dynamic_shared), THREADS * 4, ALWAYS("")},
    {KERNEL(uninitialized_static_shared), 0, "", NULL, "", NULL, NULL},
    {KERNEL(reads_past_the_end), 0, "of a block of 1024 bytes", "heap-buffer-overflow", "SEGV", NULL, NULL},
    {KERNEL(writes_past_the_end), 0, "has written at byte 1052", "heap-buffer-overflow", "has written at byte 1052",
     NULL, NULL},
    {KERNEL(writes_before_the_begin), 0, "has written at byte -12", "heap-buffer-overflow", "has written at byte -12",
     NULL, NULL},
    {KERNEL(static_shared_out_of_bounds), 0, NULL, "global-buffer-overflow", NULL, NULL, NULL},
    {KERNEL(dynamic_shared_out_of_bounds), THREADS * 4 - 4, NULL, "heap-buffer-overflow", NULL, NULL, NULL},
    {"ldmatrix_out_of_bounds", ldmatrix_from<1, 0>, NULL, 0, NULL, "global-buffer-overflow", NULL, NULL,
     "ldmatrix_from"},
    {"copies_past_the_end", copy_from<4>, NULL, N * 4, "of a block of 1024 bytes", "heap-buffer-overflow", NULL, NULL,
     "copy_from"},
    {KERNEL(misaligned_load), 0, NULL, MISALIGNED, NULL, NULL, NULL},
    {"misaligned_ldmatrix", ldmatrix_from<0, 4>, NULL, 0, ALWAYS_IN("is not a multiple of 16", "ldmatrix_from")},
    {"misaligned_copy", copy_from<2>, NULL, N * 4, ALWAYS_IN("is not a multiple of 16", "copy_from")},
    {KERNEL(copy_the_wrong_way), THREADS * 4, ALWAYS("cp.async from shared memory")},
    {KERNEL(null_pointer), 0, "which is not device memory", "null pointer", "SEGV", NULL, NULL},
    {KERNEL(stack_overflow), 0, "stack overflow: a thread has 64 KB", "stack-overflow", NULL, NULL, "recursion"},
    {HOST(host_reads_device), 0, NULL, "use-after-poison", NULL, NULL, NULL},
    {HOST(kernel_gets_host_pointer), 0, ALWAYS("argument 2 of plus_one(float*, float const*, int, bool) is")},
    {HOST(use_after_free), 0, "1024 bytes of device memory, which was freed", "heap-use-after-free", "SEGV", NULL,
     "copies_indirectly"},
    {HOST(message_not_waited_for), 0, ALWAYS("")},
    {HOST(kernel_not_waited_for), 0, NULL, NULL, NULL, "CUDA_ON_CPU_DEFER", NULL},
    {HOST(buffer_used_again), 0, ALWAYS("")},
    {HOST(work_that_waits), 0, ALWAYS("work of a stream waits for a stream")},
};

int main(int argc, char** argv) { return bugs_main(argc, argv, __FILE__, bugs, (int)(sizeof bugs / sizeof *bugs)); }
