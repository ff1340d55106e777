/*
test_traffic.c: the bytes of parallel/traffic.h against the papers' formulas, summed over all ranks of many meshes.
*/
#include "../../../parallel/traffic.h"
#include "layout_models.h"

// ---- Traffic ----------------------------------------------------------------------------------------------------

static Traffic sum_of_traffic(const ModelConfig* m, ParallelConfig like, int B, int T, int k, double element,
                              double* data_expected) {
    Traffic sum = {0, 0, 0, 0, 0};
    *data_expected = 0;
    for (int rank = 0; rank < mesh_size(&like.mesh); rank++) {
        Layout layout;
        Error error;
        if (!layout_build(&layout, m, parallel_at(&like, rank), T, &error)) die("%s", error.text);
        const Traffic one = traffic_of_step(&layout, m, B, T, k, (size_t)element);
        sum.layers += one.layers;
        sum.ends += one.ends;
        sum.pipeline += one.pipeline;
        sum.tied += one.tied;
        sum.data += one.data;
        // Of n ranks that reduce x bytes each sends (n - 1) / n of 2 x, or of x once for each of the two halves. The
        // second half is gradients, or, with ZeRO, parameters.
        const double halves = 4 * (like.zero == 2 ? k : 1) + (like.zero ? element : 4);
        const double share = (like.mesh.d - 1.0) / like.mesh.d;
        *data_expected += halves * share * (double)layout.elements;
        const Slice* wte = layout_slice(&layout, -1, WTE);
        if (like.zero == 2 && m->tied && like.mesh.p == 1 && wte) // its two gradients are reduced one by one
            *data_expected += 4.0 * k * share * (double)layout.bucket[wte->bucket].elements;
        layout_free(&layout);
    }
    return sum;
}

// What the papers say about all ranks together, in bytes of float32; b, s, h are theirs, k micro-batches, n ranks.
//   Narayanan et al. 2021, section 3.2: the four all-reduces of a block, of (b, s, h) elements each, make a rank send
//   8 b s h (t - 1) / t elements a micro-batch. A message between stages has b s h; section 4.1: b s h / t if it is
//   scattered, and then it is all-gathered.
//   Korthikanti et al. 2022, section 4.2.2: all-gathers and reduce-scatters in their place cost the same; keeping the
//   inputs of the two column-parallel matrices as parts costs two more all-gathers, 10 instead of 8.
//   Recomputing a block: one of its all-reduces again (the second one's result is not needed), 10 instead of 8; with
//   sequence parallelism two all-gathers and a reduce-scatter, 13 instead of 10.
//   CAAT-Net (Lamprecht et al. 2025, and its authors' code): of N states, of which a rank holds N / t; the same sums
//   in a block, two in each direction, of S channels; backward in float32, or not. At the embedding one sum of all
//   channels in each direction, at the head none. Each state's stream goes to the next stage: no two ranks have the
//   same. Every tensor rank sees its own states' part of the gradients of norms and of biases after a sum, and with
//   sequence parallelism its own rows' part.
// Returns the largest relative error of the numbers that are counted; `element`: bytes of an activation.
static double traffic_error(const ModelConfig* m, ParallelConfig parallel, double element) {
    const double b = 2, s = 8, h = m->C, k = 3, t = parallel.mesh.t, p = parallel.mesh.p, d = parallel.mesh.d;
    const double part = (t - 1) / t, bsh = element * b * s * h; // bytes
    const bool sequence = parallel.sequence_parallel, full = parallel.recompute == RECOMPUTE_FULL,
               caat = parallel.caat.ranks > 0;
    double data;
    const Traffic sum = sum_of_traffic(m, parallel, 2, 8, 3, element, &data);
    const double S = floor(parallel.caat.fraction * h),
                 back = parallel.caat.narrow ? element : 4; // shared; bytes backward
    const double times = 8 + 2 * sequence + (2 + sequence) * full;
    const double caat_block = 2 * b * s * S * ((full ? 3 : 2) * element + 2 * back);
    const double layers = t * d * k * m->L * part * (caat ? caat_block : times * bsh);
    // Embedding: 2 halves of a sum. Head: 2, with sequence parallelism 3. Cross-entropy: three numbers a token, summed.
    double whole = (sequence ? 5 : 4) * bsh;
    if (caat) whole = 2 * b * s * h * (element + back);
    double ends = t * d * k * part * (whole + 3 * 2 * 4 * b * s);
    // Both directions of each boundary between two of p v parts: if they are scattered, all parts. In a V the two parts
    // in the middle lie on one rank.
    const double boundaries = p * parallel.v - 1, away = boundaries - (parallel.folded ? 1 : 0);
    double messages = 2 * away * d * k * bsh;
    if (!sequence && !caat && !parallel.scatter) messages *= t;
    if (caat) messages *= parallel.caat.ranks;
    if (!sequence && !caat && parallel.scatter) ends += 2 * boundaries * t * d * k * bsh * part;
    // Gradients that tensor ranks sum: 2 (c - 1) / c of their elements on each of c ranks, so 2 (c - 1) in each group.
    const double norms = (m->norm == NORM_LAYERNORM ? 2 : 1) * (2.0 * m->L + 1) * h,
                 positions = m->position == POSITION_LEARNED ? m->T * h : 0;
    const double biases = m->biases ? 2.0 * m->L * h : 0; // after a sum
    const double copies = t > m->NKV ? t / m->NKV : 1, reductions = parallel.zero == 2 ? k : 1;
    const double heads = 2.0 * m->L * m->NKV * (h / m->NH) * h; // all elements of K_W and V_W
    if (sequence) ends += d * reductions * 4 * 2 * (t - 1) * (norms + positions + biases);
    if (caat) ends += d * reductions * 4 * 2 * (t - 1) * (norms + biases);
    ends += d * reductions * 4 * 2 * (copies - 1) * heads;
    const double cuts = caat ? parallel.caat.ranks : t, rows = ceil(m->V / cuts) * (cuts / t);
    const double bucket = ceil(rows * h / (16 * d)) * 16 * d;
    double tied = 2 * t * 4 * bucket * (parallel.zero ? 1 : d);
    if (!m->tied || p == 1 || parallel.folded) tied = 0;
    const double expected[] = {layers, ends, messages, tied, data};
    const double counted[] = {sum.layers, sum.ends, sum.pipeline, sum.tied, sum.data};
    double worst = 0;
    for (int i = 0; i < 5; i++) {
        const double error = expected[i] > 0 ? fabs(counted[i] / expected[i] - 1) : fabs(counted[i]);
        worst = fmax(worst, isnan(error) ? INFINITY : error);
    }
    return worst;
}

static const double TRAFFIC_BOUND = 1e-12; // sums of fewer than 1000 numbers, each rounded to 2^-53

// A mesh of these sizes in all ways that there are; N: of a CAAT-Net's states, 0: no CAAT-Net. Returns whether it fits.
static bool test_ways(const ModelConfig* m, const int size[3], int N) {
    static const double shares[] = {0.5, 0.3, 1, 0};
    double worst = 0;
    int cases = 0;
    for (int way = 0; way < 2 * 2 * 2 * 3 * 2 * 3; way++) { // the share changes with it
        ParallelConfig like = parallel_of_rank(0, size[0], size[1], size[2]);
        const bool third = way >> 2 & 1, folded = way / 96;
        if (N) like = with_states(like, N, shares[(way + way / 4) % 4]);
        like.scatter = way & 1;
        like.recompute = N ? RECOMPUTE_NONE : RECOMPUTE_SELECTIVE;
        if (way >> 1 & 1) like.recompute = RECOMPUTE_FULL;
        like.caat.narrow = N && third;
        like.sequence_parallel = !N && third;
        like.zero = way / 8 % 3;
        like.v = way < 48 ? 1 : 2;
        like.folded = folded;
        Error error;
        if ((like.v > 1 && like.mesh.p == 1) || (folded && like.zero == 2)) continue; // by pipeline_config_check
        if (!parallel_check(&like, m, 8, &error)) continue;
        worst = fmax(worst, traffic_error(m, like, way / 24 % 2 ? sizeof(float) : 2));
        cases++;
    }
    char what[128];
    snprintf(what, sizeof what, "%s t=%d p=%d d=%d, %d states: bytes of all ranks, %d ways", m->name, size[0], size[1],
             size[2], N, cases);
    if (cases) check_error(what, worst, TRAFFIC_BOUND);
    return cases > 0;
}

static void test_traffics(const ModelConfig* m) {
    static const int meshes[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2},
                                    {2, 2, 1}, {2, 3, 2}, {4, 2, 3}, {4, 1, 4}};
    int several = 0;
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        check(test_ways(m, meshes[i], 0), "  it fits");
        test_ways(m, meshes[i], meshes[i][0]);
        several += test_ways(m, meshes[i], 2 * meshes[i][0]);
    }
    check(several > 0, "%s: with several states on a rank too", m->name);
}

int main(void) {
    ModelConfig models[MODELS];
    test_models(models);
    for (int i = 0; i < 4; i++) test_traffics(&models[i]);
    return test_end();
}
