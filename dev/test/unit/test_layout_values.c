/*
test_layout_values.c: what a rank's slices hold: rows of fused matrices, the states of a CAAT-Net, initial values.
*/
#include "layout_models.h"

// A fused q, k, v matrix cut over two ranks: rank 1 holds the second half of q, of k and of v.
static void test_fused_rows(void) {
    const ModelConfig m = model_of(ARCH_GPT2, 1, 4, 2, 2, 16, 8, 10);
    Layout layout;
    Error error;
    check(layout_build(&layout, &m, parallel_of_rank(1, 2, 1, 1), 8, &error), "a tiny gpt2 on t=2");
    const int64_t expected[] = {2, 3, 6, 7, 10, 11};
    bool ok = false;
    for (int i = 0; i < layout.n; i++) {
        const Slice* s = &layout.slices[i];
        if (s->tensor.kind != QKV_W) continue;
        ok = s->rows == 6;
        for (int64_t r = 0; r < 6; r++) ok = ok && slice_logical_row(s, r) == expected[r];
    }
    check(ok, "rank 1 of 2 holds rows 2 3 | 6 7 | 10 11 of a fused q, k, v matrix with 12 rows");
    layout_free(&layout);
}

// True if a rank's initial values are slices of those of one rank (a); *zero stays true if all others are zero. Rows
// from private_rows on of the two matrices that write into the residual stream are `factor` times those: 4 roundings,
// of the factor, of the deviation and of both values.
static bool is_part_of(const Layout* part, const Layout* whole, const float* a, bool* zero) {
    float* b = (float*)checked_calloc((size_t)part->elements, sizeof(float), "test");
    bool same = true;
    layout_initialize(b, part, 7);
    for (int i = 0; i < part->n; i++) {
        const Slice *s = &part->slices[i], *w = &whole->slices[s->index];
        for (int64_t r = 0; r < s->rows_used; r++) {
            const float* from = a + w->offset + slice_logical_row(s, r) * w->cols + slice_logical_col(s);
            float* values = b + s->offset + r * s->cols;
            same = same && memcmp(values, from, (size_t)s->cols * sizeof(float)) == 0;
            memset(values, 0, (size_t)s->cols * sizeof(float));
        }
    }
    for (int64_t e = 0; e < part->elements; e++) *zero = *zero && b[e] == 0;
    free(b);
    return same;
}

// The states of a CAAT-Net begin with slices of what any other mesh has.
static void test_initial_states(const Layout* whole, const ModelConfig* m, const float* a) {
    static const struct {
        int N, t, p;
        double share;
    } cases[] = {{4, 1, 1, 0.5}, {4, 2, 2, 0.3}, {4, 4, 1, 0},  {2, 1, 2, 0.9},
                 {8, 8, 1, 0.5}, {2, 2, 1, 1},   {1, 1, 1, 0.5}};
    Layout part;
    Error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool same = true, zero = true;
        const ParallelConfig parallel =
            with_states(parallel_of_rank(0, cases[i].t, cases[i].p, 1), cases[i].N, cases[i].share);
        for (int rank = 0; rank < mesh_size(&parallel.mesh); rank++) {
            if (!layout_build(&part, m, parallel_at(&parallel, rank), 16, &error)) die("%s", error.text);
            same = same && is_part_of(&part, whole, a, &zero);
            layout_free(&part);
        }
        check(same && zero, "initial values of %d states on t=%d p=%d: slices", cases[i].N, cases[i].t, cases[i].p);
    }
}

// Initial values do not depend on the mesh, have the right spread, and differ between tensors.
static void test_initial_values(void) {
    const ModelConfig m = model_of(ARCH_LLAMA, 2, 32, 8, 4, 48, 16, 61);
    Layout whole, part;
    Error error;
    check(layout_build(&whole, &m, parallel_of_rank(0, 1, 1, 1), 16, &error), "one rank");
    float* a = (float*)checked_calloc((size_t)whole.elements, sizeof(float), "test");
    layout_initialize(a, &whole, 7);
    static const int meshes[][2] = {{2, 2}, {8, 1}}; // the second: heads on two ranks, 61 tokens on 8
    bool same = true, zero = true;
    for (int i = 0; i < 2; i++) {
        for (int rank = 0; rank < meshes[i][0] * meshes[i][1]; rank++) {
            if (!layout_build(&part, &m, parallel_of_rank(rank, meshes[i][0], meshes[i][1], 1), 16, &error))
                die("%s", error.text);
            same = same && is_part_of(&part, &whole, a, &zero);
            layout_free(&part);
        }
    }
    bool spread = true; // for L = 2: 0.02, in the two matrices that write into the residual stream 0.02 / sqrt(4)
    for (int i = 0; i < whole.n; i++) {
        const Tensor* w = &whole.slices[i].tensor;
        double std = w->kind == ATTN_PROJ_W || w->kind == MLP_PROJ_W ? 0.01 : 0.02;
        if (w->vector) std = 0;
        spread = spread && w->init_mean == (w->vector ? 1 : 0) && fabs(w->init_std - std) < 1e-15;
    }
    check(spread, "means and spreads of a llama's initial values are those of the papers");
    check(same, "initial values on t=2 p=2, and on t=8, are slices of those on one rank, bit for bit");
    check(zero, "and what pads the vocabulary, and buckets, is zero");
    // Of n normal numbers the mean has standard deviation std / sqrt(n), the variance var sqrt(2 / n): five of each.
    for (int i = 0; i < whole.n; i++) {
        const Slice* s = &whole.slices[i];
        if (s->tensor.init_std == 0) continue;
        const double n = (double)(s->rows * s->cols), std = s->tensor.init_std;
        double sum = 0, squares = 0;
        for (int64_t e = 0; e < s->rows * s->cols; e++) {
            sum += a[s->offset + e];
            squares += (double)a[s->offset + e] * a[s->offset + e];
        }
        if (s->tensor.layer > 0 && s->tensor.layer < m.L) continue;
        check_error(s->tensor.name, fabs(sum / n) / std, 5 / sqrt(n));
        check_error(s->tensor.name, fabs(squares / n / (std * std) - 1), 5 * sqrt(2 / n));
    }
    test_initial_states(&whole, &m, a);
    free(a);
    layout_free(&whole);
}

// Philox4x32-10 against the test vectors of Random123 (Salmon et al. 2011, file kat_vectors).
static void test_philox(void) {
    const Random4 zero = philox(0, 0, 0), ones = philox(~0ull, ~0ull, ~0ull);
    const Random4 pi = philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull);
    check(zero.word[0] == 0x6627e8d5u && zero.word[1] == 0xe169c58du && zero.word[2] == 0xbc57ac4cu &&
              zero.word[3] == 0x9b00dbd8u,
          "Philox4x32-10 of zeros");
    check(ones.word[0] == 0x408f276du && ones.word[1] == 0x41c83b0eu && ones.word[2] == 0xa20bc7c6u &&
              ones.word[3] == 0x6d5451fdu,
          "Philox4x32-10 of ones");
    check(pi.word[0] == 0xd16cfe09u && pi.word[1] == 0x94fdccebu && pi.word[2] == 0x5001e420u &&
              pi.word[3] == 0x24126ea1u,
          "Philox4x32-10 of digits of pi");
}

int main(void) {
    test_fused_rows();
    test_initial_values();
    test_philox();
    return test_end();
}
