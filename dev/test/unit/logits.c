/*
logits.c: what a model says, for dev/test/system/check_transformers.py.

    logits MODEL TOKENS OUT      MODEL: what --init takes and says its sizes; TOKENS: T tokens, int32

Writes the logits (T, V), float32, to OUT: the trainer's own forward pass on one sequence, on one rank.
*/
#define TRAIN_GPT_NO_MAIN
#pragma GCC diagnostic ignored "-Wunused-function" // of the trainer's functions this file uses few
#include "../../../train_gpt.cu"

int main(int argc, char** argv) {
    process.name = "logits";
    if (argc != 4) die_usage("logits MODEL TOKENS OUT");
    device_open(0);
    ModelConfig m;
    Error error;
    MappedFile tokens;
    bool told;
    if (!checkpoint_model(&m, &told, argv[1], &error) || !file_map(&tokens, argv[2], &error)) die("%s", error.text);
    if (!told) die_usage("%s does not say its model's sizes", argv[1]);
    const int T = (int)(tokens.size / sizeof(int32_t));
    const PipelineConfig plan = {ONE_F_ONE_B, 1, 1, 1, false, m.tied};
    Schedule schedule = schedule_build(&plan, 0);
    Stage stage;
    Stage* s = &stage;
    if (!stage_plan(s, &m, parallel_of_rank(0, 1, 1, 1), 1, T, &schedule, SCOPE_WORLD, native_dtype(), &error))
        die("%s", error.text);
    stage_allocate(s);
    Comm world;
    ProcessGroups groups;
    comm_open(&world);
    process_groups_init(&groups, &world, &s->layout, &s->model);
    s->groups = &groups;
    float* weights = weights_begin(s);
    if (!checkpoint_init(argv[1], &m, &s->layout, weights, &error)) die("%s", error.text);
    weights_end(s, weights);
    TokenBatch batch = {NULL, NULL, 0};
    Activations* a = &s->activations[0];
    batch_reserve(&batch, T);
    device_zero(batch.device, 2 * (size_t)T * sizeof(int32_t));
    device_from_host(batch.device, tokens.data, (size_t)T * sizeof(int32_t));
    activations_bind(a, s, 0, 0, 1, T, false);
    a->inputs = batch.device;
    a->targets.token = batch.device + T;
    a->targets.scale = 0;
    chunk_forward(s, a);
    const size_t n = (size_t)T * (size_t)m.V;
    float* logits = (float*)checked_malloc(n * sizeof(float), "logits");
    device_to_floats(logits, a->head->logits, (int64_t)n);
    FILE* out = fopen(argv[3], "wb");
    if (!out || fwrite(logits, sizeof(float), n, out) != n || fclose(out) != 0)
        die("%s: cannot write: %s", argv[3], strerror(errno));
    free(logits);
    batch_free(&batch);
    groups_close(&groups);
    stage_free(s);
    schedule_free(&schedule);
    file_unmap(&tokens);
    comm_close(&world);
    return 0;
}
