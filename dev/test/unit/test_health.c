/*
test_health.c: do replica_check.h, nan_probe.h and outlier_detector.h see what is wrong, and nothing else? This file
includes train_gpt.cu.

On one rank, against brute force: which ranks hold the same (from the layouts of all ranks of many meshes), who differs
from most, the order of places, the first of them, scores of losses (normal noise, trends, outliers among the last 100),
checksums, texts.

On several, in the trainer's own step, on a tiny model:

    no alarm    copies agree after every step, whatever the mesh
    flips       one bit of a random weight of a random rank: exactly the ranks that hold a copy are told, the one that differs
                by name where there are three or more; nothing where there is no copy; and nothing once it is put right
    NaN         planted in one rank's attention in one block and micro-batch, in its gradient of a matrix, in a weight: the place,
                the rank and the number of replicas are told, in the same words on every mesh. Planted once only: hardware
    skipped     a step with a NaN, and --on-nan skip: parameters and moments keep their bits, and a run that is taken up from
                there ends with the bits of the one that went on

NaNs are planted by functions that stand in for the kernels' here. --die FOLDER: a bit is flipped before a checkpoint,
for test_mesh.sh to look at the end of the run.

ranks: 1 2 4 8
ranks sanitized: 1 2
*/
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses most, not all
#include "../../../kernels/kernels.h"

static void planted_attention_forward(floatX* out, float* lse, const floatX* qkv, const int32_t* positions, int B,
                                      int T, int NH, int NKV, int HS);
static void planted_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC);
static void planted_weight_and_bias(float* dw, float* db, const floatX* dout, const floatX* x, int N, int C, int OC);

#define TRAIN_GPT_NO_MAIN
#define attention_forward planted_attention_forward
#define linear_backward_weight planted_weight
#define linear_backward_weight_and_bias planted_weight_and_bias
#include "../../../train_gpt.cu"
#undef attention_forward
#undef linear_backward_weight
#undef linear_backward_weight_and_bias

#include "test.h"

static const char* tokens_path = "build/test_health.bin";
static const char* usual_line =
    "--layers 4 --hidden 32 --heads 4 --seq 8 --vocab 97 --steps 20 --warmup 2 --lr 4e-3 --min-lr 1e-3 --micro-batch 1 "
    "--global-batch 8 --eval-sequences 4 --data build/test_health.bin";
#include "trainer_fixture.h"

// Whole numbers below n that every rank draws alike.
static uint64_t draws = 0;
static int64_t draw(int64_t n) { return (int64_t)((double)random_uniform(11, 3, draws++) * (double)n) % n; }

// ----------------------------------------------------------------------------------------------------------------
// Checksums

static void test_checksum(void) {
    enum { BYTES = 300002 };
    unsigned char* x = (unsigned char*)checked_malloc(BYTES, "test");
    int seen = 0, flips = 0, pieces = 0, cuts = 0;
    for (int i = 0; i < BYTES; i++) x[i] = (unsigned char)draw(256);
    uint64_t whole = 7;
    const uint64_t right = checksum_of(x, BYTES, 5);
    for (int64_t bytes = 0; bytes <= 40; bytes += 2) {
        uint64_t sum = 1;
        checksum_add(&sum, x + 2, bytes, 9);
        pieces += sum == 1 + checksum_of(x + 2, bytes, 9);
    }
    checksum_add(&whole, x, BYTES, 5);
    for (; cuts < 50; cuts++) {
        const int64_t cut = 4 * draw(BYTES / 4);
        uint64_t sum = 0;
        checksum_add(&sum, x + cut, BYTES - cut, 5 + cut / 4);
        checksum_add(&sum, x, cut, 5);
        pieces += sum == right;
    }
    for (; flips < 200; flips++) {
        const int64_t at = draw(BYTES);
        const unsigned char bit = (unsigned char)(1 << draw(8));
        uint64_t sum = 0;
        x[at] ^= bit;
        checksum_add(&sum, x, BYTES, 5);
        x[at] ^= bit;
        seen += sum != right;
    }
    check(whole == 7 + right && pieces == 21 + cuts, "checksum_add: %d pieces and sums of pieces", pieces);
    check(seen == flips, "checksum_add: %d of %d flipped bits seen", seen, flips);
    free(x);
}

// ----------------------------------------------------------------------------------------------------------------
// Who holds the same

// Whether a rank holds a tensor, and which share of it, by its layout; -1: it does not.
static int share_held(const Layout* layout, int index, int state) {
    for (int i = 0; i < layout->n; i++) {
        if (layout->slices[i].index == index && layout->slices[i].stream == state) return layout->slices[i].cut;
    }
    return -1;
}

// All pairs of ranks and tensors of one mesh. Returns how many are judged wrong.
static int wrong_colors(const ModelConfig* m, Mesh mesh, int* pairs) {
    const int n = mesh_size(&mesh), tensors = model_tensors(NULL, m);
    Layout* layout = (Layout*)checked_calloc((size_t)n, sizeof(Layout), "test");
    Tensor* list = (Tensor*)checked_calloc((size_t)tensors, sizeof(Tensor), "test");
    Error error;
    int wrong = 0;
    model_tensors(list, m);
    for (int rank = 0; rank < n; rank++) {
        mesh.tensor = rank % mesh.t, mesh.data = rank / mesh.t % mesh.d, mesh.pipeline = rank / mesh.t / mesh.d;
        if (!layout_build(&layout[rank], m, mesh, m->T, &error)) die("%s", error.text);
    }
    for (int i = 0; i < tensors; i++) {
        for (int a = 0; a < n; a++) {
            for (int b = 0; b < a; b++) {
                const ReplicaGroup holders = replica_group_of(&list[i], &mesh, m);
                const bool color = replica_group_color(holders, &layout[a].mesh, m->NKV) ==
                                   replica_group_color(holders, &layout[b].mesh, m->NKV);
                const int share = share_held(&layout[a], i, 0);
                const bool same = share >= 0 && share == share_held(&layout[b], i, 0);
                if (share < 0 && share_held(&layout[b], i, 0) < 0) continue; // neither holds it
                wrong += color != same;
                ++*pairs;
            }
        }
    }
    for (int rank = 0; rank < n; rank++) layout_free(&layout[rank]);
    free(layout), free(list);
    return wrong;
}

static void test_holders(void) {
    static const ScheduleKind kinds[] = {ONE_F_ONE_B, INTERLEAVED, ZB_V};
    int wrong = 0, pairs = 0;
    for (int t = 1; t <= 4; t *= 2) {
        for (int p = 1; p <= 3; p++) {
            for (int d = 1; d <= 3; d++) {
                for (int i = 0; i < 24; i++) { // architecture and key/value heads, tying, schedule
                    const int NKV = i % 4 == 0 ? 4 : 1 << (i % 4 - 1);
                    ModelConfig m = model_of(i % 4 ? ARCH_LLAMA : ARCH_GPT2, 6, 16, 4, NKV, 16, 8, 13);
                    m.tied = i / 4 % 2 == 0;
                    Mesh mesh = mesh_of_rank(0, t, p, d);
                    if (p > 1) mesh_set_schedule(&mesh, kinds[i / 8], schedule_usual_chunks(kinds[i / 8]));
                    const CaatConfig sync = {4, 0.5, SYNC_RUNTIME, false}; // of the ordinary ones, too
                    if (NKV == 4 && i % 3 == 0) mesh.caat = sync;
                    wrong += wrong_colors(&m, mesh, &pairs);
                }
            }
        }
    }
    check(wrong == 0 && pairs > 10000, "holders: of %d pairs of ranks %d are judged wrong", pairs, wrong);
}

// Random numbers on random meshes, few of them different.
static void test_differ(void) {
    int wrong = 0, differ_found = 0;
    for (int round = 0; round < 3000; round++) {
        const Mesh mesh = mesh_of_rank(0, 1 << draw(3), 1 + (int)draw(3), 1 + (int)draw(5));
        const int n = mesh_size(&mesh), stride = 1 + (int)draw(3), NKV = 1 << draw(3);
        const ReplicaGroup holders = (ReplicaGroup)draw(REPLICA_GROUPS);
        int64_t number[60 * 3];
        bool told[60], right[60] = {false};
        int copies = -1, color[60], values = 1 + (int)draw(3), bad = -1, holding = 0;
        for (int i = 0; i < n * stride; i++) number[i] = 1000 + i; // what is not looked at
        for (int i = 0; i < n; i++) {
            const Mesh at = mesh_at(&mesh, i);
            color[i] = replica_group_color(holders, &at, NKV);
            number[i * stride] = color[i] * 10 + (draw(6) == 0 ? draw(values) : 0);
        }
        for (int i = n - 1; i >= 0; i--) { // the group of the first rank that differs from one before it
            for (int j = 0; j < i; j++)
                bad = color[i] == color[j] && number[i * stride] != number[j * stride] ? i : bad;
        }
        int most = 0, second = 0;
        int64_t best = 0;
        for (int64_t value = 0; value < 200 && bad >= 0; value++) {
            int votes = 0;
            for (int i = 0; i < n; i++) votes += color[i] == color[bad] && number[i * stride] == value;
            holding += votes;
            if (votes > most)
                second = most, most = votes, best = value;
            else if (votes > second)
                second = votes;
        }
        for (int i = 0; i < n && bad >= 0; i++)
            right[i] = color[i] == color[bad] && (most == second || number[i * stride] != best);
        const bool found = group_differs(told, &copies, number, stride, holders, &mesh, NKV);
        differ_found += found;
        wrong +=
            found != (bad >= 0) || (found && (memcmp(told, right, (size_t)n * sizeof *told) != 0 || copies != holding));
    }
    check(wrong == 0 && differ_found > 300 && differ_found < 2700,
          "group_differs: %d of 3000 wrong, %d have differences", wrong, differ_found);
}

static void test_texts(void) {
    char text[512];
    Mesh mesh = mesh_of_rank(5, 2, 1, 4);
    bool which[8] = {false, false, false, false, false, true, false, false};
    ranks_text(text, sizeof text, &mesh, true, which);
    check(strcmp(text, "rank 5 (t 1, p 0, d 2)") == 0, "one rank: %s", text);
    which[0] = true;
    ranks_text(text, sizeof text, &mesh, true, which);
    check(strcmp(text, "ranks 0 (t 0, p 0, d 0) and 5 (t 1, p 0, d 2)") == 0, "two: %s", text);
    which[1] = which[2] = which[3] = which[7] = true;
    ranks_text(text, sizeof text, &mesh, true, which);
    check(strcmp(text, "ranks 0 (t 0, p 0, d 0), 1 (t 1, p 0, d 0), 2 (t 0, p 0, d 1), 3 (t 1, p 0, d 1) and 2 more") ==
              0,
          "six: %s", text);
    mesh = mesh_of_rank(13, 2, 2, 4); // t 1, d 2, p 1: the second of two sites
    mesh.sites = 2;
    const bool in_site[8] = {false, false, false, true, false, false, true, false};
    ranks_text(text, sizeof text, &mesh, false, in_site);
    check(strcmp(text, "ranks 7 (t 1, p 0, d 3) and 14 (t 0, p 1, d 3)") == 0, "of a site: %s", text);
    ranks_text(text, 20, &mesh, false, in_site);
    check(strlen(text) == 19, "a text that has no room is cut: %s", text);
}

// ----------------------------------------------------------------------------------------------------------------
// Places

// Walks through a step as it is computed.
static void test_places(void) {
    ModelConfig m = model_gpt2(3, 16, 4, 8, 13);
    m.tied = false;
    NanProbe probe = nan_probe_init(&m);
    int64_t last = -1;
    int wrong = 0, places = 0;
    char text[160];
    struct {
        int64_t place;
        const char* text;
    } expected[] = {{place_of_weight(2), "the weight transformer.h.0.ln_1.weight"},
                    {place_of_gradient(2), "its own gradient of transformer.h.0.ln_1.weight"},
                    {0, "the output of the mlp in block 2, micro-batch 1"},
                    {0, "the gradient of attention's input in block 0, micro-batch 1"},
                    {0, "the embedding, micro-batch 1"},
                    {0, "the gradient of the embedding's output, micro-batch 1"},
                    {0, "the residual stream after block 0, micro-batch 1"},
                    {0, "the logits, micro-batch 1"},
                    {0, "the losses, micro-batch 1"},
                    {0, "the gradient of the head's input, micro-batch 1"},
                    {0, "the gradient of the residual stream after block 1, micro-batch 1"}};
#define STEP(place)                                                                                                    \
    {                                                                                                                  \
        const int64_t now = place;                                                                                     \
        wrong += now <= last, last = now, places++;                                                                    \
    }
    for (int i = 0; i < probe.tensors; i++) STEP(place_of_weight(i));
    for (probe.microbatch = 0; probe.microbatch < 3; probe.microbatch++) {
        probe.backward = false;
        STEP(place_of_pass(&probe, PROBE_EMBEDDING, 0));
        for (int l = 0; l < m.L; l++) {
            STEP(place_of_pass(&probe, PROBE_ATTENTION, l));
            STEP(place_of_pass(&probe, PROBE_MLP, l));
            STEP(place_of_pass(&probe, PROBE_STREAM, l));
        }
        STEP(place_of_pass(&probe, PROBE_LOGITS, 0));
        STEP(place_of_pass(&probe, PROBE_LOSS, 0));
        probe.backward = true;
        STEP(place_of_pass(&probe, PROBE_LOGITS, 0));
        for (int l = m.L - 1; l >= 0; l--) {
            STEP(place_of_pass(&probe, PROBE_MLP, l));
            STEP(place_of_pass(&probe, PROBE_ATTENTION, l));
            STEP(place_of_pass(&probe, PROBE_STREAM, l - 1));
        }
    }
    for (int i = 0; i < probe.tensors; i++) STEP(place_of_gradient(i));
#undef STEP
    check(wrong == 0 && places > 100, "%d places, %d out of order", places, wrong);
    probe.microbatch = 1, probe.backward = false;
    expected[2].place = place_of_pass(&probe, PROBE_MLP, 2),
    expected[4].place = place_of_pass(&probe, PROBE_EMBEDDING, 0);
    expected[6].place = place_of_pass(&probe, PROBE_STREAM, 0),
    expected[7].place = place_of_pass(&probe, PROBE_LOGITS, 0);
    expected[8].place = place_of_pass(&probe, PROBE_LOSS, 0);
    probe.backward = true;
    expected[3].place = place_of_pass(&probe, PROBE_ATTENTION, 0),
    expected[5].place = place_of_pass(&probe, PROBE_EMBEDDING, 0);
    expected[9].place = place_of_pass(&probe, PROBE_LOGITS, 0),
    expected[10].place = place_of_pass(&probe, PROBE_STREAM, 1);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        place_text(text, sizeof text, expected[i].place, &m);
        check(strcmp(text, expected[i].text) == 0, "place: %s", text);
    }
    const float x[] = {1, -INFINITY, 2}, y[] = {3e38f, 0, -1e-40f}, z[] = {NAN};
    probe_floats(&probe, 50, x, 3), probe_floats(&probe, 70, z, 1), probe_floats(&probe, 40, y, 3);
    check(probe.first == 50, "the first place that is not finite: %lld", (long long)probe.first);
    probe_floats(&probe, 45, z, 1);
    check(probe.first == 45, "one before it: %lld", (long long)probe.first);
}

static void test_first_place(void) {
    int wrong = 0;
    for (int round = 0; round < 2000; round++) {
        const Mesh mesh = mesh_of_rank(0, 1 + (int)draw(3), 1 + (int)draw(3), 1 + (int)draw(4));
        const int n = mesh_size(&mesh);
        int64_t seen[36], first = NO_PLACE;
        bool from[36], bad[4] = {false, false, false, false};
        int replicas, many = 0, replica = -1;
        for (int i = 0; i < n; i++) seen[i] = draw(3) == 0 ? 100 + draw(4) : NO_PLACE;
        for (int d = 0; d < mesh.d; d++) {
            for (int p = 0; p < mesh.p; p++) {
                for (int t = 0; t < mesh.t; t++) {
                    const int64_t s = seen[t + mesh.t * (d + mesh.d * p)];
                    bad[d] = bad[d] || s < NO_PLACE;
                    if (s < first) first = s, replica = d;
                }
            }
            many += bad[d];
        }
        wrong += first_place(from, &replicas, seen, &mesh) != first || replicas != many;
        for (int i = 0; i < n; i++)
            wrong += from[i] != (first < NO_PLACE && i / mesh.t % mesh.d == replica && seen[i] == first);
    }
    check(wrong == 0, "first_place: %d of 2000 wrong", wrong);
}

// ----------------------------------------------------------------------------------------------------------------
// Scores

static double gauss(uint64_t i) {
    float x;
    random_normals(&x, 1, 5, 77, i);
    return (double)x;
}

// The same by counting: the middle of n numbers is the mean of the two that have n / 2 - 1 and n / 2 below them.
static double counted_median(const double* x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        int below = 0;
        for (int j = 0; j < n; j++) below += x[j] < x[i] || (x[j] == x[i] && j < i);
        if (below == n / 2 || below == n / 2 - 1) sum += x[i];
    }
    return sum / 2;
}

static double brute_score(const double* y, double x) { // y: the last 100, the oldest first
    double slopes[50], flat[100], away[100];
    for (int i = 0; i < 50; i++) slopes[i] = (y[50 + i] - y[i]) / 50;
    const double slope = counted_median(slopes, 50);
    for (int i = 0; i < 100; i++) flat[i] = y[i] - slope * i;
    const double level = counted_median(flat, 100);
    for (int i = 0; i < 100; i++) away[i] = flat[i] > level ? flat[i] - level : level - flat[i];
    return (x - level - 100 * slope) / (1.4826 * counted_median(away, 100));
}

static void test_scores(bool few) {
    double y[400], expected, worst = 0, moved = 0;
    OutlierDetector h, other;
    memset(&h, 0, sizeof h), memset(&other, 0, sizeof other);
    int early = 0;
    for (int i = 0; i < 400; i++) {
        y[i] = 3 - 0.001 * i + 0.1 * gauss((uint64_t)i) + (i % 17 == 0 ? 4 : 0); // every 17th is off
        const double score = outlier_score(&h, y[i], &expected);
        const double same = outlier_score(&other, 5 * y[i] - 70 + 0.3 * i, &expected);
        early += i < 100 && score != 0;
        if (i >= 100) worst = fmax(worst, fabs(score - brute_score(y + i - 100, y[i])));
        moved = fmax(moved, fabs(score - same));
        outlier_add(&h, y[i]), outlier_add(&other, 5 * y[i] - 70 + 0.3 * i);
    }
    check(early == 0, "nothing is said before there are 100: %d times", early);
    check_error("scores beside brute force", worst, 1e-9);
    check_error("scores of a line added, another unit and zero", moved, 1e-8);
    outlier_add(&h, (double)NAN), outlier_add(&h, (double)INFINITY);
    check(fabs(outlier_score(&h, 3, &expected) - brute_score(y + 300, 3)) < 1e-9,
          "what is not finite is not remembered");
    check(outlier_score(&h, (double)NAN, &expected) == 0, "and has no score");
    memset(&h, 0, sizeof h);
    for (int i = 0; i < 100; i++) outlier_add(&h, 2.5);
    check(outlier_score(&h, 2.5, &expected) == 0 && expected == 2.5 && outlier_score(&h, 2.6, &expected) > 100,
          "equal values: the next has score 0, another one a large score");

    // A falling loss: an outlier of 10 deviations is seen, one of 100 is seen, and so is the one behind it, and the
    // noise is not.
    int seen = 0, false_alarms = 0;
    memset(&h, 0, sizeof h);
    for (int i = 0; i < 400; i++) {
        const bool off = i == 200 || i == 201 || i == 210 || i == 300;
        const double x = 5 - 0.01 * i + 0.05 * gauss(5000 + (uint64_t)i) + (off ? i == 200 ? 5 : 0.6 : 0);
        const double score = outlier_score(&h, x, &expected);
        seen += off && score > 6, false_alarms += !off && fabs(score) > 6;
        outlier_add(&h, x);
    }
    check(seen == 4 && false_alarms == 0, "a falling loss: %d of 4 outliers seen, %d false alarms", seen, false_alarms);

    // Normal noise. The deviation is known to 12 %, and the prediction is off by 0.3 deviations: of 3,000,000 steps
    // 1344 were beyond 4, 2 beyond 6, and the variance of the score was 1.15.
    const int n = few ? 4000 : 20000;
    int beyond4 = 0, beyond6 = 0;
    double squares = 0;
    memset(&h, 0, sizeof h);
    for (int i = 0; i < n + 100; i++) {
        const double x = gauss(10000 + (uint64_t)i), score = outlier_score(&h, x, &expected);
        squares += score * score;
        beyond4 += fabs(score) > 4, beyond6 += fabs(score) > 6;
        outlier_add(&h, x);
    }
    check(beyond6 <= 1 && beyond4 < n / 500 && squares / n > 1 && squares / n < 1.35,
          "normal noise, %d steps: variance of the score %.3f, beyond 4: %d, beyond 6: %d", n, squares / n, beyond4,
          beyond6);
}

static void test_logged(void) {
    StepHealth h;
    memset(&h, 0, sizeof h);
    health_logged(&h, "{\"step\":1,\"loss\":5.5,\"val_loss\":6.25,\"grad_norm\":2,\"lr\":0.1,\"peak_mem_bytes\":3}\n");
    check(h.loss.n == 1 && h.loss.value[0] == 5.5 && h.norm.value[0] == log(2) && h.skipped_in_row == 0,
          "a logged step");
    health_logged(&h, "{\"step\":2,\"loss\":null,\"val_loss\":1,\"grad_norm\":null,\"skipped\":true}\n");
    health_logged(&h, "{\"step\":3,\"loss\":4,\"val_loss\":1,\"grad_norm\":null,\"skipped\":true}\n");
    check(h.loss.n == 1 && h.norm.n == 1 && h.skipped_in_row == 2,
          "steps that were skipped count for nothing but that");
    health_logged(&h, "{\"step\":4,\"loss\":5.25,\"val_loss\":null,\"grad_norm\":null}\n");
    check(h.loss.n == 2 && h.norm.n == 1 && h.skipped_in_row == 0, "a step without a norm");
    health_logged(&h, "nothing\n");
    health_logged(&h, "{\"step\":4,\"loss\":");
    check(h.loss.n == 2 && h.norm.n == 1, "lines that are none");
}

// ----------------------------------------------------------------------------------------------------------------
// Plants: the trainer's kernels, with a NaN in what one rank makes

typedef enum { PLANT_NOTHING, PLANT_ATTENTION, PLANT_GRADIENT } Plant;

static struct {
    Plant plant;
    Trainer* t;
    int rank, layer, microbatch;
    bool once;     // not when the step is repeated
    int calls[64]; // of attention in each block, since the step began
} planted;

static void plant(Trainer* t, Plant what, int rank, int layer, int microbatch, bool once) {
    memset(&planted, 0, sizeof planted);
    planted.plant = what, planted.t = t, planted.rank = rank, planted.layer = layer, planted.microbatch = microbatch;
    planted.once = once;
}

static bool plants(Plant what) {
    return planted.plant == what && planted.t->world.rank == planted.rank && !(planted.once && planted.t->stage.probe);
}

static void planted_attention_forward(floatX* out, float* lse, const floatX* qkv, const int32_t* positions, int B,
                                      int T, int NH, int NKV, int HS) {
    const floatX nan = (floatX)NAN;
    attention_forward(out, lse, qkv, positions, B, T, NH, NKV, HS);
    if (planted.plant != PLANT_ATTENTION) return;
    const Stage* s = &planted.t->stage;
    for (int i = 0; i < s->slots; i++) {
        const Activations* a = &s->activations[i];
        for (int l = 0; a->chunk && l < a->chunk->layers; l++) {
            if (a->layers[l].qkv != qkv) continue;
            const int layer = a->chunk->first_layer + l, k = planted.calls[layer]++ % planted.t->schedule.config.m;
            if (plants(PLANT_ATTENTION) && layer == planted.layer && k == planted.microbatch)
                device_from_host(out, &nan, sizeof nan);
            return;
        }
    }
}

static void plant_in_gradient(float* dw) {
    const float infinity = INFINITY;
    if (!plants(PLANT_GRADIENT)) return;
    const Stage* s = &planted.t->stage;
    const int local = layout_local_layer(&s->layout, planted.layer);
    if (local >= 0 && dw == gradient_of(s, local, FC_W, 0)) device_from_host(dw + 3, &infinity, sizeof infinity);
}

static void planted_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC) {
    linear_backward_weight(dw, dout, x, N, C, OC);
    plant_in_gradient(dw);
}

static void planted_weight_and_bias(float* dw, float* db, const floatX* dout, const floatX* x, int N, int C, int OC) {
    linear_backward_weight_and_bias(dw, db, dout, x, N, C, OC);
    plant_in_gradient(dw);
}

// ----------------------------------------------------------------------------------------------------------------
// In the trainer

// Adds up a count over all ranks.
static int64_t on_all(Trainer* t, int64_t n) {
    comm_all_reduce(&t->world, &n, 1, COMM_INT64, COMM_SUM);
    return n;
}

// Parameters, moments, and masters, as bits.
static uint64_t hash_of_state(const Trainer* t) {
    const Stage* s = &t->stage;
    const int64_t n = s->layout.elements, share = s->layout.mesh.zero ? n / s->layout.mesh.d : n;
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    uint64_t hash = 0;
    device_to_floats(host, s->params, n);
    if (!HAS_MASTER_WEIGHTS) hash += checksum_of(host, 4 * n, 0); // else a step that is skipped rounds them again
    for (int what = 0; what < 3; what++) {
        const float* from = what == 0 ? s->moment1 : what == 1 ? s->moment2 : HAS_MASTER_WEIGHTS ? s->master : NULL;
        if (!from) continue;
        device_to_host(host, from, (size_t)share * sizeof(float));
        hash += checksum_of(host, 4 * share, (what + 1) * n);
    }
    free(host);
    return hash;
}

static uint64_t hash_of_params(const Trainer* t) {
    const int64_t n = t->stage.layout.elements;
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    device_to_floats(host, t->stage.params, n);
    const uint64_t hash = checksum_of(host, 4 * n, 0);
    free(host);
    return hash;
}

static bool compare_copies(Trainer* t, char* text, size_t size) {
    const Stage* s = &t->stage;
    const bool far = t->stats_scope == SCOPE_WORLD;
    text[0] = 0;
    return replicas_differ(text, size, &t->groups, &s->layout, &s->model, s->params, s->checksums, far);
}

static void flip_bit(Trainer* t, int64_t element, int bit) {
    unsigned char byte, *at = (unsigned char*)(t->stage.params + element) + bit / 8;
    device_to_host(&byte, at, 1);
    byte ^= (unsigned char)(1 << bit % 8);
    device_from_host(at, &byte, 1);
}

// One bit of a random weight of a random rank. Returns whether what is told is right, on all ranks.
static bool flip(Trainer* t, int* told) {
    const Layout* layout = &t->stage.layout;
    const Mesh* mesh = &layout->mesh;
    const int rank = (int)draw(t->world.size), number = (int)draw(1 << 30), bit = (int)draw(8 * (int)sizeof(floatX));
    const int64_t place = draw(1 << 30);
    const bool mine = t->world.rank == rank, far = t->stats_scope == SCOPE_WORLD;
    const Slice* slice = &layout->slices[number % layout->n];
    const int64_t element = slice->offset + place % slice_elements(slice);
    char text[1024], name[128], who[64];
    int32_t index[2] = {slice->index, slice->stream};
    comm_broadcast(&t->world, index, 2, COMM_INT32, rank);
    int64_t holds[2] = {share_held(layout, index[0], index[1]), far ? 0 : mesh_site(mesh)}, all[16];
    comm_all_gather(&t->world, all, holds, 2, COMM_INT64);
    int copies = 0;
    for (int i = 0; i < t->world.size; i++)
        copies += all[2 * i] == all[2 * rank] && all[2 * i + 1] == all[2 * rank + 1];
    Tensor* list = (Tensor*)checked_malloc((size_t)layout->tensors * sizeof(Tensor), "test");
    model_tensors(list, &t->stage.model);
    snprintf(name, sizeof name, " of %s than ", list[index[0]].name);
    free(list);
    if (mine) flip_bit(t, element, bit);
    const bool differs = compare_copies(t, text, sizeof text);
    if (mine) flip_bit(t, element, bit);
    const bool same_site = far || mesh_site(mesh) == all[2 * rank + 1];
    bool right = differs == (copies > 1 && same_site);
    if (differs) right = right && strstr(text, name) && !strstr(text, "more tensor");
    for (int i = 0; i < t->world.size && differs; i++) {
        const Mesh at = mesh_at(mesh, i);
        snprintf(who, sizeof who, " %d (t %d, p %d, d %d)", i, at.tensor, at.pipeline, at.data);
        const bool holder = all[2 * i] == all[2 * rank] && all[2 * i + 1] == all[2 * rank + 1];
        right = right && (strstr(text, who) != NULL) == (copies == 2 ? holder : i == rank);
    }
    snprintf(who, sizeof who, "than %d other%s", copies - 1, copies == 2 ? " that holds" : "s that hold");
    if (differs)
        right = right && (copies == 2 ? strstr(text, "than each other, and there is no majority") != NULL
                                      : strstr(text, who) != NULL);
    const bool quiet = !compare_copies(t, text, sizeof text);
    *told += copies > 1;
    return on_all(t, !right || !quiet) == 0;
}

// Two tensors: the first one is told, and that there is another one. Two that have changed places: likewise, although
// nothing else has changed.
static bool flip_two(Trainer* t) {
    const Layout* layout = &t->stage.layout;
    char text[1024];
    int found = 0;
    const int layer = 0; // its norms are held by all ranks of a stage
    const Slice *one = layout_slice(layout, layer, NORM1_W), *other = layout_slice(layout, layer, NORM2_W);
    const Mesh* mesh = &layout->mesh;
    const bool flips = mesh->pipeline == 0 && mesh->tensor == mesh->t - 1 && mesh->data == 0;
    if (flips) flip_bit(t, one->offset + 1, 3), flip_bit(t, other->offset, 5);
    found = compare_copies(t, text, sizeof text) && strstr(text, one->tensor.name) &&
            strstr(text, "; 1 more tensor differs");
    if (flips) flip_bit(t, one->offset + 1, 3), flip_bit(t, other->offset, 5);
    const size_t bytes = (size_t)slice_elements(one) * sizeof(floatX);
    char *a = (char*)checked_malloc(2 * bytes, "test"), *b = a + bytes;
    floatX *at = t->stage.params + one->offset, *to = t->stage.params + other->offset;
    device_to_host(a, at, bytes), device_to_host(b, to, bytes);
    if (flips) device_from_host(at, b, bytes), device_from_host(to, a, bytes);
    found = compare_copies(t, text, sizeof text) && found;
    if (flips) device_from_host(at, a, bytes), device_from_host(to, b, bytes);
    free(a);
    comm_broadcast(&t->world, &found, 1, COMM_INT32, 0); // rank 0 is of the site
    return found;
}

static void expect_rank(char* text, size_t size, const Mesh* mesh, int rank, const char* place) {
    const Mesh at = mesh_at(mesh, rank);
    snprintf(text, size, "it begins with %s on rank %d (t %d, p %d, d %d)", place, rank, at.tensor, at.pipeline,
             at.data);
}

// Looks for where the next step goes wrong; whether all ranks of the planted one's site are told `expected`.
static bool origin_is(Trainer* t, int rank, const char* place, bool print) {
    const Mesh* mesh = &t->stage.layout.mesh;
    const StepInput pass = {&t->schedule, &t->train, t->sequences, t->sequences + t->settings.global_batch,
                            true,         NULL,      NULL};
    const bool far = t->stats_scope == SCOPE_WORLD;
    const int replicas = far ? mesh->d : mesh_site_size(mesh), here = mesh_at(mesh, rank).data / mesh_site_size(mesh);
    char text[640], expected[640];
    if (!place)
        snprintf(expected, sizeof expected, "not seen again when the step was repeated: suspect the hardware");
    else
        expect_rank(expected, sizeof expected, mesh, rank, place);
    if (place && replicas > 1) append_text(expected, sizeof expected, "; 1 of %d replicas have such numbers", replicas);
    if (!far && mesh_site(mesh) != here) snprintf(expected, sizeof expected, "not seen again");
    rerun_to_find_nan(t, &pass, text, sizeof text);
    const bool right = strncmp(text, expected, strlen(expected)) == 0;
    if (!right && print) printf("      rank %d: %s\n      expected: %s\n", t->world.rank, text, expected);
    return on_all(t, !right) == 0;
}

// Plants of all kinds at random places.
static int origins(Trainer* t, int rounds, int* wrong) {
    const Layout* layout = &t->stage.layout;
    int n = 0;
    char place[160], name[128];
    for (int round = 0; round < rounds; round++) {
        const int rank = (int)draw(t->world.size), number = (int)draw(1 << 30), m = t->schedule.config.m;
        const bool mine = t->world.rank == rank;
        const Chunk* chunk = &layout->chunk[number % layout->mesh.v];
        int32_t where[3] = {chunk->first_layer + number / 8 % chunk->layers, number / 64 % layout->n, 0};
        const Slice* slice = &layout->slices[where[1]];
        const int64_t element = slice->offset + number % slice_elements(slice);
        const floatX nan = (floatX)NAN;
        floatX kept;
        where[2] = slice->index;
        comm_broadcast(&t->world, where, 3, COMM_INT32, rank);
        Tensor* list = (Tensor*)checked_malloc((size_t)layout->tensors * sizeof(Tensor), "test");
        model_tensors(list, &t->stage.model);
        const char *weight_name = list[where[2]].name, *gradient_name = "";
        for (int i = 0; i < layout->tensors; i++) {
            if (list[i].layer == where[0] && list[i].kind == FC_W) gradient_name = list[i].name;
        }
        const int k = round == 0 ? m - 1 : (int)draw(m); // there is something before it
        plant(t, PLANT_ATTENTION, rank, where[0], k, false);
        snprintf(place, sizeof place, "the output of attention in block %d, micro-batch %d", where[0], k);
        *wrong += !origin_is(t, rank, place, mine), n++;
        plant(t, PLANT_ATTENTION, rank, where[0], k, true);
        *wrong += !origin_is(t, rank, NULL, mine), n++;
        plant(t, PLANT_GRADIENT, rank, where[0], 0, false);
        snprintf(name, sizeof name, "its own gradient of %s", gradient_name);
        *wrong += !origin_is(t, rank, name, mine), n++;
        plant(t, PLANT_NOTHING, 0, 0, 0, false);
        device_to_host(&kept, t->stage.params + element, sizeof kept);
        if (mine) device_from_host(t->stage.params + element, &nan, sizeof nan);
        snprintf(name, sizeof name, "the weight %s", weight_name);
        *wrong += !origin_is(t, rank, name, mine), n++;
        if (mine) device_from_host(t->stage.params + element, &kept, sizeof kept);
        *wrong += !origin_is(t, rank, NULL, mine), n++;
        free(list);
    }
    return n;
}

static void case_run(const Comm* world, const char* line, bool few) {
    static Trainer t;
    char text[1024];
    int alarms = 0, flips = 0, told = 0, wrong = 0, wrong_origins = 0, n = 0;
    trainer_open(&t, world, line, NULL, false);
    const Mesh* mesh = &t.stage.layout.mesh;
    const bool late = t.stage.async && async_dp_is_delayed(&t.stage);
    for (int step = 0; step < (few ? 2 : 4); step++) {
        train_step(&t);
        alarms += on_all(&t, compare_copies(&t, text, sizeof text)) > 0;
        for (int i = 0; i < (few ? 6 : 12); i++, flips++) wrong += !flip(&t, &told);
    }
    const int copies = (t.stats_scope == SCOPE_SITE ? mesh_site_size(mesh) : mesh->d) * mesh->t;
    const bool two = copies < 2 || flip_two(&t);
    if (!t.schedule.config.clip || late) {
        rerun_to_find_nan(&t, NULL, text, sizeof text);
        wrong_origins = !strstr(text, late ? "gradients are late" : "with a --clip");
    } else
        n = origins(&t, few ? 1 : 2, &wrong_origins);
    if (t.stage.async) async_dp_drain(&t.stage);
    trainer_close(&t);
    if (world->rank > 0) return;
    check(alarms == 0, "%s: %d steps with a false alarm", line, alarms);
    check(wrong == 0 && two, "    %d bits flipped, %d of them in copies, %d told wrongly%s", flips, told, wrong,
          two ? "" : "; two at once too");
    check(wrong_origins == 0, "    %d NaNs planted, %d of them told wrongly", n, wrong_origins);
}

static const struct {
    int ranks;
    const char* line;
} cases[] = {
    {1, "--clip 1"},
    {1, "--arch llama --recompute selective"},
    {2, "--tp 2 --sequence-parallel"},
    {2, "--pp 2"},
    {2, "--zero 2 --arch llama"},
    {2, "--dp-mode dc-s3gd"},
    {4, "--tp 2 --zero 1"},
    {4, "--pp 2 --zero 2 --recompute selective"},
    {4, "--tp 4 --arch llama --kv-heads 2 --sequence-parallel"},
    {4, "--tp 4 --arch llama --kv-heads 1"},
    {4, "--tp 2 --caat-fraction 0.5 --caat-ranks 4"},
    {4, "--sites 2"},
    {4, "--sites 4 --zero 1 --allreduce ring"},
    {4, "--dp-mode delayed --sites 2"},
    {4, "--dp-mode dc-s3gd --sites 2"},
    {4, "--dp-mode diloco --local-steps 2 --sites 2"},
    {4, "--zero 1 --clip 0"},
    {8, "--tp 2 --pp 2 --schedule zb-v"},
    {8, "--tp 2 --pp 2 --schedule interleaved --vpp 2 --arch llama --kv-heads 1"},
    {8, "--pp 2 --schedule zb-h1 --zero 1"},
    {8, "--tp 2 --zero 2 --caat-fraction 0.5"},
    {8, "--tp 2 --pp 2 --dp-mode diloco --local-steps 2 --outer-delay 1"},
};

// ----------------------------------------------------------------------------------------------------------------
// Steps that are skipped

static void checkpoint_folder(const Comm* world, char* folder, bool make) {
    snprintf(folder, 64, "build/test_health.%d", world->size);
    if (world->rank == 0 && make) {
        for (int step = 1; step < 20; step++) { // of a run that was killed
            char path[128];
            snprintf(path, sizeof path, "%s/step_%08d", folder, step);
            checkpoint_remove(path);
        }
        mkdir(folder, 0777);
    }
}

static void skip_run(const Comm* world, const char* line) {
    static Trainer t;
    enum { STEPS = 7, SKIPPED = 4 }; // the fourth
    char skips[256], folder[64];
    uint64_t end = 0, clean = 0;
    int wrong = 0;
    snprintf(skips, sizeof skips, "%s --on-nan skip", line);
    checkpoint_folder(world, folder, true);
    comm_barrier((Comm*)world);
    for (int run = 0; run < 2; run++) { // the second takes up the first one's checkpoint
        trainer_open(&t, world, skips, run ? folder : NULL, run == 1);
        t.settings.out = NULL;
        wrong += run == 1 && t.step != SKIPPED;
        while (t.step < STEPS) {
            const int64_t step = t.step + 1, position = t.sequences;
            const uint64_t before = hash_of_state(&t);
            if (step == SKIPPED) // in a block that the last rank holds
                plant(&t, PLANT_GRADIENT, world->size - 1, t.stage.layout.chunk[0].first_layer, 0, false);
            fflush(stdout);
            const int stdout_was = dup(1), nowhere = open("/dev/null", O_WRONLY); // "skipped ..."
            dup2(nowhere, 1);
            train_step(&t);
            fflush(stdout);
            dup2(stdout_was, 1), close(stdout_was), close(nowhere);
            plant(&t, PLANT_NOTHING, 0, 0, 0, false);
            wrong += t.step != step || t.sequences != position + t.settings.global_batch;
            wrong += t.health.skipped != (step == SKIPPED) || t.health.skipped_in_row != (step == SKIPPED);
            wrong += (hash_of_state(&t) == before) != (step == SKIPPED);
            wrong += !isfinite(t.grad_norm) != (step == SKIPPED);
            const Traffic formula = traffic_of_mesh(&t, NULL, 0);
            wrong += fabs(t.bytes.tensor - formula.layers - formula.ends) > 0.5;
            wrong += fabs(t.bytes.pipeline - formula.pipeline - formula.tied) > 0.5 && t.stage.layout.mesh.sites == 1;
            if (step == SKIPPED) trainer_save(&t, folder);
        }
        const uint64_t now = hash_of_state(&t) + 3 * hash_of_params(&t);
        wrong += run == 1 && now != end;
        end = now;
        trainer_close(&t);
    }
    trainer_open(&t, world, line, NULL, false);
    while (t.step < STEPS) train_step(&t);
    clean = hash_of_state(&t) + 3 * hash_of_params(&t);
    wrong += clean == end; // the step was missing
    wrong = (int)on_all(&t, wrong);
    trainer_close(&t);
    checkpoint_folder(world, folder, true);
    if (world->rank > 0) return;
    rmdir(folder);
    check(wrong == 0, "%s: a step is skipped, and a run taken up behind it: %d things wrong", line, wrong);
}

// A run without a NaN does not depend on --on-nan.
static void test_same(const Comm* world, const char* line) {
    static Trainer t;
    char skips[256];
    uint64_t end[2];
    snprintf(skips, sizeof skips, "%s --on-nan skip", line);
    for (int run = 0; run < 2; run++) {
        trainer_open(&t, world, run ? skips : line, NULL, false);
        while (t.step < 5) train_step(&t);
        end[run] = hash_of_state(&t);
        trainer_close(&t);
    }
    int64_t wrong = end[0] != end[1];
    comm_all_reduce((Comm*)world, &wrong, 1, COMM_INT64, COMM_SUM);
    if (world->rank == 0) check(wrong == 0, "%s: the same bits with --on-nan skip", line);
}

static const struct {
    int ranks;
    const char* line;
} skipping[] = {
    {1, "--clip 0"},
    {2, "--tp 2"},
    {2, "--zero 1"},
    {2, "--pp 2 --clip 0"},
    {4, "--pp 2 --zero 2"},
    {4, "--sites 2 --clip 0"},
    {8, "--tp 2 --pp 2 --schedule zb-v --zero 1"},
};

// ----------------------------------------------------------------------------------------------------------------

// A copy differs when a checkpoint is to be saved: the run ends, and there is none.
static void die_of_a_bit(const Comm* world, const char* folder) {
    static Trainer t;
    process.name = "train_gpt";
    trainer_open(&t, world, "--tp 2", NULL, false);
    train_step(&t);
    trainer_save(&t, folder); // all is well
    train_step(&t);
    if (world->rank == world->size - 1) flip_bit(&t, layout_slice(&t.stage.layout, 0, NORM1_W)->offset, 0);
    trainer_save(&t, folder);
    printf("a wrong checkpoint was saved\n");
}

int main(int argc, char** argv) {
    const bool few = (argc > 1 && strcmp(argv[1], "--short") == 0) || !getenv("LONG");
    const char* only = argc > 2 && strcmp(argv[argc - 2], "--only") == 0 ? argv[argc - 1] : NULL;
    Comm world;
    process.name = "test_health";
    comm_open(&world);
    device_open(world.rank);
    comm_open_device(&world);
    device_set_threads(1);
    if (world.rank == 0) write_tokens();
    comm_barrier(&world);
    if (argc > 2 && strcmp(argv[1], "--die") == 0) {
        die_of_a_bit(&world, argv[2]);
        return 0;
    }
    if (world.size == 1 && (!only || strcmp(only, "pure") == 0)) {
        test_checksum();
        test_holders();
        test_differ();
        test_texts();
        test_places();
        test_first_place();
        test_scores(few);
        test_logged();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].ranks == world.size && (!only || strstr(cases[i].line, only)))
            case_run(&world, cases[i].line, few);
    }
    for (size_t i = 0; i < sizeof skipping / sizeof skipping[0]; i++) {
        if (skipping[i].ranks != world.size || (only && !strstr(only, "skip"))) continue;
        skip_run(&world, skipping[i].line);
        if (strstr(skipping[i].line, "--clip 0") || !few) test_same(&world, skipping[i].line);
    }
    const int status = world.rank == 0 ? test_end() : 0;
    comm_close(&world);
    return status;
}
