/*
hopper_products.h: the products of four warps (wgmma) on the emulator; a part of hopper_emulator.h.
*/
#pragma once

namespace cuda_on_cpu {

// The four warps of the running thread's warpgroup meet; the last one does the work. Returns the warpgroup.
inline Warpgroup& meet_group(void (*work)(Warpgroup&), const char* what, Site at) {
    Hopper& h = hopper();
    const unsigned number = self->rank / 128;
    if (number >= h.groups.size()) fail(at, "%s: the block has no four warps from number %u on", what, 4 * number);
    Warpgroup& g = h.groups[number];
    Meeting& m = g.meeting;
    arrive(m, 128, what, at);
    bring_fence(m);
    if (++m.arrived == 128) {
        if (m.fenced) h.publish();
        m.fenced = false;
        if (work) work(g);
        complete(m, nullptr);
    } else
        wait(m);
    return g;
}

inline bool part_of(const void* p, const void* array, size_t bytes) {
    return (const char*)p >= (const char*)array && (const char*)p < (const char*)array + bytes;
}

inline void check_untouched(const Sums& s, Site at) {
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < s.half_n; i++) {
            unsigned bits;
            memcpy(&bits, s.d[t] + i, 4);
            if (bits != register_poison)
                fail(at, "wgmma: d[%d] of thread %d of the warpgroup was changed while a product is under way to it", i,
                     t);
        }
}

// All threads have arrived: the product is in flight.
inline void start_product(Warpgroup& g) {
    Product& p = g.next;
    const Site at = p.site;
    if (!g.fenced) fail(at, "wgmma: no warpgroup_fence() in its group");
    const auto readable = [&](const char* chunk, int, int) { check_readable(chunk, 16, "wgmma", at); };
    if (p.shared_a) each_chunk(p.a, at, readable);
    each_chunk(p.b, at, readable);
    Sums* sums = nullptr;
    for (Sums& s : g.sums)
        for (int t = 0; t < 128; t++) {
            if (s.d[t] == p.d[t] && s.half_n == p.half_n)
                sums = &s;
            else if (overlap((char*)s.d[t], 4 * (size_t)s.half_n, (char*)p.d[t], 4 * (size_t)p.half_n))
                fail(at, "wgmma: a part of its d is a part of another product's d, under way");
        }
    if (sums)
        check_untouched(*sums, at);
    else {
        g.sums.push_back({p.half_n, {}, std::vector<float>(128 * (size_t)p.half_n)});
        sums = &g.sums.back();
        memcpy(sums->d, p.d, sizeof p.d);
        for (int t = 0; t < 128; t++)
            for (int i = 0; i < p.half_n; i++) {
                const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
                if (p.accumulate) sums->tile[(size_t)(row * 2 * p.half_n + column)] = p.d[t][i];
                memcpy(p.d[t] + i, &register_poison, 4);
            }
    }
    p.group = g.groups;
    g.products.push_back(p);
}

// Computes a product that is waited for, in float, in the order of k.
inline void run_product(Warpgroup& g, const Product& p) {
    typedef float Row __attribute__((vector_size(32)));
    const int n = 2 * p.half_n;
    float(&a)[64][16] = operand_a, (&b)[16][128] = operand_b;
    const auto read = [&](const char* chunk, uint16_t(&v)[8]) {
        check_readable(chunk, 16, "wgmma, before it is waited for,", p.site);
        memcpy(v, chunk, 16);
    };
    uint16_t v[8];
    if (p.shared_a)
        each_chunk(p.a, p.site, [&](const char* chunk, int m, int k) {
            read(chunk, v);
            for (int i = 0; i < 8; i++) (p.a.mn_major ? a[m + i][k] : a[m][k + i]) = p.value(v[i]);
        });
    else
        for (int t = 0; t < 128; t++) {
            if (memcmp(p.a_at[t], p.a_registers[t], 16))
                fail(p.site, "wgmma: thread %d of the warpgroup has changed its part of A before warpgroup_wait()", t);
            for (int i = 0; i < 8; i++)
                a[t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2] =
                    p.value((uint16_t)(p.a_registers[t][i / 2] >> i % 2 * 16));
        }
    each_chunk(p.b, p.site, [&](const char* chunk, int column, int k) {
        read(chunk, v);
        for (int i = 0; i < 8; i++) (p.b.mn_major ? b[k][column + i] : b[k + i][column]) = p.value(v[i]);
    });
    Sums* sums = nullptr;
    for (Sums& s : g.sums)
        if (s.d[0] == p.d[0]) sums = &s;
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < n; j += 8) {
            Row sum = {}, line;
            float* d = &sums->tile[(size_t)(i * n + j)];
            if (p.accumulate) memcpy(&sum, d, sizeof sum);
            for (int k = 0; k < 16; k++) {
                memcpy(&line, &b[k][j], sizeof line);
                sum += a[i][k] * line;
            }
            memcpy(d, &sum, sizeof sum);
        }
}

inline void finish_products(Warpgroup& g) {
    const auto over = [&](const Product& p) { return (int64_t)p.group < (int64_t)g.groups - g.keep; };
    for (const Product& p : g.products)
        if (over(p)) run_product(g, p);
    g.products.erase(std::remove_if(g.products.begin(), g.products.end(), over), g.products.end());
    for (size_t s = 0; s < g.sums.size();) {
        Sums& sums = g.sums[s];
        bool busy = false;
        for (const Product& p : g.products) busy |= p.d[0] == sums.d[0];
        if (busy) {
            s++;
            continue;
        }
        check_untouched(sums, g.meeting.site);
        for (int t = 0; t < 128; t++)
            for (int i = 0; i < sums.half_n; i++) {
                const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
                sums.d[t][i] = sums.tile[(size_t)(row * 2 * sums.half_n + column)];
            }
        g.sums.erase(g.sums.begin() + (ptrdiff_t)s);
    }
    g.fenced = false;
}

// All threads must give the same arguments, except for their registers.
inline void bring_product(const Operand& a, bool shared_a, const Operand& b, bool accumulate, int half_n,
                          float (*value)(uint16_t), float* d, const unsigned* registers, Site at) {
    Hidden hidden;
    Hopper& h = hopper();
    const unsigned number = self->rank / 128, t = self->rank % 128;
    if (number < h.groups.size()) {
        Warpgroup& g = h.groups[number];
        Product& p = g.next;
        const bool same = p.a.descriptor == a.descriptor && p.b.descriptor == b.descriptor &&
                          p.accumulate == accumulate && p.half_n == half_n && p.shared_a == shared_a &&
                          p.value == value && p.a.mn_major == a.mn_major && p.b.mn_major == b.mn_major;
        if (g.meeting.arrived && !same) fail(at, "wgmma: its operands are not those of the warpgroup's other threads");
        p.site = at;
        p.half_n = half_n;
        p.accumulate = accumulate;
        p.shared_a = shared_a;
        p.a = a;
        p.b = b;
        p.value = value;
        p.d[t] = d;
        p.a_at[t] = registers;
        if (registers) memcpy(p.a_registers[t], registers, 16);
#ifdef __SANITIZE_THREAD__
        const auto see = [](const char* chunk, int, int) {
            Hidden::end();
            __tsan_read_range((void*)chunk, 16);
            Hidden::begin();
        };
        if (t % 32 == 13) { // one thread of a warp reads for all; any of the warpgroup may report the end
            if (shared_a) each_chunk(a, at, see);
            each_chunk(b, at, see);
            __tsan_release(&g.order[g.groups % 8]);
        }
#endif
    }
    meet_group(start_product, "wgmma", at);
}

template <class T>
float value_of(uint16_t bits) {
    T x;
    memcpy((void*)&x, &bits, 2);
    return (float)x;
}

// Registers that a kernel names in warpgroup_wait() must be complete.
inline void check_done(const void* array, size_t bytes, Site at) {
    Hidden hidden;
    const Warpgroup& g = hopper().groups[self->rank / 128];
    const unsigned t = self->rank % 128;
    for (const Sums& s : g.sums)
        if (part_of(s.d[t], array, bytes))
            fail(at, "warpgroup_wait: a product to these registers is still under way (in a later group, or without "
                     "commit)");
    for (const Product& p : g.products)
        if (!p.shared_a && part_of(p.a_at[t], array, bytes))
            fail(at, "warpgroup_wait: the product of %s:%d, still under way, reads these registers", p.site.file,
                 p.site.line);
}

inline void set_registers(int n, bool claim, Site at) {
    Hidden hidden;
    Warpgroup& g = meet_group(nullptr, claim ? "registers_claim" : "registers_release", at);
    g.registers = n;
    int all = 0;
    for (const Warpgroup& w : hopper().groups) {
        if (!w.registers) return;
        all += w.registers;
    }
    // Each thread of the block begins with as many as fit, in steps of 8; what one warpgroup claims, another releases.
    const int threads = (int)block->threads, has = std::min(256, 65536 / threads / 8 * 8) * threads / 128;
    if (all > has)
        fail(at, "registers_claim: a thread of each warpgroup, together, want %d registers, of %d", all, has);
}

// stmatrix, the inverse of ldmatrix.
inline void work_stmatrix(Meeting& m, Warp& w, unsigned lanes) {
    if (~lanes) fail(m.site, "stmatrix: lanes %08x of the warp are missing", ~lanes);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 8; i++) {
            const int tile = i / 2, column = l % 4 * 2 + i % 2, row = l / 4;
            memcpy(w.lane[tile * 8 + row].out + 2 * column, w.lane[l].in + 2 * i, 2);
        }
}
inline void stmatrix(void* row, const unsigned (&r)[4], Site at) {
    check_aligned(row, 16, "stmatrix", at);
    CUDA_ON_CPU_TSAN(__tsan_write_range(row, 16);)
    CUDA_ON_CPU_ASAN(__asan_loadN(row, 16);)
    Hidden hidden;
    memcpy(self->lane->in, r, 16);
    memcpy(row, meet(~0u, work_stmatrix, false, "stmatrix", at).out, 16);
}

} // namespace cuda_on_cpu
