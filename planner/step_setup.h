/*
step_setup.h: what is priced: one choice of mesh, batch, software and cluster.

    softwares           the programs that ops.h has lists of operations for
    step_setup          a choice; step_set_methods adds the trainer's methods

Theory: "threefold" is this trainer, operation for operation; the others are for comparison with published results.

    megatron-2021    Narayanan et al. 2021: attention's scores go through memory; fused kernels for bias and GELU, for
                     bias, dropout and residual, and for scale, mask and softmax; QKV's bias and the sum into the buffer
                     of gradients are separate passes; gradients are kept and summed in 16 bits; a stage is blocked
                     while its messages leave. Kernels reach 0.75 of tuned ones' rate (see Software.kernels)
    megatron-2021-ddp  the same with PyTorch's DDP, which sums gradients while the last backward pass runs
    megatron-2022    Korthikanti et al. 2022: also, backward's sums over the tensor group run under the products for the
                     gradients of weights; tuned kernels
    megatron-deepspeed  the same as megatron-2021 with ZeRO-1: BLOOM, GPT-NeoX, GLM
    megatron-core-0.8   FlashAttention, no dropout, sums into float32 gradients by the product itself, messages and sums
                     overlapped; as before, the loss takes several passes and PyTorch's compiler fuses the activations
    megatron-core    as NeMo's recipes have it: also, the loss in one pass (cross_entropy_loss_fusion), and the head's
                     weight gradient out of the pipeline's way (defer_embedding_wgrad_compute)
    llama3           as 0.8, but sums over the tensor group are not hidden, the loss is made in one pass, and gradients
                     are divided (FSDP without gathering again); pytorch-2023: with whole gradients in 16 bits
    llm-foundry      FSDP, priced as ZeRO-1: everything is divided; gradients in 16 bits, loss in one pass
    llm.c            one node: gathering parameters and sending are not hidden; llmq: the optimizer is in host memory
    threefold        this trainer on a GPU; threefold-fp32: the same, all in float32
    threefold-cpu    on processors, in float32; threefold-cpu-bf16: in bf16
*/
#pragma once

#include "comm_cost.h"

#include "../methods/async_schedule.h"
#include "../model.h"
#include "../parallel/schedule.h"

// ---- Software ---------------------------------------------------------------------------------------------------

// Features that a software lacks, as bits.
enum { LACKS_SEQUENCE = 1, LACKS_SELECTIVE = 2, LACKS_ZERO = 4, LACKS_HALVES = 8, LACKS_ALL = 15 };

typedef struct {
    const char* name;
    int lacks;
    bool ours;  // the lists are this trainer's
    bool flash; // fused attention; else scores, softmax and dropout pass through memory
    bool fused; // one kernel for bias and GELU, for bias, dropout and residual, for scale, mask and softmax
    bool dropout;
    bool tensor_overlap; // backward's sums over the tensor group run under gradients of weights
    bool weights_fused;  // the product adds these to the buffer of gradients
    bool data_overlap;   // sums over the data group run under the last micro-batch's backward pass
    bool gather_overlap; // ZeRO's gather of parameters runs under the next step's first forward pass
    bool send_overlap;   // messages run under computing; else a stage is blocked while its own leave
    bool one_pass_loss;  // the gradient of the logits is made along with the loss
    bool epilogues;   // biases (and here GELU) are part of products; gradients of residuals (here: and biases) of norms
    bool defers_head; // the head's weight gradient is made when the pipeline drains
    int value_bytes;  // an activation or a parameter takes these
    int gradient_bytes; // a parameter's gradient takes these, as it is kept and summed
    int kept, divided;  // bytes of a parameter, its gradients and the optimizer; the latter are divided by ZeRO
    // Rate of its memory-bound kernels relative to tuned ones (1). 0.75: PyTorch of 2021, and compilers' kernels:
    // torch.compile and Liger reach 2.0 of 3.35 TB/s = 0.60 = 0.75 x 0.80; the gain of fusion in Narayanan et al. 2021,
    // section 5.8, follows from it, too.
    double kernels;
} Software;

// A row has the members in their order.
// clang-format off
static const Software softwares[] = {
    {"megatron-2021",       LACKS_ALL,              0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0,  2, 2, 4, 16, 0.75},
    {"megatron-2021-ddp",   LACKS_ALL,              0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0,  2, 2, 4, 16, 0.75},
    {"megatron-deepspeed",  LACKS_ALL - LACKS_ZERO, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0,  2, 2, 4, 16, 0.75},
    {"megatron-2022",       LACKS_HALVES,           0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0,  2, 2, 4, 16, 1},
    {"megatron-core-0.8",   LACKS_HALVES,           0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0,  2, 4, 6, 12, 0.75},
    {"megatron-core",       LACKS_HALVES,           0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1,  2, 4, 6, 12, 0.75},
    {"llama3",              LACKS_HALVES,           0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0,  2, 4, 2, 16, 0.75},
    {"pytorch-2023",        LACKS_HALVES,           0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0,  2, 4, 4, 16, 0.75},
    {"llm-foundry",         LACKS_HALVES,           0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0,  2, 2, 0, 16, 0.75},
    {"llm.c",               LACKS_HALVES,           0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0,  2, 2, 4, 12, 1},
    {"llmq",                LACKS_HALVES,           0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0,  2, 2, 4, 0, 1},
    {"threefold",           0,                      1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0,  2, 4, 6, 12, 1},
    {"threefold-fp32",      0,                      1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0,  4, 4, 8, 8, 1},
    {"threefold-cpu",       0,                      1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0,  4, 4, 8, 8, 1},
    {"threefold-cpu-bf16",  0,                      1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0,  2, 4, 6, 12, 1},
};
// clang-format on
enum { SOFTWARES = sizeof softwares / sizeof softwares[0] };

// NULL where none has that name.
static inline const Software* software_find(const char* name) {
    for (const Software* s = softwares; s < softwares + SOFTWARES; s++) {
        if (strlen(s->name) == strlen(name) && strcmp(s->name, name) == 0) return s;
    }
    return NULL;
}

// A feature of the mesh that a software lacks, or NULL.
static inline const char* software_lacks(const Software* s, const ParallelConfig* parallel, bool halves) {
    if ((s->lacks & LACKS_SEQUENCE) && parallel->sequence_parallel) return "sequence parallelism";
    if ((s->lacks & LACKS_SELECTIVE) && parallel->recompute == RECOMPUTE_SELECTIVE) return "selective recomputation";
    if ((s->lacks & LACKS_ZERO) && parallel->zero) return "ZeRO";
    if ((s->lacks & LACKS_HALVES) && halves) return "backward passes in halves";
    return NULL;
}

// ---- A step -----------------------------------------------------------------------------------------------------

// What a step adds to the plain trainer: the trainer's options of methods/, and of sums over replicas.
typedef struct {
    AsyncConfig async; // its number of sites is the mesh's
    CaatConfig caat;   // its ranks are the tensor ranks; 0: an ordinary model
    bool tp_overlap;
    const char *allreduce, *topology; // NULL: a library's choice; all to all
} StepMethods;

static inline StepMethods step_methods_none(void) {
    StepMethods x = {};
    x.async.sites = 1;
    x.async.period = 1;
    return x;
}

// A step: one choice of mesh, batch, software and cluster.
typedef struct {
    ModelConfig model;
    ParallelConfig parallel;
    ScheduleKind schedule;
    StepMethods methods; // step_set_methods
    int B, T;            // a micro-batch has these
    int64_t batch;       // sequences of a step
    const Software* software;
    const Cluster* cluster;
    PlanCosts* plan_costs; // NULL: none are kept
    int threads;           // a rank on cores has these
    const double* speed;   // (p + 1); NULL: always 1
} StepSetup;

// Other software counts the embedding and the head as a block each where that divides the pipeline evenly (Megatron's
// --account-for-embedding-in-pipeline-split and -loss-): the first and the last stage have a block less, perhaps none.
static inline void parallel_count_ends(ParallelConfig* parallel, int L) {
    const int stages = virtual_stages(parallel);
    parallel->light_ends = L % stages && (L + 2) % stages == 0;
}

static inline StepSetup step_setup(const ModelConfig* model, const ParallelConfig* parallel, int B, int T,
                                   int64_t batch, const Software* software, const Cluster* cluster) {
    StepSetup x = {};
    x.model = *model;
    x.parallel = *parallel;
    x.B = B;
    x.T = T;
    x.batch = batch;
    x.schedule = parallel->v > 1 ? INTERLEAVED : ONE_F_ONE_B;
    x.software = software;
    x.cluster = cluster;
    x.threads = 1;
    x.methods = step_methods_none();
    x.methods.async.sites = parallel->mesh.sites;
    if (!software->ours) parallel_count_ends(&x.parallel, model->L);
    return x;
}

// The setup's mesh with these methods, on `sites` sites; 0: as the trainer, one, or a site for each replica.
static inline void step_set_methods(StepSetup* x, const StepMethods* methods, int sites) {
    x->methods = *methods;
    x->parallel.mesh.sites = async_schedule_is_local(&methods->async) ? x->parallel.mesh.d : 1;
    if (sites) x->parallel.mesh.sites = sites;
    x->parallel.tp_overlap = methods->tp_overlap;
    x->parallel.caat = methods->caat;
    if (methods->caat.ranks) x->parallel.caat.ranks = x->parallel.mesh.t;
    x->methods.async.sites = x->parallel.mesh.sites;
}

// Whether a stage's output is sent in parts, one by each tensor rank. Those of a CAAT-Net have their own streams.
static inline bool parallel_scatters(const ParallelConfig* parallel) {
    return parallel->scatter && !parallel->sequence_parallel && parallel->mesh.t > 1 && !parallel->caat.ranks;
}
