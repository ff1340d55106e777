/*
cuda_emulator.h: runs CUDA kernels on the CPU, from the same source, with any C++17 compiler: to run them, to debug
them, and to check them for races where there is no GPU. This file emulates the language: threads, blocks, grids, and
the collectives of a block. Its second half, cuda_runtime_emulator.h, is the library: 16-bit floats, atomics, memory,
streams.

Theory:

    fiber     A CUDA thread is a fiber: a stack of its own and a saved stack pointer. It runs as an ordinary function
              until it has to wait for others, at __syncthreads(), a shuffle, an mma. Then cuda_on_cpu_switch()
              exchanges the stack, and another thread of the block resumes: a few ns, no system call.
    meeting   All waiting is of one kind. Each thread deposits its inputs; the last to arrive does the work for all
              (exchanges values, multiplies matrices), then all continue with their results. See "Meetings".
    block     All threads of a block run on one core, one at a time. Threads that never wait share one stack, so an
              elementwise kernel costs one call per thread.
    grid      The calling thread runs blocks; after some 50 us other cores wake up and help.

Errors found, beside wrong results. The message has the kernel's line, or its name, block and thread; then abort().

    always                threads of a block at different barriers, lanes of a warp at different collectives or with
                          different masks, shuffles from lanes that take no part, deadlocks; launches that a GPU
                          refuses, host memory as argument; accesses outside a block of device memory (as far as pages
                          show), or after it was freed; stack overflow. Unwritten memory is NaN: fresh device memory,
                          shared memory, 16 bytes that cp.async is still copying
    -fsanitize=address    all accesses out of bounds, in shared memory too; a host that reads device memory
    -fsanitize=undefined  vector loads that are not aligned
    -fsanitize=thread     races: missing barriers, __syncwarp, fences; between threads, and between blocks
    CUDA_ON_CPU_ORDER     1: the last thread and the last block run first; 2, 3...: random orders. Results must not
                          change
    CUDA_ON_CPU_FENCES    1: tracks which thread stores each byte, for kernels with hopper_emulator.h
    CUDA_ON_CPU_DEFER     1: kernels run as late as streams and events allow; else, communication does. See "Streams"

CUDA_ON_CPU_THREADS is the number of cores that run blocks. With 1, gdb works well: threadIdx is a variable.

Hopper's own features (copies of tiles, products of four warps, barriers that count bytes) and their errors are in
hopper_emulator.h.

Not found: an access out of one shared array into another (without a sanitizer), bank conflicts, accesses that do not
coalesce, too many registers. A thread that spins until another one writes hangs, as threads are not preempted.
*/
#pragma once
#define CUDA_ON_CPU 1

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <deque>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>
#ifdef __linux__
#include <elf.h>
#endif

#ifdef __has_feature // clang
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#elif __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
extern "C" void __asan_loadN(void*, long);
#define CUDA_ON_CPU_ASAN(...) __VA_ARGS__
#else
#define CUDA_ON_CPU_ASAN(...)
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int), AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int), AnnotateIgnoreWritesEnd(const char*, int);
extern "C" void AnnotateIgnoreSyncBegin(const char*, int), AnnotateIgnoreSyncEnd(const char*, int);
extern "C" void __tsan_read_range(void*, long), __tsan_write_range(void*, long);
#define CUDA_ON_CPU_TSAN(...) __VA_ARGS__
#else
#define CUDA_ON_CPU_TSAN(...)
#endif

// ---- The language -----------------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

// A block runs on one core, so a thread_local variable belongs to the block. The address sanitizer knows the bounds of
// static arrays, but not of thread_local ones: with it the arrays are static, and one core runs.
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline thread_local uint3 threadIdx{}, blockIdx{};
inline thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// ----------------------------------------------------------------------------------------------------------------
// The switch: saves the registers that a function has to preserve on the stack, the stack pointer in *save, and loads
// the registers of a fiber that was left in the same way. (swapcontext() works on all processors, but as a system call
// takes 20 times as long.) Weak: each object file has one, and the linker keeps one of them.

extern "C" void cuda_on_cpu_switch(void** save, void* load) asm("cuda_on_cpu_switch");
#ifdef __APPLE__
asm(".text\n.globl cuda_on_cpu_switch\n.weak_definition cuda_on_cpu_switch\n.p2align 4\ncuda_on_cpu_switch:\n"
#else
asm(".text\n.weak cuda_on_cpu_switch\n.type cuda_on_cpu_switch, %function\n.p2align 4\ncuda_on_cpu_switch:\n"
#endif
#if defined(__x86_64__)
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#elif defined(__aarch64__)
    "stp x29, x30, [sp, #-160]!\nstp x19, x20, [sp, #16]\nstp x21, x22, [sp, #32]\nstp x23, x24, [sp, #48]\n"
    "stp x25, x26, [sp, #64]\nstp x27, x28, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp, #16]\nldp x21, x22, [sp, #32]\nldp x23, x24, [sp, #48]\nldp x25, x26, [sp, #64]\n"
    "ldp x27, x28, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\nldp x29, x30, [sp], #160\nret\n");
#else
#error "cuda_emulator.h: this processor needs a cuda_on_cpu_switch"
#endif

// The stack pointer of a fiber that has not run yet: the stack looks as if the switch had left it at the beginning of a
// function.
inline void* cuda_on_cpu_stack(void** top, void (*begin)()) {
#ifdef __x86_64__
    top[-2] = (void*)begin; // the address that ret takes; six registers below it; above it begin's own, which has none
    return top - 8;
#else
    top[-19] = (void*)begin; // x30
    return top - 20;
#endif
}

#include "program_symbols.h"

namespace cuda_on_cpu {

// ---- Data: threads, meetings, warps, a block for every core -----------------------------------------------------

struct Site { // a line of the kernel: as default argument, the line of the call
    const char* file;
    int line;
    static Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

struct Warp;
struct Lane;
struct Copy { // a cp.async in flight
    void* to;
    const void* from;
    int group;
};
struct Fiber { // is at the top of its stack
    void* sp;
    Fiber* next; // in its list: ready, idle, used, or waiting at a meeting
    Warp* warp;
    Lane* lane;
    unsigned rank; // in the block
    int copies, groups;
    Copy copy[128];
    bool fenced;       // shared_fence() since the last barrier: hopper_emulator.h
    char* stack;       // its lower end
    void *tsan, *asan; // the sanitizers' handles
};

struct Meeting {
    unsigned arrived; // lanes of a warp, a bit each; at a barrier, the number of threads
    unsigned mask;    // lanes that have to come; at a named barrier, the number of threads; else 0: all
    const char* what; // its name in the kernel
    Site site;
    Fiber *first, *last;                           // the waiting fibers
    void (*work)(Meeting&, Warp&, unsigned lanes); // done by the last to arrive, for all
    bool fenced;                                   // one of the arrived threads has made a fence
    uint64_t round;
    char order[2]; // for the race detector: objects that order the rounds, in turn
};

struct alignas(64) Lane { // a lane's inputs to a meeting, and its results
    unsigned char in[40];
    int from;
    unsigned char out[16];
};

struct Warp {
    unsigned alive;   // lanes that have not returned
    unsigned pending; // meetings at which a lane waits
    Lane lane[32];
    Meeting meeting[32]; // by the lowest lane of the mask, so that parts of a warp can meet at the same time
};

struct Block { // the block that a core runs
    const struct Grid* grid;
    unsigned threads, started, alive, fibers;
    unsigned next_rank, rank_step;
    uint64_t random;
    Fiber *ready, **ready_end; // threads that can continue: a list, and the pointer at its end
    Fiber *idle, *used;        // fibers without a thread
    Fiber scheduler;           // the core's own stack, on which run_block() waits
    Meeting barrier[16];       // __syncthreads() is number 0
    Warp warp[32];
    char* shared; // dynamic shared memory
    size_t shared_bytes;
    char begin, end; // for the race detector
};

struct Grid { // a launch
    dim3 grid, block;
    size_t shared_bytes;
    const void* kernel;
    void (*call)(const void*); // calls the kernel with these
    const void* arguments;
    uint64_t blocks;
    std::atomic<uint64_t> next; // the first block that no core has taken
};

// Work in flight beside the threads of a block: copies and products of hopper_emulator.h. Null until the block uses it.
struct Beside {
    virtual void leave() = 0;       // the running thread stops running
    virtual bool go_on() = 0;       // no thread can run: does work that may wake one; false: there is no work
    virtual void publish() = 0;     // makes fenced writes visible to copies and products
    virtual void thread_ends() = 0; // the running one
    virtual void block_ends() = 0;
    virtual void tell() = 0; // in a deadlock, prints what each thread waits for
};
inline thread_local Beside* beside = nullptr;

inline thread_local Block* block = nullptr; // null: not in a kernel
inline thread_local Fiber* self = nullptr;

constexpr bool separate = CUDA_ON_CPU_TSAN(1 |) 0; // every thread of a block needs a fiber of its own
constexpr size_t stack_bytes = CUDA_ON_CPU_ASAN(4 *) CUDA_ON_CPU_TSAN(4 *)(64 << 10);
constexpr size_t stack_guard = 16 << 10;

inline unsigned setting(const char* name, unsigned otherwise) {
    const char* s = getenv(name);
    return s && *s ? (unsigned)atoi(s) : otherwise;
}

// CUDA_ON_CPU_ORDER: 0 first thread first, 1 last thread first, others random.
inline unsigned order() {
    static const unsigned o = setting("CUDA_ON_CPU_ORDER", 0);
    return o;
}
inline unsigned dice(Block& b) {
    return (unsigned)((b.random = b.random * 6364136223846793005u + 1442695040888963407u) >> 33);
}

// ---- Errors -----------------------------------------------------------------------------------------------------

// Prints "file:line: message: kernel, block, thread" and aborts.
[[noreturn]] __attribute__((cold, noinline, format(printf, 2, 3))) inline void fail(Site at, const char* format, ...) {
    char text[1024], line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "%s:%d: ", at.file, at.line);
    fflush(stdout);
    if (block)
        fprintf(stderr, "%s%s: kernel %s, block (%u,%u,%u), thread (%u,%u,%u)\n", at.line ? line : "", text,
                name_of(block->grid->kernel), blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
                threadIdx.z);
    else
        fprintf(stderr, "%s%s\n", at.line ? line : "cuda_on_cpu: ", text);
    abort();
}
constexpr Site nowhere = {"", 0};

// An access of several bytes needs an address that is a multiple of its size.
inline void check_aligned(const void* p, size_t bytes, const char* what, Site at = Site::here()) {
    if ((uintptr_t)p % bytes) fail(at, "%s: %p is not a multiple of %zu", what, p, bytes);
}

[[noreturn]] inline void fail_deadlock() {
    fflush(stdout);
    fprintf(stderr,
            "deadlock: kernel %s, block (%u,%u,%u): %u of its %u threads have not returned, and they all wait\n",
            name_of(block->grid->kernel), blockIdx.x, blockIdx.y, blockIdx.z, block->alive, block->threads);
    const auto tell = [](const Meeting& m) {
        if (!m.arrived) return;
        int n = 0;
        fprintf(stderr, "%s:%d: at %s wait threads", m.site.file, m.site.line, m.what);
        for (const Fiber* f = m.first; f; f = f->next)
            if (n++ < 16) fprintf(stderr, " %u", f->rank);
        fprintf(stderr, n > 16 ? "... (%d)\n" : "\n", n);
    };
    for (const Meeting& m : block->barrier) tell(m);
    for (const Warp& w : block->warp)
        for (const Meeting& m : w.meeting) tell(m);
    if (beside) beside->tell();
    abort();
}

// ---- The race detector ------------------------------------------------------------------------------------------
// To ThreadSanitizer every fiber is a thread; switching between fibers orders nothing, and meetings order the same
// accesses as on a GPU. So it sees two threads that touch the same memory without a barrier between them, although they
// ran one after the other. Four conditions have to hold:
//
// 1. A barrier is "release, wait, acquire" on one of two objects in turn. With a single object, a thread that wakes
//    late would acquire what early threads have released at the next barrier; races between the two barriers would be
//    missed.
// 2. Every thread of a block has a fiber of its own (two on one fiber would be one thread to the detector), and all are
//    made before the block begins: making a fiber orders it after its maker.
// 3. The beginning of a block orders its threads after the core's earlier work, its end orders the core's later work
//    after its threads: with two objects, since a thread that begins late would otherwise be ordered after returned
//    threads. Shuffles and mma order nothing, as in CUDA; __syncwarp and __syncthreads do, and __threadfence
//    with an atomic operation.
// 4. Running blocks one after the other on a core orders them. So two cores share a grid such that blocks at any
//    distance from each other are on different cores in half of the cases (the Thue-Morse sequence).
//
// The emulator's own reads and writes are hidden from the detector. It misses a plain memcpy of a few bytes, which the
// compiler turns into moves after the detector's pass: cp.async and ldmatrix report theirs.

struct Hidden { // while it lives, reads and writes are not seen
    static void begin() { CUDA_ON_CPU_TSAN(AnnotateIgnoreReadsBegin("", 0); AnnotateIgnoreWritesBegin("", 0);) }
    static void end() { CUDA_ON_CPU_TSAN(AnnotateIgnoreReadsEnd("", 0); AnnotateIgnoreWritesEnd("", 0);) }
    Hidden() { begin(); }
    ~Hidden() { end(); }
};
struct Unordered { // while it lives, locks order nothing
    Unordered() { CUDA_ON_CPU_TSAN(AnnotateIgnoreSyncBegin("", 0);) }
    ~Unordered() { CUDA_ON_CPU_TSAN(AnnotateIgnoreSyncEnd("", 0);) }
};

// ---- Scheduling of threads --------------------------------------------------------------------------------------

inline void switch_to(Fiber* to) {
    Fiber* me = self;
    if (to == me) return; // its wait ended meanwhile, and its stack was not saved
    const uint3 idx = threadIdx;
    self = to;
    CUDA_ON_CPU_TSAN(__tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);)
    CUDA_ON_CPU_ASAN(__sanitizer_start_switch_fiber(&me->asan, to->stack, to->stack ? stack_bytes : 0);)
    cuda_on_cpu_switch(&me->sp, to->sp);
    CUDA_ON_CPU_ASAN(__sanitizer_finish_switch_fiber(me->asan, nullptr, nullptr);)
    threadIdx = idx;
}

inline Fiber* new_fiber();

// The fiber to run when the running one has to wait: threads that have waited before threads that have not begun.
// So a kernel with only collectives of warps keeps 32 stacks alive, not 1024.
inline Fiber* next_fiber() {
    Block& b = *block;
    if (beside) beside->leave();
    if (beside && order() > 1 && !(dice(b) & 3)) beside->go_on(); // at any time
    do {
        const bool more = b.started < b.threads;
        if (b.ready && !(more && order() > 1 && dice(b) & 1)) {
            Fiber* f = b.ready;
            if (!(b.ready = f->next)) b.ready_end = &b.ready;
            return f;
        }
        if (more) {
            Fiber* f = b.idle;
            if (!f) return new_fiber();
            b.idle = f->next;
            return f;
        }
    } while (b.alive && beside && beside->go_on()); // as late as possible
    if (b.alive) fail_deadlock();
    return &b.scheduler;
}

// The threads that wait at a meeting can continue.
inline void wake(Meeting& m) {
    if (!m.first) return;
    if (order() > 1 && dice(*block) & 1) { // before all other ready threads
        if (!block->ready) block->ready_end = &m.last->next;
        m.last->next = block->ready;
        block->ready = m.first;
    } else { // after them
        *block->ready_end = m.first;
        block->ready_end = &m.last->next;
    }
    m.first = nullptr;
}

// ----------------------------------------------------------------------------------------------------------------
// Meetings: a thread calls arrive() or fails; the last one completes the meeting, the others wait. Results are in the
// lanes' own places. The next round, which needs all threads to arrive, cannot change it
// before all have read it. So a meeting needs no second barrier and no second buffer.

[[noreturn]] __attribute__((cold, noinline)) inline void fail_mismatch(const Meeting& m, unsigned mask,
                                                                       const char* what, Site at) {
    if (m.what == what && m.mask != mask)
        fail(at, "%s for %#x, while others wait for %#x at %s:%d", what, mask, m.mask, m.site.file, m.site.line);
    fail(at, "%s, while others wait at %s, %s:%d", what, m.what, m.site.file, m.site.line);
}

inline void arrive(Meeting& m, unsigned mask, const char* what, Site at) {
    if (m.arrived && (m.mask != mask || m.what != what || m.site.line != at.line || m.site.file != at.file))
        fail_mismatch(m, mask, what, at);
    m.mask = mask;
    m.what = what;
    m.site = at;
}

inline void wait(Meeting& m) {
    self->next = nullptr;
    (m.first ? m.last->next : m.first) = self;
    m.last = self;
    switch_to(next_fiber());
}

inline void complete(Meeting& m, Warp* w) {
    if (m.fenced) beside->publish();
    m.fenced = false;
    if (w) {
        w->pending &= ~(m.mask & -m.mask);
        if (m.work) m.work(m, *w, m.mask & w->alive);
    }
    m.arrived = 0;
    m.round++;
    wake(m);
}

// The running thread's shared_fence() holds for the threads that it meets.
inline void bring_fence(Meeting& m) {
    m.fenced |= self->fenced;
    self->fenced = false;
}

// __syncthreads(): all threads of the block that have not returned.
inline void barrier(const char* what, Site at) {
    Hidden hidden;
    Meeting& m = block->barrier[0];
    arrive(m, 0, what, at);
    bring_fence(m);
    CUDA_ON_CPU_TSAN(char* sync = &m.order[m.round & 1]; __tsan_release(sync);)
    if (++m.arrived == block->alive)
        complete(m, nullptr);
    else
        wait(m);
    CUDA_ON_CPU_TSAN(__tsan_acquire(sync);)
}

// The lanes of a mask meet. `memory`: their earlier writes become visible to each other. Returns the calling lane.
inline Lane& meet(unsigned mask, void (*work)(Meeting&, Warp&, unsigned), bool memory, const char* what, Site at) {
    Warp& w = *self->warp;
    Meeting& m = w.meeting[mask ? __builtin_ctz(mask) : 0];
    const unsigned bit = 1u << self->rank % 32;
    if (!(mask & bit)) fail(at, "%s: the calling lane is not in the mask %08x", what, mask);
    arrive(m, mask, what, at);
    if (memory) bring_fence(m);
    m.work = work;
    m.arrived |= bit;
    w.pending |= mask & -mask;
    CUDA_ON_CPU_TSAN(char* sync = &m.order[m.round & 1]; if (memory) __tsan_release(sync);)
    if (m.arrived == (mask & w.alive))
        complete(m, &w);
    else
        wait(m);
    CUDA_ON_CPU_TSAN(if (memory) __tsan_acquire(sync);)
    (void)memory;
    return *self->lane;
}

// ----------------------------------------------------------------------------------------------------------------
// cp.async: 16 bytes in flight to shared memory. A GPU may copy them at once, or as late as at the wait; a kernel that
// reads them too early may still work by chance. Here they arrive as late as possible, at the wait, and are NaN until
// then.

inline void cp_async(void* to, const void* from, Site at = Site::here()) {
    Fiber& f = *self;
    check_aligned(to, 16, "cp.async", at);
    check_aligned(from, 16, "cp.async", at);
    if ((uintptr_t)from - (uintptr_t)block->shared < block->shared_bytes) fail(at, "cp.async from shared memory");
    if (f.copies == sizeof f.copy / sizeof *f.copy) fail(at, "cp.async: %d under way, and no room for more", f.copies);
    CUDA_ON_CPU_TSAN(__tsan_read_range((void*)from, 16); __tsan_write_range(to, 16);)
    CUDA_ON_CPU_ASAN(__asan_loadN((void*)from, 16);)
    Hidden hidden;
    memset(to, 0xff, 16);
    f.copy[f.copies++] = {to, from, f.groups};
}

inline void cp_async_commit() {
    Hidden hidden;
    self->groups++;
}

// Waits for all groups but the last `keep` ones (-1: also for copies that belong to no group).
inline void finish_copies(int keep) {
    Hidden hidden;
    Fiber& f = *self;
    int left = 0;
    for (int i = 0; i < f.copies; i++)
        if (f.copy[i].group < f.groups - keep) {
            memcpy(f.copy[i].to, f.copy[i].from, 16);
            CUDA_ON_CPU_TSAN(Hidden::end(); __tsan_write_range(f.copy[i].to, 16); Hidden::begin();)
        } else
            f.copy[left++] = f.copy[i];
    f.copies = left;
}

// ---- The life of a thread, a fiber, a block, a grid -------------------------------------------------------------

inline void run_thread() {
    Block& b = *block;
    Fiber& f = *self;
    const unsigned rank = f.rank = b.next_rank;
    b.next_rank = rank + b.rank_step;
    if (b.next_rank >= b.threads) b.next_rank -= b.threads;
    b.started++;
    threadIdx = {rank, 0, 0};
    if (rank >= blockDim.x)
        threadIdx = {rank % blockDim.x, rank / blockDim.x % blockDim.y, rank / (blockDim.x * blockDim.y)};
    Warp& w = b.warp[rank / 32];
    f.warp = &w;
    f.lane = &w.lane[rank % 32];
    f.copies = f.groups = 0;
    f.fenced = false;
    CUDA_ON_CPU_TSAN(__tsan_acquire(&b.begin);)
    Hidden::end();
    b.grid->call(b.grid->arguments);
    Hidden::begin();
    CUDA_ON_CPU_TSAN(__tsan_release(&b.end);)
    if (f.copies) finish_copies(-1);
    if (beside) beside->thread_ends();
    b.alive--;
    w.alive &= ~(1u << rank % 32);
    // No thread waits for a returned one: its return may complete a meeting.
    Meeting& all = b.barrier[0];
    if (all.arrived && all.arrived == b.alive) complete(all, nullptr);
    for (unsigned p = w.pending; p; p &= p - 1) {
        Meeting& m = w.meeting[__builtin_ctz(p)];
        if (m.arrived == (m.mask & w.alive)) complete(m, &w);
    }
}

// Runs the threads; those that do not wait run one after the other on the same stack.
inline void run_threads() {
    CUDA_ON_CPU_ASAN(__sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);)
    Hidden::begin();
    for (;;) {
        do run_thread();
        while (!separate && block->started < block->threads && !block->ready);
        Fiber* to = next_fiber();
        Fiber*& list = separate ? block->used : block->idle;
        self->next = list;
        list = self;
        switch_to(to);
    }
}

// Stacks begin on a page, so the same variable of all fibers would map to the same few lines of the L1 cache (its sets
// repeat every 4096 bytes), and 1024 threads that wait in turn would miss each time. So tops are staggered by 64 bytes.
inline Fiber* new_fiber() {
    char* base =
        (char*)mmap(nullptr, stack_guard + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base, stack_guard, PROT_NONE))
        fail(nowhere, "no memory for the stack of a thread");
    char* top = base + stack_guard + stack_bytes - block->fibers++ % 61 * 64;
    Fiber* f = (Fiber*)((uintptr_t)(top - sizeof(Fiber)) & ~(uintptr_t)63);
    f->stack = base + stack_guard;
    CUDA_ON_CPU_TSAN(f->tsan = __tsan_create_fiber(0);)
    f->sp = cuda_on_cpu_stack((void**)f, run_threads);
    return f;
}

inline void run_block(Block& b, uint64_t number) {
    const unsigned n = b.threads;
    block = &b;
    self = &b.scheduler;
    b.started = 0;
    b.alive = n;
    b.ready = nullptr;
    b.ready_end = &b.ready;
    if (separate) {
        for (Fiber* f; (f = b.used);) {
            b.used = f->next;
            f->next = b.idle;
            b.idle = f;
        }
        while (b.fibers < n) {
            Fiber* f = new_fiber();
            f->next = b.idle;
            b.idle = f;
        }
    }
    // Random orders of threads: from any of them, in steps of a prime larger than any block.
    static const unsigned prime[8] = {1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069};
    b.random = (number + 1) * 0x9E3779B97F4A7C15u + order();
    b.rank_step = order() == 0 ? 1 : n - 1;
    b.next_rank = order() == 0 ? 0 : n - 1;
    if (order() > 1) {
        b.rank_step = prime[dice(b) % 8] % n;
        b.next_rank = dice(b) % n;
    }
    for (unsigned i = 0; i < n; i += 32) b.warp[i / 32].alive = n - i >= 32 ? ~0u : (1u << (n - i)) - 1;
    if (b.shared_bytes != b.grid->shared_bytes) {
        free(b.shared);
        b.shared_bytes = b.grid->shared_bytes;
        if (posix_memalign((void**)&b.shared, 1024, b.shared_bytes)) fail(nowhere, "no memory for shared memory");
    }
    if (b.shared_bytes) memset(b.shared, 0xff, b.shared_bytes);
    CUDA_ON_CPU_TSAN(b.scheduler.tsan = __tsan_get_current_fiber(); __tsan_release(&b.begin);)
    switch_to(next_fiber());
    CUDA_ON_CPU_TSAN(__tsan_acquire(&b.end);)
    if (beside) beside->block_ends();
    block = nullptr;
}

// Which of two cores runs a block under the race detector: see "The race detector", 4.
inline unsigned core_of(uint3 i) {
    return (unsigned)(__builtin_parity(i.x) ^ __builtin_parity(i.y) ^ __builtin_parity(i.z));
}

// Cores that run blocks: CUDA_ON_CPU_THREADS, or all that the process may use. With the race detector two, even on one
// core: a core has up to 1024 threads, and the detector's limit is 8128.
inline unsigned core_count() {
    CUDA_ON_CPU_ASAN(return 1;)
    CUDA_ON_CPU_TSAN(return setting("CUDA_ON_CPU_THREADS", 2) > 1 ? 2 : 1;)
    unsigned n = std::thread::hardware_concurrency();
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = (unsigned)CPU_COUNT(&set);
#endif
    return std::max(1u, setting("CUDA_ON_CPU_THREADS", n));
}

struct Cores {
    unsigned count;
    std::mutex mutex;
    std::condition_variable called, done;
    Grid* grid;       // the grid for which the calling core, number 0, needs help
    uint64_t calls;   // calls for help so far
    unsigned helping; // cores that help now
    unsigned helped;  // cores that have finished
    char begin, end;  // for the race detector
};
inline void help(Cores& c, unsigned core);
inline void watchdog_faults(); // cuda_runtime_emulator.h, "Device memory"

// The threads of the cores sleep between launches, until the process ends.
inline Cores& cores() {
    static Cores& all = []() -> Cores& {
        Cores* c = new Cores();
        c->count = core_count();
        for (unsigned core = 1; core < c->count; core++) std::thread(help, std::ref(*c), core).detach();
        return *c;
    }();
    return all;
}

inline void call_help(Cores& c, Grid& g) {
    Unordered unordered;
    std::lock_guard<std::mutex> lock(c.mutex);
    c.grid = &g;
    c.calls++;
    c.helped = 0;
    c.called.notify_all();
}

inline thread_local Block* own_block = nullptr; // of this core

// The work of one core on a grid. A small grid is done before waking other cores would pay.
inline void run_blocks(Grid& g, unsigned core) {
    static const uint64_t prime[8] = {2147483659, 2147483693, 2147483713, 2147483743,
                                      2147483777, 2147483783, 2147483813, 2147483857};
    Hidden hidden;
    if (!own_block) {
        own_block = new Block();
        watchdog_faults();
    }
    Block& b = *own_block;
    Cores& c = cores();
    b.grid = &g;
    b.threads = g.block.x * g.block.y * g.block.z;
    blockDim = g.block;
    gridDim = g.grid;
    forget_static_shared();
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; (separate || (i = g.next++, true)) && i < g.blocks; i++) {
        uint64_t k = i;
        if (order() == 1) k = g.blocks - 1 - i;
        if (order() > 1) k = (i * prime[order() % 8] + order() / 8) % g.blocks;
        blockIdx = {(unsigned)(k % g.grid.x), (unsigned)(k / g.grid.x % g.grid.y), (unsigned)(k / g.grid.x / g.grid.y)};
        if (separate && c.count > 1 && core_of(blockIdx) != core) continue;
        run_block(b, k);
        if (core == 0 && c.grid != &g && c.count > 1 && i + 1 < g.blocks &&
            std::chrono::steady_clock::now() - start > std::chrono::microseconds(50))
            call_help(c, g);
    }
}

inline void run_grid(Grid& g) {
    Cores& c = cores();
    CUDA_ON_CPU_TSAN(__tsan_release(&c.begin);)
    if (separate && c.count > 1 && g.blocks > 1) call_help(c, g);
    run_blocks(g, 0);
    if (c.grid == &g) {
        Unordered unordered;
        std::unique_lock<std::mutex> lock(c.mutex);
        if (separate) c.done.wait(lock, [&] { return c.helped == c.count - 1; }); // no other core runs its blocks
        c.grid = nullptr;
        c.done.wait(lock, [&] { return c.helping == 0; });
    }
    CUDA_ON_CPU_TSAN(__tsan_acquire(&c.end);)
}

inline void help(Cores& c, unsigned core) {
    Hidden hidden;
    for (uint64_t call = 0;;) {
        Grid* g;
        {
            Unordered unordered;
            std::unique_lock<std::mutex> lock(c.mutex);
            c.called.wait(lock, [&] { return c.grid && c.calls != call; });
            call = c.calls;
            g = c.grid;
            c.helping++;
        }
        CUDA_ON_CPU_TSAN(__tsan_acquire(&c.begin);)
        run_blocks(*g, core);
        CUDA_ON_CPU_TSAN(__tsan_release(&c.end);)
        Unordered unordered;
        std::lock_guard<std::mutex> lock(c.mutex);
        c.helping--;
        c.helped++;
        c.done.notify_one();
    }
}

} // namespace cuda_on_cpu

#include "warp_emulator.h"
#include "cuda_runtime_emulator.h"
