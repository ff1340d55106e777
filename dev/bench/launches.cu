/*
launches.cu: how every kernel is launched in a training step, without launching it: the functions of kernels are called
on the emulator, with arrays that no check reads, and launch() writes down what it was asked for. So blocks, threads
and dynamic shared memory in the tables of assembly.py are those of the launch code itself, for an H200 and two models:

    GPT-2 124M       64 sequences of 1024 tokens, 12 heads of 64
    Llama 1.1B       16 sequences of 2048 tokens, 32 query and 4 key/value heads of 64, and 16 and 2 heads of 128

A line is: where the kernel is in this program, counted from main; blocks; threads of a block; its bytes of dynamic
shared memory. nm(1) knows which kernel that is.
*/
#define launch launch_on_emulator
#include "../../kernels/cuda_utils.cuh"
#undef launch

int main(void);

template <class... P, class... A>
void launch(const Launch& l, void (*kernel)(P...), A&&...) {
    printf("%lld %lld %u %zu\n", (long long)((intptr_t)kernel - (intptr_t)main),
           (long long)l.grid.x * l.grid.y * l.grid.z, l.block.x * l.block.y * l.block.z, l.shared);
}

#include "../../kernels/kernels.h"

// Aligned to 16 bytes, and never read.
template <class T>
static T* array(void) {
    return (T*)(uintptr_t)4096;
}

static void step(int B, int T, int C, int NH, int NKV, int HS, int F, int V, int64_t parameters) {
    floatX* x = array<floatX>();
    float* f = array<float>();
    double* sum = array<double>();
    const int32_t* tokens = array<int32_t>();
    const TensorRange whole = whole_range(parameters);
    const OptimizerStep first = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1};
    const int N = B * T, stride = (int)round_up((size_t)V, 128);
    embedding_forward(x, tokens, x, N, C, 0, V);
    position_forward(x, x, 0, N, T, C);
    layernorm_forward(x, f, f, x, x, x, N, C, 1e-5f);
    residual_layernorm_forward(x, x, f, f, x, x, x, x, x, N, C, 1e-5f);
    rmsnorm_forward(x, f, x, x, N, C, 1e-5f);
    residual_rmsnorm_forward(x, x, f, x, x, x, x, N, C, 1e-5f);
    rope_forward(x, f, B, T, NH + NKV, HS, (NH + 2 * NKV) * HS);
    attention_forward(x, f, x, B, T, NH, NKV, HS);
    attention_backward(x, x, x, x, f, B, T, NH, NKV, HS);
    attention_decode(x, x, x, T - 1, NH, NKV, HS);
    attention_fill_cache(x, x, T, NH, NKV, HS);
    residual_forward(x, x, x, x, N, C);
    gelu_forward(x, x, (int64_t)N * F);
    gelu_backward(x, x, x, (int64_t)N * F);
    swiglu_forward(x, x, N, F);
    swiglu_backward(x, x, x, N, F);
    crossentropy_fused(f, x, tokens, 1.0f, N, V, stride);
    crossentropy_max(f, x, N, V, stride);
    crossentropy_sum(f, f, x, f, tokens, N, V, stride, 0);
    crossentropy_loss(f, f, f, N);
    crossentropy_backward(x, f, f, tokens, 1.0f, N, V, stride, 0);
    losses_add(sum, f, N);
    linear_backward_bias(f, x, N, C);
    layernorm_backward(x, f, f, x, x, x, f, f, N, C);
    rmsnorm_backward(x, f, x, x, x, f, N, C);
    embedding_backward(f, x, tokens, N, C, 0, V);
    position_backward(f, x, 0, N, T, C);
    accumulate(f, f, parameters);
    accumulate_max(f, f, N);
    sum_of_squares(sum, f, &whole, 1);
    adamw_update(x, f, f, f, f, &whole, 1, &first);
    adamw_round(x, f, parameters, 1, 0, 0);
    sgd_update(x, f, f, f, NULL, &whole, 1, &first);
    caat_pack(x, x, 1, N, C, C / 2);
    caat_pack(f, x, 1, N, C, C / 2);
    caat_unpack(x, x, x, 1.0f, 1, N, C, C / 2);
    caat_unpack(x, f, x, 1.0f, 1, N, C, C / 2);
    checksum_add(array<uint64_t>(), x, 2 * parameters, 0);
    difference(f, f, f, parameters);
    add_scaled(f, f, 1.0f, parameters);
    delay_squares(sum, f, f, f, parameters);
    delay_compensate(f, f, f, 1.0f, parameters);
    outer_update(f, f, f, 1.0f, 1.0f, 0.9f, parameters);
}

int main(void) {
    cudaDeviceProp* gpu = const_cast<cudaDeviceProp*>(gpu_properties());
    gpu->multiProcessorCount = 132;
    gpu->sharedMemPerBlockOptin = 227 << 10;
    step(16, 2048, 2048, 16, 2, 128, 5632, 32000, 1100048384);
    step(16, 2048, 2048, 32, 4, 64, 5632, 32000, 1100048384);
    step(64, 1024, 768, 12, 12, 64, 3072, 50257, 124439808);
    return 0;
}
