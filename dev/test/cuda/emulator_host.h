/*
emulator_host.h: the host's side of cuda_emulator.cu: memory, copies, streams and events of the emulator.
*/
#pragma once

#include "cuda_test.h"

static void test_memory() {
    float* p = NULL;
    Floats x(100, 3), y(100, 0);
    const size_t n = 100 * sizeof(float);
    cuda_check(cudaMalloc(&p, 2 * n), "cudaMalloc");
    check((uintptr_t)p % 256 == 0, "cudaMalloc: multiples of 256");
    bool ok = cudaMemcpy(p, x.data(), n, cudaMemcpyHostToDevice) == cudaSuccess;
    ok = ok && cudaMemcpy(p + 100, p, n, cudaMemcpyDeviceToDevice) == cudaSuccess;
    ok = ok && cudaMemset(p, 0, 4) == cudaSuccess;
    ok = ok && cudaMemcpy(y.data(), p + 99, n, cudaMemcpyDefault) == cudaSuccess && y == x;
    ok = ok && cudaMemcpy(y.data(), p, 8, cudaMemcpyDeviceToHost) == cudaSuccess && y[0] == 0 && y[1] == 3;
    ok = ok && cudaMemcpy(y.data(), x.data(), n, cudaMemcpyHostToHost) == cudaSuccess && y == x;
    check(ok, "cudaMemcpy in all directions, cudaMemset");
    check(cudaMemcpy(p, x.data(), n, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue &&
              cudaMemcpy(y.data(), p, n, cudaMemcpyHostToDevice) == cudaErrorInvalidValue,
          "cudaMemcpy in a wrong direction is refused");
    check(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess, "cudaGetLastError, once");
#ifndef __CUDACC__
    check(cudaMemcpy(p + 101, x.data(), n, cudaMemcpyHostToDevice) == cudaErrorInvalidValue &&
              cudaMemset(p + 1, 0, 2 * n) == cudaErrorInvalidValue &&
              cudaMemset(x.data(), 0, 4) == cudaErrorInvalidValue,
          "past the end of a block is refused");
    Device<int> fresh(3);
    float* unset;
    cuda_check(cudaMalloc(&unset, 5000), "cudaMalloc");
    float first = 0, last = 0;
    cuda_check(cudaMemcpy(&first, unset, 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    cuda_check(cudaMemcpy(&last, unset + 1249, 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
    cuda_check(cudaFree(unset), "cudaFree");
    check(first != first && last != last, "fresh memory is NaN");
#endif
    cudaPointerAttributes device, host;
    cuda_check(cudaPointerGetAttributes(&device, p + 5), "cudaPointerGetAttributes");
    cuda_check(cudaPointerGetAttributes(&host, x.data()), "cudaPointerGetAttributes");
    check(device.type == cudaMemoryTypeDevice && host.type == cudaMemoryTypeUnregistered, "cudaPointerGetAttributes");
    size_t available = 0, total = 0;
    void* too_much = &total;
    cuda_check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    check(available > 0 && available <= total, "cudaMemGetInfo: %.1f of %.1f GB", (double)available / 1e9,
          (double)total / 1e9);
    check(cudaMalloc(&too_much, 2 * total) == cudaErrorMemoryAllocation, "cudaMalloc of too much");
    check(cudaFree(p) == cudaSuccess && cudaFree(NULL) == cudaSuccess && cudaFree(p) != cudaSuccess, "cudaFree, once");
    cudaGetLastError();
    cuda_check(cudaMallocAsync(&p, n, 0), "cudaMallocAsync");
    cuda_check(cudaMemsetAsync(p, 1, n, 0), "cudaMemsetAsync");
    check(cudaFreeAsync(p, 0) == cudaSuccess && cudaStreamSynchronize(0) == cudaSuccess,
          "cudaMallocAsync, cudaFreeAsync");
}

static void test_device() {
    int count = 0, device = -1;
    cudaDeviceProp about;
    char bus[32];
    cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    cuda_check(cudaSetDevice(0), "cudaSetDevice");
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaGetDeviceProperties(&about, 0), "cudaGetDeviceProperties");
    cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, 0), "cudaDeviceGetPCIBusId");
    check(count >= 1 && device == 0 && cudaSetDevice(count) == cudaErrorInvalidDevice && about.major >= 8 &&
              about.multiProcessorCount >= 1 && about.totalGlobalMem > 0 && strlen(bus) >= 7,
          "%d device: %s, sm %d%d, %d multiprocessors, %.1f GB, at %s", count, about.name, about.major, about.minor,
          about.multiProcessorCount, (double)about.totalGlobalMem / 1e9, bus);
    cudaGetLastError();
}

__global__ static void plus_kernel(float* x, int n, float v) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] = x[i] + v;
}
static void plus(float* x, int n, float v) {
    launch(launch_shape((unsigned)blocks_for(n, 128), 128), plus_kernel, x, n, v);
}

#ifndef __CUDACC__
__global__ static void shared_kernel(int* out, int bytes) {
    char* s = dynamic_shared<char>();
    bool fresh = true;
    for (int i = 0; i < bytes; i++) {
        fresh = fresh && s[i] == -1;
        s[i] = 0;
    }
    if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.z == 0) *out = fresh && (uintptr_t)s % 1024 == 0;
}
static void test_launches() {
    int* p;
    cuda_check(cudaMalloc(&p, 4), "cudaMalloc");
    const auto accepts = [p](dim3 grid, dim3 block, size_t shared) {
        return cuda_on_cpu::launch(grid, block, shared, shared_kernel, p, (int)0);
    };
    check(!accepts(1, 0, 0) && !accepts(1, 1025, 0) && !accepts(1, dim3(32, 33), 0) && !accepts(1, dim3(1, 1, 65), 0),
          "blocks of 0 or more than 1024 threads are refused");
    check(!accepts(0, 1, 0) && !accepts(dim3(1, 65536), 1, 0) && !accepts(dim3(1, 1, 65536), 1, 0) &&
              !accepts(dim3(1u << 31), 1, 0),
          "grids of 0 or too many blocks are refused");
    check(accepts(1, 1, 32 << 10) && !accepts(1, 1, (32 << 10) + 1), "more than 32 KB of shared memory are asked for");
    const auto ask = [](int bytes) {
        return cudaFuncSetAttribute(shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    };
    check(ask(227 << 10) == cudaSuccess && accepts(1, 1, 227 << 10) && ask((227 << 10) + 1) == cudaErrorInvalidValue,
          "227 KB of shared memory are granted, and no more");
    cudaGetLastError();
    bool ok = true;
    for (int bytes : {1, 5000, 227 << 10, 0, 16}) {
        int fresh = 0;
        launch(launch_shape(1, 1, (size_t)bytes), shared_kernel, p, bytes);
        cuda_check(cudaMemcpy(&fresh, p, 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
        ok = ok && fresh == 1;
    }
    check(ok, "dynamic shared memory, up to 227 KB: NaN at first, aligned");
    check(accepts(1, dim3(1024), 0) && accepts(1, dim3(4, 4, 64), 0) && accepts(dim3(1, 1, 3), 1, 0), "others are not");
    cuda_check(cudaFree(p), "cudaFree");
}

// A grid that takes long, so that other cores help; many, so that they sleep and wake.
__global__ static void slow_kernel(int* out, int rounds) {
    int v = (int)threadIdx.x;
    for (int i = 0; i < rounds; i++) v = __shfl_xor_sync(~0u, v, 1) + 1;
    atomicAdd(&out[blockIdx.x], v);
}
static void test_helpers() {
    const int blocks = 50, rounds = is_short ? 20 : 200;
    Device<int> out(Ints(blocks, 0));
    for (int i = 0; i < 20; i++) launch(launch_shape(blocks, 32), slow_kernel, out.p, rounds);
    check(out.get() == Ints(blocks, 20 * (496 + 32 * rounds)), "long grids, in which other cores help");
}
#endif

// ---- Streams and events -----------------------------------------------------------------------------------------

static cudaStream_t new_stream(unsigned flags) {
    cudaStream_t s;
    cuda_check(cudaStreamCreateWithFlags(&s, flags), "cudaStreamCreateWithFlags");
    return s;
}
static cudaEvent_t new_event(unsigned flags = cudaEventDefault) {
    cudaEvent_t e;
    cuda_check(cudaEventCreateWithFlags(&e, flags), "cudaEventCreateWithFlags");
    return e;
}

// A kernel, a copy on another stream that waits for it, a kernel that waits for the copy: five rounds without the host.
static void test_async_schedule() {
    enum { N = 5000 };
    Device<float> a(Floats(N, 0)), b(Floats(N, 0));
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    cudaEvent_t computed = new_event(cudaEventDisableTiming), copied = new_event(cudaEventDisableTiming);
    for (int i = 0; i < 5; i++) {
        plus(a.p, N, 1);
        cuda_check(cudaEventRecord(computed, 0), "cudaEventRecord");
        cuda_check(cudaStreamWaitEvent(s, computed, 0), "cudaStreamWaitEvent");
        cuda_check(cudaMemcpyAsync(b.p, a.p, N * sizeof(float), cudaMemcpyDeviceToDevice, s), "cudaMemcpyAsync");
        cuda_check(cudaMemsetAsync(a.p, 0, 4, s), "cudaMemsetAsync");
        cuda_check(cudaEventRecord(copied, s), "cudaEventRecord");
        cuda_check(cudaStreamWaitEvent(0, copied, 0), "cudaStreamWaitEvent");
        plus(a.p, N, 1);
        plus(b.p, N, 0.5f);
    }
    const Floats x = a.get(), y = b.get();
    check(x[0] == 1 && x[1] == 10 && x[N - 1] == 10 && y[0] == 2.5f && y[N - 1] == 9.5f,
          "kernels and copies of two streams in order");
    cuda_check(cudaEventDestroy(computed), "cudaEventDestroy");
    cuda_check(cudaEventDestroy(copied), "cudaEventDestroy");
    cuda_check(cudaStreamDestroy(s), "cudaStreamDestroy");
}

static void test_times() {
    Device<float> x(Floats(100000, 0));
    cudaEvent_t from = new_event(), to = new_event(), untimed = new_event(cudaEventDisableTiming);
    float ms = -1;
    check(cudaEventElapsedTime(&ms, from, to) == cudaErrorInvalidResourceHandle &&
              cudaEventQuery(from) == cudaSuccess && cudaEventSynchronize(from) == cudaSuccess,
          "events that were never recorded");
    cuda_check(cudaEventRecord(from), "cudaEventRecord");
    plus(x.p, 100000, 1);
    cuda_check(cudaEventRecord(to), "cudaEventRecord");
    cuda_check(cudaEventRecord(untimed), "cudaEventRecord");
    cuda_check(cudaEventSynchronize(to), "cudaEventSynchronize");
    const cudaError_t measured = cudaEventElapsedTime(&ms, from, to);
    check(measured == cudaSuccess && ms > 0 && ms < 10000, "cudaEventElapsedTime: %.3f ms", (double)ms);
    cuda_check(cudaEventSynchronize(untimed), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&ms, from, untimed) == cudaErrorInvalidResourceHandle, "of an event without time");
    for (cudaEvent_t e : {from, to, untimed}) cuda_check(cudaEventDestroy(e), "cudaEventDestroy");
    cudaGetLastError();
}

#ifndef __CUDACC__
// Work that says in which order it was done, after it was asked `times` times.
static std::string done;
static void push(cudaStream_t s, char name, int times = 1) {
    cuda_on_cpu::stream_push(s, [=]() mutable {
        if (--times > 0) return false;
        done += name;
        return true;
    });
}

static void test_streams() {
    cudaStream_t s = new_stream(cudaStreamNonBlocking), t = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event(), f = new_event();

    done = "";
    push(s, 'a', 3), push(s, 'b'), push(t, 'c'), push(t, 'd', 2);
    check(done == "", "work is not begun before somebody waits");
    check(cudaStreamQuery(s) == cudaErrorNotReady && done == "c", "one round of progress: '%s'", done.c_str());
    cuda_check(cudaStreamSynchronize(s), "cudaStreamSynchronize");
    check(done == "cdab" && cudaStreamQuery(s) == cudaSuccess, "streams in order: '%s'", done.c_str());

    done = "";
    push(s, 'a', 5), cudaEventRecord(e, s), push(s, 'b');
    cudaStreamWaitEvent(t, e, 0), push(t, 'c'), cudaEventRecord(f, t);
    check(cudaEventQuery(e) == cudaErrorNotReady && cudaEventQuery(f) == cudaErrorNotReady, "cudaEventQuery: not yet");
    cuda_check(cudaEventSynchronize(f), "cudaEventSynchronize");
    check(done == "abc" && cudaEventQuery(f) == cudaSuccess, "a stream waits for an event of another: '%s'",
          done.c_str());

    done = "";
    push(s, 'a', 3), cudaEventRecord(e, s);
    cudaStreamWaitEvent(t, e, 0), push(t, 'b');
    push(s, 'c', 300), cudaEventRecord(e, s); // recorded again: who waits, waits for the first
    cuda_check(cudaStreamSynchronize(t), "cudaStreamSynchronize");
    check(done == "ab" && cudaEventQuery(e) == cudaErrorNotReady, "an event that is recorded again: '%s'",
          done.c_str());
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(done == "abc" && cudaEventQuery(e) == cudaSuccess, "cudaDeviceSynchronize waits for all: '%s'", done.c_str());

    done = "";
    push(s, 'a', 3), cudaEventRecord(e, s), push(t, 'c', 1000);
    cudaStreamWaitEvent(0, e, 0), push(0, 'b');
    cuda_check(cudaStreamSynchronize(0), "cudaStreamSynchronize");
    check(done == "ab", "the default stream waits for an event, and not for other streams: '%s'", done.c_str());
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

    done = "";
    float ms;
    push(s, 'a', 3), cudaEventRecord(e, s);
    check(cudaEventElapsedTime(&ms, f, e) == cudaErrorNotReady, "cudaEventElapsedTime: not yet");
    cudaEventDestroy(e); // what was recorded is still to be done
    cuda_check(cudaStreamDestroy(s), "cudaStreamDestroy");
    check(done == "a" && cudaStreamQuery(s) == cudaErrorInvalidResourceHandle && cudaStreamDestroy(s) != cudaSuccess,
          "cudaStreamDestroy, once; the work is done");

    // A stream without cudaStreamNonBlocking and the default stream wait for each other.
    done = "";
    cudaStream_t blocking = new_stream(cudaStreamDefault);
    push(blocking, 'a', 3), push(t, 'x', 1000), push(0, 'b'), push(blocking, 'c'), push(0, 'd');
    cuda_check(cudaStreamSynchronize(0), "cudaStreamSynchronize");
    check(done == "abcd", "a blocking stream and the default stream: '%s'", done.c_str());
    cuda_check(cudaStreamDestroy(blocking), "cudaStreamDestroy");
    cuda_check(cudaStreamDestroy(t), "cudaStreamDestroy");
    cuda_check(cudaEventDestroy(f), "cudaEventDestroy");
    cudaGetLastError();
}

// The host's memory, too, is read when the copy's turn comes.
static void test_late_copies() {
    Device<float> x(Floats(10, 0));
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    Floats from(10, 1), to(10, 0);
    cuda_check(cudaMemcpyAsync(x.p, from.data(), 40, cudaMemcpyHostToDevice, s), "cudaMemcpyAsync");
    cuda_check(cudaMemcpyAsync(to.data(), x.p, 40, cudaMemcpyDeviceToHost, s), "cudaMemcpyAsync");
    cuda_check(cudaMemsetAsync(x.p, 0, 40, s), "cudaMemsetAsync");
    from[3] = 2;
    if (!cuda_on_cpu::deferring())
        check(x.get() == Floats(10, 0) && to == Floats(10, 0), "copies of a stream are late");
    cuda_check(cudaStreamSynchronize(s), "cudaStreamSynchronize");
    check(to[3] == 2 && to[4] == 1 && x.get() == Floats(10, 0), "and then in order");
    cuda_check(cudaStreamDestroy(s), "cudaStreamDestroy");
}

// This program once more, with CUDA_ON_CPU_... in its environment: what it says if it fails.
[[maybe_unused]] static void test_again(const char* program, const char* setting) {
    const std::string run = std::string("out=$(CUDA_ON_CPU_") + setting + " '" + program + "' --again --short)";
    check(system((run + " || { echo \"$out\" | grep -v '^ok '; exit 1; }").c_str()) == 0, "again, with %s", setting);
}
#endif
