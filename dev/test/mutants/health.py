#!/usr/bin/env python3
"""
health.py: is test_health able to fail? Plants faults in what looks after the health of a run, one at a time, as
async_dp.py does, and runs some cases of test_health there.

    python3 dev/test/mutants/health.py [WORD]      only the faults whose description contains WORD

"health N TEXT": the cases with TEXT in their command line, on N ranks; "pure": what needs no trainer.
"""
import sys

import mutate
import async_dp

HEALTH, TRAINER, EXCHANGE = "trainer/health.h", "train_gpt.cu", "parallel/data.h"
PURE, SKIP = "health 1 pure", "health 2 skip"
TENSOR, PIPES, SITES = "health 4 --tp 2 --zero 1", "health 8 --tp 2 --pp 2 --schedule", "health 4 --dp-mode"

# What is wrong; the test that has to see it; file, exact text, replacement.
FAULTS = [
    ("copies: the last stage of two has no copy of the embedding", PURE, HEALTH, "m->tied && mesh->p > 1 &&", "m->tied && mesh->p > 2 &&"),
    ("copies: in a V the last stage has one", PURE, HEALTH, "mesh->p > 1 && !schedule_is_folded(mesh->schedule)) return HELD_AT",
     "mesh->p > 1) return HELD_AT"),
    ("copies: heads are shared by the wrong ranks", PURE, HEALTH, "at->tensor / sharing : at->tensor;", "at->tensor % sharing : at->tensor;"),
    ("copies: norms are cut", PURE, HEALTH, "if (tensor->parallel == REPLICATED) return HELD_BY_ALL_TENSOR;", ""),
    ("copies: two votes against two are a majority", PURE, HEALTH, "if (same == votes && mine != most) alone = false;", ""),
    ("copies: without a majority nobody is named", PURE, HEALTH, "wrong[rank[i]] = !alone || number", "wrong[rank[i]] = alone && number"),
    ("copies: the largest number has the majority", PURE, HEALTH, "if (same > votes) most = mine", "if (same > votes || mine > most) most = mine"),
    ("copies: numbers that are not looked at are compared", PURE, HEALTH,
     "if (number[(int64_t)rank * stride] != number[(int64_t)first[color] * stride])",
     "if (number[(int64_t)rank * stride + stride - 1] != number[(int64_t)first[color] * stride + stride - 1])"),
    ("copies: slices that change places are not seen", TENSOR, HEALTH, "s->state) << 36;", "s->state) * 0;"),
    ("copies: only the first slice of a rank is told", TENSOR, HEALTH, "sum[tensor_holders(&layout->slices[i].tensor, &layout->mesh, m)] += sums[i];",
     "if (i == 0) sum[tensor_holders(&layout->slices[i].tensor, &layout->mesh, m)] += sums[i];"),
    ("copies: kinds are mixed", "health 2 --tp 2", HEALTH, "sum[tensor_holders(&layout->slices[i].tensor, &layout->mesh, m)] += sums[i];",
     "sum[0] += sums[i];"),
    ("copies: checksums of the check before are added", TENSOR, HEALTH, "    device_zero(device, bytes);\n    for (int i = 0; i < layout->n; i++) {\n        const Slice* s = &layout->slices[i];\n        const int64_t first",
     "    for (int i = 0; i < layout->n; i++) {\n        const Slice* s = &layout->slices[i];\n        const int64_t first"),
    ("copies: half of a slice is looked at", TENSOR, HEALTH, "checksum_add(device + i, params + s->offset, slice_elements(s) * (int64_t)sizeof(floatX), first);",
     "checksum_add(device + i, params + s->offset, slice_elements(s) / 2 * (int64_t)sizeof(floatX), first);"),
    ("copies: the last tensor that differs is named", TENSOR, HEALTH, "for (int i = layout->tensors - 1; i >= 0 && differ; i--) {",
     "for (int i = 0; i < layout->tensors && differ; i++) {"),
    ("copies: only the last kind counts", TENSOR, HEALTH, "mesh, m->NKV) || differ;", "mesh, m->NKV);"),
    ("numbers of all ranks: the own ones are not where they belong", TENSOR, "parallel/process_groups.h",
     "if (c->rank > 0) memcpy(all + c->rank * n, all, (size_t)n * sizeof *all);", ""),
    ("numbers of all ranks: one axis has the size of the first", TENSOR, "parallel/process_groups.h", "        n *= c->size;\n", ""),
    ("numbers of all ranks: counted as traffic", SKIP, "parallel/process_groups.h", "comm_all_gather(c, all, all + c->rank * n, n, COMM_INT64);\n        c->size_bytes = counted;",
     "comm_all_gather(c, all, all + c->rank * n, n, COMM_INT64);\n        c->size_bytes = counted + 64;"),
    ("ranks of a site have numbers of their own", PURE, HEALTH, "at.data += site.d * mesh_site(mesh);", "at.data += mesh_site(mesh);"),
    ("places: the way back is not reversed", PURE, HEALTH, "(probe->backward ? n - 1 - at : at)", "at"),
    ("places: micro-batches are one", PURE, HEALTH, "2 * (int64_t)probe->microbatch + probe->backward", "(int64_t)probe->backward"),
    ("places: the last one is remembered", PURE, HEALTH, "probe->first = min_i64(probe->first, place);", "probe->first = place;"),
    ("places: infinities are finite", PURE, HEALTH, "finite = finite && isfinite(x[i]);", "finite = finite && !isnan(x[i]);"),
    ("places: the text is of the block behind", PURE, HEALTH, "const int layer = (int)((at - 1) / 3);", "const int layer = (int)(at / 3);"),
    ("origin: of equal places the last replica's", PURE, HEALTH, "if (here < first) first = here, replica = d;", "if (here <= first) first = here, replica = d;"),
    ("origin: ranks of all replicas are named", PURE, HEALTH, "from[rank] = mesh_at(mesh, rank).data == replica && seen", "from[rank] = seen"),
    ("origin: replicas are not counted", TENSOR, HEALTH, "*replicas += here < NO_PLACE;", "*replicas += 1;"),
    ("origin: weights are not looked at", TENSOR, TRAINER, "    probe_weights(&probe, &s->layout, s->params);\n", ""),
    ("origin: attention is looked at behind the sum", TENSOR, "gpt.h",
     "    nan_probe(s, a, PROBE_ATTENTION, layer, partial, (int64_t)a->N * C);\n    tp_reduce_output(s, a, s->branch, partial);",
     "    tp_reduce_output(s, a, s->branch, partial);\n    nan_probe(s, a, PROBE_ATTENTION, layer, s->branch, (int64_t)a->R * C);"),
    ("origin: blocks have the numbers of their chunk", PIPES, "parallel/tensor.h", "a->chunk->first_layer + layer - a->chunk->begin), x, n)", "layer), x, n)"),
    ("origin: gradients of the step are still there", TENSOR, TRAINER, "    stage_begin_gradients(s);\n    run_schedule(t, pass);\n    comm_synch", "    run_schedule(t, pass);\n    comm_synch"),
    ("origin: of micro-batch 0", TENSOR, TRAINER, "if (s->probe) s->probe->microbatch = k, s->probe->backward = false;", "if (s->probe) s->probe->backward = false;"),
    ("origin: the way back is taken for the way there", TENSOR, TRAINER, "if (s->probe) s->probe->microbatch = k, s->probe->backward = false;", "if (s->probe) s->probe->microbatch = k;"),
    ("origin: sites that do not wait meet", SITES, TRAINER, "&s->layout.mesh, &s->model, !async_schedule_are_late(&s->rounds));", "&s->layout.mesh, &s->model, true);"),
    ("origin: looked for where weights are new", "health 4 --zero 1 --clip 0", TRAINER, "if (!t->schedule.plan.clip || s->grads.late) {", "if (s->grads.late) {"),
    ("origin: counted as traffic", SKIP, TRAINER, "    for (int i = 0; i < GROUPS; i++) list[i]->size_bytes = counted[i];\n    origin", "    origin"),
    ("skip: the update is made", SKIP, TRAINER, "    if (t->health.skipped) return;\n", ""),
    ("skip: for ever", SKIP, TRAINER, "    t->health.skipped = false;\n    if (not_finite", "    if (not_finite"),
    ("skip: the count never ends", SKIP, TRAINER, "        t->health.skipped_in_row = 0;\n", "        (void)0;\n"),
    ("skip: updates come before the norm", SKIP, "trainer/setup.h", "o->clip > 0 || o->on_nan == ON_NAN_SKIP ||", "o->clip > 0 ||"),
    ("scores: a value of the history is lost", PURE, HEALTH, "y[i] = h->value[(h->next + i) % HISTORY];", "y[i] = h->value[(h->next + i + (i == 0)) % HISTORY];"),
    ("scores: the oldest is the newest", PURE, HEALTH, "y[i] = h->value[(h->next + i) % HISTORY];", "y[i] = h->value[i];"),
    ("scores: no slope", PURE, HEALTH, "const double slope = median_of(work, HALF);", "const double slope = 0;"),
    ("scores: a mean, not a median", PURE, HEALTH, "return 0.5 * (x[n / 2 - 1] + x[n / 2]);",
     "double sum = 0; for (int i = 0; i < n; i++) sum += x[i] / n; return sum;"),
    ("scores: the prediction is for the last value", PURE, HEALTH, "*expected = level + slope * HISTORY;", "*expected = level + slope * (HISTORY - 1);"),
    ("scores: said too early", PURE, HEALTH, "if (h->n < HISTORY || !isfinite(x)) return 0;", "if (h->n < 20 || !isfinite(x)) return 0;"),
    ("scores: equal values divide by nothing", PURE, HEALTH, ", 1e-6 * fabs(level) + 1e-30);", ", 0);"),
    ("scores: a NaN is remembered", PURE, HEALTH, "    if (!isfinite(x)) return;\n", ""),
    ("log: steps that were skipped are not counted", PURE, HEALTH, "h->skipped_in_row = h->skipped ? h->skipped_in_row + 1 : 0;", "h->skipped_in_row = h->skipped;"),
    ("log: null is nought", PURE, HEALTH, "return end == at + strlen(name) ? (double)NAN : x;", "return x;"),
]

if __name__ == "__main__":
    sys.exit(mutate.drive(FAULTS, async_dp.DRIVER))
