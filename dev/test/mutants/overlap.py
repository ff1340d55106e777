"""Faults of --tp-comm-overlap: a half in the wrong place, scratch that both halves use, a sum that is not waited for, a
half that is left out, additions in another order. Tests: cases of test_equivalence, which compares each with the run
without the option, bit for bit; as in collectives.py."""
import collectives

GPT2 = "t=2 p=1 d=1 gpt2 tied overlap zero 0 whole B="
LLAMA = "t=2 p=1 d=1 llama overlap zero 0 selective whole B="
FULL = "t=2 p=1 d=1 llama overlap zero 0 full whole B="
CAAT = "t=2 p=1 d=1 gpt2 tied sync 0.5 of 2 runtime overlap zero 0 whole B="
CAAT_STATES = "t=2 p=1 d=1 llama sync 0.5 of 4 init overlap zero 0 selective whole B="
CAAT_FULL = "t=2 p=1 d=1 llama sync 0.5 of 4 none overlap zero 0 full whole B="
ZERO2 = "t=2 p=1 d=2 gpt2 overlap zero 2 whole B="
ZB_H1 = "t=2 p=2 d=1 zb-h1/1 llama overlap zero 0 selective whole B="
FOUR = "t=4 p=1 d=1 gpt2 tied overlap zero 0 whole B="

MODEL, STAGE, TENSOR = "gpt.h", "parallel/stage.h", "parallel/tensor.h"

# What is wrong; the case that has to see it; file, exact text, replacement.
FAULTS = [
    ("both halves read the tokens of the first", GPT2, STAGE, "tokens_from(acts->inputs, tokens)", "acts->inputs"),
    ("both halves have the targets of the first", GPT2, STAGE, "tokens_from(acts->targets, tokens)", "acts->targets"),
    ("the second half's mlp begins where a mlp without gate would", LLAMA, STAGE,
     "values_from(y->fc, N * fc_size(stage))", "values_from(y->fc, N * stage->layout.F)"),
    ("the halves' statistics of attention are in one place", GPT2, STAGE,
     "floats_from(y->lse, B * stage->layout.NH * T)", "y->lse"),
    ("the halves' logits are in one place", GPT2, STAGE, "values_from(h->logits, N * stage->layout.V)", "h->logits"),
    ("the losses of the second half replace those of the first", GPT2, STAGE, "floats_from(h->losses, tokens)",
     "h->losses"),
    ("both halves add to the gradient of the first half's stream", GPT2, STAGE, "g->dx = pass->g->dx + R * C;",
     "g->dx = pass->g->dx;"),
    ("a half's gradients for WGRAD are those of the first", ZB_H1, STAGE, "{d->dqkv + N * qkv_size(stage), ",
     "{d->dqkv, "),
    ("one scratch for the branches in flight of both halves", GPT2, STAGE, "values_from(acts->branch, R * C)",
     "acts->branch"),
    ("one scratch for the input gradients in flight of both halves", GPT2, STAGE, "values_from(acts->dnorm, R * C)",
     "acts->dnorm"),
    ("CAAT-Net: one scratch for the shared channels in flight of both halves", CAAT, STAGE,
     "floats_from(acts->shared, tokens * C)", "acts->shared"),
    ("CAAT-Net: a half begins after one stream of the other, not after all", CAAT_STATES, STAGE,
     "for (int l = 0; l <= acts->chunk->layers; l++) x[l] = acts->x[l] + R * C;",
     "for (int l = 0; l <= acts->chunk->layers; l++) x[l] = acts->x[l] + tokens * C;"),
    ("a validation's last micro-batch of one sequence is cut in two", GPT2, STAGE,
     "stage->layout.mesh.tp_overlap && B % HALVES == 0 ? HALVES : 1;",
     "stage->layout.mesh.tp_overlap ? HALVES : 1;"),
    ("a branch's sum is not waited for", GPT2, TENSOR, "    comm_wait(&acts->sum);\n    return acts->branch;",
     "    return acts->branch;"),
    ("a gradient's sum is not waited for", GPT2, MODEL,
     "    comm_wait(&pass->acts->sum);\n    norm_backward(pass->stage, pass->g->dx, pass->acts->dnorm,",
     "    norm_backward(pass->stage, pass->g->dx, pass->acts->dnorm,"),
    ("CAAT-Net: the sum of the stream's gradient starts before the mlp's norm has added to it", CAAT, MODEL,
     "    comm_wait(&pass->acts->sum);\n    norm_backward(pass->stage, pass->g->dx, pass->acts->dnorm,",
     "    row_parallel_output_grad_start(pass);\n    norm_backward(pass->stage, pass->g->dx, pass->acts->dnorm,"),
    ("CAAT-Net, recomputation: the gradient's sum is in the memory of the branch's", CAAT_FULL, MODEL,
     "            row_parallel_output_grad_finish(&part[i], layer_gradients(&part[i], layer)->dout, layer, "
     "MLP_PROJ_B);\n", ""),
    ("the weights' gradients of the second half are left out", GPT2, MODEL,
     "for (int i = 0; i < parts; i++) weights(&part[i], layer);", "weights(&part[0], layer);"),
    ("the weights' gradients of the second half are added first", GPT2, MODEL,
     "for (int i = 0; i < parts; i++) weights(&part[i], layer);",
     "for (int i = parts - 1; i >= 0; i--) weights(&part[i], layer);"),
    ("the embedding has the gradient of the first half", ZERO2, MODEL,
     "for (int i = 0; i < parts; i++) dx[i] = vocab_parallel_embedding_grad(&part[i]);",
     "for (int i = 0; i < parts; i++) dx[i] = vocab_parallel_embedding_grad(&part[0]);"),
    ("recomputation: only the first half's mlp", FULL, MODEL,
     "fc_forward(stage, part[i].acts, layer);", "fc_forward(stage, part[0].acts, layer);"),
    ("sums in a ring, whose order depends on the place in the vector", FOUR,
     "comm/collectives/collectives.h", "? HALVING_DOUBLING : RING", "? RING : RING"),
]

FAST, run = collectives.FAST, collectives.run
