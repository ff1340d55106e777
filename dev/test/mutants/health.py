"""Faults of the checks of replicas and of skipped steps. Tests: "health N TEXT": the cases of test_health with TEXT in
their command line, on N ranks ("pure": without a trainer)."""
import async_dp

REPLICAS = "trainer/replica_check.h"
MESH, TRAINER, EXCHANGE = "parallel.h", "train_gpt.cu", "parallel/data.h"
PURE, SKIP = "health 1 pure", "health 2 skip"
TENSOR, SITES = "health 4 --tp 2 --zero 1", "health 4 --dp-mode"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("copies: the last stage of two has no copy of the embedding", PURE, REPLICAS, "m->tied && mesh->p > 1 &&",
     "m->tied && mesh->p > 2 &&"),
    ("copies: in a V the last stage has one", PURE, REPLICAS, "mesh->p > 1 && !mesh->folded)", "mesh->p > 1)"),
    ("copies: heads are shared by the wrong ranks", PURE, REPLICAS, "tensor = at->tensor / sharing;",
     "tensor = at->tensor % sharing;"),
    ("copies: norms are cut", PURE, REPLICAS, "if (tensor->parallel == REPLICATED) return REPLICATED_OVER_TP;", ""),
    ("copies: two votes against two are a majority", PURE, REPLICAS,
     "if (same == votes && mine != most) majority = false;", ""),
    ("copies: without a majority no rank is named", PURE, REPLICAS, "wrong[rank[i]] = !majority || number",
     "wrong[rank[i]] = majority && number"),
    ("copies: the largest number has the majority", PURE, REPLICAS, "if (same > votes) {",
     "if (same > votes || mine > most) {"),
    ("copies: numbers that are not looked at are compared", PURE, REPLICAS,
     "if (number[(int64_t)rank * stride] != number[(int64_t)first[color] * stride])",
     "if (number[(int64_t)rank * stride + stride - 1] != number[(int64_t)first[color] * stride + stride - 1])"),
    ("copies: only the first slice of a rank counts", TENSOR, REPLICAS,
     "*sum = (int64_t)((uint64_t)*sum + sums[i]);", "if (i == 0) *sum = (int64_t)((uint64_t)*sum + sums[i]);"),
    ("copies: of a tensor only the last slice counts", "health 2 --tp 2", REPLICAS,
     "*sum = (int64_t)((uint64_t)*sum + sums[i]);", "*sum = (int64_t)(sums[i] % 2);"),
    ("copies: checksums of the check before are added", TENSOR, REPLICAS,
     "    device_zero(device, bytes);\n    for (int i = 0; i < layout->n; i++) {\n"
     "        const Slice* s = &layout->slices[i];\n        const int64_t first",
     "    for (int i = 0; i < layout->n; i++) {\n        const Slice* s = &layout->slices[i];\n"
     "        const int64_t first"),
    ("copies: half of a slice is looked at", TENSOR, REPLICAS,
     "checksum_add(device + i, params + s->offset, slice_elements(s) * (int64_t)sizeof(floatX), first);",
     "checksum_add(device + i, params + s->offset, slice_elements(s) / 2 * (int64_t)sizeof(floatX), first);"),
    ("copies: the last tensor that differs is named", TENSOR, REPLICAS,
     "for (int i = tensors - 1; i >= 0; i--) {", "for (int i = 0; i < tensors; i++) {"),
    ("numbers of all ranks: the own ones are not where they belong", TENSOR, "parallel/process_groups.h",
     "if (c->rank > 0) memcpy(all + c->rank * n, all, (size_t)n * sizeof *all);", ""),
    ("numbers of all ranks: one axis has the size of the first", TENSOR, "parallel/process_groups.h",
     "        n *= c->size;\n", ""),
    ("numbers of all ranks: counted as traffic", TENSOR, "parallel/process_groups.h",
     "comm_all_gather(c, all, all + c->rank * n, n, COMM_INT64);\n        c->size_bytes = counted;",
     "comm_all_gather(c, all, all + c->rank * n, n, COMM_INT64);\n        c->size_bytes = counted + 64;"),
    ("ranks of a site have numbers of their own", SITES, MESH, "at.data += site.d * mesh_site(mesh);",
     "at.data += mesh_site(mesh);"),
    ("skip: the update is made", SKIP, TRAINER, "    if (t->skipped) return;\n", ""),
    ("skip: the message names another tensor", SKIP, "parallel/optimizer.h", "*not_finite = i;",
     "*not_finite = i > 0 ? i - 1 : i;"),
    ("skip: the count never ends", SKIP, TRAINER, "        t->skipped_in_row = 0;\n", "        (void)0;\n"),
]


def run(test, planted):
    return async_dp.run(test, planted)
