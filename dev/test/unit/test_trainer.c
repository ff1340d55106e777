/*
test_trainer.c: the trainer beside itself, by runs on a small text (this file includes train_gpt.cu).

    the same bits    for any number of threads, any cut of a batch into micro-batches, both halves of the backward pass
                     together or apart, and a run that was stopped and resumed
    also             validation, the learning rate, decoding with a cache; a text is learned
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses most, not all
#include "../../../train_gpt.cu"

#include "one_rank.h"

static const char* text_path = "text.txt"; // in a folder of its own

static void write_data_file(void) {
    char text[6000];
    for (int i = 0; i < 6000; i++) text[i] = (char)('a' + (int)(random_uniform(5, 5, (uint64_t)i) * 26));
    write_bytes(text_path, text, sizeof text);
}

// Tokens of a sequence. In bf16 those of a micro-batch are a multiple of the depth of AMX's tiles: another cut into
// micro-batches has the same bits.
enum { SEQ = DEVICE_IS_HOST && HAS_MASTER_WEIGHTS ? 32 : 24 };

typedef struct {
    const ModelConfig* model;
    int micro_batch, global_batch, T, threads;
    ScheduleKind schedule;
    Recompute recompute;
} TestRun;

static void trainer_open(Trainer* t, const TestRun* run) {
    memset(t, 0, sizeof *t);
    t->settings = settings_default();
    Settings* o = &t->settings;
    o->data = text_path;
    o->micro_batch = run->micro_batch;
    o->global_batch = run->global_batch;
    o->steps = 6;
    o->warmup = 2;
    settings_rates(o, run->model);
    Error error;
    comm_open(&t->world);
    open_files(t);
    ParallelConfig parallel = parallel_of_rank(0, 1, 1, 1);
    parallel.recompute = run->recompute;
    o->schedule = (int)run->schedule;
    if (!plan_schedule(t, run->model, &parallel, &error) ||
        !stage_plan(&t->stage, run->model, parallel, run->micro_batch, run->T, &t->schedule, SCOPE_WORLD,
                    native_dtype(), &error))
        die("%s", error.text);
    open_loaders(t, held_out_blocks(&t->settings));
    stage_allocate(&t->stage);
    process_groups_init(&t->groups, &t->world, &t->stage.layout, run->model);
    t->stage.groups = &t->groups;
    random_init_weights(&t->stage, 1);
}

static void trainer_close(Trainer* t) {
    groups_close(&t->groups);
    batch_free(&t->batch);
    stage_free(&t->stage);
    schedule_free(&t->schedule);
    tokens_close(&t->train_files);
}

// Trains for t->settings.steps and returns a fingerprint of everything: losses, norms, parameters and moments.
static uint64_t fingerprint_of_run(const TestRun* run) {
    Trainer t;
#ifdef _OPENMP
    omp_set_num_threads(run->threads);
#endif
    trainer_open(&t, run);
    uint64_t h = FNV_OFFSET_BASIS;
    while (t.step < t.settings.steps) {
        train_step(&t);
        const double seen[2] = {t.loss, t.grad_norm};
        h = hash_append(h, seen, sizeof seen);
    }
    float* buffers[] = {host_values(t.stage.params, t.stage.layout.elements), host_state(&t.stage, 0),
                        host_state(&t.stage, 1), host_state(&t.stage, 2)};
    for (int b = 0; b < 4; b++) {
        h = hash_append(h, buffers[b], (size_t)t.stage.layout.elements * sizeof(float));
        free(buffers[b]);
    }
    trainer_close(&t);
    return h;
}

// On the CPU the order of all additions is fixed, whatever the cut into micro-batches; on a GPU the same kernels on the
// same shapes give the same bits.
static void test_same_bits(const ModelConfig* m) {
    const int T = SEQ;
    const Recompute none = RECOMPUTE_NONE;
    const TestRun plain = {m, 4, 8, T, 1, ONE_F_ONE_B, none};
    const uint64_t expected = fingerprint_of_run(&plain);
    const TestRun others[] = {{m, 4, 8, T, 2, ONE_F_ONE_B, none}, {m, 4, 8, T, 3, ONE_F_ONE_B, none},
                              {m, 1, 8, T, 2, ONE_F_ONE_B, none}, {m, 2, 8, T, 1, ONE_F_ONE_B, none},
                              {m, 8, 8, T, 2, ONE_F_ONE_B, none}, {m, 4, 8, T, 2, ONE_F_ONE_B, RECOMPUTE_SELECTIVE},
                              {m, 4, 8, T, 2, ZB_H1, none},       {m, 2, 8, T, 1, ONE_F_ONE_B, RECOMPUTE_FULL},
                              {m, 1, 8, T, 1, ZB_H1, none},       {m, 2, 8, T, 2, ZB_H1, RECOMPUTE_SELECTIVE},
                              {m, 2, 8, T, 2, GPIPE, none}};
    static const char* recomputed[] = {"", ", norms and activation functions computed again", ", all computed again"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const TestRun* r = &others[i];
        if (!DEVICE_IS_HOST && r->micro_batch != plain.micro_batch) continue;
        check(fingerprint_of_run(r) == expected,
              "%s: the same bits after 6 steps: %s, %d thread%s, micro-batches of %d%s", m->name,
              schedule_name(r->schedule), r->threads, r->threads == 1 ? "" : "s", r->micro_batch,
              recomputed[r->recompute]);
    }
    const TestRun other_batch = {m, 4, 12, T, 1, ONE_F_ONE_B, none}; // the fingerprint can tell runs apart
    check(fingerprint_of_run(&other_batch) != expected, "%s: other bits with another global batch", m->name);
}

static void save_here(Trainer* t, const char* folder) {
    const Saver saver = {&t->stage, folder, 0, 0, &t->hub_files, NULL};
    t->saver = saver;
    save_checkpoint(t);
    check(!t->unsaved, "the checkpoint was saved");
}

// A checkpoint after three steps, loaded into a new process's memory, continues with the same bits.
static void test_resume_bits(const ModelConfig* m) {
    const TestRun run = {m, 4, 4, SEQ, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer a, b;
    trainer_open(&a, &run);
    char folder[32], path[4096];
    snprintf(folder, sizeof folder, "out_%s", m->name);
    if (mkdir(folder, 0777) != 0) die("cannot make a folder");
    a.settings.out = folder;
    for (int i = 0; i < 3; i++) train_step(&a);
    save_here(&a, folder);
    for (int i = 0; i < 3; i++) train_step(&a);

    trainer_open(&b, &run);
    b.settings.out = folder;
    b.settings.seed = a.settings.seed;
    check(checkpoint_newest(path, sizeof path, folder), "the checkpoint is found: %s", path);
    check(resume_checkpoint(&b) && b.step == 3, "it resumes at step 3");
    for (int i = 0; i < 3; i++) train_step(&b);
    check(a.sequences == 6 * 4 && b.sequences == 6 * 4, "six updates have consumed %lld and %lld sequences of %d",
          (long long)a.sequences, (long long)b.sequences, SEQ);
    int32_t inputs[SEQ], targets[SEQ]; // the micro-batch in memory ends with the last sequence consumed
    Error error;
    const bool read = dataloader_sequence(inputs, targets, &b.train, 23, &error);
    const int32_t* last = b.batch.host + 3 * SEQ;
    check(read && memcmp(inputs, last, sizeof inputs) == 0 &&
              memcmp(targets, last + b.batch.tokens, sizeof targets) == 0,
          "the last of them is number 23 of the data");
    check(same_state(&a.stage, &b.stage) && a.loss == b.loss,
          "%s: the same bits after six steps and after three, a checkpoint and three more", m->name);
    trainer_close(&a);
    trainer_close(&b);
}

// The validation loss is that of exactly the sequences asked for, however many fit a micro-batch: the same bits.
static void test_validation(const ModelConfig* m) {
    double losses[3];
    for (int i = 0; i < 3; i++) {
        const int micro_batch = i == 0 ? 4 : 1;
        const TestRun run = {m, micro_batch, 4, SEQ, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
        Trainer t;
        trainer_open(&t, &run);
        t.settings.eval_sequences = i < 2 ? 6 : 7; // 4 + 2, or six times 1
        losses[i] = validate(&t);
        trainer_close(&t);
    }
    const double difference = fabs(losses[0] - losses[1]), bound = DEVICE_IS_HOST ? 0 : unit_roundoff() * losses[0];
    check(difference <= bound && losses[0] != losses[2],
          "%s: validation on six sequences, in fours or one by one: %.9g", m->name, losses[0]);
}

// The learning rate at its corners: start, end of the warm-up, middle, last step, and after it.
static void test_learning_rate(void) {
    Settings o = settings_default();
    // 100 steps of decay between updates 10 and 110
    o.lr = 1;
    o.min_lr = 0.1;
    o.warmup = 10;
    o.steps = 111;
    const struct {
        double middle, late;
    } rows[LR_CURVES] = {{0.55, 0.55 + 0.45 * cos(3.141592653589793 * 0.9)}, {0.55, 0.19}, {1, 0.55}};
    for (int decay = 0; decay < LR_CURVES; decay++) {
        o.decay = decay;
        const double got[] = {learning_rate(&o, 0),   learning_rate(&o, 4),  learning_rate(&o, 9),
                              learning_rate(&o, 10),  learning_rate(&o, 60), learning_rate(&o, 100),
                              learning_rate(&o, 110), learning_rate(&o, 500)};
        const double expected[] = {0.1, 0.5, 1, 1, rows[decay].middle, rows[decay].late, 0.1, 0.1};
        double worst = 0;
        for (int i = 0; i < 8; i++) worst = fmax(worst, fabs(got[i] - expected[i]));
        char what[64];
        snprintf(what, sizeof what, "learning rate, %s", lr_curves[decay].name);
        check_error(what, worst, 1e-12);
    }
}

// AdamW's first update moves a parameter by the learning rate, whatever its gradient: with step = 1 the corrected
// moments are g and g^2, and no other step makes them equal. Bound: p, |p| < 2, is rounded to 2^-24 p <= 2^-23, and
// its own eight operations err by 2^-24 each.
static void test_first_update(const ModelConfig* m) {
    const TestRun run = {m, 4, 4, SEQ, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer t;
    trainer_open(&t, &run);
    t.settings.weight_decay = 0;
    t.settings.eps = 1e-15;
    const double lr = learning_rate(&t.settings, 0);
    float* before = host_state(&t.stage, 0);
    train_step(&t);
    float* after = host_state(&t.stage, 0);
    double most = 0;
    for (int64_t i = 0; i < t.stage.layout.elements; i++) most = fmax(most, fabs((double)after[i] - (double)before[i]));
    check_error("the first update: its length is the learning rate", fabs(most - lr), 0x1p-23 + 8 * 0x1p-24 * lr);
    free(before), free(after);
    trainer_close(&t);
}

// Tokens fed one by one, with keys and values from the cache, have the logits of the whole sequence at once; also where
// the first ones were read at once. Bound: as in test_reference, 4 way sqrt(K) u, for the forward pass alone.
static void test_decode(const ModelConfig* m) {
    const TestRun run = {m, 1, 1, SEQ, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer t;
    trainer_open(&t, &run);
    for (int i = 0; i < 3; i++) train_step(&t);
    Stage* s = &t.stage;
    Activations* a = &s->activations[0];
    const StepInput pass = {&t.schedule, &t.train, 5, 6, true, NULL, NULL};
    load_batch(&t, &pass);
    bind_microbatch(&t, a, &pass, 0, 0);
    a->targets.scale = 0; // logits stay
    int32_t tokens[SEQ];
    memcpy(tokens, t.batch.host, sizeof tokens);
    chunk_forward(s, a);
    float* logits = host_values(a->head->logits, SEQ * m->V);
    double* expected = (double*)checked_malloc((size_t)SEQ * m->V * sizeof(double), "test");
    for (int i = 0; i < SEQ * m->V; i++) expected[i] = (double)logits[i];
    double worst = 0;
    for (int read = 0; read <= 13; read += 13) {
        if (read) prefill(&t, tokens, read);
        for (int i = read; i < SEQ; i++) {
            decode_token(&t, tokens[i], i);
            gather_logits(&t, logits);
            worst = fmax(worst, relative_error(logits, expected + (size_t)i * m->V, m->V));
        }
    }
    free(logits);
    char what[64];
    snprintf(what, sizeof what, "%s: %d tokens decoded one by one", m->name, SEQ);
    const double way = 8.0 * m->L + 4;
    check_error(what, worst,
                4 * (HAS_MASTER_WEIGHTS ? sqrt(way) * unit_roundoff() : way * sqrt(100.0) * unit_roundoff()));
    free(expected);
    trainer_close(&t);
}

// The model learns a text of period 3: the loss falls far below that of guessing.
static void test_learns(const ModelConfig* m) {
    char text[6000];
    for (int i = 0; i < 6000; i++) text[i] = "abc"[i % 3];
    write_bytes(text_path, text, sizeof text);
    const TestRun run = {m, 4, 4, 24, 2, ONE_F_ONE_B, RECOMPUTE_NONE};
    Trainer t;
    trainer_open(&t, &run);
    t.settings.lr = 1e-2;
    t.settings.min_lr = 1e-3;
    t.settings.steps = 40;
    train_step(&t);
    const double first = t.loss;
    while (t.step < 40) train_step(&t);
    check(first > 5 && t.loss < 0.1, "%s: the loss on abcabc... falls from %.3f to %.4f in 40 steps", m->name, first,
          t.loss);
    trainer_close(&t);
}

// Rows of tables whose kernels this device lacks are refused by name.
static void test_missing_kernels(void) {
    const Optimizer lion = {"lion", false, 0, 1, NULL};
    const Activation relu = {"relu2", false, NULL, NULL, NULL, NULL};
    Error first, second;
    check(!check_kernels(&lion, &activations[0], &first) && !check_kernels(&optimizers[0], &relu, &second) &&
              strstr(first.text, "--optimizer lion has no kernel") && strstr(second.text, "relu2 has no kernel"),
          "a missing kernel: \"%s\"", first.text);
}

int main(void) {
    setenv("MATMUL_EPILOGUE", "0", 1); // a GPU's library computes another GELU than our kernels, which do it again
    device_open(0);
    ModelConfig gpt2 = model_of(ARCH_GPT2, 2, 48, 3, 3, MLP_CHANNELS, SEQ, 256);
    ModelConfig llama = model_of(ARCH_LLAMA, 2, 48, 6, 2, 72, SEQ, 256);
    gpt2.name = "gpt2";
    llama.name = "llama";
    folder_begin("test_trainer");
    write_data_file();
    test_same_bits(&gpt2);
    test_same_bits(&llama);
    test_resume_bits(&gpt2);
    test_resume_bits(&llama);
    test_decode(&gpt2);
    test_decode(&llama);
    test_validation(&gpt2);
    test_learning_rate();
    test_first_update(&gpt2);
    test_missing_kernels();
    test_learns(&gpt2);
    test_learns(&llama);
    return folder_end();
}
