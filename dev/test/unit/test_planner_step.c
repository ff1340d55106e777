/*
test_planner_step.c: the planner's model of time. Published numbers: parameters, TFLOP/s and days, within bounds that
were said beforehand, and the paper's qualitative results. Formulas against what they stand for: operations added up,
tables run by parallel/schedule_time.h, buckets laid out by parallel.h. What has to hold of every step: parts add up,
bounds are below, faster machines are not slower.
*/
#include "../../../planner/search.h"
#include "planner_fixture.h"

static double draw_seconds(void) { return draw(0, 1 << 20) / 1048576.0; }

static ParallelConfig config_of(int t, int p, int d, int v, Recompute recompute) {
    ParallelConfig parallel = parallel_of_rank(0, t, p, d);
    parallel.v = v;
    parallel.recompute = recompute;
    return parallel;
}

// TFLOP/s of a device, Megatron 2021 on Selene.
static double achieved_by(const ModelConfig* m, const ParallelConfig* parallel, int B, int64_t batch,
                          const Software* software) {
    const Cluster selene = cluster_named("selene");
    const StepSetup s = step_setup(m, parallel, B, m->T, batch, software, &selene);
    return flops_hardware(m, m->T, (double)batch) / seconds_of(&s) / mesh_size(&parallel->mesh) / 1e12;
}

// ---- Published numbers ------------------------------------------------------------------------------------------

// Blocks of stages, of software that counts embedding and head: GPT of 22 blocks on 24 chunks, BLOOM, GLM, Llama 3.
static void test_ends(void) {
    static const int shapes[][4] = {{22, 8, 1, 2}, {22, 8, 3, 0},   {70, 12, 1, 5},
                                    {70, 8, 1, 8}, {126, 16, 8, 0}, {24, 4, 1, 6}}; // the last: 6 blocks on each
    const Cluster cluster = cluster_named("selene");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int L = shapes[i][0], p = shapes[i][1], stages = p * shapes[i][2], ends = shapes[i][3];
        const ModelConfig m = model_of(ARCH_GPT2, L, 64, 8, 8, 256, 64, 512);
        const ParallelConfig parallel = config_of(1, p, 1, shapes[i][2], RECOMPUTE_NONE);
        Error error;
        const StepSetup s = step_setup(&m, &parallel, 1, 64, 4 * p, software_find("megatron-2022"), &cluster),
                        own = step_setup(&m, &parallel, 1, 64, 4 * p, software_find("threefold"), &cluster);
        bool right = step_check(&s, &error);
        for (int k = 0; k < stages; k++) {
            const int layers = stage_first_layer(&s.parallel, L, k + 1) - stage_first_layer(&s.parallel, L, k);
            right = right && layers == (k == 0 || k == stages - 1 || L == 24 ? ends : ends + 1);
        }
        check(right, "%d blocks on %d stages: %d in the first and the last", L, stages, ends);
        check(!own.parallel.light_ends && step_check(&own, &error) == (L >= stages), "this trainer shares them evenly");
        const double seconds = seconds_of(&s), bound = step_bound(&s);
        check(bound <= seconds && bound > 0.2 * seconds, "bound %g of %g", bound, seconds);
    }
}

// NeMo's head (megatron-core): its weight gradients follow the last stage's passes. A node of eight has four of eight
// stages of two ranks: one message of seven is between nodes.
static void test_deferred(void) {
    enum { M = 16 };
    const Cluster c = cluster_named("dgx-h100");
    const ModelConfig m = model_of(ARCH_GPT2, 16, 2048, 16, 16, 8192, 1024, 256000);
    Software at_once = *software_find("megatron-core");
    at_once.defers_head = false;
    for (int p = 1; p <= 8; p += 7) {
        const ParallelConfig parallel = config_of(2, p, 1, 1, RECOMPUTE_NONE);
        const StepSetup s = step_setup(&m, &parallel, 1, m.T, M, software_find("megatron-core"), &c),
                        plain = step_setup(&m, &parallel, 1, m.T, M, &at_once, &c);
        StepPrices x = step_prices(&s), y = step_prices(&plain);
        const double passes = *cost_of(&y.costs, BACKWARD, p - 1) - *cost_of(&x.costs, BACKWARD, p - 1);
        const double later = *cost_of(&x.costs, REDUCE, p - 1) - *cost_of(&y.costs, REDUCE, p - 1);
        const double saved = seconds_of(&plain) - seconds_of(&s);
        check(p > 1 ? passes > 0 && relative(later, M * passes) < 1e-9 && saved > 0 && saved < later
                    : passes == 0 && later == 0 && saved == 0,
              "%d stages: %g s of the head are made after the passes, which saves %g s", p, later, saved);
        for (int i = 0; i < p - 1; i++)
            check((*cost_of(&x.costs, SEND_FORWARD, i) > 2 * *cost_of(&x.costs, SEND_FORWARD, 0)) == (i == 3) &&
                      *cost_of(&x.costs, SEND_FORWARD, i) == *cost_of(&x.costs, SEND_BACKWARD, i + 1),
                  "a message from stage %d is %s", i, i == 3 ? "between nodes" : "in a node");
        step_prices_free(&x), step_prices_free(&y);
    }
}

// Table 1 of Narayanan et al. 2021: billions of parameters, mesh, batch; TFLOP/s of a GPU. Its authors' scripts have
// PyTorch's DDP up to 18.4B.
typedef struct {
    const char* name;
    int t, p, d, v, B, batch;
    double tflops;
} Table1Row;
static const Table1Row table1[] = {
    {"1.7", 1, 1, 32, 1, 16, 512, 137},    {"3.6", 2, 1, 32, 1, 16, 512, 138},    {"7.5", 4, 1, 32, 1, 16, 512, 142},
    {"18.4", 8, 1, 32, 1, 8, 1024, 135},   {"39.1", 8, 2, 32, 1, 4, 1536, 138},   {"76.1", 8, 4, 32, 3, 2, 1792, 140},
    {"145.6", 8, 8, 24, 2, 2, 2304, 148},  {"310.1", 8, 16, 15, 2, 1, 2160, 155}, {"529.6", 8, 35, 9, 3, 1, 2520, 163},
    {"1008.0", 8, 64, 6, 1, 1, 3072, 163},
};
enum { TABLE1_ROWS = sizeof table1 / sizeof *table1 };

static const ModelConfig* table1_model(int row) {
    char name[32];
    snprintf(name, sizeof name, "gpt3-%sB", row == TABLE1_ROWS - 1 ? "1008" : table1[row].name);
    return model_find_preset(name);
}

static void test_table1(void) {
    const Cluster selene = cluster_named("selene");
    double mean = 0, worst = 0;
    for (int i = 0; i < TABLE1_ROWS; i++) {
        const Table1Row* x = &table1[i];
        const ModelConfig* m = table1_model(i);
        const ParallelConfig parallel = config_of(x->t, x->p, x->d, x->v, RECOMPUTE_FULL);
        const Software* software = software_find(i < 4 ? "megatron-2021-ddp" : "megatron-2021");
        const StepSetup s = step_setup(m, &parallel, x->B, m->T, x->batch, software, &selene);
        const double bound = step_bound(&s), seconds = seconds_of(&s);
        const double tflops = achieved_by(m, &parallel, x->B, x->batch, software), error = tflops / x->tflops - 1;
        mean += fabs(error) / TABLE1_ROWS;
        worst = fmax(worst, fabs(error));
        check(bound <= seconds && bound > 0.96 * seconds,
              "table 1, %sB: %.3f s a step, at least %.3f; %.1f TFLOP/s, published %.0f: %+.1f %%", x->name, seconds,
              bound, tflops, x->tflops, 100 * error);
    }
    check_error("table 1, mean error, where the prototype of this model was", mean, 0.0225);
    check_error("table 1, largest error, likewise", worst, 0.0515);
}

// Of long sequences: the fraction of the peak that the cluster says, by head size and direction; between sizes linear.
static void test_attention(void) {
    const Cluster c = cluster_named("dgx-h100");
    const Device* d = &c.device;
    double worst = 0;
    for (int i = 0; i < 6; i++) {
        const int head = 64 + 32 * (i / 2), backward = i % 2;
        const double of_peak = 1e18 / attention_seconds(d, 2, 1e18, 1e12, head, 1, backward) / (d->peak * d->sustained);
        const double expected =
            (d->attention[0][backward] * (128 - head) + d->attention[1][backward] * (head - 64)) / 64;
        worst = fmax(worst, relative(of_peak, expected));
    }
    check_error("attention of heads of 64, 96 and 128, both directions", worst, 1e-6);
    // 132 SMs: 33 heads of 512 rows fill them; 34 need a second wave.
    const double full = attention_seconds(d, 2, 1e15, 512, 64, 33, false),
                 more = attention_seconds(d, 2, 1e15, 512, 64, 34, false);
    check(relative(more, full * 2 * 33 / 34) < 1e-6, "four tiles more than SMs: half of them wait");
}

// A block of the 22B model, in milliseconds (Korthikanti et al. 2022, figure 8 and table 4; from memory).
static void test_block(void) {
    const ModelConfig m = gpt(48, 6144, 64);
    const Cluster selene = cluster_named("selene");
    Rates rates = rates_of(&selene, software_find("megatron-2022"), 1);
    static const struct {
        const char* name;
        bool backward, rows;
        Recompute recompute;
        double published, bound;
    } rows[] = {{"forward", false, false, RECOMPUTE_NONE, 7.7, 0.02},
                {"forward, sequence parallel", false, true, RECOMPUTE_NONE, 7.2, 0.03},
                {"backward", true, false, RECOMPUTE_NONE, 11.9, 0.03},
                {"backward, full recomputation", true, false, RECOMPUTE_FULL, 19.5, 0.02},
                {"backward, sequence parallel, selective", true, true, RECOMPUTE_SELECTIVE, 13.1, 0.06}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ParallelConfig parallel = config_of(8, 1, 1, 1, rows[i].recompute);
        parallel.sequence_parallel = rows[i].rows;
        const StepSetup job = step_setup(&m, &parallel, 4, 2048, 4, rates.software, &selene);
        Work w = {0, 0, NULL};
        work_block(&w, &job, rows[i].backward, false);
        const WorkPrice price = work_price(&rates, &w);
        const double ms = 1e3 * parts_sum(price.whole);
        check(relative(ms, rows[i].published) < rows[i].bound, "a block of 22B, %s: %.2f ms, published %.1f",
              rows[i].name, ms, rows[i].published);
        work_free(&w);
    }
}

// Figure 18 and section 5.8 of Narayanan et al. 2021.
static void test_figures(void) {
    const ModelConfig m175 = gpt(96, 12288, 96), m530 = gpt(105, 20480, 128);
    const Software* megatron = software_find("megatron-2021");
    const ParallelConfig of175B = config_of(8, 12, 1, 4, RECOMPUTE_FULL),
                         of530B = config_of(8, 35, 1, 3, RECOMPUTE_FULL);
    ParallelConfig whole = of175B; // messages
    Software apart = *megatron;
    whole.scatter = false;
    apart.fused = false;
    const double scattered = achieved_by(&m175, &of175B, 1, 60, megatron);
    const double gain = scattered / achieved_by(&m175, &whole, 1, 60, megatron);
    check(gain > 1.05 && gain < 1.11, "figure 18: scatter and gather gains %.1f %%", 100 * (gain - 1));
    const double fused175 = scattered / achieved_by(&m175, &of175B, 1, 60, &apart);
    const double fused530 = achieved_by(&m530, &of530B, 1, 280, megatron) / achieved_by(&m530, &of530B, 1, 280, &apart);
    check(fabs(fused175 - 1.19) < 0.02 && fabs(fused530 - 1.11) < 0.02,
          "section 5.8: fused kernels gain %.0f %% at 175B, %.0f %% at 530B; published 19 and 11", 100 * (fused175 - 1),
          100 * (fused530 - 1));
}

// ---- Operations -------------------------------------------------------------------------------------------------

// FLOP of a list's products and of attention, which counts half.
static double work_flops(const Work* w) {
    double flops = 0;
    for (int i = 0; i < w->n; i++) {
        const Op* op = &w->op[i];
        if (op->kind == OP_PRODUCT) flops += 2 * op->m * op->n * op->k * op->batch;
        if (op->kind == OP_ATTENTION) flops += op->flops * (op->backward ? 2 / 2.5 : 1) * 2; // recomputes one of five
    }
    return flops;
}

// Of all ranks of a tensor group, one micro-batch: the model's blocks and head, forward, backward and once more
// forward.
static double step_flops(const ModelConfig* m, const ParallelConfig* parallel, const Software* s, int B, int T) {
    const StepSetup job = step_setup(m, parallel, B, T, B, s, NULL);
    double flops = 0;
    for (int backward = 0; backward < 2; backward++) {
        Work block = {0, 0, NULL}, head = {0, 0, NULL};
        work_block(&block, &job, backward, false), work_head(&head, &job, backward);
        flops += m->L * work_flops(&block) + work_flops(&head);
        work_free(&block), work_free(&head);
    }
    return flops * parallel->mesh.t;
}

static void test_operations(void) {
    for (int i = 0; i < TABLE1_ROWS; i++) {
        const ParallelConfig parallel = config_of(table1[i].t, table1[i].p, table1[i].d, table1[i].v, RECOMPUTE_FULL);
        const ModelConfig* m = table1_model(i);
        const double counted = step_flops(m, &parallel, software_find("megatron-2021"), 1, 2048);
        check(relative(counted, flops_hardware(m, 2048, 1)) < 1e-12,
              "%s: the operations of a sequence are the %.3e FLOP of equation 3", m->name, counted);
    }
    bool ok = true;
    for (int round = 0; round < 200; round++) { // three passes, whatever the software and the mesh
        const Arch arch = (Arch)draw(0, ARCHS - 1);
        const int t = 1 << draw(0, 3), NH = 8 * draw(1, 4), NKV = architectures[arch].hub == HUB_LLAMA ? 8 : NH,
                  C = 64 * NH;
        const ModelConfig m = model_of(arch, draw(1, 9), C, NH, NKV, 8 * draw(10, 99), 512, 8 * draw(10, 99));
        ParallelConfig parallel = config_of(t, 1, 1, 1, RECOMPUTE_NONE);
        parallel.sequence_parallel = t > 1 && draw(0, 1);
        const Software* s = &softwares[draw(0, SOFTWARES - 1)];
        ok = ok && relative(step_flops(&m, &parallel, s, 2, 256), flops_of_model(&m, 256, 2, false)) < 1e-12;
    }
    check(ok, "200 models: products and attention of the lists are those of the model");
    const Device a100 = cluster_named("selene").device, h100 = cluster_named("dgx-h100").device;
    const double n = 8192, flop = 2 * n * n * n / 1e12;
    check(lround(flop / product_seconds(&a100, 2, n, n, n, 1)) == 247 &&
              lround(flop / product_seconds(&h100, 2, n, n, n, 1)) == 661,
          "8192^3: 247 TFLOP/s on an A100, 661 on an H100");
    check(product_seconds(&a100, 2, 1e6, 128, 16, 1) > 2 * (1e6 * 144 + 128 * 16) / a100.hbm,
          "products with short sums are bound by memory");
}

static double work_bytes(const Work* w, double* elements) {
    double bytes = 0;
    *elements = 0;
    for (int i = 0; i < w->n; i++) {
        if (w->op[i].kind == OP_MEMORY) {
            bytes += w->op[i].bytes;
            *elements += w->op[i].elements;
        }
    }
    return bytes;
}

// This trainer's kernels, counted in the comments of kernels/*.cuh: numbers of a row that a block's kernels read and
// write, by recomputation. Two residuals with norms of 4 C; backward norms of 4 C, and
// where halves are apart two gradients of branches of 2 C; GELU in its product F more each way, alone 2 F and 3 F;
// biases' gradients F + 3 C, without a GPU dx twice more; SwiGLU 3 F and 5 F; rotary positions twice q and k.
static void test_kernels(void) {
    static const struct {
        const char* software;
        Arch arch;
        double C[2], F[2], qk[2]; // forward, backward
    } rows[] = {{"threefold", ARCH_GPT2, {8, 8 + 3}, {1, 1 + 1}, {0, 0}},
                {"threefold-cpu", ARCH_GPT2, {8, 8 + 5}, {2, 3 + 1}, {0, 0}},
                {"threefold", ARCH_LLAMA, {8, 8}, {3, 5}, {2, 2}}};
    static const double again_C[3] = {0, 2 + 2,
                                      2 + 4}; // none; selective: two norms; full: one, and a residual with one
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const bool llama = architectures[rows[i].arch].position == POSITION_ROPE;
        ModelConfig m = model_of(rows[i].arch, 3, 512, 8, llama ? 2 : 8, 1536, 256, 1000);
        m.tied = true;
        for (int k = 0; k < 3; k++) {
            const ParallelConfig parallel = config_of(1, 1, 1, 1, (Recompute)k);
            const StepSetup job = step_setup(&m, &parallel, 2, 256, 2, software_find(rows[i].software), NULL);
            const double e = job.software->value_bytes, forward_F = k == 1 ? 2 : rows[i].F[0];
            const double again_F = llama ? 3 : forward_F;
            bool ok = true;
            for (int b = 0; b < 2; b++) {
                double elements, values = rows[i].C[b] * 512 + rows[i].F[b] * 1536 + rows[i].qk[b] * 640;
                if (b && k > 0) values += again_C[k] * 512 + again_F * 1536;
                if (b && k == 2) values += rows[i].qk[0] * 640;
                Work w = {0, 0, NULL};
                work_block(&w, &job, b, false);
                ok = ok && relative(work_bytes(&w, &elements), 512 * e * values) < 1e-12 && elements > 0;
                work_free(&w);
            }
            check(ok, "%s, %s, recomputation %d: bytes of a block's kernels", rows[i].software,
                  llama ? "llama" : "gpt2", k);
        }
    }
    // A list at a time: bytes, elements of its kernels.
    const ModelConfig m = model_of(ARCH_GPT2, 3, 512, 8, 8, 2048, 256, 1000);
    const ParallelConfig one = config_of(1, 1, 1, 1, RECOMPUTE_NONE), two = config_of(2, 2, 1, 1, RECOMPUTE_NONE);
    const double rows_C = 512 * 512, logits = 512 * 1000;
    const double bytes[8] = {10 * rows_C,                   // embedding: 5 values a number
                             12 * rows_C,                   // back: 2, and a float32 table
                             4 * logits,                    // losses: a read and a write
                             10 * rows_C,                   // back: the last norm
                             2 * logits,                    // half of the vocabulary: two passes forward,
                             2 * logits + 10 * rows_C,      // two back
                             2 * (7 * rows_C + 512 * 2048), // the last block of a chunk ends without a norm
                             1e6 * (30 + 4 + 4)};           // AdamW: 30 bytes a parameter; its norm and its zeroing 4
    for (int i = 0; i < 8; i++) {
        const StepSetup job =
            step_setup(&m, i == 4 || i == 5 ? &two : &one, 2, 256, 2, software_find("threefold"), NULL);
        Work w = {0, 0, NULL};
        double elements;
        if (i < 2) work_embedding(&w, &job, i);
        if (i >= 2 && i < 6) work_head(&w, &job, i % 2);
        if (i == 6) work_block(&w, &job, false, true);
        if (i == 7) work_optimizer(&w, &job, 1e6), work_squares(&w, &job, 1e6), work_zero(&w, &job, 1e6);
        check(work_bytes(&w, &elements) == bytes[i], "bytes of list %d: %g", i, bytes[i]);
        work_free(&w);
    }
}

// Halves of a backward pass: together all of it, and no collective in the weight half but what it gathers itself.
static void test_halves(void) {
    const Cluster c = cluster_named("dgx-h100");
    bool ok = true;
    for (int i = 0; i < SOFTWARES; i++) {
        const ModelConfig m = gpt(4, 1024, 16);
        const ParallelConfig parallel = config_of(2, 1, 1, 1, RECOMPUTE_NONE);
        const StepSetup job = step_setup(&m, &parallel, 2, 512, 2, &softwares[i], &c);
        Rates rates = rates_of(&c, &softwares[i], 1);
        Work w = {0, 0, NULL};
        work_block(&w, &job, true, false);
        const WorkPrice price = work_price(&rates, &w);
        double all = 0;
        for (int k = 0; k < w.n; k++) all += op_seconds(&rates, &w.op[k]);
        const double halves = parts_sum(price.half[0]) + parts_sum(price.half[1]), whole = parts_sum(price.whole);
        ok = ok && relative(halves, all) < 1e-12 && price.half[1][WORK_TENSOR] == 0 && price.half[1][WORK_PRODUCT] > 0;
        ok = ok && (softwares[i].tensor_overlap ? whole < halves * 0.999 : relative(whole, halves) < 1e-12);
        work_free(&w);
    }
    check(ok, "the halves of a backward pass add up; as one it hides collectives where the software does");
}

// A rank on cores computes with as many as it has threads, and each product takes its FLOPs.
static void test_threads(void) {
    Cluster c = cores_cluster(4, 1e10, 1e12, 1);
    Rates one = rates_of(&c, software_find("threefold-cpu"), 1),
          three = rates_of(&c, software_find("threefold-cpu"), 3);
    Op op = op_of(OP_PRODUCT, "product");
    op.m = 96;
    op.n = 80;
    op.k = 72;
    op.batch = 2;
    const double seconds = op_seconds(&one, &op) - c.device.launch;
    check(relative(seconds, 2.0 * 96 * 80 * 72 * 2 / (0.75 * 1e10)) < 1e-12 &&
              relative(op_seconds(&three, &op) - c.device.launch, seconds / 3) < 1e-12,
          "a product on one core and on three");
    op = op_memory("copy", 1000, 8);
    check(relative(op_seconds(&one, &op) - c.device.launch, 3 * (op_seconds(&three, &op) - c.device.launch)) < 1e-9,
          "bytes on one core and on three");
}

// ---- Events -----------------------------------------------------------------------------------------------------

// Tables with plain costs: nothing but what parallel/schedule.h knows.
static StepPrices plain_prices(const PipelineConfig* plan) {
    StepPrices x = {};
    x.plan = *plan;
    x.costs = costs_equal(plan->p * plan->v, 0, 0, 0, 0);
    return x;
}

static double run_plain(const StepPrices* x, const Schedule* tables, const double* speed, Timeline* t, double* idle) {
    StepRun run;
    run_begin(&run, tables, x, t);
    run.speed = speed;
    run_step(&run);
    double computing = 0, rest = 0;
    for (int r = 0; r < x->plan.p; r++) {
        computing += run.stage[r].spent[STEP_PRODUCT];
        rest += run.stage[r].spent[STEP_BUBBLE] + run.stage[r].spent[STEP_PIPELINE];
    }
    *idle = rest / computing;
    const double length = run.length;
    run_free(&run);
    return length;
}

static PipelineConfig random_pipeline(int most) {
    const ScheduleKind kind = (ScheduleKind)draw(0, SCHEDULE_KINDS - 1);
    const ScheduleRow* row = &schedules[kind];
    const int p = draw(row->chunks > 1 ? 2 : 1, most), v = row->grouped ? draw(2, 4) : row->chunks;
    const int m = row->grouped ? p * draw(1, 4) : draw(1, 3 * most);
    const PipelineConfig plan = {kind, p, v, m, false, draw(0, 1) > 0};
    return plan;
}

// The same times as schedule_times, action by action; and with as many cores as stages the shared cores change nothing.
static void test_times(int rounds) {
    int equal = 0, shared = 0;
    for (int round = 0; round < rounds; round++) {
        const PipelineConfig plan = random_pipeline(6);
        StepPrices x = plain_prices(&plan);
        Schedule* tables = schedules_build(&plan);
        for (int i = 0; i < ACTION_KINDS * x.costs.stages; i++) {
            const int kind = i / x.costs.stages;
            const bool received = kind == RECEIVE_FORWARD || kind == RECEIVE_BACKWARD;
            x.costs.seconds[i] = received ? 0 : draw_seconds();
        }
        Timeline theirs = schedule_times(tables, plan.p, &x.costs, false), ours = timeline_new(tables, plan.p);
        double speed[8], idle;
        for (int k = 0; k < 8; k++) speed[k] = 1;
        run_plain(&x, tables, NULL, &ours, &idle);
        bool ok = ours.length == theirs.length;
        for (int r = 0; r < plan.p && ok; r++) {
            const size_t bytes = (size_t)tables[r].n * sizeof(double);
            ok = ours.done[r] == theirs.done[r] && memcmp(ours.start[r], theirs.start[r], bytes) == 0 &&
                 memcmp(ours.end[r], theirs.end[r], bytes) == 0;
        }
        equal += ok;
        double worst = relative(run_plain(&x, tables, speed, &ours, &idle), theirs.length);
        for (int r = 0; r < plan.p; r++) {
            for (int i = 0; i < tables[r].n; i++) worst = fmax(worst, fabs(ours.end[r][i] - theirs.end[r][i]));
        }
        shared += worst < 1e-9;
        timeline_free(&theirs), timeline_free(&ours);
        schedules_free(tables, plan.p), step_prices_free(&x);
    }
    check(equal == rounds, "%d of %d tables of all schedules: bit by bit the times of schedule_times", equal, rounds);
    check(shared == rounds, "%d of %d: the same with a core for each stage", shared, rounds);
}

// Equal stages: the bubbles of the schedules' formulas.
static void test_bubbles(void) {
    bool ok = true;
    for (int round = 0; round < 100; round++) {
        PipelineConfig plan = random_pipeline(8);
        plan.m = plan.m * plan.p; // enough of them
        StepPrices x = plain_prices(&plan);
        const int stages = plan.p * plan.v;
        for (int k = 0; k < stages; k++) {
            *cost_of(&x.costs, FORWARD, k) = *cost_of(&x.costs, BACKWARD_INPUT, k) = 1;
            *cost_of(&x.costs, BACKWARD_WEIGHT, k) = 1;
            *cost_of(&x.costs, BACKWARD, k) = 2;
        }
        Schedule* tables = schedules_build(&plan);
        double idle, one[16], two[16];
        const double apart = run_plain(&x, tables, NULL, NULL, &idle);
        ok = ok && fabs(idle - pipeline_bubble(&plan)) < 1e-9;
        // One core for all stages: it is never idle, as without messages some stage can always go on.
        for (int k = 0; k < 16; k++) {
            one[k] = k ? 1.0 / k : 1;
            two[k] = k > 2 ? 2.0 / k : 1;
        }
        const double all = 3.0 * stages * plan.m, length = run_plain(&x, tables, one, NULL, &idle);
        const double pair = run_plain(&x, tables, two, NULL, &idle);
        ok = ok && relative(length, all) < 1e-9;
        ok = ok && pair >= fmax(apart, all / 2) * (1 - 1e-9) && pair <= length * (1 + 1e-9);
        schedules_free(tables, plan.p), step_prices_free(&x);
    }
    check(ok, "100 pipelines of all schedules: the bubble of pipeline_bubble; on one core, the sum of all work; on two "
              "between half of it and that");
}

// Any mode of data parallelism, any CAAT-Net, and the halves of --tp-comm-overlap.
static StepMethods random_methods(void) {
    StepMethods x = step_methods_none();
    AsyncConfig* a = &x.async;
    a->mode = (DpMode)draw(0, 2);
    if (a->mode == DP_DC_S3GD) a->compensation = draw(0, 1) ? 0.2 : 0;
    if (a->mode == DP_DILOCO) a->period = draw(1, 12);
    if (draw(0, 1)) {
        const CaatConfig caat = {1, 0.25 * draw(0, 4), draw(0, 1) != 0};
        x.caat = caat;
    }
    x.tp_overlap = draw(0, 2) == 0;
    return x;
}

// A step at random that the trainer would accept.
static bool random_step(StepSetup* s, ModelConfig* m, Cluster* c) {
    static const char* const clusters[] = {"selene", "dgx-h100", "gb200", "dgx-a100-40"};
    Error error;
    const Arch arch = (Arch)draw(0, ARCHS - 1);
    const int NH = 8 * draw(1, 8);
    ModelConfig model = model_of(arch, draw(1, 24), 64 * NH, NH, architectures[arch].hub == HUB_LLAMA ? 8 : NH,
                                 256 * NH, 1024, 1000 * draw(8, 64));
    model.tied = draw(0, 2) > 0;
    const PipelineConfig plan = random_pipeline(8);
    ParallelConfig parallel = parallel_of_rank(0, 1 << draw(0, 4), plan.p, 1 << draw(0, 4));
    parallel_set_schedule(&parallel, plan.kind, plan.v);
    parallel.sequence_parallel = parallel.mesh.t > 1 && draw(0, 1);
    parallel.scatter = draw(0, 1);
    parallel.zero = draw(0, 2);
    parallel.recompute = (Recompute)draw(0, 2);
    if (draw(0, 5) == 0) parallel.mesh.sites = parallel.mesh.d;
    *m = model;
    *c = cluster_named(clusters[draw(0, 3)]);
    const int B = 1 << draw(0, 3);
    if (draw(0, 2) == 0) parallel.zero = parallel.sequence_parallel = 0;
    *s = step_setup(m, &parallel, B, 512 << draw(0, 2), (int64_t)parallel.mesh.d * B * plan.m,
                    &softwares[draw(0, SOFTWARES - 1)], c);
    s->schedule = plan.kind;
    const StepMethods methods = draw(0, 1) ? random_methods() : step_methods_none();
    if (draw(0, 2) == 0 && parallel.mesh.d > 1) {
        c->sites = draw(0, 1) ? 2 : parallel.mesh.d;
        c->site_rate = 1e8 * pow(10, draw(0, 4));
        parallel.mesh.sites = c->sites;
    }
    step_set_methods(s, &methods, parallel.mesh.sites > 1 ? parallel.mesh.sites : 0);
    return step_check(s, &error);
}

// Whether the sites exchange the bytes of the step that sends, and a step their mean.
static bool sends_by_formula(const StepSetup* s, const StepCost* cost) {
    const AsyncConfig* a = &s->methods.async;
    const double all = sent_by_formula(s, a->period, 2 * a->period) / (double)a->period;
    StepPrices x = step_prices(s);
    const double once = sent_by_formula(s, a->period - 1, a->period), error = relative(x.exchange.bytes, once);
    step_prices_free(&x);
    return error < 1e-12 && relative(cost->sent, all) < 1e-12 && cost->exchange > 0;
}

// Parts add up, none is negative, the bound is below, and the pieces that sums are made of are a rank's buckets.
static void test_steps(int rounds) {
    int n = 0, sums = 0, below = 0, positive = 0, buckets = 0, apart = 0, late = 0, sent = 0;
    double closest = 0, mean = 0, worst = 0;
    for (int tries = 0; n < rounds && tries < 50 * rounds; tries++) {
        StepSetup s;
        ModelConfig m;
        Cluster c;
        Error error;
        if (!random_step(&s, &m, &c)) continue;
        n++;
        StepCost cost = step_cost(&s);
        double sum = 0, least = 0;
        for (int k = 0; k < STEP_PARTS; k++) {
            sum += cost.parts[k];
            least = fmin(least, cost.parts[k]);
        }
        worst = fmax(worst, relative(sum, cost.seconds));
        sums += relative(sum, cost.seconds) < 1e-9;
        positive += least > -1e-9 * cost.seconds;
        const double bound = step_bound(&s) / cost.seconds;
        below += bound <= 1 + 1e-9;
        closest = fmax(closest, bound);
        mean += bound / rounds;
        StepPrices x = step_prices(&s);
        bool same = true;
        for (int r = 0; r < s.parallel.mesh.p; r++) {
            ParallelConfig parallel = s.parallel;
            Layout layout;
            double elements = 0;
            parallel.mesh.pipeline = r;
            if (!layout_build(&layout, &m, parallel, s.T, &error)) die("test_planner_step: %s", error.text);
            for (int v = 0; v < parallel.v; v++)
                elements += x.chunk[virtual_stage(parallel.mesh.p, parallel.folded, r, v)].elements;
            same = same && elements == (double)layout.elements;
            layout_free(&layout);
        }
        buckets += same;
        step_prices_free(&x);
        if (s.parallel.mesh.sites > 1) {
            apart++;
            late += async_schedule_is_local(&s.methods.async);
            sent += sends_by_formula(&s, &cost);
        }
        step_cost_free(&cost);
    }
    check(n == rounds, "%d steps at random", n);
    check(sent == apart && 32 * late > rounds && 8 * apart > rounds,
          "on %d meshes of several sites, %d of them late, each sends the bytes of async_schedule_traffic in %d", apart,
          late, sent);
    check(sums == n, "parts add up to the step in %d of them, largest error %.1e", sums, worst);
    check(positive == n, "no part is negative in %d", positive);
    check(below == n, "step_bound is below in %d; it is %.3f of the step on average, %.6f at most", below, mean,
          closest);
    check(buckets == n, "gradients that are summed are the elements of layout_build in %d", buckets);
}

// All collectives that the lists of this trainer have, of one stage, a micro-batch.
static double stage_sent(const StepSetup* s, const Layout* layout) {
    double bytes = 0;
    for (int c = 0; c < s->parallel.v; c++) {
        const Chunk* chunk = &layout->chunk[c];
        for (int backward = 0; backward < 2; backward++) {
            Work block = {0, 0, NULL}, rest = {0, 0, NULL};
            work_block(&block, s, backward, false);
            work_chunk(&rest, s, backward, backward ? !chunk->last : !chunk->first,
                       backward ? !chunk->first : !chunk->last);
            if (chunk->first) work_embedding(&rest, s, backward);
            if (chunk->last) work_head(&rest, s, backward);
            bytes += chunk->layers * work_sent(&block) + work_sent(&rest);
            work_free(&block), work_free(&rest);
        }
    }
    return bytes;
}

// The trainer counts what it sends, and agrees with traffic_of_step to the byte; so do our lists.
static void test_traffic(int rounds) {
    int n = 0, tensor = 0, partial = 0;
    for (int tries = 0; n < rounds && tries < 100 * rounds; tries++) {
        StepSetup s;
        ModelConfig m;
        Cluster c;
        Error error;
        if (!random_step(&s, &m, &c) || !s.software->ours) continue;
        n++;
        const int r = draw(0, s.parallel.mesh.p - 1);
        const double k = (double)step_microbatches(&s);
        ParallelConfig parallel = s.parallel;
        Layout layout;
        Traffic traffic;
        parallel.mesh.pipeline = r;
        if (!layout_build(&layout, &m, parallel, s.T, &error) || !step_traffic(&s, r, &traffic, &error))
            die("%s", error.text);
        double parts = 0; // of gradients, which come once a step
        for (int i = 0; i < layout.n; i++) {
            const Slice* x = &layout.slices[i];
            if (!needs_tp_grad_reduce(x, &parallel)) continue;
            parts += (parallel.zero == 2 ? k : 1) * 8.0 * (x->copies - 1) / x->copies * (double)slice_elements(x);
        }
        const double sent = k * stage_sent(&s, &layout), formula = traffic.layers + traffic.ends - parts;
        tensor += fabs(sent - formula) <= 1e-9 * (formula + 1);
        StepPrices x = step_prices(&s);
        double seconds = 0;
        for (int i = 0; i < x.segments; i++) seconds += x.segment[i].partial;
        partial += (parts > 0) == (seconds > 0) || s.parallel.mesh.p > 1; // of all stages
        step_prices_free(&x);
        layout_free(&layout);
    }
    check(n == rounds && tensor == n,
          "bytes to the tensor group of %d stages of this trainer: those of traffic_of_step in %d", n, tensor);
    check(partial == n, "gradients that tensor ranks have in part are summed where there are any, in %d", partial);
}

static double with(StepSetup s, int zero, ScheduleKind kind, int v) {
    s.parallel.zero = zero;
    s.schedule = kind;
    parallel_set_schedule(&s.parallel, kind, v);
    return seconds_of(&s);
}

// What is expected of particular settings.
static void test_settings(void) {
    const Cluster c = cluster_named("dgx-h100");
    const ModelConfig m = gpt(32, 4096, 32);
    const ParallelConfig parallel = config_of(4, 4, 8, 1, RECOMPUTE_SELECTIVE);
    StepSetup s = step_setup(&m, &parallel, 1, 2048, 64, software_find("threefold"), &c);
    double update[2]; // without the gathering of parameters
    for (int zero = 0; zero < 2; zero++) {
        s.parallel.zero = zero;
        StepPrices x = step_prices(&s);
        update[zero] = *cost_of(&x.costs, UPDATE, 1) - x.gather[1];
        step_prices_free(&x);
    }
    s.parallel.zero = 0;
    check_error("an update of ZeRO-1 over 8 replicas takes an eighth", relative(8 * update[1], update[0]), 0.02);
    const double plain = with(s, 0, ONE_F_ONE_B, 1), zero1 = with(s, 1, ONE_F_ONE_B, 1);
    check(zero1 < 1.2 * plain && with(s, 2, ONE_F_ONE_B, 1) > zero1, "ZeRO-2 sums every micro-batch");
    Software exposed = *s.software;
    exposed.data_overlap = false;
    s.software = &exposed;
    check(with(s, 0, ONE_F_ONE_B, 1) > plain, "sums of gradients that nothing hides take longer");
    s.software = software_find("threefold");
    StepCost kept = step_cost_with(&s, true);
    double end = 0;
    for (int r = 0; r < kept.p; r++) {
        const int n = kept.tables[r].n;
        if (kept.timeline.done[r] == n) end = fmax(end, kept.timeline.end[r][n - 1]);
    }
    check(end == kept.seconds && kept.timeline.length == end, "the timeline that is kept ends with the step, at %.4f s",
          end);
    step_cost_free(&kept);
    Error error;
    s.parallel.mesh.d = 3;
    check(!step_check(&s, &error) && strstr(error.text, "--global-batch 64"), "refused: %s", error.text);
}

// More SMs, faster SMs or faster memory: no operation takes longer. (More SMs at the same peak are slower SMs.)
static void test_faster(int rounds) {
    static const char* const clusters[] = {"selene", "dgx-h100"};
    double worst = 0;
    for (int round = 0; round < rounds; round++) {
        const Cluster c = cluster_named(clusters[round % 2]);
        Device d = c.device, fast = d;
        const double rate = 1 + draw_seconds();
        d.sms = fast.sms = draw(1, 200);
        fast.sms += draw(0, 100);
        fast.peak = d.peak * rate * fast.sms / d.sms;
        fast.hbm *= 1 + draw_seconds();
        const double m = draw(1, 5000), n = draw(1, 5000), k = draw(1, 9000), T = draw(1, 9000), heads = draw(1, 300);
        const double before = product_seconds(&d, 2, m, n, k, 1 + round % 3);
        worst = fmax(worst, product_seconds(&fast, 2, m, n, k, 1 + round % 3) / before - 1);
        for (int backward = 0; backward < 2; backward++) {
            const double slow = attention_seconds(&d, 2, 1e12, T, 64, heads, backward);
            worst = fmax(worst, attention_seconds(&fast, 2, 1e12, T, 64, heads, backward) / slow - 1);
        }
    }
    check(worst <= 1e-12, "%d faster devices are nowhere slower: at most by %.1e", rounds, worst);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    process.name = "test_planner_step";
    test_ends();
    test_deferred();
    test_table1();
    test_attention();
    test_faster(brief ? 2000 : 20000);
    test_block();
    test_figures();
    test_operations();
    test_kernels();
    test_halves();
    test_threads();
    test_times(brief ? 100 : 600);
    test_bubbles();
    test_steps(brief ? 100 : 600);
    test_traffic(brief ? 60 : 300);
    test_settings();
    return test_end();
}
