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

MODEL, TENSOR, VOCAB = "gpt.h", "parallel/tensor.h", "parallel/vocab.h"
STAGE, VIEWS = "parallel/stage.h", "parallel/halves.h"


def moved(table, field, bytes):
    """A half's rows of one buffer begin where rows of this size would."""
    return ("row * list.buffer[i].bytes", f"row * (list.n == {table} && list.buffer[i].field == offsetof({field}) ? "
            f"{bytes} : list.buffer[i].bytes)")


# What is wrong; the case that has to see it; file, exact text, replacement.
FAULTS = [
    ("both halves read the tokens of the first", GPT2, VIEWS, "tokens_from(acts->inputs, token)", "acts->inputs"),
    ("both halves have the targets of the first", GPT2, VIEWS, "tokens_from(acts->targets, token)", "acts->targets"),
    ("the second half's mlp begins where a mlp without gate would", LLAMA, VIEWS,
     *moved(12, "LayerActivations, fc", "list.buffer[i].bytes / 2")),
    ("the halves' statistics of attention are in one place", GPT2, VIEWS, *moved(12, "LayerActivations, lse", 0)),
    ("the halves' logits are in one place", GPT2, VIEWS, *moved(7, "HeadActivations, logits", 0)),
    ("the losses of the second half replace those of the first", GPT2, VIEWS, "acts->head->losses + token",
     "acts->head->losses"),
    ("both halves add to the gradient of the first half's stream", GPT2, VIEWS, "g->dx + row * stage->model.C;",
     "g->dx;"),
    ("a half's gradients for WGRAD are those of the first", ZB_H1, VIEWS,
     *moved(4, "LayerGradients, dqkv", 0)),
    ("one scratch for the branches in flight of both halves", GPT2, VIEWS, "acts->branch + row * C", "acts->branch"),
    ("one scratch for the input gradients in flight of both halves", GPT2, VIEWS, "acts->dnorm + row * C",
     "acts->dnorm"),
    ("CAAT-Net: one scratch for the shared channels in flight of both halves", CAAT, VIEWS,
     "floats_from(acts->shared, token * C)", "acts->shared"),
    ("CAAT-Net: a half begins after one stream of the other, not after all", CAAT_STATES, VIEWS,
     "x[l] = acts->x[l] + row * C;", "x[l] = acts->x[l] + token * C;"),
    ("a validation's last micro-batch of one sequence is cut in two", GPT2, STAGE,
     "stage->layout.mesh.tp_overlap && B % HALVES == 0 ? HALVES : 1;", "stage->layout.mesh.tp_overlap ? HALVES : 1;"),
    ("a branch's sum is not waited for", GPT2, TENSOR, "false);\n    comm_wait(&acts->sum);\n", "false);\n"),
    ("a gradient's sum is not waited for", GPT2, MODEL, "    comm_wait(&acts->sum);\n    norms[", "    norms["),
    ("CAAT-Net: the sum of the stream's gradient starts before the mlp's norm has added to it", CAAT, MODEL,
     "        await_sum_and_norm_backward(pass, layer, NORM2_W, NORM2_B);\n"
     "        row_parallel_output_grad_start(pass, layer); // of attention",
     "        row_parallel_output_grad_start(pass, layer);\n"
     "        await_sum_and_norm_backward(pass, layer, NORM2_W, NORM2_B);"),
    ("CAAT-Net, recomputation: the gradient's sum is in the memory of the branch's", CAAT_FULL, MODEL,
     "    row_parallel_output_grad_finish(pass, layer_grads(pass, layer)->dout, layer, MLP_PROJ_W);\n", ""),
    ("the weights' gradients of the second half are left out", GPT2, MODEL,
     "for (int i = 0; i < parts; i++) branch(&part[i], layer, computed);",
     "for (int i = 0; i < parts; i++) branch(&part[i], layer, i ? computed & ~WGRAD : computed);"),
    ("the weights' gradients of the second half are added first", GPT2, MODEL,
     "for (int i = 0; i < parts; i++) branch(&part[i], layer, computed);",
     "for (int i = 0; i < parts; i++) branch(&part[computed == WGRAD ? parts - 1 - i : i], layer, computed);"),
    ("the embedding has the gradient of the first half", ZERO2, VOCAB, ": pass->g->dx;",
     ": pass->acts->parts > 1 ? pass->stage->gradients[pass->stage->layout.mesh.v][0].dx : pass->g->dx;"),
    ("recomputation: only the first half's mlp", FULL, MODEL,
     "        each_part(part, layer, mlp_branch_forward);", "        mlp_branch_forward(part, layer);"),
    ("sums in a ring, whose order depends on the place in the vector", FOUR,
     "comm/collectives/collectives.h", "? HALVING_DOUBLING : RING", "? RING : RING"),
]

FAST, run = collectives.FAST, collectives.run
