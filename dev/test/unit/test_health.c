/*
test_health.c: does trainer/replica_check.h see what is wrong, and nothing else; does --on-nan skip keep the bits? This
file includes train_gpt.cu.

On one rank, against brute force: which ranks hold the same slice (from the layouts of all ranks of many meshes), which
of them differ from the majority.

On several, in the trainer's own step, on a tiny model:

    no alarm    copies agree after every step, whatever the mesh
    flips       one bit of a random weight of a random rank: the message names the ranks that hold a copy, where there
                are three or more only the one that differs; no alarm where there is no copy, or after the bit is back
    skipped     a step with an infinite gradient, and --on-nan skip: parameters and moments keep their bits, and a run
                resumed after it ends with the bits of the run that continued

The infinity is planted by a function that stands in for the kernel here. --die FOLDER: a bit is flipped before a
checkpoint, for test_mesh.sh to look at the end of the run.

ranks: 1 2 4 8
ranks sanitized: 1 2
*/
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses most, not all
#include "../../../kernels/kernels.h"

static void planted_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC, bool add);

#define TRAIN_GPT_NO_MAIN
#define linear_backward_weight planted_weight
#include "../../../train_gpt.cu"
#undef linear_backward_weight

#include "test.h"

static const char* tokens_path = "build/test_health.bin";
static const char* usual_line =
    "--layers 4 --hidden 32 --heads 4 --seq 8 --vocab 97 --steps 20 --warmup 2 --lr 4e-3 --min-lr 1e-3 --micro-batch 1 "
    "--global-batch 8 --eval-sequences 4 "
    "--data build/test_health.bin";
#include "trainer_fixture.h"

// Whole numbers below n, the same on every rank.
static uint64_t draws = 0;
static int64_t draw(int64_t n) { return (int64_t)((double)random_uniform(11, 3, draws++) * (double)n) % n; }

// ---- Who holds the same -----------------------------------------------------------------------------------------

// Whether a rank holds a tensor, and which share of it, by its layout; -1: it does not.
static int share_held(const Layout* layout, int index, int state) {
    for (int i = 0; i < layout->n; i++) {
        if (layout->slices[i].index == index && layout->slices[i].stream == state) return layout->slices[i].cut;
    }
    return -1;
}

// All pairs of ranks and tensors of one mesh. Returns how many are judged wrong.
static int wrong_colors(const ModelConfig* m, ParallelConfig parallel, int* pairs) {
    const int n = mesh_size(&parallel.mesh), tensors = model_tensors(NULL, m);
    Layout* layout = (Layout*)checked_calloc((size_t)n, sizeof(Layout), "test");
    Tensor* list = (Tensor*)checked_calloc((size_t)tensors, sizeof(Tensor), "test");
    Error error;
    const int ranks_per_head = ranks_per_kv_head(&parallel, m->NKV);
    int wrong = 0;
    model_tensors(list, m);
    for (int rank = 0; rank < n; rank++) {
        if (!layout_build(&layout[rank], m, parallel_at(&parallel, rank), m->T, &error)) die("%s", error.text);
    }
    for (int i = 0; i < tensors; i++) {
        for (int a = 0; a < n; a++) {
            for (int b = 0; b < a; b++) {
                const ReplicaGroup holders = replica_group_of(&list[i], &parallel, m);
                const bool color = replica_group_color(holders, &layout[a].parallel.mesh, ranks_per_head) ==
                                   replica_group_color(holders, &layout[b].parallel.mesh, ranks_per_head);
                const int share = share_held(&layout[a], i, 0);
                const bool same = share >= 0 && share == share_held(&layout[b], i, 0);
                if (share < 0 && share_held(&layout[b], i, 0) < 0) continue; // neither holds it
                wrong += color != same;
                ++*pairs;
            }
        }
    }
    for (int rank = 0; rank < n; rank++) layout_free(&layout[rank]);
    free(layout);
    free(list);
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
                    ParallelConfig parallel = parallel_of_rank(0, t, p, d);
                    if (p > 1) parallel_set_schedule(&parallel, kinds[i / 8], schedule_usual_chunks(kinds[i / 8]));
                    const CaatConfig sync = {4, 0.5, false}; // of the ordinary ones, too
                    if (NKV == 4 && i % 3 == 0) parallel.caat = sync;
                    wrong += wrong_colors(&m, parallel, &pairs);
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
        const ParallelConfig parallel = parallel_of_rank(0, 1 << draw(3), 1 + (int)draw(3), 1 + (int)draw(5));
        const int n = mesh_size(&parallel.mesh), stride = 1 + (int)draw(3), NKV = 1 << draw(3),
                  sharing = ranks_per_kv_head(&parallel, NKV);
        const ReplicaGroup holders = (ReplicaGroup)draw(REPLICATED_OVER_ENDS + 1);
        int64_t number[60 * 3];
        bool named[60], right[60] = {false};
        int copies = -1, color[60], values = 1 + (int)draw(3), bad = -1, holding = 0;
        for (int i = 0; i < n * stride; i++) number[i] = 1000 + i; // not compared
        for (int i = 0; i < n; i++) {
            const Mesh at = mesh_at(&parallel.mesh, i);
            color[i] = replica_group_color(holders, &at, sharing);
            number[i * stride] = color[i] * 10 + (draw(6) == 0 ? draw(values) : 0);
        }
        for (int i = n - 1; i >= 0; i--) { // the group of the first rank that differs from one before it
            for (int j = 0; j < i; j++)
                bad = color[i] == color[j] && number[i * stride] != number[j * stride] ? i : bad;
        }
        int64_t most = 0, second = 0, best = 0;
        const bool found = group_differs(named, &copies, number, stride, holders, &parallel.mesh, sharing);
        differ_found += found;
        wrong += found != (bad >= 0);
        if (bad < 0 || !found) continue;
        for (int64_t value = 0; value < 200; value++) {
            int votes = 0;
            for (int i = 0; i < n; i++) votes += color[i] == color[bad] && number[i * stride] == value;
            holding += votes;
            second = max_i64(second, min_i64(most, votes));
            if (votes > most) best = value;
            most = max_i64(most, votes);
        }
        for (int i = 0; i < n; i++) right[i] = color[i] == color[bad] && (most == second || number[i * stride] != best);
        wrong += memcmp(named, right, (size_t)n * sizeof *named) != 0 || copies != holding;
    }
    check(wrong == 0 && differ_found > 300 && differ_found < 2700,
          "group_differs: %d of 3000 wrong, %d have differences", wrong, differ_found);
}

// ---- Plant: the trainer's kernel, with an infinity in one rank's gradient ----------------------------------------

static struct {
    Trainer* t; // NULL: nothing is planted
    int rank, layer;
} planted;

static void plant_in_gradient(float* dw) {
    const float infinity = INFINITY;
    if (!planted.t || planted.t->world.rank != planted.rank) return;
    const Stage* s = &planted.t->stage;
    const int local = layout_local_layer(&s->layout, planted.layer);
    if (local >= 0 && dw == gradient_of(s, local, FC_W, 0)) device_from_host(dw + 3, &infinity, sizeof infinity);
}

static void planted_weight(float* dw, const floatX* dout, const floatX* x, int N, int C, int OC, bool add) {
    linear_backward_weight(dw, dout, x, N, C, OC, add);
    plant_in_gradient(dw);
}

// ---- In the trainer ---------------------------------------------------------------------------------------------

// Adds up a count over all ranks.
static int64_t on_all(Trainer* t, int64_t n) {
    comm_all_reduce(&t->world, &n, 1, COMM_INT64, COMM_SUM);
    return n;
}

// Moments and masters, and parameters, as bits. A step that is skipped rounds parameters again that have masters.
static uint64_t hash_of_state(const Trainer* t, bool params) {
    const Stage* s = &t->stage;
    const int64_t n = s->layout.elements, share = s->layout.parallel.zero ? n / s->layout.parallel.mesh.d : n;
    float* host = (float*)checked_malloc((size_t)n * sizeof(float), "test");
    uint64_t hash = 0;
    device_to_floats(host, s->params, n);
    if (params || !HAS_MASTER_WEIGHTS) hash += checksum_of(host, 4 * n, 0);
    const float* state[] = {s->moment1, s->moment2, HAS_MASTER_WEIGHTS ? s->master : NULL};
    for (int what = 0; what < 3; what++) {
        if (!state[what]) continue;
        device_to_host(host, state[what], (size_t)share * sizeof(float));
        hash += checksum_of(host, 4 * share, (what + 1) * n);
    }
    free(host);
    return hash;
}

static bool compare_copies(Trainer* t, char* text, size_t size) {
    const Stage* s = &t->stage;
    const bool inter_site = t->stats_scope == SCOPE_WORLD;
    text[0] = 0;
    return replicas_differ(text, size, &t->groups, &s->layout, &s->model, s->params, s->checksums, inter_site);
}

static void flip_bit(Trainer* t, int64_t element, int bit) {
    unsigned char byte, *at = (unsigned char*)(t->stage.params + element) + bit / 8;
    device_to_host(&byte, at, 1);
    byte ^= (unsigned char)(1 << bit % 8);
    device_from_host(at, &byte, 1);
}

// One bit of a random weight of a random rank. Returns whether the message is right, on all ranks. *copied: flips of
// weights that have copies.
static bool flip(Trainer* t, int* copied) {
    const Layout* layout = &t->stage.layout;
    const Mesh* mesh = &layout->parallel.mesh;
    const int rank = (int)draw(t->world.size), number = (int)draw(1 << 30), bit = (int)draw(8 * (int)sizeof(floatX));
    const int64_t place = draw(1 << 30);
    const bool mine = t->world.rank == rank, inter_site = t->stats_scope == SCOPE_WORLD;
    const Slice* slice = &layout->slices[number % layout->n];
    const int64_t element = slice->offset + place % slice_elements(slice);
    char text[1024], name[128], who[64];
    int32_t index[2] = {slice->index, slice->stream};
    comm_broadcast(&t->world, index, 2, COMM_INT32, rank);
    int64_t holds[2] = {share_held(layout, index[0], index[1]), inter_site ? 0 : mesh_site(mesh)}, all[16];
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
    const bool same_site = inter_site || mesh_site(mesh) == all[2 * rank + 1];
    bool right = differs == (copies > 1 && same_site);
    if (differs) right = right && strstr(text, name) && !strstr(text, "more tensor");
    for (int i = 0; i < (differs ? t->world.size : 0); i++) {
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
    *copied += copies > 1;
    return on_all(t, !right || !quiet) == 0;
}

// A bit of each of two tensors.
static void flip_two_bits(Trainer* t, const Slice* one, const Slice* other) {
    flip_bit(t, one->offset + 1, 3);
    flip_bit(t, other->offset, 5);
}

// Two tensors: the message names the first one, and says that there is another one. Two that have changed places: the
// same, although nothing else has changed.
static bool flip_two(Trainer* t) {
    const Layout* layout = &t->stage.layout;
    char text[1024];
    int found = 0;
    const int layer = 0; // its norms are held by all ranks of a stage
    const Slice *one = layout_slice(layout, layer, NORM1_W), *other = layout_slice(layout, layer, NORM2_W);
    const Mesh* mesh = &layout->parallel.mesh;
    const bool flips = mesh->pipeline == 0 && mesh->tensor == mesh->t - 1 && mesh->data == 0;
    if (flips) flip_two_bits(t, one, other);
    found = compare_copies(t, text, sizeof text) && strstr(text, one->tensor.name) &&
            strstr(text, "; 1 more tensor differs");
    if (flips) flip_two_bits(t, one, other);
    const size_t bytes = (size_t)slice_elements(one) * sizeof(floatX);
    char *a = (char*)checked_malloc(2 * bytes, "test"), *b = a + bytes;
    floatX *at = t->stage.params + one->offset, *to = t->stage.params + other->offset;
    device_to_host(a, at, bytes);
    device_to_host(b, to, bytes);
    if (flips) {
        device_from_host(at, b, bytes);
        device_from_host(to, a, bytes);
    }
    found = compare_copies(t, text, sizeof text) && found;
    if (flips) {
        device_from_host(at, a, bytes);
        device_from_host(to, b, bytes);
    }
    free(a);
    comm_broadcast(&t->world, &found, 1, COMM_INT32, 0); // rank 0 is of the site
    return found;
}

static void case_run(const Comm* world, const char* line, bool few) {
    static Trainer t;
    char text[1024];
    int alarms = 0, flips = 0, copied = 0, wrong = 0, counted = 0;
    trainer_open(&t, world, line, NULL, false);
    const Mesh* mesh = &t.stage.layout.parallel.mesh;
    for (int step = 0; step < (few ? 2 : 4); step++) {
        train_step(&t);
        const Bytes before = bytes_sent(&t);
        alarms += on_all(&t, compare_copies(&t, text, sizeof text)) > 0;
        const Bytes after = bytes_sent(&t);
        counted += before.tensor != after.tensor || before.pipeline != after.pipeline || before.data != after.data;
        for (int i = 0; i < (few ? 6 : 12); i++, flips++) wrong += !flip(&t, &copied);
    }
    const int copies = (t.stats_scope == SCOPE_SITE ? mesh_site_size(mesh) : mesh->d) * mesh->t;
    const bool two = copies < 2 || flip_two(&t);
    if (t.stage.async) async_dp_drain(&t.stage);
    trainer_close(&t);
    if (world->rank > 0) return;
    check(alarms == 0 && counted == 0, "%s: %d steps with a false alarm, %d whose checks are counted as traffic", line,
          alarms, counted);
    check(wrong == 0 && two, "    %d bits flipped, %d of them in copies, %d wrong messages%s", flips, copied, wrong,
          two ? "" : "; two at once too");
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
    {4, "--zero 1 --allreduce ring"},
    {4, "--dp-mode dc-s3gd --sites 2"},
    {4, "--dp-mode diloco --local-steps 2 --sites 2"},
    {4, "--zero 1 --clip 0"},
    {8, "--tp 2 --pp 2 --schedule zb-v"},
    {8, "--tp 2 --pp 2 --schedule interleaved --vpp 2 --arch llama --kv-heads 1"},
    {8, "--pp 2 --schedule zb-h1 --zero 1"},
    {8, "--tp 2 --zero 2 --caat-fraction 0.5"},
    {8, "--tp 2 --pp 2 --dp-mode diloco --local-steps 2"},
};

// ---- Steps that are skipped -------------------------------------------------------------------------------------

static void clear_folder(const Comm* world, char* folder) {
    snprintf(folder, 64, "build/test_health.%d", world->size);
    for (int step = 1; step < 20 && world->rank == 0; step++) { // of a run that was killed, too
        char path[128];
        snprintf(path, sizeof path, "%s/step_%08d", folder, step);
        checkpoint_remove(path);
    }
    if (world->rank == 0) mkdir(folder, 0777);
}

// Makes a step. What it prints goes to text.
static void quiet_step(Trainer* t, char* text, size_t size) {
    const Quiet quiet = quiet_begin(false);
    train_step(t);
    quiet_end(&quiet, text, size);
}

// Whether rank 0 has named the tensor with the planted gradient.
static bool names_planted(const Trainer* t, const char* said) {
    char expected[128];
    snprintf(expected, sizeof expected, "the gradient of transformer.h.%d.mlp.c_fc.weight is not finite",
             planted.layer);
    return t->world.rank > 0 || strstr(said, expected);
}

static void skip_run(const Comm* world, const char* line) {
    static Trainer t;
    enum { STEPS = 7, SKIPPED = 4 }; // the fourth
    char skips[256], folder[64], said[4096];
    uint64_t end = 0;
    int wrong = 0;
    snprintf(skips, sizeof skips, "%s --on-nan skip", line);
    clear_folder(world, folder);
    comm_barrier((Comm*)world);
    for (int run = 0; run < 2; run++) { // the second resumes from the first one's checkpoint
        trainer_open(&t, world, skips, run ? folder : NULL, run == 1);
        t.settings.out = NULL;
        wrong += run == 1 && t.step != SKIPPED;
        while (t.step < STEPS) {
            const int64_t step = t.step + 1, position = t.sequences;
            const uint64_t before = hash_of_state(&t, false);
            planted.t = step == SKIPPED ? &t : NULL;
            planted.rank = world->size - 1;
            planted.layer = t.stage.layout.chunk[0].first_layer;
            comm_broadcast(&t.world, &planted.layer, 1, COMM_INT32, planted.rank); // it holds this layer
            quiet_step(&t, said, sizeof said);
            wrong += planted.t && !names_planted(&t, said);
            planted.t = NULL;
            wrong += t.step != step || t.sequences != position + t.settings.global_batch;
            wrong += t.skipped_in_row != (step == SKIPPED);
            wrong += (hash_of_state(&t, false) == before) != (step == SKIPPED);
            wrong += !isfinite(t.grad_norm) != (step == SKIPPED);
            SiteTraffic sites;
            const Traffic formula = traffic_of_mesh(&t, &sites, 0);
            wrong += fabs(t.bytes.tensor - formula.layers - formula.ends) > 0.5;
            wrong += fabs(t.bytes.pipeline - formula.pipeline - formula.tied) > 0.5 &&
                     t.stage.layout.parallel.mesh.sites == 1;
            if (step == SKIPPED) trainer_save(&t, folder);
        }
        const uint64_t now = hash_of_state(&t, true);
        wrong += run == 1 && now != end;
        end = now;
        trainer_close(&t);
    }
    trainer_open(&t, world, line, NULL, false);
    while (t.step < STEPS) train_step(&t);
    wrong += hash_of_state(&t, true) == end; // the step was missing
    wrong = (int)on_all(&t, wrong);
    trainer_close(&t);
    clear_folder(world, folder);
    if (world->rank > 0) return;
    rmdir(folder);
    check(wrong == 0, "%s: a step is skipped, and a run resumed after it: %d things wrong", line, wrong);
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
    Comm world = world_open("test_health");
    if (world.rank == 0) write_random_tokens(tokens_path, 3000, 97);
    comm_barrier(&world);
    if (argc > 2 && strcmp(argv[1], "--die") == 0) {
        die_of_a_bit(&world, argv[2]);
        return 0;
    }
    if (world.size == 1) {
        test_holders();
        test_differ();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (cases[i].ranks == world.size) case_run(&world, cases[i].line, few);
    for (size_t i = 0; i < sizeof skipping / sizeof skipping[0]; i++)
        if (skipping[i].ranks == world.size) skip_run(&world, skipping[i].line);
    return world_close(&world);
}
