"""Faults in the rungs of docs/ladder, which ladder.py has to see. A test: the rung."""
import os

ENV = {"MPIEXEC_TIMEOUT": "60"}  # a fault that hangs


def run(test, _planted):
    return None, ["docs/ladder/ladder.py", "--only", test]


def rung(test):
    return next(f"docs/ladder/{name}" for name in sorted(os.listdir("docs/ladder")) if name.startswith(test + "_"))


FAULTS = [(what, test, rung(test), text, replacement) for test, what, text, replacement in (
    ("2", "the ring makes a turn too few", "turn < 2 * (ranks - 1); turn++", "turn < 2 * (ranks - 1) - 1; turn++"),
    ("2", "all ranks take the same sequences", "rank * (MICROS / ranks) + micro", "micro"),
    ("2", "the gradients are not summed", "if (!by_mpi) ring_all_reduce(grads, size, rank, ranks);", ""),
    ("3", "no rank waits for the sums", "MPI_Waitall(L + 1, k.request, MPI_STATUSES_IGNORE);", ""),
    ("3", "the sums start before the last micro-batch", "micro == micros - 1);", "micro == 0);"),
    ("3", "no gradient of the embedding", "    embed_backward(g, a, d->x);\n", ""),
    ("3", "a bucket starts a block too early", "if (last) start_bucket(k, l + 1);",
     "if (last && l > 0) start_bucket(k, l);\n        if (last && l + 1 == L) start_bucket(k, L);"),
    ("3", "bucket 0 is omitted", "    if (last) start_bucket(k, 0);", ""),
    ("4", "the norm is that of the shard",
     "MPI_Allreduce(MPI_IN_PLACE, &squares, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);", "squares *= ranks;"),
    ("4", "the shards of m overlap", "at = k.first[b] / ranks;\n", "at = 0;\n"),
    ("4", "all ranks update the first shard", "adamw(bucket + rank * n,", "adamw(bucket,"),
    ("4", "no rank waits for the all-gather",
     "        MPI_Waitall(L + 1, k.request, MPI_STATUSES_IGNORE);\n        if (rank", "        if (rank"),
    ("5", "no sum after proj", "    sum_over_tensor(a->mid, N * C);\n", ""),
    ("5", "norm1's gradient is not summed", "    sum_over_tensor(d->norm1, N * C);\n", ""),
    ("5", "the head's gradient is not summed", "    sum_over_tensor(d->norm, N * C);\n", ""),
    ("5", "norms count on all tensor ranks", "mesh.tensor_rank > 0 && before < whole(b) ? whole(b) : before, end",
     "before, end"),
    ("5", "proj is cut by rows", "draw(b->proj, 4 * l + 3, C, C, false)", "draw(b->proj, 4 * l + 3, C, C, true)"),
    ("5", "the softmax's maximum is each rank's own",
     "    MPI_Allreduce(MPI_IN_PLACE, max, N, MPI_FLOAT, MPI_MAX, mesh.tensor);\n", ""),
    ("6", "the gradients of norms are not summed", "    sum_over_tensor(k->grads + k->first[b], whole(b));\n", ""),
    ("6", "the gradients of positions are not summed",
     "whole(b));\n    MPI_Ireduce", "b == 0 ? 0 : whole(b));\n    MPI_Ireduce"),
    ("6", "positions of the first rank's rows", "(mesh.tensor_rank * rows + n) % T * C, C);\n}\n\nstatic void embed_b",
     "n % T * C, C);\n}\n\nstatic void embed_b"),
    ("6", "an array that the next call overwrites", "linear_backward(partial, g->fc, d->gelu, gather_rows(a->norm2), w",
     "const float* kept = gather_rows(a->norm2);\n    gather_rows(dx);\n    "
     "linear_backward(partial, g->fc, d->gelu, kept, w"),
    ("7", "the ends do not sum tokens' gradient", "if (b == 0 && mesh.p > 1 && (mesh.first || mesh.last)) {",
     "if (false) {"),
    ("7", "tokens count twice in the norm", "if (b == 0 && !mesh.first && end > whole(0)) end = whole(0);", ""),
    ("7", "a slot is written while it is sent", "MPI_Waitall(2, a->sent, MPI_STATUSES_IGNORE); // of", "// of"),
    ("7", "one slot for all micro-batches", "slots = mesh.p - mesh.stage; //", "slots = 1; //"),
    ("7", "stages draw the weights of the first", "4 * (mesh.stage * mesh.blocks + l)", "4 * l"),
    ("7", "GPipe in place of 1F1B", "f - b <= ahead;", "true;"),
    ("8", "the data group has all stages", "mesh.stage * t + mesh.tensor_rank, rank, &mesh.data",
     "mesh.tensor_rank, rank, &mesh.data"),
    ("8", "replicas take the same micro-batches", "mesh.data_rank * micros + actions[i].micro", "actions[i].micro"),
    ("8", "messages go to the first replica",
     "(stage * mesh.d + mesh.data_rank) * mesh.t", "(stage * mesh.d) * mesh.t"),
    ("a", "the reduce-scatter runs from root to leaves", "t->steps - 1 - turn : turn", "turn : turn"),
    ("a", "a message has the child's chunk", "first = n * list[i].root / RANKS", "first = n * list[i].child / RANKS"),
    ("b", "half of the gradient is summed",
     "memcpy(sum, mode == DC_S3GD ? delta : grads, sizeof(float) * (size_t)size);",
     "memcpy(sum, mode == DC_S3GD ? delta : grads, sizeof(float) * (size_t)(size / 2));"),
    ("b", "DC-S3GD: no update of the mean", "mean[i] += sum[i] / ranks;", ""),
)]
