/*
cuda_runtime_emulator.h: the library part of CUDA, for kernels on the CPU; cuda_emulator.h includes it at its end.

    for kernels     vectors, 16-bit floats, mathematics, atomics
    for the host    device memory, streams and events, launches, questions about the device

Device memory is memory of the process, which the host could read, unlike a real GPU's. So cudaMemcpy knows where it is
and checks the direction, kernels get no pointers to other memory, and with -fsanitize=address it is poisoned while the
host runs. Only one host thread may call these functions.
*/
#pragma once

#include <climits>
#include <functional>
#include <memory>
#include <tuple>

// ---- Vectors, and functions that compilers have as builtins -----------------------------------------------------

struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }

template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
    return std::max<std::common_type_t<A, B>>(a, b);
}
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
    return std::min<std::common_type_t<A, B>>(a, b);
}
#if !defined(__GLIBC_PREREQ) || !__GLIBC_PREREQ(2, 42) // newer ones have one
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#endif
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return fabsf(y) > 0x1p126f ? x * 0 : x / y; } // as documented
inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}

// ---- 16-bit floats are for memory; arithmetic is in float. Rounded to nearest, ties to even. --------------------

struct __nv_bfloat16 { // the upper half of a float
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) {
        const unsigned u = __float_as_uint(f);
        bits = (uint16_t)(f != f ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
    }
    operator float() const { return __uint_as_float((unsigned)bits << 16); }
};

// ----------------------------------------------------------------------------------------------------------------
// Atomics, on types of up to 8 bytes. A fence: a thread's writes before it are visible to a thread that reads, by an
// atomic operation, a write after it; to the race detector, to every later atomic operation.

namespace cuda_on_cpu {
inline char fence;

template <class T, class F>
T atomic(T* p, F f) {
    T old, now;
    CUDA_ON_CPU_TSAN(__tsan_acquire(&fence);)
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do now = f(old);
    while (!__atomic_compare_exchange(p, &old, &now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
} // namespace cuda_on_cpu

inline void __threadfence() {
#ifdef __SANITIZE_THREAD__
    __tsan_release(&cuda_on_cpu::fence);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
template <class T, class U>
T atomicAdd(T* p, U v) {
    return cuda_on_cpu::atomic(p, [=](T x) { return T(x + T(v)); });
}

inline unsigned atomicInc(unsigned* p, unsigned last) { // from `last` to 0
    return cuda_on_cpu::atomic(p, [=](unsigned x) { return x >= last ? 0 : x + 1; });
}

// ---- Errors -----------------------------------------------------------------------------------------------------

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600
};

inline const char* cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    }
    return "unrecognized error code";
}

namespace cuda_on_cpu {
inline cudaError_t last_error = cudaSuccess;
inline cudaError_t result(cudaError_t e) {
    if (e != cudaSuccess) last_error = e;
    return e;
}
inline cudaError_t ok_or(cudaError_t e, bool ok) { return result(ok ? cudaSuccess : e); }
} // namespace cuda_on_cpu

inline cudaError_t cudaGetLastError() {
    const cudaError_t e = cuda_on_cpu::last_error;
    cuda_on_cpu::last_error = cudaSuccess;
    return e;
}

// ----------------------------------------------------------------------------------------------------------------
// Device memory. A block is followed by a guard page, after padding to a multiple of 256 bytes; freed blocks stay
// protected pages for a while. So even without a sanitizer a kernel that leaves its memory ends with a message; writes
// into the padding are detected after the kernel. The address sanitizer is exact: with it, a block is a plain malloc().

namespace cuda_on_cpu {

struct Allocation {
    char* begin;  // the program's pointer
    size_t bytes; // that it asked for
    char* base;   // the mapped pages, of which the last is the guard
    size_t mapped;
};
struct DeviceMemory {
    std::map<const char*, Allocation> blocks; // by their begin
    std::deque<Allocation> freed;
    size_t bytes; // of all blocks
    int users;

    // The block that p points into, or just past; null if there is none.
    const Allocation* find(const void* p) const {
        const auto after = blocks.upper_bound((const char*)p);
        if (after == blocks.begin()) return nullptr;
        const Allocation& a = std::prev(after)->second;
        return (const char*)p <= a.begin + a.bytes ? &a : nullptr;
    }
    // Whether n bytes at p are inside one block.
    bool has(const void* p, size_t n) const {
        const Allocation* a = find(p);
        return a && (const char*)p + n <= a->begin + a->bytes;
    }
};
inline DeviceMemory memory = {};

inline size_t page_bytes() { return (size_t)sysconf(_SC_PAGESIZE); }
inline size_t physical_memory() { return (size_t)sysconf(_SC_PHYS_PAGES) * page_bytes(); }

// While one of these lives, kernels or copies use device memory; otherwise the address sanitizer forbids access.
struct InUse {
    InUse() { use(1); }
    ~InUse() { use(-1); }
    static void use(int by) {
        const bool was = memory.users > 0, is = (memory.users += by) > 0;
        (void)was, (void)is;
#ifdef __SANITIZE_ADDRESS__
        for (const auto& b : memory.blocks)
            if (!was && is)
                __asan_unpoison_memory_region(b.first, b.second.bytes);
            else if (was && !is)
                __asan_poison_memory_region(b.first, b.second.bytes);
#endif
    }
};

inline void* allocate(size_t bytes) {
    if (bytes > physical_memory() - memory.bytes) return nullptr;
    Allocation a = {nullptr, bytes, nullptr, 0};
#ifdef __SANITIZE_ADDRESS__
    if (posix_memalign((void**)&a.begin, 256, bytes)) return nullptr;
    memset(a.begin, 0xff, bytes);
    if (!memory.users) __asan_poison_memory_region(a.begin, bytes);
#else
    const size_t page = page_bytes(), body = (bytes + page - 1) / page * page;
    a.mapped = body + page;
    void* base = mmap(nullptr, a.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect((char*)base + body, page, PROT_NONE)) return nullptr;
    a.base = (char*)base;
    a.begin = a.base + body - (bytes + 255) / 256 * 256;
    memset(a.base, 0xff, body); // NaN
#endif
    memory.bytes += bytes;
    memory.blocks[a.begin] = a;
    return a.begin;
}

// Checks that nothing was written between p and end, before or after a block.
inline void check_edge(const char* p, const char* end, const Allocation& a, const void* kernel) {
    if (p == end || (*p == -1 && memcmp(p, p + 1, (size_t)(end - p) - 1) == 0)) return;
    while (*p == -1) p++;
    fail(nowhere, "%s has written at byte %td of a block of %zu bytes of device memory",
         kernel ? name_of(kernel) : "something", p - a.begin, a.bytes);
}
inline void check_edges(const Allocation& a, const void* kernel) {
    if (!a.mapped) return;
    check_edge(a.base, a.begin, a, kernel);
    check_edge(a.begin + a.bytes, a.base + a.mapped - page_bytes(), a, kernel);
}

inline bool release(void* p) {
    const auto i = memory.blocks.find((const char*)p);
    if (i == memory.blocks.end()) return false;
    const Allocation a = i->second;
    memory.bytes -= a.bytes;
    memory.blocks.erase(i);
#ifdef __SANITIZE_ADDRESS__
    free(p);
#else
    check_edges(a, nullptr);
    mmap(a.base, a.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); // returns the memory
    memory.freed.push_back(a);
    if (memory.freed.size() > 256) {
        munmap(memory.freed.front().base, memory.freed.front().mapped);
        memory.freed.pop_front();
    }
#endif
    return true;
}

// Reports the kernel and thread of a forbidden access, and ends the program. Faults outside kernels go to the former
// handler (an MPI may print a backtrace).
inline struct sigaction fault_before;
inline void on_fault(int signal, siginfo_t* info, void*) {
    const char* p = (const char*)info->si_addr;
    const auto tell = [p](const Allocation& a, const char* freed) {
        if (p >= a.base && p < a.base + a.mapped)
            fail(nowhere, "access at byte %td of a block of %zu bytes of device memory%s", p - a.begin, a.bytes, freed);
    };
    sigaction(signal, &fault_before, nullptr);
    if (!block) return; // the access repeats, with the former handler
    if (p < self->stack && p >= self->stack - stack_guard)
        fail(nowhere, "stack overflow: a thread has %zu KB for its local variables", stack_bytes >> 10);
    for (const auto& b : memory.blocks) tell(b.second, "");
    for (const Allocation& a : memory.freed) tell(a, ", which was freed");
    if (info->si_code != SEGV_MAPERR && info->si_code != SEGV_ACCERR)
        fail(nowhere, "access that is not aligned, or to an address that cannot be");
    fail(nowhere, "access to %p, which is not device memory", (const void*)p);
}

inline void watchdog_faults() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // which handle faults themselves
    static const size_t bytes = 64 << 10;                           // as the thread's own stack may be full
    const stack_t stack = {malloc(bytes), 0, bytes};
    sigaltstack(&stack, nullptr);
    static const bool once = [] {
        struct sigaction a = {};
        a.sa_sigaction = on_fault;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK;
        return sigaction(SIGSEGV, &a, &fault_before) == 0;
    }();
    (void)once;
#endif
}

} // namespace cuda_on_cpu

// ---- Streams and events -----------------------------------------------------------------------------------------
// A stream is a queue of work; it progresses when the program waits for it or queries it. The default stream is the
// exception: its work is done when a call returns. So kernels run at once, and concurrent work (communication) as late
// as possible: a program that does not wait for it finds the old data. With CUDA_ON_CPU_DEFER=1 it is the other way
// round: kernels stay in their queue until the program waits for them, and other streams come first. So communication
// that does not wait for the kernel whose result it sends, sends the old data.
//
// An asynchronous copy takes place when its turn comes, from or to any host memory. (CUDA may stage unpinned memory
// before the call returns, but programs should not rely on that.)

struct cuda_on_cpu_stream {
    std::deque<std::function<bool()>> queue; // each is called until it returns true
    bool blocking;                           // waits for the default stream, and the default stream for it
};
typedef cuda_on_cpu_stream* cudaStream_t;

struct cuda_on_cpu_event {
    struct Moment {
        bool reached;
        double seconds;
    };
    std::shared_ptr<Moment> moment; // of the last cudaEventRecord; earlier ones may still be waited for
    bool timed;
};
typedef cuda_on_cpu_event* cudaEvent_t;

namespace cuda_on_cpu {

inline cuda_on_cpu_stream default_stream = {{}, true};
inline std::vector<cudaStream_t> streams; // all others

inline bool deferring() {
    static const bool d = setting("CUDA_ON_CPU_DEFER", 0) != 0;
    return d;
}
inline bool valid(cudaStream_t s) { return !s || std::find(streams.begin(), streams.end(), s) != streams.end(); }

// Completes up to `most` pieces of a stream's work, in order. Returns true if there was one.
inline bool advance(cuda_on_cpu_stream& s, int most) {
    int done = 0;
    for (; done < most && !s.queue.empty() && s.queue.front()(); done++) s.queue.pop_front();
    return done > 0;
}

inline bool progressing = false; // a piece of work is running

// One round of progress. Returns true if something was completed.
inline bool progress() {
    if (progressing) return false; // called from inside a piece of work
    InUse in_use;
    progressing = true;
    bool done = !deferring() && advance(default_stream, INT_MAX);
    if (!done)
        for (size_t i = 0; i < streams.size(); i++) done |= advance(*streams[i], INT_MAX);
    if (!done && deferring()) done = advance(default_stream, 1);
    progressing = false;
    return done;
}

template <class F>
void progress_until(F reached) {
    for (int idle = 0; !reached(); progress() ? idle = 0 : idle++)
        if (progressing)
            fail(nowhere, "work of a stream waits for a stream");
        else if (idle > 100)
            usleep(50); // the awaited work happens in another process
        else if (idle)
            sched_yield();
}

// Later work in `s` waits for the work now in `other`.
inline void follow(cuda_on_cpu_stream& s, cuda_on_cpu_stream& other) {
    if (other.queue.empty()) return;
    const auto reached = std::make_shared<bool>(false);
    other.queue.push_back([=] { return *reached = true; });
    s.queue.push_back([=] { return *reached; });
}

// Adds work to a stream, 0 for the default stream: a function that is called until it returns true. It may use device
// memory; it must not wait for a stream.
inline void stream_push(cudaStream_t stream, std::function<bool()> work) {
    cuda_on_cpu_stream& s = stream ? *stream : default_stream;
    if (stream && s.blocking) follow(s, default_stream);
    if (!stream)
        for (cudaStream_t t : streams)
            if (t->blocking) follow(s, *t);
    s.queue.push_back(std::move(work));
    if (!stream && !deferring()) progress_until([] { return default_stream.queue.empty(); });
}

inline bool idle(cudaStream_t s) { // the default stream: also all streams that it waits for
    if (s) return s->queue.empty();
    for (cudaStream_t t : streams)
        if (t->blocking && !t->queue.empty()) return false;
    return default_stream.queue.empty();
}

inline double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace cuda_on_cpu

constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
    if (flags > cudaStreamNonBlocking) return cuda_on_cpu::result(cudaErrorInvalidValue);
    *s = new cuda_on_cpu_stream{{}, flags == cudaStreamDefault};
    cuda_on_cpu::streams.push_back(*s);
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (!cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    cuda_on_cpu::progress_until([=] { return cuda_on_cpu::idle(s); });
    return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t s) {
    if (!cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    cuda_on_cpu::progress();
    return cuda_on_cpu::ok_or(cudaErrorNotReady, cuda_on_cpu::idle(s));
}
inline cudaError_t cudaStreamDestroy(cudaStream_t s) { // CUDA does not wait, but completes the queue, too
    if (!s || !cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    cudaStreamSynchronize(s);
    cuda_on_cpu::streams.erase(std::find(cuda_on_cpu::streams.begin(), cuda_on_cpu::streams.end(), s));
    delete s;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() {
    cuda_on_cpu::progress_until([] {
        bool idle = cuda_on_cpu::idle(nullptr);
        for (cudaStream_t s : cuda_on_cpu::streams) idle = idle && cuda_on_cpu::idle(s);
        return idle;
    });
    return cudaSuccess;
}

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
    *e = new cuda_on_cpu_event{nullptr, !(flags & cudaEventDisableTiming)};
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
inline cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cuda_on_cpu::ok_or(cudaErrorInvalidResourceHandle, e);
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr) {
    if (!e || !cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    const auto moment = e->moment = std::make_shared<cuda_on_cpu_event::Moment>();
    cuda_on_cpu::stream_push(s, [=] {
        moment->seconds = cuda_on_cpu::seconds();
        return moment->reached = true;
    });
    return cudaSuccess;
}
// An event that was never recorded is not waited for.
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned = 0) {
    if (!e || !cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    const auto moment = e->moment;
    if (moment) cuda_on_cpu::stream_push(s, [=] { return moment->reached; });
    return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (!e) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    cuda_on_cpu::progress();
    return cuda_on_cpu::ok_or(cudaErrorNotReady, !e->moment || e->moment->reached);
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    if (!e) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    cuda_on_cpu::progress_until([=] { return !e->moment || e->moment->reached; });
    return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    if (!from || !to || !from->timed || !to->timed || !from->moment || !to->moment)
        return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    if (!from->moment->reached || !to->moment->reached) return cuda_on_cpu::result(cudaErrorNotReady);
    *milliseconds = (float)(1e3 * (to->moment->seconds - from->moment->seconds));
    return cudaSuccess;
}

// ---- Launches ---------------------------------------------------------------------------------------------------

namespace cuda_on_cpu {

// Before a kernel, checks that its arguments are in device memory; after it, that nothing was written into the padding
// of blocks, which their guard pages do not cover.
template <class T>
void check_before(T, int, const void*) {}
template <class T>
void check_before(T* p, int i, const void* kernel) {
    if (p && !memory.find((const void*)p))
        fail(nowhere, "argument %d of %s is %p, which is not device memory", i, name_of(kernel), (const void*)p);
}
template <class T>
void check_after(T, const void*) {}
template <class T>
void check_after(T* p, const void* kernel) {
    if (const Allocation* a = p ? memory.find((const void*)p) : nullptr) check_edges(*a, kernel);
}

// A kernel with its arguments.
template <class... P>
struct Call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
    template <size_t... I>
    void run(std::index_sequence<I...>) const {
        kernel(std::get<I>(arguments)...);
    }
    static void run(const void* call) { ((const Call*)call)->run(std::index_sequence_for<P...>()); }
    template <class F>
    void each(F f) const {
        std::apply([&](const P&... a) { (f(a), ...); }, arguments);
    }
};

// Bytes of dynamic shared memory that kernels have asked for. Without asking it is 48 KB, static memory included, whose
// size is unknown here: 16 KB are assumed.
inline std::map<const void*, size_t> shared_asked;
inline size_t shared_allowed(const void* kernel) {
    const auto asked = shared_asked.find(kernel);
    return asked == shared_asked.end() ? 32 << 10 : asked->second;
}

// kernel<<<grid, dim, shared_bytes, stream>>>(arguments...). Returns false if a GPU would refuse it.
template <class... P, class... A>
bool launch_on(cudaStream_t stream, dim3 grid, dim3 dim, size_t shared_bytes, void (*kernel)(P...), A&&... arguments) {
    if (block) fail(nowhere, "a launch inside a kernel");
    const uint64_t threads = (uint64_t)dim.x * dim.y * dim.z;
    if (!threads || threads > 1024 || dim.z > 64 || shared_bytes > shared_allowed((const void*)kernel)) return false;
    if (!grid.x || !grid.y || !grid.z || grid.x >> 31 || grid.y >> 16 || grid.z >> 16) return false;
    const Call<P...> call = {kernel, std::tuple<P...>(std::forward<A>(arguments)...)};
    int i = 0;
    call.each([&](const auto& a) { check_before(a, ++i, (const void*)kernel); });
    const auto run = [=] {
        Grid g = {
            grid, dim, shared_bytes, (const void*)kernel, Call<P...>::run, &call, (uint64_t)grid.x * grid.y * grid.z,
            {0}};
        run_grid(g);
        call.each([&](const auto& a) { check_after(a, (const void*)kernel); });
        return true;
    };
    if (stream || deferring() || !idle(nullptr)) return stream_push(stream, run), true;
    InUse in_use;
    return run();
}

template <class... P, class... A>
bool launch(dim3 grid, dim3 dim, size_t shared_bytes, void (*kernel)(P...), A&&... arguments) {
    return launch_on(nullptr, grid, dim, shared_bytes, kernel, std::forward<A>(arguments)...);
}

} // namespace cuda_on_cpu

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute, int bytes) {
    if (bytes < 0 || bytes > 227 << 10) return cuda_on_cpu::result(cudaErrorInvalidValue);
    cuda_on_cpu::shared_asked[(const void*)kernel] = (size_t)bytes;
    return cudaSuccess;
}

// ---- Memory -----------------------------------------------------------------------------------------------------

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};

template <class T>
cudaError_t cudaMalloc(T** p, size_t n) {
    *p = n ? (T*)cuda_on_cpu::allocate(n) : nullptr;
    return cuda_on_cpu::ok_or(cudaErrorMemoryAllocation, *p || !n);
}
inline cudaError_t cudaFree(void* p) { // waits for all streams
    cudaDeviceSynchronize();
    return cuda_on_cpu::ok_or(cudaErrorInvalidValue, !p || cuda_on_cpu::release(p));
}
template <class T>
cudaError_t cudaMallocAsync(T** p, size_t n, cudaStream_t) {
    return cudaMalloc(p, n);
}
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t s) { // when the stream's turn comes
    if (!cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    if (p && !cuda_on_cpu::memory.blocks.count((const char*)p)) return cuda_on_cpu::result(cudaErrorInvalidValue);
    if (p) cuda_on_cpu::stream_push(s, [=] { return cuda_on_cpu::release(p); });
    return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* p, int value, size_t n, cudaStream_t s = nullptr) {
    if (!cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    if (!n) return cudaSuccess;
    if (!cuda_on_cpu::memory.has(p, n)) return cuda_on_cpu::result(cudaErrorInvalidValue);
    cuda_on_cpu::stream_push(s, [=] { return memset(p, value, n) == p; });
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind,
                                   cudaStream_t s = nullptr) {
    if (!cuda_on_cpu::valid(s)) return cuda_on_cpu::result(cudaErrorInvalidResourceHandle);
    if (!n) return cudaSuccess;
    const int found = 2 * cuda_on_cpu::memory.has(from, n) + cuda_on_cpu::memory.has(to, n);
    if (kind != cudaMemcpyDefault && kind != found) return cuda_on_cpu::result(cudaErrorInvalidValue);
    cuda_on_cpu::stream_push(s, [=] { return memcpy(to, from, n) == to; });
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void* p, int value, size_t n) { return cudaMemsetAsync(p, value, n); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
    const cudaError_t e = cudaMemcpyAsync(to, from, n, kind);
    return e == cudaSuccess ? cudaStreamSynchronize(nullptr) : e;
}

enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    if (cuda_on_cpu::memory.has(p, 1))
        *a = {cudaMemoryTypeDevice, 0, (void*)p, nullptr};
    else
        *a = {cudaMemoryTypeUnregistered, -2, nullptr, (void*)p};
    return cudaSuccess;
}

// ---- The device -------------------------------------------------------------------------------------------------

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock;
};
inline cudaError_t cudaGetDeviceCount(int* n) {
    *n = 1;
    return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) { return cuda_on_cpu::ok_or(cudaErrorInvalidDevice, device == 0); }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    if (device != 0) return cuda_on_cpu::result(cudaErrorInvalidDevice);
    *p = cudaDeviceProp();
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->totalGlobalMem = cuda_on_cpu::physical_memory();
    p->sharedMemPerBlockOptin = 227 << 10;
    p->major = 8;
    p->multiProcessorCount = (int)cuda_on_cpu::core_count();
    p->warpSize = warpSize;
    p->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
    if (device != 0) return cuda_on_cpu::result(cudaErrorInvalidDevice);
    return cuda_on_cpu::ok_or(cudaErrorInvalidValue, snprintf(id, (size_t)length, "0000:00:00.0") < length);
}
inline cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    *total = cuda_on_cpu::physical_memory();
    *available = *total - cuda_on_cpu::memory.bytes;
    return cudaSuccess;
}
