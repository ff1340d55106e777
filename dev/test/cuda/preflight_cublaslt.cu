/*
preflight_cublaslt.cu: does cuBLASLt work here? One product of 64 x 64 matrices in bf16, and the versions of the
libraries. dev/test/gpu_check.sh runs it first: a library that is missing or does not fit the driver shows within
seconds. cuda_matmul.cu tests every product of kernels/matmul.cuh.
*/
#include "cuda_test.h"

#include <cublasLt.h>
#ifdef USE_NCCL
#include <nccl.h>
#endif

static void succeeds(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) die("%s: %s", call, cublasLtGetStatusString(status));
}

static void print_versions() {
    int driver = 0, runtime = 0;
    cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    cuda_check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    printf("versions: driver's CUDA %d, CUDA %d, cuBLASLt %zu", driver, runtime, cublasLtGetVersion());
#ifdef USE_NCCL
    int nccl = 0;
    if (ncclGetVersion(&nccl) == ncclSuccess) printf(", NCCL %d", nccl);
#endif
    printf("\n");
}

int main() {
    process.name = "preflight_cublaslt";
    print_versions();
    enum { N = 64 };
    const std::vector<bf16> a = random_of<bf16>(N * N, 1), b = random_of<bf16>(N * N, 1);
    Device<bf16> on_device_a(a), on_device_b(b);
    Device<float> product(N * N);
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t operand, result;
    succeeds(cublasLtCreate(&handle), "cublasLtCreate");
    succeeds(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    succeeds(cublasLtMatrixLayoutCreate(&operand, CUDA_R_16BF, N, N, N), "cublasLtMatrixLayoutCreate");
    succeeds(cublasLtMatrixLayoutCreate(&result, CUDA_R_32F, N, N, N), "cublasLtMatrixLayoutCreate");
    const float one = 1, zero = 0; // without an algorithm: cuBLASLt chooses one
    succeeds(cublasLtMatmul(handle, operation, &one, on_device_a.p, operand, on_device_b.p, operand, &zero, product.p,
                            result, product.p, result, NULL, NULL, 0, 0),
             "cublasLtMatmul");
    Floats expected(N * N); // column by column
    for (int column = 0; column < N; column++) {
        for (int row = 0; row < N; row++) {
            for (int k = 0; k < N; k++) expected[column * N + row] += (float)a[k * N + row] * (float)b[column * N + k];
        }
    }
    check_close("a product by cuBLASLt", product.get(), expected, N * U32, N * U32);
    return test_end();
}
