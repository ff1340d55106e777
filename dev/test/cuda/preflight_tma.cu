/*
preflight_tma.cu: does a Hopper GPU's copy engine (TMA) work here? One tile of 64 x 64 numbers is copied to shared
memory and back. dev/test/gpu_check.sh runs it first: a driver or a build that cannot do this shows within seconds.
cuda_hopper.cu tests every function.
*/
#include "cuda_test.h" // LONG_WAITS_END, before hopper.cuh

#include "../../../kernels/hopper.cuh"

__global__ static void copy_tile_kernel(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to) {
    __shared__ Barrier loaded;
    bf16* tile = dynamic_shared<bf16>();
    if (threadIdx.x > 0) return;
    loaded.init(1);
    barriers_fence();
    loaded.arrive_expect(64 * 64 * (int)sizeof(bf16));
    tensor_load(tile, from, 0, 0, 0, loaded);
    loaded.wait(0);
    tensor_store(to, tile, 0, 0, 0);
    tensor_store_commit();
    tensor_store_wait_read<0>();
}

int main() {
    process.name = "preflight_tma";
    if (!is_hopper()) {
        printf("left out: this GPU's compute capability is not 9.0\n");
        return 0;
    }
    const std::vector<bf16> numbers = random_of<bf16>(64 * 64, 1);
    Device<bf16> from(numbers), to(64 * 64);
    launch(launch_shape(1, 32, 64 * 64 * sizeof(bf16)), copy_tile_kernel,
           tensor_map(from.p, 64, 64, 1, 64, 64 * 64, 64), tensor_map(to.p, 64, 64, 1, 64, 64 * 64, 64));
    check(floats_of(to.get()) == floats_of(numbers), "TMA copies a tile of 64 x 64 numbers");
    return test_end();
}
