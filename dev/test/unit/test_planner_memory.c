/*
test_planner_memory.c: is what parallel/stage.h and planner/memory.h say of memory right?

    by hand       every buffer of a stage, written out once more in formulas, for meshes of every kind
    published     activations a block: Korthikanti et al. 2022
    any rank      the largest of three stages is the largest of all ranks, by looking at all of them
    process       pages that are touched, by touching them
    refused       shapes that do not fit are refused by an Error
*/
#include "../../../planner/formulas.h"
#include "../../../planner/memory.h"
#include "planner_fixture.h"

static const DtypeInfo fp32 = {4, false, 2}, bf16 = {2, true, 2};

static ModelConfig test_model(Arch arch, int L, int C, int NH, int NKV, int T, int V) {
    const ModelConfig m = model_of(arch, L, C, NH, NKV, architectures[arch].biases ? 4 * C : 3 * C, T, V);
    return m;
}

static ScheduleKind schedule_of_mesh; // of the one that mesh_of made last

static Mesh mesh_of(int t, int p, int d, int v, ScheduleKind schedule) {
    Mesh mesh = mesh_of_rank(0, t, p, d);
    schedule_of_mesh = schedule;
    mesh_set_schedule(&mesh, schedule, v);
    return mesh;
}

static PipelineConfig pipeline_of(const ModelConfig* m, const Mesh* mesh, int micro_batches) {
    const PipelineConfig plan = {schedule_of_mesh, mesh->p, mesh->v, micro_batches, mesh->zero == 2, m->tied};
    return plan;
}

// The memory of one rank.
static StageMemory memory_of_rank(const ModelConfig* m, Mesh mesh, int rank, int B, int micro_batches, DtypeInfo type) {
    Stage s;
    Error error;
    const PipelineConfig plan = pipeline_of(m, &mesh, micro_batches);
    mesh.tensor = rank % mesh.t;
    mesh.data = rank / mesh.t % mesh.d;
    mesh.pipeline = rank / (mesh.t * mesh.d);
    if (!plan_stage(&s, m, &mesh, B, m->T, &plan, NULL, type, &error)) die("%s", error.text);
    const StageMemory memory = memory_of_stage(&s);
    stage_free(&s);
    return memory;
}

// ----------------------------------------------------------------------------------------------------------------
// By hand: one chunk a stage, blocks that divide evenly, 1f1b or gpipe. Every buffer begins at a multiple of 256 bytes.

static double room(double bytes) { return ceil(bytes / 256) * 256; }

typedef struct {
    const ModelConfig* m;
    const Mesh* mesh;
    double B, slots, w;                   // w: bytes of a value
    double N, R, C, QKV, heads, FC, F, V; // of this rank
    bool first, last, texts;
} ByHand;

static double bucket_by_hand(const ByHand* x, double elements) {
    const double unit = 16.0 * x->mesh->d;
    return ceil(elements / unit) * unit;
}

static double block_parameters(const ByHand* x) {
    const double matrices = x->QKV * x->C + x->heads * x->C + x->FC * x->C + x->F * x->C;
    return matrices + (x->m->biases ? 6 * x->C + x->QKV + x->FC : 2 * x->C); // norms; biases
}

static double parameters_by_hand(const ByHand* x) {
    const ModelConfig* m = x->m;
    const bool tied = m->tied;
    double n = m->L / x->mesh->p * bucket_by_hand(x, block_parameters(x));
    if (x->first || (tied && x->last)) n += bucket_by_hand(x, x->V * x->C);
    if (x->first && m->position == POSITION_LEARNED) n += bucket_by_hand(x, (double)m->T * x->C);
    if (x->last) n += bucket_by_hand(x, (m->norm == NORM_LAYERNORM ? 2 : 1) * x->C);
    if (x->last && !tied) n += bucket_by_hand(x, x->V * x->C);
    return n;
}

static double kept_by_hand(const ByHand* x) { // of a block, with nothing to be computed again
    return room(x->R * 4) * 4 + room(x->N * x->QKV * x->w) + room(x->N * x->heads * x->w) +
           room(x->N * x->heads / model_head_size(x->m) * 4) + room(x->R * x->C * x->w) + room(x->N * x->FC * x->w);
}

static double recomputable_by_hand(const ByHand* x) { return 2 * room(x->R * x->C * x->w) + room(x->N * x->F * x->w); }

static double activations_by_hand(const ByHand* x) {
    const double L = x->m->L / x->mesh->p, stream = room(x->R * x->C * x->w);
    const Recompute again = x->mesh->recompute;
    double block = 0;
    if (again != RECOMPUTE_FULL) block += kept_by_hand(x);
    if (again == RECOMPUTE_NONE) block += recomputable_by_hand(x);
    const double head = stream + 2 * room(x->R * 4) + room(x->N * x->V * x->w) + 2 * room(x->N * 4) + room(x->N * 8);
    const bool divided = x->mesh->sequence_parallel || x->mesh->scatter;
    const double message = room(x->N * x->C / (divided ? x->mesh->t : 1) * x->w);
    return x->slots * ((L + 1) * stream + L * block + (x->last ? head : 0)) +
           PIPELINE_BUFFERS_PER_DIRECTION * message * (2 * !x->first + !x->last);
}

// Tensors that a rank has a slice of: 12 a block of GPT-2, 9 of Llama, and what the ends have.
static double slices_by_hand(const ByHand* x) {
    double n = (x->m->biases ? 12.0 : 9.0) * (x->m->L / x->mesh->p);
    if (x->first || (x->m->tied && x->last)) n += 1;
    if (x->first && x->m->position == POSITION_LEARNED) n += 1;
    if (x->last) n += x->m->norm == NORM_LAYERNORM ? 2 : 1;
    if (x->last && !x->m->tied) n += 1;
    return n;
}

static double scratch_by_hand(const ByHand* x, int tensors) {
    const double stream = room(x->R * x->C * x->w), all = room(x->N * x->C * x->w);
    double bytes = room(x->N * x->QKV * x->w) + room(x->N * x->FC * x->w) + 2 * all; // gradients of matrices' outputs
    bytes += 3 * stream + room(x->N * fmax(x->F, x->heads) * x->w);                  // dx, branch, dnorm; dact
    if (x->mesh->sequence_parallel) bytes += 2 * all;
    if (x->mesh->recompute != RECOMPUTE_NONE) bytes += kept_by_hand(x) + recomputable_by_hand(x);
    if (x->m->position == POSITION_ROPE) bytes += room((double)x->m->T * model_head_size(x->m) * 4);
    bytes += room((tensors + 1.0) * 8) + room(slices_by_hand(x) * 8); // squares; checksums
    return bytes + x->texts * room(x->m->L / x->mesh->p * (double)x->m->T * (x->QKV - x->heads) * x->w); // the cache
}

static ByHand by_hand(const ModelConfig* m, const Mesh* mesh, int rank, int B, int micro_batches, DtypeInfo type) {
    const int t = mesh->t, HS = model_head_size(m), NKV = m->NKV > t ? m->NKV / t : 1;
    const int pipeline = mesh_at(mesh, rank).pipeline;
    const int early = schedule_of_mesh == GPIPE ? micro_batches : mesh->p - pipeline;
    ByHand x;
    x.m = m;
    x.mesh = mesh;
    x.B = B;
    x.slots = fmin(early, micro_batches);
    x.w = type.bytes;
    x.N = (double)B * m->T;
    x.C = m->C;
    x.R = mesh->sequence_parallel ? x.N / t : x.N;
    x.heads = m->NH / t * HS;
    x.QKV = x.heads + 2.0 * NKV * HS;
    x.F = m->F / t;
    x.FC = model_is_gated(m) ? 2 * x.F : x.F;
    x.V = ceil((double)m->V / t);
    x.first = pipeline == 0;
    x.last = pipeline == mesh->p - 1;
    x.texts = mesh_at(mesh, rank).data == 0;
    return x;
}

// The largest difference, in bytes, between what is planned for a rank and the formulas.
static double differs_by_hand(const ModelConfig* m, const Mesh* mesh, int rank, int B, int micro_batches,
                              DtypeInfo type) {
    const StageMemory planned = memory_of_rank(m, *mesh, rank, B, micro_batches, type);
    const ByHand x = by_hand(m, mesh, rank, B, micro_batches, type);
    const double n = parameters_by_hand(&x), d = mesh->d, share = mesh->zero ? n / d : n;
    const double bucket =
        fmax(bucket_by_hand(&x, block_parameters(&x)),
             fmax(x.first || x.last ? bucket_by_hand(&x, x.V * x.C) : 0,
                  x.first && m->position == POSITION_LEARNED ? bucket_by_hand(&x, (double)m->T * x.C) : 0));
    double grads = (mesh->zero < 2 ? room(4 * n) : 0) + (mesh->zero ? room(4 * share) : 0);
    if (mesh->zero == 2) grads += MAX_INFLIGHT_REDUCTIONS * (room(4 * bucket) + room(4 * bucket / d));
    if (m->tied && x.first && x.last && mesh->zero < 2) grads += room(4 * x.V * x.C);
    const double expected[ARENAS] = {room(type.bytes * n), grads, (type.masters ? 3 : 2) * room(4 * share),
                                     activations_by_hand(&x), scratch_by_hand(&x, model_tensors(NULL, m))};
    double worst = 0;
    for (int i = 0; i < ARENAS; i++) worst = fmax(worst, fabs(planned.arena[i] - expected[i]));
    return worst;
}

static void test_by_hand(void) {
    const ModelConfig models[] = {test_model(ARCH_GPT2, 4, 64, 4, 4, 32, 101),
                                  test_model(ARCH_LLAMA, 4, 96, 8, 2, 48, 259)};
    int ranks = 0;
    double worst = 0;
    for (int i = 0; i < 2 * 2 * 3 * 3 * 2 * 3 * 3 * 2 * 2; i++) {
        int k = i;
        const ModelConfig* m = &models[k % 2];
        k /= 2;
        const DtypeInfo type = k % 2 ? bf16 : fp32;
        k /= 2;
        Mesh mesh = mesh_of(1 << k % 3, 1 << k / 3 % 3, 1, 1, k / 9 % 2 ? GPIPE : ONE_F_ONE_B);
        k /= 18;
        mesh.zero = k % 3;
        mesh.recompute = (Recompute)(k / 3 % 3);
        mesh.sequence_parallel = k / 9 % 2 && mesh.t > 1;
        mesh.scatter = k / 18 % 2;
        mesh.d = mesh.zero ? 3 : 1;
        for (int rank = 0; rank < mesh_size(&mesh); rank++, ranks++)
            worst = fmax(worst, differs_by_hand(m, &mesh, rank, 1 + rank % 3, 3, type));
    }
    check(worst == 0, "%d ranks: all arenas are the formulas written by hand, to the byte", ranks);
}

// Places for a head's activations: what 64 tokens more of a vocabulary add to the last stage.
static double heads_held(Mesh mesh, int rank) {
    const ModelConfig m = test_model(ARCH_GPT2, 8, 64, 4, 4, 32, 256),
                      wide = test_model(ARCH_GPT2, 8, 64, 4, 4, 32, 320);
    return (memory_of_rank(&wide, mesh, rank, 1, 8, fp32).arena[3] -
            memory_of_rank(&m, mesh, rank, 1, 8, fp32).arena[3]) /
           (32 * 64 * 4);
}

static void test_heads(void) {
    check(heads_held(mesh_of(1, 2, 1, 2, INTERLEAVED), 1) == 1, "interleaved: one head, though it has more slots");
    check(heads_held(mesh_of(1, 2, 1, 2, INTERLEAVED), 0) == 0, "and none on the first stage");
}

// ---- Published --------------------------------------------------------------------------------------------------

// What one more block adds to one micro-batch, in bytes a row and channel, without the rows' statistics. (s b h in the
// paper's words, whose model has F = 4 C and biases as ours.)
static double bytes_of_block(int t, bool sequence, Recompute recompute) {
    enum { C = 1024, T = 256, B = 2 };
    const ModelConfig small = test_model(ARCH_GPT2, 2, C, 16, 16, T, 512),
                      large = test_model(ARCH_GPT2, 3, C, 16, 16, T, 512);
    Mesh mesh = mesh_of(t, 1, 1, 1, ONE_F_ONE_B);
    mesh.sequence_parallel = sequence;
    mesh.recompute = recompute;
    const double more =
        memory_of_rank(&large, mesh, 0, B, 1, bf16).arena[3] - memory_of_rank(&small, mesh, 0, B, 1, bf16).arena[3];
    const double rows = B * T, mine = sequence ? rows / t : rows;
    const double statistics = recompute == RECOMPUTE_FULL ? 0 : 4 * (4 * mine + rows * 16 / t); // norms; attention
    return (more - statistics) / (rows * C);
}

static void test_published(void) {
    // The paper's include masks of dropout, one byte each behind attention and mlp, which are not here. Its 5 a s / h,
    // scores and their masks, is what this attention does not store; so its "selective" is what we have without
    // recomputation.
    for (int t = 1; t <= 8; t *= 2) {
        const double plain = bytes_of_block(t, false, RECOMPUTE_NONE), paper = 10 + 24.0 / t;
        check(plain == paper - 2, "t = %d: %g s b h a block; Korthikanti et al.: 10 + 24 / t = %g with masks", t, plain,
              paper);
        if (t == 1) continue;
        const double sequence = bytes_of_block(t, true, RECOMPUTE_NONE);
        check(fabs(sequence - (34.0 - 2) / t) < 1e-12, "t = %d, sequence parallel: %g s b h; 34 / t = %g with masks", t,
              sequence, 34.0 / t);
    }
    check(bytes_of_block(1, false, RECOMPUTE_FULL) == 2, "full recomputation: 2 s b h, the block's input");
    check(bytes_of_block(1, false, RECOMPUTE_SELECTIVE) == 32 - 4 - 8,
          "selective recomputation: two norms' outputs and the activation function less");
}

// Published formulas of memory, beside each other (Korthikanti et al. 2022).
static void test_formulas(void) {
    const ModelConfig m = model_gpt2(48, 6144, 64, 2048, 51200);
    const double x = 2048.0 * 4 * 6144, scores = 5.0 * 64 * 2048 / 6144;
    check(relative(formula_block_bytes(&m, 4, 2048, 1, false, RECOMPUTE_NONE), x * (34 + scores)) < 1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, true, RECOMPUTE_NONE), x * (34 + scores) / 8) < 1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, false, RECOMPUTE_NONE), x * (10 + (24 + scores) / 8)) <
                  1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, true, RECOMPUTE_SELECTIVE), x * 34 / 8) < 1e-12 &&
              relative(formula_block_bytes(&m, 4, 2048, 8, false, RECOMPUTE_FULL), 2 * x) < 1e-12,
          "bytes of a block: 34 s b h (1 + 5 a s / h), divided by t or not");
    Mesh plain = mesh_of(8, 8, 1, 1, ONE_F_ONE_B), chunks = mesh_of(8, 8, 1, 3, INTERLEAVED);
    plain.recompute = chunks.recompute = RECOMPUTE_FULL;
    check(relative(formula_activation_bytes(&m, 4, 2048, &plain), 48 * 2 * x) < 1e-12 &&
              relative(formula_activation_bytes(&m, 4, 2048, &chunks), 48 * 2 * x * (1 + 7.0 / 24)) < 1e-12,
          "the first stage keeps L blocks' worth, interleaved 1 + (p - 1) / (p v) times that");
    check(formula_optimizer_bytes(1, false, false, 8) == 18 && formula_optimizer_bytes(1, true, false, 8) == 20 &&
              formula_optimizer_bytes(1, false, true, 8) == 7.5 && formula_optimizer_bytes(1, true, true, 8) == 6,
          "18 or 20 bytes a parameter; 6 + 12 / d or 4 + 16 / d with ZeRO-1");
}

// ---- Any rank ---------------------------------------------------------------------------------------------------

// Compares plan_memory with all ranks of a mesh; counts the meshes that fit.
static void look_at_all(const ModelConfig* m, const Mesh* mesh, int micro_batches, int* meshes, int* wrong) {
    const PipelineConfig plan = pipeline_of(m, mesh, micro_batches);
    StageMemory largest;
    Error error;
    double most = 0;
    if (!plan_memory(&largest, m, mesh, 2, m->T, &plan, bf16, &error)) return;
    for (int rank = 0; rank < mesh_size(mesh); rank++)
        most = fmax(most, memory_of_rank(m, *mesh, rank, 2, micro_batches, bf16).bytes);
    (*meshes)++;
    *wrong += most != largest.bytes;
}

static void test_any_rank(bool quick) {
    int meshes = 0, wrong = 0;
    for (int arch = 0; arch < ARCHS; arch++) {
        for (int L = 5; L <= 12; L += quick ? 7 : 1) {
            // A vocabulary that is large, and one that is small beside a block.
            for (int V = 61; V < 5000; V += 4099) {
                const ModelConfig m =
                    test_model((Arch)arch, L, 32, 4, architectures[arch].hub == HUB_LLAMA ? 2 : 4, 16, V);
                for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
                    for (int size = 0; size < 6 * 3 * 3; size++) {
                        Mesh mesh = mesh_of(1 << size / 6 % 3, 1 + size % 6, 1 + size / 18, 1, (ScheduleKind)kind);
                        mesh.v = kind == INTERLEAVED && L >= 3 * mesh.p ? 3 : schedule_usual_chunks(schedule_of_mesh);
                        mesh.zero = size % 3;
                        mesh.recompute = (Recompute)((size + L) % 3);
                        for (int k = 1; k <= 3; k++) look_at_all(&m, &mesh, k * mesh.p - (k == 1), &meshes, &wrong);
                    }
                }
            }
        }
    }
    check(wrong == 0 && meshes > 300,
          "%d meshes: the largest of the distinct stages is the largest of all ranks, %d not", meshes, wrong);
}

// ---- Refused ----------------------------------------------------------------------------------------------------

static void refuses(const char* word, const ModelConfig* m, Mesh mesh, int B, int T, int micro_batches) {
    const PipelineConfig plan = pipeline_of(m, &mesh, micro_batches);
    StageMemory memory;
    Error error = {""};
    const bool ok = plan_memory(&memory, m, &mesh, B, T, &plan, bf16, &error);
    check(!ok && strstr(error.text, word), "refused: %s", ok ? "not at all" : error.text);
}

static void test_refused(void) {
    const ModelConfig* m = model_find_preset("gpt2-124M");
    Mesh mesh = mesh_of(1, 2, 2, 1, ZB_H1);
    mesh.zero = 2;
    refuses("--zero 2", m, mesh, 1, 1024, 8);
    refuses("--tp 5", m, mesh_of(5, 1, 1, 1, ONE_F_ONE_B), 1, 1024, 8);
    refuses("--pp", m, mesh_of(1, 13, 1, 1, ONE_F_ONE_B), 1, 1024, 13);
    refuses("multiple", m, mesh_of(1, 4, 1, 2, INTERLEAVED), 1, 1024, 6);
    refuses("2^31", m, mesh_of(1, 1, 1, 1, ONE_F_ONE_B), 1 << 20, 1 << 20, 1);
    refuses("micro-batch", m, mesh_of(1, 1, 1, 1, ONE_F_ONE_B), 1, 1024, 1 << 30);
}

// The floor is below what a mesh needs, and where parameters are nearly all of it, not far below.
static void test_floor(void) {
    const ModelConfig m = test_model(ARCH_GPT2, 8, 1024, 16, 16, 16, 64);
    const DtypeInfo bf16 = native_dtype();
    double least = INFINITY, most = 0;
    for (int i = 0; i < 36; i++) {
        Mesh mesh = mesh_of(1 << i % 2, 1 << i / 2 % 3, 1 << i / 6 % 2, 1, ONE_F_ONE_B);
        StageMemory memory;
        Error error;
        mesh.zero = mesh.d > 1 ? i / 12 : 0;
        const PipelineConfig plan = pipeline_of(&m, &mesh, 4);
        if (!plan_memory(&memory, &m, &mesh, 1, 16, &plan, bf16, &error)) die("%s", error.text);
        const double part = memory_floor((double)model_parameters(&m), &mesh, bf16) / memory.bytes;
        least = fmin(least, part);
        most = fmax(most, part);
    }
    check(least > 0.5 && most <= 1, "floors of 36 meshes: %.2f to %.2f of what they need", least, most);
}

int main(int argc, char** argv) {
    process.name = "test_planner_memory";
    const bool quick = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_by_hand();
    test_heads();
    test_published();
    test_formulas();
    test_any_rank(quick);
    test_floor();
    test_refused();
    return test_end();
}
