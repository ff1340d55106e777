"""Faults of the mesh: a missing or wrong collective, a wrong group, a wrong part of a vector, a number that is counted
on the wrong ranks: faults of a parallel trainer that give no message. Tests: cases of test_equivalence by the beginning
of their line, on as few ranks as can see the fault, mostly two."""
import re

import mutate

# Cases, by the beginning of their line in test_equivalence's output.
TENSOR = "t=2 p=1 d=1 gpt2 tied zero 0 B="
SEQUENCE = "t=2 p=1 d=1 gpt2 tied sequence zero 0 B="
PIPELINE = "t=1 p=2 d=1 gpt2 tied zero 0 B="
DATA = "t=1 p=1 d=2 gpt2 tied zero 0 B="
ZERO1 = "t=1 p=1 d=2 gpt2 zero 1 B="
ZERO2 = "t=1 p=1 d=2 gpt2 tied zero 2 B="
GPIPE = "t=1 p=2 d=1 gpipe/1 gpt2 tied zero 0 B="
INTERLEAVED = "t=1 p=2 d=1 interleaved/2 gpt2 tied zero 0 B="
INTERLEAVED_ZERO1 = "t=1 p=2 d=2 interleaved/2 gpt2 tied zero 1 B="
ZB_H1 = "t=1 p=2 d=1 zb-h1/1 gpt2 tied zero 0 B="
ZB_V = "t=1 p=2 d=1 zb-v/2 gpt2 tied zero 0 B="
TENSOR_PIPELINE = "t=2 p=2 d=1 gpt2 tied zero 0 B="
TENSOR_DATA = "t=2 p=1 d=2 gpt2 tied zero 0 B="
PIPELINE_ZERO1 = "t=1 p=2 d=2 gpt2 tied zero 1 B="
CAAT = "t=2 p=1 d=1 gpt2 tied sync 0.5 of 2 zero 0 "
CAAT_STATES = "t=2 p=1 d=1 gpt2 sync 0.7 of 8 zero 0 selective "  # four states on each rank
CAAT_PIPELINE = "t=2 p=2 d=1 llama sync 0 of 4 zero 0 "
CAAT_LLAMA = "t=2 p=1 d=1 llama sync 0 of 4 zero 0 "
SHARED_HEADS = "t=6 p=1 d=1 llama zero 0 B="  # three key/value heads, each on two ranks

TRAINER, STAGE = "train_gpt.cu", "parallel/stage.h"
PARALLEL, SCHEDULE = "parallel.h", "parallel/schedule.h"

# What is wrong; the case that has to see it; file, exact text, replacement.
FAULTS = [
    # Tensor group: blocks
    ("no sum over the tensor ranks after attention's projection", TENSOR, "parallel/tensor.h",
     "    else\n        reduce_from_tensor_region(stage->groups, acts->branch, partial, n);",
     "    else if (w != ATTN_PROJ_W)\n"
     "        reduce_from_tensor_region(stage->groups, acts->branch, partial, n);"),
    ("no sum over the tensor ranks after the mlp's projection", TENSOR, "parallel/tensor.h",
     "    else\n        reduce_from_tensor_region(stage->groups, acts->branch, partial, n);",
     "    else if (w != MLP_PROJ_W)\n"
     "        reduce_from_tensor_region(stage->groups, acts->branch, partial, n);"),
    ("no sum of the gradient of the input of q, k and v", TENSOR, "parallel/tensor.h",
     "    if (is_caat(stage)) return;", "    if (is_caat(stage) || w == QKV_W) return;"),
    ("no sum of the gradient of the mlp's input", TENSOR, "parallel/tensor.h",
     "    if (is_caat(stage)) return;", "    if (is_caat(stage) || w == FC_W) return;"),
    # Tensor group: embedding, head, loss
    ("no sum of the embedding's parts", TENSOR, "parallel/vocab.h",
     "    reduce_from_tensor_region(stage->groups, x, partial, (int64_t)N * C);", ""),
    ("no sum of the gradient of the head's input", TENSOR, "parallel/tensor.h",
     "    if (is_caat(stage)) return;", "    if (is_caat(stage) || layer < 0) return;"),
    ("cross-entropy: every rank takes its own maximum", TENSOR, "parallel/vocab.h",
     "    comm_all_reduce(tensor, h->row_max, N, COMM_FLOAT, COMM_MAX);", ""),
    ("cross-entropy: no sum of exp over the vocabulary's parts", TENSOR, "parallel/vocab.h",
     "    comm_all_reduce(tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_SUM);", ""),
    ("cross-entropy: maximum in place of the sum of exp", TENSOR, "parallel/vocab.h",
     "tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_SUM",
     "tensor, h->row_sum, 2 * (int64_t)N, COMM_FLOAT, COMM_MAX"),
    # Tensor group: sequence parallel
    ("sequence parallel: norms' gradients are not summed", SEQUENCE, PARALLEL,
     "default: return mesh->sequence_parallel || mesh->caat.ranks > 0;", "default: return mesh->caat.ranks > 0;"),
    ("sequence parallel: projections' biases are summed, though every rank has all", SEQUENCE, PARALLEL,
     "case MLP_PROJ_B: return mesh->caat.ranks > 0;",
     "case MLP_PROJ_B: return mesh->caat.ranks > 0 || mesh->sequence_parallel;"),
    ("sequence parallel: rows are gathered from the wrong group", SEQUENCE, "parallel/tensor.h",
     "comm_all_gather(&g->tensor, all, mine,", "comm_all_gather(&g->kv_heads, all, mine,"),
    ("sequence parallel: every rank keeps the first rows of a sum", SEQUENCE, "parallel/tensor.h",
     "        comm_reduce_scatter(&g->tensor, mine, partial, n / g->tensor.size, COMM_FLOATX);",
     "        comm_all_reduce(&g->tensor, partial, n, COMM_FLOATX, COMM_SUM),\n"
     "            device_copy(mine, partial, (size_t)(n / g->tensor.size) * sizeof(floatX));"),
    ("sequence parallel: a block's bucket ends before attention's gradients", SEQUENCE, "gpt.h",
     "    branch_backward(part, layer, attention_branch_backward);\n    grad_bucket_ready(part, layer, NORM1_W);",
     "    grad_bucket_ready(part, layer, NORM1_W);\n    branch_backward(part, layer, attention_branch_backward);"),
    ("sequence parallel: one decoded token is split like rows", SEQUENCE, "parallel/stage.h",
     "acts->split = splits_rows(stage) && !decode;", "acts->split = splits_rows(stage);"),
    # Tensor group: CAAT-Net
    ("CAAT-Net: shared channels are not summed over the ranks", CAAT, "methods/caat.h",
     "    else\n        comm_all_reduce(tensor, acts->shared, n, type, COMM_SUM);",
     "    else if (back)\n        comm_all_reduce(tensor, acts->shared, n, type, COMM_SUM);"),
    ("CAAT-Net: gradients of shared channels are not summed over the ranks", CAAT, "methods/caat.h",
     "    else\n        comm_all_reduce(tensor, acts->shared, n, type, COMM_SUM);",
     "    else if (!back)\n        comm_all_reduce(tensor, acts->shared, n, type, COMM_SUM);"),
    ("CAAT-Net: the gradient of the column-parallel input is summed, as in an ordinary model", CAAT,
     "parallel/tensor.h", "    if (is_caat(stage)) return;", ""),
    ("CAAT-Net: the gradient of the residual stream is summed in place", CAAT, "parallel/tensor.h",
     "        caat_reduce_finish(stage, acts, all, dx, true);",
     "        caat_reduce_finish(stage, acts, pass->g->dx, dx, true);\n"
     "        device_copy(all, dx, (size_t)acts->N * stage->model.C * sizeof(floatX));"),
    ("CAAT-Net: no sum of the streams' gradients where they begin", CAAT, "methods/caat.h",
     "        caat_pack_floats(acts->shared, dx, streams, acts->tokens, C, C);\n"
     "        comm_all_reduce(&stage->groups->tensor, acts->shared, n, COMM_FLOAT, COMM_SUM);",
     "        caat_pack_floats(acts->shared, dx, streams, acts->tokens, C, C);"),
    ("CAAT-Net: norms' gradients are not summed over the ranks", CAAT, PARALLEL,
     "default: return mesh->sequence_parallel || mesh->caat.ranks > 0;", "default: return mesh->sequence_parallel;"),
    ("CAAT-Net: projections' biases get the gradient of the sums", CAAT, "parallel/tensor.h",
     "    if (is_caat(pass->stage)) m.bias = NO_TENSOR; // row_parallel_output_grad_finish has added its gradient\n",
     ""),
    ("CAAT-Net: projections' biases are not summed over the ranks", CAAT, PARALLEL,
     "case MLP_PROJ_B: return mesh->caat.ranks > 0;", "case MLP_PROJ_B: return false;"),
    ("CAAT-Net: positions' gradients are summed over the ranks, which all have them whole", CAAT, PARALLEL,
     "case WPE: return mesh->sequence_parallel;", "case WPE: return mesh->sequence_parallel || mesh->caat.ranks > 0;"),
    ("CAAT-Net: private gradients are not scaled", CAAT, "methods/caat.h",
     "const float factor = (float)caat_factor(caat);", "const float factor = back ? 1.0f : (float)caat_factor(caat);"),
    ("CAAT-Net: all states of a rank have the same cut of the vocabulary", CAAT_STATES, PARALLEL,
     "return layout->vocab_offset + stream * layout->V;", "return (void)stream, layout->vocab_offset;"),
    ("CAAT-Net: each state takes its own maximum", CAAT_STATES, "parallel/vocab.h",
     "logits_of(pass, i), h->row_max, acts->targets, N,", "logits_of(pass, i), h->row_max + i * N, acts->targets, N,"),
    ("CAAT-Net: the sum of exp is that of the first state", CAAT_STATES, "parallel/vocab.h",
     "        if (i > 0) accumulate(h->row_sum, sum, 2 * (int64_t)N);", ""),
    ("CAAT-Net: the norm counts one cut of each matrix", CAAT_STATES, "kernels/global_norm.h",
     "sums[ranges[i].index] += sum", "sums[ranges[i].index] = sum"),
    ("CAAT-Net: a stage sends its first state only", CAAT_PIPELINE, "trainer/batch.h",
     "boundary_elements(&stage->layout.mesh, stage->layout.streams * B * stage->T * stage->model.C)",
     "boundary_elements(&stage->layout.mesh, B * stage->T * stage->model.C)"),
    ("CAAT-Net: a stage sends a part of its states, as if all ranks had the same", CAAT_PIPELINE, PARALLEL,
     "    if (mesh.caat.ranks) layout->mesh.scatter = false;", "    if (0) layout->mesh.scatter = false;"),
    ("CAAT-Net, decoding: all states write into one cache", CAAT_STATES, "parallel/stage.h",
     "layer * stage->layout.streams + stream) * kv_cache_layer_elements(stage)",
     "layer * stage->layout.streams + 0 * stream) * kv_cache_layer_elements(stage)"),
    # Heads group
    ("gradients of shared key/value heads are not summed", SHARED_HEADS, PARALLEL,
     "case V_W: return true;", "case V_W: return mesh->sequence_parallel;"),
    ("gradients of shared key/value heads are summed over other heads' ranks", SHARED_HEADS,
     "parallel/process_groups.h", "mesh_rank(mesh) / sharing", "mesh_rank(mesh) % (t / sharing)"),
    # Data group
    ("data gradients are not summed", DATA, "parallel/data.h",
     "comm_all_reduce_start(&g->data, bucket->sum, n, COMM_FLOAT, COMM_SUM);", "bucket->request;"),
    ("data gradients are summed over the tensor group", TENSOR_DATA, "parallel/data.h",
     "comm_all_reduce_start(&g->data, bucket->sum", "comm_all_reduce_start(&g->tensor, bucket->sum"),
    ("data group: of all ranks of a stage, of all its tensor parts", TENSOR_DATA, "parallel/process_groups.h",
     "g->data = comm_split(world, stage + stages * mesh_site(mesh),", "g->data = comm_split(world, mesh->pipeline,"),
    ("a bucket is reduced after every micro-batch", DATA, "parallel/stage.h", "    if (!pass->reduce) return;", ""),
    ("a tied embedding's bucket is reduced before its second gradient", DATA, "gpt.h",
     "if (!has_split_embedding_grad(part->stage)) grad_bucket_ready(part, -1, head);",
     "grad_bucket_ready(part, -1, head);"),
    ("ZeRO-1: a rank gets another rank's share of the sum", ZERO1, "parallel/process_groups.h",
     "stage + stages * mesh_site(mesh), place,", "stage + stages * mesh_site(mesh), -place,"),
    ("ZeRO-1: a rank updates with its own gradients, not their sum", ZERO1, "parallel/data.h",
     "comm_reduce_scatter_start(&g->data, bucket->sum", "comm_reduce_scatter_start(&g->tensor, bucket->sum"),
    ("ZeRO-1: updated parameters are not gathered", ZERO1, "parallel/data.h",
     "        comm_all_gather(&g->data, bucket, bucket + layout->mesh.data * n, n, COMM_FLOATX);",
     "        (void)n, (void)bucket;"),
    ("ZeRO-2: a micro-batch's share replaces those before it", ZERO2, "parallel/data.h",
     "    accumulate(grads->shards + bucket_shard_offset(layout, b), grads->bucket[i].sum, "
     "bucket_shard_size(layout, b));",
     "    device_copy(grads->shards + bucket_shard_offset(layout, b), grads->bucket[i].sum,\n"
     "                (size_t)bucket_shard_size(layout, b) * sizeof(float));"),
    ("ZeRO-2: what is still in flight at the end is forgotten", ZERO2, "parallel/data.h",
     "            grad_bucket_collect(grads, layout, i);\n", "            return;\n"),
    ("ZeRO-2: the head's gradient of a tied embedding is never reduced", ZERO2, "gpt.h",
     "    if (!has_split_embedding_grad(part->stage)) grad_bucket_ready(part, -1, head);", ""),
    # Pipeline and embedding groups
    ("a tied embedding's gradients are not summed over first and last stage", PIPELINE, "parallel/data.h",
     "if (g->embedding.size == 1 || !wte) return;", "return;"),
    ("ZeRO-1: a tied embedding is summed over the data group again, not over the stages", PIPELINE_ZERO1,
     "parallel/data.h", "comm_all_reduce(&g->embedding, sum", "comm_all_reduce(&g->data, sum"),
    ("a stage sends what went into its last block", PIPELINE, "parallel/pipeline.h",
     "from = chunk_output(acts) +", "from = acts->x[acts->chunk->layers - 1] +"),
    ("a stage does not wait for its input", PIPELINE, TRAINER,
     "    comm_wait(&boundary->receive_forward[buffer]);", ""),
    ("boundary: tensor ranks send the wrong parts", TENSOR_PIPELINE, "parallel.h",
     "mesh->tensor * (n / mesh->t)", "(mesh->t - 1 - mesh->tensor) * (n / mesh->t)"),
    ("boundary: every tensor rank sends the first part of the gradient", TENSOR_PIPELINE, TRAINER,
     "g->dx + boundary_offset(&stage->layout.mesh, n)", "g->dx"),
    ("boundary: the parts are not gathered", TENSOR_PIPELINE, "parallel/pipeline.h",
     "        comm_all_gather(&g->tensor, x, message, sent, COMM_FLOATX);",
     "        (void)g, device_copy(x, message, (size_t)sent * sizeof(floatX));"),
    ("decoding: a stage sends what went into its first block", PIPELINE, "trainer/generate.h",
     "chunk_output(acts), values, SEND_FORWARD, c);", "acts->x[0], values, SEND_FORWARD, c);"),
    ("reading: nothing goes into the cache", PIPELINE, "trainer/generate.h", "acts->keeps_kv = !decode;",
     "acts->keeps_kv = false;"),
    ("reading: all states have the keys of the first", CAAT_STATES, "parallel/stage.h",
     "layer_acts(acts, layer)->qkv + (int64_t)i * acts->tokens * qkv_size(stage);", "layer_acts(acts, layer)->qkv;"),
    ("reading: half of what is read goes to the next stage", PIPELINE, "trainer/generate.h",
     "values = (int64_t)acts->R * stage->model.C;", "values = (int64_t)(acts->R + 1) / 2 * stage->model.C;"),
    # Schedules: chunks, halves of the backward pass, reductions and updates within the step
    ("gpipe: all micro-batches share one head", GPIPE, "parallel/stage.h", "&stage->head[k % stage->head_slots]",
     "&stage->head[0]"),
    ("interleaved: every chunk goes through the blocks of the first", INTERLEAVED, "gpt.h",
     "block_forward(part, chunk->begin + l);", "block_forward(part, l);"),
    ("interleaved: only the first chunk's gradients count in the norm", INTERLEAVED, TRAINER,
     "gradient_squares(stage, action.chunk);", "gradient_squares(stage, 0);"),
    ("interleaved: only the first chunk is updated", INTERLEAVED, "parallel/optimizer.h",
     "layout->bucket[slice->bucket].chunk != chunk) continue;", "layout->bucket[slice->bucket].chunk != 0) continue;"),
    ("interleaved, ZeRO-1: every update gathers all chunks", INTERLEAVED_ZERO1, "parallel/data.h",
     "        const int64_t n = bucket_shard_size(layout, b);\n        if (layout->bucket[b].chunk != chunk) continue;",
     "        const int64_t n = bucket_shard_size(layout, b);\n        (void)chunk;"),
    ("the tied embedding is updated before its two gradients are summed", PIPELINE, TRAINER,
     "    if (action.kind == TIE) all_reduce_tied_embedding_grad(&stage->grads, &t->groups, layout);", ""),
    ("a tied embedding is updated with its chunk, not after its sum", PIPELINE, PARALLEL,
     "tied ? -1 : tensor_chunk(layout, model, tensor)", "tensor_chunk(layout, model, tensor)"),
    ("zb-h1: all micro-batches between the halves share one place", ZB_H1, TRAINER,
     "stage->gradients[action.chunk][k % stage->pending[action.chunk]]", "stage->gradients[action.chunk][0]"),
    ("zb-h1: the weight half comes with the input half, too", ZB_H1, TRAINER,
     "(input ? DGRAD : 0) | (weights ? WGRAD : 0)", "(input ? BOTH_GRADS : 0) | (weights ? WGRAD : 0)"),
    ("sequence parallel: products read their rank's rows of the stream's gradient as if they were all", SEQUENCE,
     "parallel/tensor.h", " && !is_caat(pass->stage) && !pass->acts->split;", " && !is_caat(pass->stage);"),
    ("zb-h1: the weight half reads the stream's gradient itself, to which norms have added", ZB_H1, "parallel/tensor.h",
     "pass->gradients == BOTH_GRADS && !is_caat(pass->stage)", "!is_caat(pass->stage)"),
    ("zb-v: the two gradients of a tied embedding add up in one buffer", ZB_V, STAGE,
     "stage->layout.first_stage && stage->layout.last_stage && stage->layout.mesh.zero < 2",
     "stage->layout.mesh.p == 1"),
    ("zb-v: placed in a loop", ZB_V, PARALLEL,
     "return virtual_stage(mesh->p, mesh->folded, mesh->pipeline, chunk);",
     "return virtual_stage(mesh->p, false, mesh->pipeline, chunk);"),
    ("zb-v, decoding: the second chunk does not get what the first one left", ZB_V, "trainer/generate.h",
     "            device_copy(acts->x[0], before, (size_t)values * sizeof(floatX));", "            (void)before;"),
    # All groups: the norm of the gradient, the loss
    ("gradient's norm: every tensor rank counts what all hold", TENSOR, PARALLEL,
     "return layout->mesh.tensor % slice->copies == 0 && (", "return ("),
    ("gradient's norm: both ends of the pipeline count a tied embedding", PIPELINE, PARALLEL,
     " && (slice->tensor.kind != WTE || layout->first_stage);", ";"),
    ("gradient's norm: every data rank counts", DATA, "parallel/optimizer.h",
     " && (mesh->zero || mesh_rank_in_site(mesh) == 0);", ";"),
    ("gradient's norm: not summed over the tensor group", TENSOR, "parallel/process_groups.h",
     "sum_over(&g->tensor, x, n);", "sum_over(&g->kv_heads, x, n);"),
    ("gradient's norm: not summed over the pipeline", PIPELINE, "parallel/process_groups.h",
     "sum_over(&g->pipeline, x, n);", "sum_over(&g->kv_heads, x, n);"),
    ("loss: of the first data rank only", DATA, TRAINER,
     "if (!counts_losses(stage)) sums[tensors] = 0;",
     "if (!counts_losses(stage) || layout->mesh.data > 0) sums[tensors] = 0;"),
    ("loss: every tensor rank counts", TENSOR, TRAINER,
     "if (!counts_losses(stage)) sums[tensors] = 0;", "if (!layout->last_stage) sums[tensors] = 0;"),
    ("validation: not summed over the ranks", DATA, TRAINER, "    sum_over_mesh(&t->groups, &sum, 1);", ""),
]

FAST = "-O2"  # compiles in half the time of -O3, and these short runs are as fast


def run(test, planted):
    """The sources as they are write references, which the planted ones are compared with."""
    t, p, d = re.match(r"t=(\d+) p=(\d+) d=(\d+)", test).groups()
    command = ["build/test_equivalence", "--mesh", t, p, d, "--only", test, *(["kept"] if planted else [])]
    return "build/test_equivalence", mutate.ranks(int(t) * int(p) * int(d)) + command
