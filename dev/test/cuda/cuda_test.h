/*
cuda_test.h: what the tests of the CUDA kernels share. Such a test is one source, dev/test/cuda/cuda_*.cu, built for
the CPU by g++ (through dev/emulator/cuda_emulator.h, also with sanitizers) and for a GPU by nvcc. It fills arrays with
random numbers, runs a kernel on the device and the C reference of kernels/ (*.h, in the namespace reference) on the
host, on the same rounded inputs, and compares. In bf16 the reference computes in bf16, too, and rounds where a kernel
rounds.

Bounds. U is the unit roundoff of floatX. A result that is rounded to floatX once is off by U; what else happens,
happens in float32, and a sum of n terms adds at most about n 2^-24 of the sum of their sizes (Higham 2002, chapter 4).
Errors are relative norms, |got - want| / |want|, and, beside them, the largest error relative to the largest entry.
*/
#pragma once
#define LONG_WAITS_END // hopper.cuh

#include "../../../kernels/cuda_utils.cuh"
#include "../unit/test.h"

#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif
namespace reference {
#include "../../../kernels/floatx.h"
} // namespace reference

#if defined(PRECISION_FP32)
static const double U = 0x1p-24;
static const char* const floatX_name = "fp32";
#else
static const double U = 0x1p-8;
static const char* const floatX_name = "bf16";
#endif
static const double U32 = 0x1p-24;

typedef std::vector<float> Floats;

// n elements in device memory, all NaN at first. `shift`: elements by which they are moved off the 256-byte alignment.
template <class T>
struct Device {
    T* block;
    T* p;
    int64_t n;
    Device(int64_t n, int shift = 0) : n(n) {
        cuda_check(cudaMalloc(&block, (size_t)(n + shift) * sizeof(T)), "cudaMalloc");
        cuda_check(cudaMemset(block, 0xff, (size_t)(n + shift) * sizeof(T)), "cudaMemset");
        p = block + shift;
    }
    Device(const std::vector<T>& from, int shift = 0) : Device((int64_t)from.size(), shift) { set(from); }
    Device(const Device&) = delete;
    ~Device() { cuda_check(cudaFree(block), "cudaFree"); }
    void set(const std::vector<T>& from) {
        cuda_check(cudaMemcpy(p, from.data(), (size_t)n * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    std::vector<T> get() const {
        std::vector<T> to((size_t)n);
        cuda_check(cudaMemcpy(to.data(), p, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return to;
    }
};

// Uniform in (-size, size), other numbers for every seed, rounded to T: what the device and the reference both see.
static uint64_t test_seed = 1;
template <class T>
std::vector<T> random_of(int64_t n, float size) {
    std::vector<T> x((size_t)n);
    const uint64_t stream = ++test_seed;
    for (int64_t i = 0; i < n; i++) x[(size_t)i] = (T)(size * (2 * random_uniform(7, stream, (uint64_t)i) - 1));
    return x;
}

template <class T>
Floats floats_of(const std::vector<T>& x) {
    Floats y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = (float)x[i];
    return y;
}

// The numbers as the reference takes them, unchanged; and those that it returns.
typedef std::vector<reference::floatX> HostBuffer;
static inline HostBuffer on_host(const std::vector<floatX>& x) {
    HostBuffer y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = reference::to_floatX((float)x[i]);
    return y;
}
#ifdef PRECISION_BF16
static inline Floats floats_of(const HostBuffer& x) {
    Floats y(x.size());
    for (size_t i = 0; i < x.size(); i++) y[i] = reference::to_float(x[i]);
    return y;
}
#endif

// |got - want| / |want|, Euclidean; infinite if something is not a number.
static inline double norm_error(const Floats& got, const Floats& want) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = (double)got[i] - (double)want[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    if (got.size() != want.size() || !(difference < INFINITY)) return INFINITY;
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

// max |got - want| / max |want|
static inline double largest_error(const Floats& got, const Floats& want) {
    double worst = 0, size = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= worst)) worst = d == d ? d : INFINITY;
        size = fmax(size, fabs((double)want[i]));
    }
    if (got.size() != want.size()) return INFINITY;
    return size > 0 ? worst / size : worst;
}

// Two checks: the relative norm of the error, and the largest error, each beside its bound.
static inline void check_close(const char* what, const Floats& got, const Floats& want, double norm_bound,
                               double largest_bound) {
    const double norm = norm_error(got, want), largest = largest_error(got, want);
    check(norm <= norm_bound && largest <= largest_bound, "%-5s %-58s norm %.1e  bound %.1e  largest %.1e  bound %.1e",
          floatX_name, what, norm, norm_bound, largest, largest_bound);
}
