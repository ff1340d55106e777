/*
hopper_emulator.h: the functions of hopper.cuh, which documents them, on the emulator: how they work without such a GPU,
and which errors are found beside wrong results.

Theory: a GPU may do asynchronous work at once, or as late as at the wait for it, and a kernel that relies on either may
work by chance. Here all of it happens as late as possible:

    tensor_load     The tile becomes NaN at once. It arrives when no thread of the block can continue without it (with
                    CUDA_ON_CPU_ORDER from 2 on, at any time before that).
    tensor_store    The tile is read at tensor_store_wait_read(), and written to the matrix when the thread ends.
    wgmma           The sums become NaN at once. Operands are read and sums written at their warpgroup_wait().
    shared memory   The asynchronous proxy has its own view of it: a copy, which ordinary stores reach by a
                    shared_fence() and the barrier after it (or the copy or product that the same thread starts). TMA
                    and wgmma compare. With CUDA_ON_CPU_FENCES=1, which is slow, a thread's fence covers only its own
                    stores.

Reported, with the line of the kernel and then abort(): a product without warpgroup_fence() in its group, or of fewer
than four warps, or with different arguments in some of them; sums, or fragments of A, that are changed before the wait,
or are still in flight after it; tiles that TMA overwrites while a product or a store reads them, or that are read while
TMA brings them; missing shared_fence(), barriers_fence(); misaligned addresses and strides; stores to rows that are no
multiple of 16 bytes; barriers without init(), one arrival too many, more bytes than announced; in a deadlock, what each
barrier waits for; work that no thread has waited for when the block ends.

It is stricter than a GPU: every group of products begins with a fence, A's fragments are in an array that lives until
the wait, tiles are in dynamic shared memory, the four warps of a warpgroup wait for each other at each of these
functions. Not found: a store between the fence and the barrier, and a fence that some of the writing threads have
omitted (both: with CUDA_ON_CPU_FENCES=1); products of registers that were changed between the group's fence and the
product; registers that are claimed before others release them.
*/
#pragma once

#include "cuda_emulator.h"

#define __grid_constant__
#define CALLER_LINE CUDA_ON_CPU_SITE

static inline bool is_hopper() { return true; } // costs nothing as long as a block does not use it

struct TensorMap {
    char* base;
    int64_t columns, rows, batches, row_stride, batch_stride; // strides in bytes
    int box_rows;
    unsigned made;
};

struct Barrier {
    uint64_t state; // the barrier's number in the block
    void init(int count, CUDA_ON_CPU_SITE);
    void arrive(CUDA_ON_CPU_SITE);
    void arrive_expect(int bytes, CUDA_ON_CPU_SITE);
    void wait(int parity, CUDA_ON_CPU_SITE);
};

namespace cuda_on_cpu {

constexpr unsigned map_is_made = 0x3d3d3d3d;

struct Phases { // a Barrier
    const void* at;
    Site site;            // of its init()
    unsigned count, left; // threads that have to arrive in a phase, and that are missing in this one
    int64_t bytes;        // announced and not yet there
    unsigned phase;
    bool fenced;
    Meeting waiting;
    int parity;    // of the phase that they wait for
    char order[2]; // for the race detector: objects that order the phases, in turn
};

struct Load { // in flight
    char* to;
    TensorMap map;
    int column, row, batch;
    unsigned barrier;
    Site site;
};

struct Store {
    const char* from;
    TensorMap map;
    int column, row, batch;
    unsigned thread, group;
    bool read;
    std::vector<char> tile; // as it was when the store began
    Site site;
};

struct Operand { // a descriptor, and the instruction's part of it
    uint64_t descriptor;
    bool mn_major;
    int size; // rows (of A) or columns (of B)
};

struct Product { // of a warpgroup, in flight
    Site site;
    int half_n;
    bool accumulate;
    bool shared_a; // else registers
    Operand a, b;
    float (*value)(uint16_t); // of T
    float* d[128];
    const unsigned* a_at[128];
    unsigned a_registers[128][4];
    unsigned group;
};

struct Sums { // the registers that products in flight write
    int half_n;
    float* d[128];
    std::vector<float> tile; // 64 x n
};

struct Warpgroup {
    Meeting meeting;
    void (*work)(Warpgroup&);
    bool fenced;
    unsigned groups; // committed so far
    int keep;        // groups that warpgroup_wait() leaves
    int registers;   // set by setmaxnreg; 0: not set
    char order[8];   // for the race detector: the last groups' reads come before the code after the wait
    Product next;    // the threads' arguments
    std::vector<Product> products;
    std::vector<Sums> sums;
};

constexpr uint16_t no_thread = 0xffff;
constexpr unsigned register_poison = 0xffffffff; // a NaN

struct Hopper : Beside {
    uint64_t block_number = 0;
    std::vector<Phases> barriers;
    std::vector<Load> loads;
    std::vector<Store> stores;
    std::vector<unsigned> store_groups; // of each thread
    std::vector<char> view;             // of shared memory, by TMA and wgmma
    std::vector<Warpgroup> groups;
    bool exact;                   // CUDA_ON_CPU_FENCES
    std::vector<char> last;       // shared memory as the last thread left it,
    std::vector<uint16_t> writer; // and the thread that has written it, for every two bytes

    void leave() override;
    bool go_on() override;
    void publish() override {
        if (!exact && !view.empty()) memcpy(view.data(), block->shared, view.size());
    }
    void thread_ends() override;
    void block_ends() override;
    void tell() override;
};

inline thread_local Hopper* own_hopper = nullptr;                // of this core
inline thread_local float operand_a[64][16], operand_b[16][128]; // of the current product

// The block's state, made at its first use.
inline Hopper& hopper() {
    if (!own_hopper) own_hopper = new Hopper();
    if (!beside) {
        Hopper& h = *own_hopper;
        h.block_number++;
        h.barriers.clear();
        h.store_groups.assign(block->threads, 0);
        h.view.assign(block->shared_bytes, (char)0xff);
        h.groups.clear();
        h.groups.resize(block->threads / 128);
        h.exact = setting("CUDA_ON_CPU_FENCES", 0) != 0;
        if (h.exact) h.last.assign(block->shared, block->shared + block->shared_bytes);
        if (h.exact) h.writer.assign(block->shared_bytes / 2, no_thread);
        beside = &h;
    }
    return *own_hopper;
}

// ---- Shared memory ----------------------------------------------------------------------------------------------

inline uint32_t shared_offset(const void* p, size_t bytes, size_t alignment, const char* what, Site at) {
    const uintptr_t offset = (uintptr_t)p - (uintptr_t)block->shared;
    if (offset >= block->shared_bytes || bytes > block->shared_bytes - offset)
        fail(at, "%s: %zu bytes at %p are not in dynamic shared memory", what, bytes, p);
    if (offset % alignment) fail(at, "%s: byte %zu of shared memory is not a multiple of %zu", what, offset, alignment);
    return (uint32_t)offset;
}

inline bool overlap(const char* a, size_t a_bytes, const char* b, size_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}
inline size_t box_bytes(const TensorMap& map) { return (size_t)map.box_rows * 128; }

// Calls f(first byte) for each two bytes of shared memory that differ from `copy`.
template <class F>
void each_difference(const std::vector<char>& copy, F f) {
    for (size_t i = 0; i < copy.size(); i += 64) {
        const size_t end = std::min(copy.size(), i + 64);
        if (memcmp(&copy[i], block->shared + i, end - i) == 0) continue;
        for (size_t j = i; j + 2 <= end; j += 2)
            if (memcmp(&copy[j], block->shared + j, 2)) f(j);
    }
}

// With CUDA_ON_CPU_FENCES=1. Differences since the last thread left were written by the thread that leaves now; its
// fence covers these writes and no others.
inline void Hopper::leave() {
    if (!exact) return;
    each_difference(last, [this](size_t i) {
        writer[i / 2] = (uint16_t)self->rank;
        memcpy(&last[i], block->shared + i, 2);
    });
}
inline void fence_own(Hopper& h) {
    h.leave();
    each_difference(h.view, [&h](size_t i) {
        if (h.writer[i / 2] == self->rank || h.writer[i / 2] == no_thread) memcpy(&h.view[i], block->shared + i, 2);
    });
}

// TMA has written these.
inline void see_written(Hopper& h, const char* p, size_t bytes) {
    memcpy(&h.view[(size_t)(p - block->shared)], p, bytes);
    if (h.exact) memcpy(&h.last[(size_t)(p - block->shared)], p, bytes);
}

// TMA or wgmma is about to read these.
inline void check_readable(const char* p, size_t bytes, const char* what, Site at) {
    Hopper& h = hopper();
    for (const Load& l : h.loads)
        if (overlap(p, bytes, l.to, box_bytes(l.map)))
            fail(at, "%s reads shared memory to which the tensor_load of %s:%d is under way", what, l.site.file,
                 l.site.line);
    if (memcmp(p, h.view.data() + (p - block->shared), bytes))
        fail(at,
             "%s reads byte %td of shared memory or one close by, which was stored without shared_fence() and barrier",
             what, p - block->shared);
}

// A descriptor as the hardware reads it. Calls f(address of 16 bytes, first row of A or column of B, first k) for the
// whole operand: eight k of one row, or eight rows of one k.
template <class F>
void each_chunk(const Operand& o, Site at, F f) {
    const uint64_t d = o.descriptor;
    const uint32_t address = (uint32_t)(d & 0x3fff) << 4, leading = (uint32_t)(d >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
    if (d >> 62 != 1 || (d & 0x3fffc000c000c000))
        fail(at, "wgmma: a descriptor that no tile has, %#llx", (unsigned long long)d);
    if (address % 1024 >= (o.mn_major ? 1u : 128u))
        fail(at, "wgmma: a tile at byte %u of shared memory, which is not a multiple of 1024", address);
    if (address % 128 > 96) fail(at, "wgmma: a step over the end of the tile's rows");
    const int rows = o.mn_major ? 16 : o.size, chunks = o.mn_major ? o.size / 8 : 2;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < chunks; c++) {
            uint32_t p = address + (uint32_t)(r / 8) * stride + (uint32_t)(r % 8) * 128;
            p += o.mn_major ? (uint32_t)(c / 8) * leading + (uint32_t)(c % 8) * 16 : (uint32_t)c * 16;
            p ^= (p >> 7 & 7) << 4;
            if (p + 16 > block->shared_bytes) fail(at, "wgmma: a tile that ends behind shared memory");
            f(block->shared + p, o.mn_major ? 8 * c : r, o.mn_major ? r : 8 * c);
        }
}

// ---- Barriers ---------------------------------------------------------------------------------------------------

constexpr uint64_t barrier_mark = 0xba11ull << 48;

inline Phases& phases(const Barrier* b, const char* what, Site at) {
    Hopper& h = hopper();
    check_aligned(b, 8, what, at);
    CUDA_ON_CPU_TSAN(Hidden::end(); __tsan_read_range((void*)b, 8); Hidden::begin();)
    const uint64_t state = b->state, number = state & 0xffff;
    if (state >> 48 != barrier_mark >> 48 || (state >> 16 & 0xffffffff) != (h.block_number & 0xffffffff) ||
        number >= h.barriers.size() || h.barriers[number].at != b)
        fail(at, "%s: no init() of this barrier, or its memory was overwritten", what);
    return h.barriers[number];
}

inline void end_phase_if_over(Phases& p) {
    if (p.left || p.bytes) return;
    p.phase++;
    p.left = p.count;
    wake(p.waiting);
}

inline void arrive_at(Phases& p, const char* what, Site at) {
    if (!p.left)
        fail(at, "%s: all %u threads of the phase have arrived, and it waits for %lld more bytes", what, p.count,
             (long long)p.bytes);
    CUDA_ON_CPU_TSAN(__tsan_release(&p.order[p.phase & 1]);)
    p.left--;
    if (!p.left && p.bytes < 0)
        fail(at, "%s: copies have brought %lld bytes more than were announced", what, (long long)-p.bytes);
    end_phase_if_over(p);
}

// Named barriers: not all arriving threads wait, nor at the same line.
inline void named_barrier(int id, int threads, bool waits, const char* what, Site at) {
    Hidden hidden;
    if (id < 1 || id > 15) fail(at, "%s: there is no barrier %d", what, id);
    if (threads < 32 || threads > 1024 || threads % 32) fail(at, "%s: %d threads are not some warps", what, threads);
    Meeting& m = block->barrier[id];
    if (m.arrived && m.mask != (unsigned)threads)
        fail(at, "%s of %d threads, while others came to one of %u at %s:%d", what, threads, m.mask, m.site.file,
             m.site.line);
    m.mask = (unsigned)threads;
    m.what = what;
    m.site = at;
    bring_fence(m);
    CUDA_ON_CPU_TSAN(char* sync = &m.order[m.round & 1]; __tsan_release(sync);)
    if (++m.arrived == m.mask)
        complete(m, nullptr);
    else if (waits)
        wait(m);
    CUDA_ON_CPU_TSAN(if (waits) __tsan_acquire(sync);)
}

// ---- Tensors ----------------------------------------------------------------------------------------------------

inline void check_map(const TensorMap& map, const char* what, Site at) {
    if (map.made != map_is_made) fail(at, "%s: a map that tensor_map() has not made", what);
}

// One row of a tile in the matrix: its address, and how many of its columns exist; 0: none.
inline char* matrix_row(const TensorMap& map, int column, int row, int batch, int* first, int* end) {
    *first = std::max(0, -column);
    *end = (int)std::min<int64_t>(64, map.columns - column);
    if (row < 0 || row >= map.rows || batch < 0 || batch >= map.batches || *first >= *end) return nullptr;
    return map.base + batch * map.batch_stride + row * map.row_stride + (int64_t)column * 2;
}

// The address of a tile's 16-byte chunk, by tile_place().
inline char* tile_chunk(const char* tile, int row, int chunk) {
    return (char*)tile + row * 128 + ((chunk ^ row % 8) * 16);
}

inline void see_matrix(const TensorMap& map, int column, int row, int batch, bool write, Site at) {
    if (column % 8 != 0) fail(at, "TMA: column %d is not a multiple of 8: 16 bytes", column);
    if (write && (column < 0 || row < 0 || batch < 0)) fail(at, "tensor_store: it begins before the matrix");
    if (write && map.columns % 8 != 0) fail(at, "tensor_store: rows of %d numbers, no multiple of 8", (int)map.columns);
    for (int r = 0; r < map.box_rows; r++) {
        int first, end;
        char* p = matrix_row(map, column, row + r, batch, &first, &end);
        if (!p) continue;
        CUDA_ON_CPU_ASAN(__asan_loadN(p + 2 * first, 2 * (end - first));)
        CUDA_ON_CPU_TSAN(Hidden::end(); if (write) __tsan_write_range(p + 2 * first, 2 * (end - first));
                         else __tsan_read_range(p + 2 * first, 2 * (end - first)); Hidden::begin();)
    }
    (void)write;
}

inline void bring(Hopper& h, size_t i) {
    const Load l = h.loads[i];
    h.loads.erase(h.loads.begin() + (ptrdiff_t)i);
    for (int r = 0; r < l.map.box_rows; r++) {
        uint16_t line[64] = {};
        int first, end;
        const char* p = matrix_row(l.map, l.column, l.row + r, l.batch, &first, &end);
        if (p) memcpy(line + first, p + 2 * first, 2 * (size_t)(end - first));
        for (int c = 0; c < 8; c++) memcpy(tile_chunk(l.to, r, c), line + 8 * c, 16);
    }
    see_written(h, l.to, box_bytes(l.map));
    Phases& b = h.barriers[l.barrier];
    b.bytes -= (int64_t)box_bytes(l.map);
    if (!b.left && b.bytes < 0)
        fail(l.site, "tensor_load: brings %lld bytes more than its barrier expects", (long long)-b.bytes);
    end_phase_if_over(b);
}

inline void load_tensor(void* shared, const TensorMap& map, int column, int row, int batch, const Barrier& barrier,
                        Site at) {
    Hidden hidden;
    const char* what = "tensor_load";
    Hopper& h = hopper();
    check_map(map, what, at);
    Phases& b = phases(&barrier, what, at);
    if (!b.fenced)
        fail(at, "%s: no barriers_fence() after init() of its barrier at %s:%d", what, b.site.file, b.site.line);
    const size_t bytes = box_bytes(map);
    shared_offset(shared, bytes, 1024, what, at);
    char* to = (char*)shared;
    for (const Load& l : h.loads)
        if (overlap(to, bytes, l.to, box_bytes(l.map)))
            fail(at, "%s to where the one of %s:%d is under way", what, l.site.file, l.site.line);
    for (const Store& s : h.stores)
        if (!s.read && overlap(to, bytes, s.from, box_bytes(s.map)))
            fail(at, "%s overwrites what the tensor_store of %s:%d still reads", what, s.site.file, s.site.line);
    for (const Warpgroup& g : h.groups)
        for (const Product& p : g.products) {
            const auto check = [&](const char* chunk, int, int) {
                if (overlap(to, bytes, chunk, 16))
                    fail(at, "%s overwrites what the wgmma of %s:%d still reads", what, p.site.file, p.site.line);
            };
            if (p.shared_a) each_chunk(p.a, p.site, check);
            each_chunk(p.b, p.site, check);
        }
    see_matrix(map, column, row, batch, false, at);
    CUDA_ON_CPU_TSAN(Hidden::end(); __tsan_write_range(to, (long)bytes); Hidden::begin();
                     __tsan_release(&b.order[b.phase & 1]);)
    memset(to, 0xff, bytes);
    see_written(h, to, bytes);
    h.loads.push_back({to, map, column, row, batch, (unsigned)(&b - h.barriers.data()), at});
}

inline void store_tensor(const TensorMap& map, const void* shared, int column, int row, int batch, Site at) {
    Hidden hidden;
    const char* what = "tensor_store";
    Hopper& h = hopper();
    check_map(map, what, at);
    const size_t bytes = box_bytes(map);
    shared_offset(shared, bytes, 1024, what, at);
    if (self->fenced) h.publish();
    self->fenced = false;
    const char* from = (const char*)shared;
    check_readable(from, bytes, what, at);
    see_matrix(map, column, row, batch, true, at);
    CUDA_ON_CPU_TSAN(Hidden::end(); __tsan_read_range((void*)from, (long)bytes); Hidden::begin();)
    h.stores.push_back({from, map, column, row, batch, self->rank, h.store_groups[self->rank], false,
                        std::vector<char>(from, from + bytes), at});
}

inline void read_store(Store& s) {
    if (!s.read && memcmp(s.tile.data(), s.from, s.tile.size()))
        fail(s.site, "tensor_store: its tile was overwritten before tensor_store_wait_read()");
    s.read = true;
}
inline void write_store(const Store& s) {
    for (int r = 0; r < s.map.box_rows; r++) {
        int first, end;
        char* p = matrix_row(s.map, s.column, s.row + r, s.batch, &first, &end);
        if (!p) continue;
        for (int c = first; c < end; c++) memcpy(p + 2 * c, tile_chunk(s.tile.data(), r, c / 8) + c % 8 * 2, 2);
    }
}

// Finishes all groups of this thread but the last `keep` (-1: also stores that belong to no group).
inline void finish_stores(int keep, bool write) {
    Hidden hidden;
    Hopper& h = hopper();
    const auto over = [&](const Store& s) {
        return s.thread == self->rank && (int64_t)s.group < (int64_t)h.store_groups[self->rank] - keep;
    };
    for (Store& s : h.stores)
        if (over(s)) {
            read_store(s);
            if (write) write_store(s);
        }
    if (write) h.stores.erase(std::remove_if(h.stores.begin(), h.stores.end(), over), h.stores.end());
}

} // namespace cuda_on_cpu

#include "hopper_products.h"

namespace cuda_on_cpu {

// ---- The block --------------------------------------------------------------------------------------------------

inline bool Hopper::go_on() {
    if (loads.empty()) return false;
    if (order() <= 1)
        bring(*this, order() == 0 ? 0 : loads.size() - 1);
    else
        bring(*this, dice(*block) % loads.size());
    return true;
}

inline void Hopper::thread_ends() {
    leave();
    for (const Store& s : stores)
        if (s.thread == self->rank && !s.read)
            fail(s.site, "tensor_store: its thread ends without tensor_store_wait_read()");
    finish_stores(-1, true);
}

inline void Hopper::block_ends() {
    for (const Load& l : loads) fail(l.site, "tensor_load: the block ends without a wait for it");
    for (const Warpgroup& g : groups)
        for (const Product& p : g.products) fail(p.site, "wgmma: the block ends without a wait for it");
    beside = nullptr;
}

inline void Hopper::tell() {
    for (const Phases& b : barriers) {
        if (!b.waiting.first) continue;
        fprintf(stderr, "%s:%d: at Barrier::wait(%d) wait threads", b.waiting.site.file, b.waiting.site.line, b.parity);
        int n = 0;
        for (const Fiber* f = b.waiting.first; f; f = f->next)
            if (n++ < 16) fprintf(stderr, " %u", f->rank);
        fprintf(stderr,
                "%s, until phase %u of the barrier of %s:%d is over: %u of %u arrivals and %lld bytes are missing\n",
                n > 16 ? "..." : "", b.phase, b.site.file, b.site.line, b.left, b.count, (long long)b.bytes);
    }
    for (const Warpgroup& g : groups)
        if (g.meeting.arrived)
            fprintf(stderr, "%s:%d: at %s wait %u of the 128 threads of a warpgroup\n", g.meeting.site.file,
                    g.meeting.site.line, g.meeting.what, g.meeting.arrived);
}

} // namespace cuda_on_cpu

// ---- Their names in hopper.cuh ----------------------------------------------------------------------------------

template <class T>
TensorMap tensor_map(const T* base, int64_t columns, int64_t rows, int64_t batches, int64_t row_stride,
                     int64_t batch_stride, int box_rows) {
    static_assert(sizeof(T) == 2, "tiles are of 16-bit numbers");
    const int64_t limit = (int64_t)1 << 40, last = (batches - 1) * batch_stride + (rows - 1) * row_stride + columns;
    const auto need = [](bool ok, const char* wrong) {
        if (!ok) cuda_on_cpu::fail(cuda_on_cpu::nowhere, "tensor_map: %s", wrong);
    };
    need(columns >= 1 && rows >= 1 && batches >= 1, "a size below 1");
    need((uintptr_t)base % 16 == 0, "a base that is not a multiple of 16 bytes");
    need(row_stride % 8 == 0 && batch_stride % 8 == 0, "strides that are not multiples of 16 bytes");
    need(row_stride >= columns, "rows that overlap");
    need(batch_stride >= rows * row_stride, "batches that overlap");
    need(batch_stride % row_stride == 0, "a stride of batches that is not one of whole rows");
    need(batch_stride * 2 < limit, "a stride of a terabyte");
    need(box_rows >= 1 && box_rows <= 256, "boxes of less than 1 or more than 256 rows");
    need(cuda_on_cpu::memory.has(base, (size_t)last * 2), "a matrix that is not in device memory");
    return {(char*)base, columns, rows, batches, row_stride * 2, batch_stride * 2, box_rows, cuda_on_cpu::map_is_made};
}

inline void Barrier::init(int count, cuda_on_cpu::Site at) {
    using namespace cuda_on_cpu;
    CUDA_ON_CPU_TSAN(__tsan_write_range(this, 8);)
    Hidden hidden;
    Hopper& h = hopper();
    check_aligned(this, 8, "Barrier::init", at);
    if (count < 1 || count >= 1 << 20) fail(at, "Barrier::init(%d)", count);
    for (const Phases& p : h.barriers)
        if (p.at == this) fail(at, "Barrier::init: it was set up at %s:%d", p.site.file, p.site.line);
    Phases p = {};
    p.at = this;
    p.site = at;
    p.count = p.left = (unsigned)count;
    if (h.barriers.empty()) h.barriers.reserve(256); // pointers to them stay valid
    if (h.barriers.size() == 256) fail(at, "Barrier::init: more than 256 barriers");
    state = barrier_mark | (h.block_number & 0xffffffff) << 16 | h.barriers.size();
    h.barriers.push_back(p);
}
inline void Barrier::arrive(cuda_on_cpu::Site at) {
    cuda_on_cpu::Hidden hidden;
    if (cuda_on_cpu::self->fenced) cuda_on_cpu::hopper().publish();
    cuda_on_cpu::self->fenced = false;
    cuda_on_cpu::arrive_at(cuda_on_cpu::phases(this, "Barrier::arrive", at), "Barrier::arrive", at);
}
inline void Barrier::arrive_expect(int bytes, cuda_on_cpu::Site at) {
    using namespace cuda_on_cpu;
    Hidden hidden;
    if (bytes < 0 || bytes >= 1 << 20) fail(at, "Barrier::arrive_expect(%d)", bytes);
    if (self->fenced) hopper().publish();
    self->fenced = false;
    Phases& p = phases(this, "Barrier::arrive_expect", at);
    if (p.left) p.bytes += bytes;
    arrive_at(p, "Barrier::arrive_expect", at);
}
inline void Barrier::wait(int parity, cuda_on_cpu::Site at) {
    using namespace cuda_on_cpu;
    Hidden hidden;
    if (parity != 0 && parity != 1) fail(at, "Barrier::wait(%d): a parity is 0 or 1", parity);
    Phases& p = phases(this, "Barrier::wait", at);
    while ((p.phase & 1) == (unsigned)parity) {
        p.waiting.site = at;
        p.parity = parity;
        cuda_on_cpu::wait(p.waiting);
    }
    CUDA_ON_CPU_TSAN(__tsan_acquire(&p.order[parity]);)
}
inline void barriers_fence() {
    cuda_on_cpu::Hidden hidden;
    for (auto& p : cuda_on_cpu::hopper().barriers) p.fenced = true;
}

inline void tensor_load(void* shared, const TensorMap& map, int column, int row, int batch, Barrier& barrier,
                        CUDA_ON_CPU_SITE) {
    cuda_on_cpu::load_tensor(shared, map, column, row, batch, barrier, at);
}
inline void tensor_store(const TensorMap& map, const void* shared, int column, int row, int batch, CUDA_ON_CPU_SITE) {
    cuda_on_cpu::store_tensor(map, shared, column, row, batch, at);
}
inline void tensor_store_commit() {
    cuda_on_cpu::Hidden hidden;
    cuda_on_cpu::hopper().store_groups[cuda_on_cpu::self->rank]++;
}
template <int pending>
void tensor_store_wait_read() {
    cuda_on_cpu::finish_stores(pending, false);
}

inline void shared_fence() {
    cuda_on_cpu::Hidden hidden;
    cuda_on_cpu::Hopper& h = cuda_on_cpu::hopper();
    if (h.exact) cuda_on_cpu::fence_own(h);
    cuda_on_cpu::self->fenced = true;
}
inline void barrier_sync(int id, int threads, CUDA_ON_CPU_SITE) {
    cuda_on_cpu::named_barrier(id, threads, true, "barrier_sync", at);
}
inline void barrier_arrive(int id, int threads, CUDA_ON_CPU_SITE) {
    cuda_on_cpu::named_barrier(id, threads, false, "barrier_arrive", at);
}
template <int registers>
void registers_release(CUDA_ON_CPU_SITE) {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "setmaxnreg: 24, 32... 256");
    cuda_on_cpu::set_registers(registers, false, at);
}
template <int registers>
void registers_claim(CUDA_ON_CPU_SITE) {
    static_assert(registers >= 24 && registers <= 256 && registers % 8 == 0, "setmaxnreg: 24, 32... 256");
    cuda_on_cpu::set_registers(registers, true, at);
}
inline void store_matrix_x4(void* row, const unsigned (&r)[4], CUDA_ON_CPU_SITE) { cuda_on_cpu::stmatrix(row, r, at); }

inline Tile<K_MAJOR> tile_k_major(const void* shared, CUDA_ON_CPU_SITE) {
    return {tile_descriptor(cuda_on_cpu::shared_offset(shared, 1024, 1024, "tile_k_major", at), 16, 1024)};
}
inline Tile<MN_MAJOR> tile_mn_major(const void* shared, int rows, CUDA_ON_CPU_SITE) {
    const size_t bytes = (size_t)rows * 128;
    if (rows < 16 || rows % 8) cuda_on_cpu::fail(at, "tile_mn_major: %d rows", rows);
    return {
        tile_descriptor(cuda_on_cpu::shared_offset(shared, bytes, 1024, "tile_mn_major", at), (uint32_t)bytes, 1024)};
}

// A default argument cannot follow a pack; hence up to four arrays of registers.
struct NoRegisters {};
inline NoRegisters no_registers;
template <class A = NoRegisters, class B = NoRegisters, class C = NoRegisters, class D = NoRegisters>
void warpgroup_fence(A& = no_registers, B& = no_registers, C& = no_registers, D& = no_registers, CUDA_ON_CPU_SITE) {
    cuda_on_cpu::Hidden hidden;
    cuda_on_cpu::meet_group([](cuda_on_cpu::Warpgroup& g) { g.fenced = true; }, "warpgroup_fence", at);
}
inline void warpgroup_commit(CUDA_ON_CPU_SITE) {
    cuda_on_cpu::Hidden hidden;
    const auto commit = [](cuda_on_cpu::Warpgroup& g) { g.groups++, g.fenced = false; };
    cuda_on_cpu::meet_group(commit, "warpgroup_commit", at);
}
template <int pending, class A = NoRegisters, class B = NoRegisters, class C = NoRegisters, class D = NoRegisters>
void warpgroup_wait(A& a = no_registers, B& b = no_registers, C& c = no_registers, D& d = no_registers,
                    CUDA_ON_CPU_SITE) {
    {
        cuda_on_cpu::Hidden hidden;
        const auto finish = [](cuda_on_cpu::Warpgroup& g) {
            g.keep = pending;
            cuda_on_cpu::finish_products(g);
        };
        const auto& g = cuda_on_cpu::meet_group(finish, "warpgroup_wait", at);
        CUDA_ON_CPU_TSAN(for (unsigned i = pending + 1; i <= 8; i++)
                             __tsan_acquire((void*)&g.order[(g.groups - i) % 8]);)
        (void)g;
    }
    cuda_on_cpu::check_done(&a, sizeof a, at);
    cuda_on_cpu::check_done(&b, sizeof b, at);
    cuda_on_cpu::check_done(&c, sizeof c, at);
    cuda_on_cpu::check_done(&d, sizeof d, at);
}

template <int n>
void finish_before_wait(const float (&result)[n], CUDA_ON_CPU_SITE) { // checked, as it holds for these
    for (float x : result)
        if (x < 0) cuda_on_cpu::fail(at, "finish_before_wait: %g is below 0", (double)x);
}

template <class T, int half_n, Major a_major, Major b_major>
void wgmma(float (&d)[half_n], Tile<a_major> a, Tile<b_major> b, bool accumulate, CUDA_ON_CPU_SITE) {
    static_assert(half_n == 32 || half_n == 64, "n is 64 or 128");
    cuda_on_cpu::bring_product({a.descriptor, a_major == MN_MAJOR, 64}, true,
                               {b.descriptor, b_major == MN_MAJOR, 2 * half_n}, accumulate, half_n,
                               cuda_on_cpu::value_of<T>, d, nullptr, at);
}
template <class T, int half_n, Major b_major>
void wgmma(float (&d)[half_n], const unsigned (&a)[4], Tile<b_major> b, bool accumulate, CUDA_ON_CPU_SITE) {
    static_assert(half_n == 32 || half_n == 64, "n is 64 or 128");
    cuda_on_cpu::bring_product({0, false, 64}, false, {b.descriptor, b_major == MN_MAJOR, 2 * half_n}, accumulate,
                               half_n, cuda_on_cpu::value_of<T>, d, a, at);
}
