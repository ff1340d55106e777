/*
flags.h: the trainer's options for a choice of the planner, as ./plan --flags prints them.

    scripts/mpirun.sh -np 8 ./train_gpt $(./plan --flags --gpus 8 --model gpt2-124M --cluster dgx-h100) --data text.txt

The line has the model's shape, the batch and the mesh. trainer/settings.h defines the options.
*/
#pragma once

#include "../util/options.h"
#include "methods_search.h"

static const char* const recompute_names[] = {"none", "selective", "full"};

// A preset's name and the shape options that were given beside it.
static inline void flags_print_preset(FILE* out, Option* table, int n) {
    static const char* const shape[] = {"model",    "arch", "layers", "hidden", "heads",
                                        "kv-heads", "ffn",  "seq",    "vocab",  "tie-embeddings"};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const Option* o = option_find(table, n, shape[i]);
        char value[256];
        if (o->given && option_text(value, sizeof value, o)) fprintf(out, " --%s %s", o->name, value);
    }
}

// The whole shape of a model without a name, as the trainer's default sizes differ from ./plan's.
static inline void flags_print_shape(FILE* out, const ModelConfig* m) {
    fprintf(out, " --arch %s --layers %d --hidden %d --heads %d", model_arch_name(m->arch), m->L, m->C, m->NH);
    if (m->NKV != m->NH) fprintf(out, " --kv-heads %d", m->NKV);
    fprintf(out, " --ffn %d --seq %d --vocab %d", m->F, m->T, m->V);
    if (m->tied != architectures[m->arch].tied) fprintf(out, " --tie-embeddings %s", m->tied ? "yes" : "no");
}

// One line. table, n: the parsed options, of which the model's shape is used.
static inline void flags_print(FILE* out, const StepSetup* s, Option* table, int n) {
    const ParallelConfig* m = &s->parallel;
    ModelConfig model = s->model;
    char methods[400];
    model.T = s->T;
    if (option_given(table, n, "model"))
        flags_print_preset(out, table, n);
    else
        flags_print_shape(out, &model);
    fprintf(out, " --global-batch %lld --micro-batch %d", (long long)s->batch, s->B);
    fprintf(out, " --tp %d --pp %d --dp %d", m->mesh.t, m->mesh.p, m->mesh.d);
    if (s->schedule != ONE_F_ONE_B) fprintf(out, " --schedule %s", schedule_name(s->schedule));
    if (m->v != schedule_usual_chunks(s->schedule)) fprintf(out, " --vpp %d", m->v);
    if (m->sequence_parallel) fprintf(out, " --sequence-parallel");
    if (m->zero) fprintf(out, " --zero %d", m->zero);
    if (!m->scatter) fprintf(out, " --no-scatter-gather");
    if (m->recompute != RECOMPUTE_NONE) fprintf(out, " --recompute %s", recompute_names[m->recompute]);
    methods_options(methods, sizeof methods, &s->methods, m->mesh.sites);
    fprintf(out, "%s", methods);
}
