"""Faults of Muon: its kernels and the iteration (test_muon), its rule (check_replicas.py), what it gathers on a mesh
and counts (test_equivalence), what a checkpoint has of it (test_checkpoint, and runs that are resumed).

Tests: "values", "checkpoint": a unit test; "replicas TEXT": cases of check_replicas.py; "mesh T P D": test_equivalence
on it; "resume RANKS OPTIONS": a run of four steps beside the same one resumed at step 2, byte for byte; "bf16 RANKS
OPTIONS": the same in bf16."""
import mutate

KERNEL, STEP, LAYOUT = "kernels/muon.h", "parallel/muon.h", "parallel.h"
UPDATE, TRAFFIC, SAVE, CHECKPOINT = "parallel/optimizer.h", "parallel/traffic.h", "checkpoint/save.h", \
    "checkpoint/checkpoint.h"

FAULTS = [
    # The rule
    ("momentum without Nesterov's look ahead", "values", KERNEL, "g[i] = fresh * gi + beta * mi;", "g[i] = mi;"),
    ("clipping is forgotten", "values", KERNEL, "const float gi = grad_scale * g[i], mi", "const float gi = g[i], mi"),
    ("the largest side does not scale the update", "values", KERNEL,
     "const float step_size = s->lr * (0.2f * sqrtf((float)max_i64(matrix.rows, matrix.cols)));",
     "const float step_size = s->lr * (0.2f * sqrtf((float)min_i64(matrix.rows, matrix.cols)));"),
    ("weight decay is not multiplied by the learning rate", "values", KERNEL,
     "const float decay = (float)(1.0 - (double)s->lr * s->weight_decay);",
     "const float decay = (float)(1.0 - (double)s->weight_decay);"),
    ("a zero matrix is divided by its norm", "values", KERNEL,
     "const float scale = *squares > 0 ? (float)(1.0 / sqrt(*squares)) : 0;",
     "const float scale = (float)(1.0 / sqrt(*squares));"),
    ("copies of a piece are taken for pieces", "values", KERNEL, "(piece * matrix.copies * rows + r % rows) * cols",
     "(piece * rows + r % rows) * cols"),
    ("columns of a row-parallel piece begin at 0", "values", "kernels/tensor_ranges.h",
     "        col += piece * piece_cols(m);", "        ;"),
    ("the third coefficient is rounded", "values", KERNEL, "c = 2.0315f;", "c = 2.03f;"),
    ("ranks choose their products by time", "values", STEP,
     "    linear_no_autotune(true); // data ranks need the same bits\n", ""),
    ("later products are not chosen by time", "values", STEP, "    linear_no_autotune(false);\n", ""),
    ("four steps", "values", STEP, "enum { MUON_STEPS = 5 };", "enum { MUON_STEPS = 4 };"),
    ("tall matrices have the larger product", "values", STEP,
     "const int r = (int)min_i64(matrix.rows, matrix.cols), c = (int)max_i64(matrix.rows, matrix.cols);",
     "const int r = (int)matrix.rows, c = (int)matrix.cols;"),
    ("the norm is the sum of two matrices", "values", STEP, "    device_zero(buffers->squares, sizeof(double));\n", ""),
    ("q, k and v are one matrix", "replicas sync 1 muon", LAYOUT,
     "tensor->rows / tensor->parts, tensor->cols, layout->mesh.t", "tensor->rows, tensor->cols, layout->mesh.t"),
    ("AdamW's moment serves the matrices' momentum", "replicas sync 1 muon", UPDATE,
     "(float)config->muon_momentum, &s);",
     "(float)config->beta1, &s);"),
    ("embeddings are orthogonalised", "replicas sync 1 muon", "model.h",
     "return !tensor->vector && tensor->kind != WTE && tensor->kind != WPE && tensor->kind != HEAD_W;",
     "return !tensor->vector && tensor->kind != WTE && tensor->kind != HEAD_W;"),
    # The mesh
    ("every tensor rank takes the first piece", "mesh 2 1 1", STEP, "{slice_part_matrix(layout, slice), slice->cut,",
     "{slice_part_matrix(layout, slice), 0,"),
    ("a matrix is broadcast from the first rank", "mesh 2 1 1", STEP,
     "comm_broadcast(tensor, result, muon_elements(&list[i].matrix), COMM_FLOATX, i);",
     "comm_broadcast(tensor, result, muon_elements(&list[i].matrix), COMM_FLOATX, 0);"),
    ("a received matrix replaces the rank's own", "mesh 2 1 1", STEP,
     "floatX* const arriving = own == buffers->x[0] ? buffers->x[1] : buffers->x[0];",
     "floatX* const arriving = own == buffers->x[0] ? buffers->x[0] : buffers->x[1];"),
    ("a matrix begins at its slice in master weights", "bf16 1", STEP, "        range->at += begin - first;\n", ""),
    ("ZeRO: a shard is gathered as if it were the first bucket's", "mesh 1 1 2", STEP,
     "grads->update + bucket_shard_offset(layout, b), n, COMM_FLOAT);", "grads->update, n, COMM_FLOAT);"),
    ("ZeRO: second moments are where they would be with those of matrices", "mesh 1 1 2", UPDATE,
     "        if (muon) without_v += range.n;\n", ""),
    ("ZeRO: a shard's first element is the slice's", "mesh 1 1 2", STEP, "i * size, begin - i * size,",
     "i * size, 0 * begin,"),
    ("the formula has no momentum of ZeRO", "mesh 1 1 2", TRAFFIC,
     "    traffic.data += (d - 1) / d * single * traffic_muon_elements(layout);\n", ""),
    ("the formula counts tensors, not matrices", "mesh 2 1 1", TRAFFIC,
     "const double matrices = (double)((end - 1) / part - begin / part + 1);", "const double matrices = 1;"),
    # Checkpoints
    ("sites have a second moment of matrices", "checkpoint", CHECKPOINT,
     'strcmp(sites->kind[number / sites->copies], "exp_avg_sq") == 0', "false"),
    ("a checkpoint has the second moments' memory as if it were whole", "resume 1", SAVE,
     "return stage->layout.mesh.muon && values.at == stage->moment2;",
     "return false && values.at == stage->moment2;"),
    ("second moments are not read", "resume 1", SAVE, "copy_second_moments(stage, b, (float*)whole, false);", ";"),
    ("second moments of a shard are not gathered", "resume 2 --zero 1", SAVE,
     "if (values.share) comm_all_gather(&stage->groups->data, copy, copy +",
     "if (false) comm_all_gather(&stage->groups->data, copy, copy +"),
]

RESUME = """set -e; rm -rf a b
go() { "$@" --layers 2 --hidden 16 --heads 2 --seq 16 --vocab 256 --global-batch 4 --micro-batch 1 --eval-every 0 \\
    --sample-every 0 --data model.h --optimizer muon >log 2>&1 || { tail -n 3 log; exit 1; }; }
go TRAIN --steps 4 --out a --save-every 2
cp -r a b; rm -r b/step_00000004
go TRAIN --steps 4 --out b --resume
for file in model optimizer; do
    cmp a/step_00000004/$file.safetensors b/step_00000004/$file.safetensors || { echo FAIL; exit 1; }
done"""
FAST, SECONDS = "-O1", 300


def run(test, planted):
    kind, *words = test.split()
    if kind == "values":
        return mutate.unit_test("test_muon", planted)
    if kind == "checkpoint":
        return mutate.unit_test("test_checkpoint", planted)
    if kind == "replicas":
        return "train_gpt", ["python3", "dev/test/system/check_replicas.py", " ".join(words)]
    if kind in ("resume", "bf16"):
        program = "train_gpt" if kind == "resume" else "build/bf16/train_gpt"
        train = " ".join([*mutate.ranks(words[0]), f"./{program}", *words[1:]])
        return program, ["bash", "-c", RESUME.replace("TRAIN", train)]
    n = str(eval("*".join(words)))
    return "build/test_equivalence", [*mutate.ranks(n), "build/test_equivalence", "--mesh", *words, "--only", "muon"]
