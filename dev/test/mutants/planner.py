#!/usr/bin/env python3
"""
planner.py: are the planner's tests able to fail? Plants faults in copies of its sources, one at a time, builds the
test that should see it there and runs it: it has to fail, or to crash.

    python3 dev/test/mutants/planner.py [WORD]      only the faults whose description contains WORD

One line a fault: "caught" with the first line of the test that failed, or "MISSED". Last line "N passed, N failed": N
faults were caught, N missed. Standard library only.
"""
import sys

import mutate

SEARCH, FLAGS, STEP, LINKS, WORK, CLUSTER, MEMORY, PROCESS, MEASURED, CALIBRATE = (
    f"planner/{name}.h" for name in "search flags step_sim comm_cost ops cluster memory host_memory measured_device calibrate".split())
TESTS = {SEARCH: "test_planner_search", FLAGS: "test_planner_search", STEP: "test_planner_step", LINKS: "test_planner_step", WORK: "test_planner_step",
         CLUSTER: "test_planner_step", MEMORY: "test_planner_memory", PROCESS: "test_planner_memory", MEASURED: "test_planner_measured",
         CALIBRATE: "test_planner_measured"}

# What is wrong; file, exact text, replacement.
FAULTS = [
    # Choices
    ("choices: no sequence parallelism", SEARCH, "sequence <= (mesh->t > 1)", "sequence <= 0"),
    ("choices: ZeRO-2 is forgotten", SEARCH, "mesh->d > 1 ? 2 : 0", "mesh->d > 1 ? 1 : 0"),
    ("choices: never full recomputation", SEARCH, "recompute <= RECOMPUTE_FULL", "recompute < RECOMPUTE_FULL"),
    ("choices: GPipe without being asked for", SEARCH, " || (q->schedule == ANY && kind == GPIPE)", ""),
    ("choices: zb-v is forgotten", SEARCH, "kind < SCHEDULE_KINDS; kind++", "kind < SCHEDULE_KINDS - 1; kind++"),
    ("choices: two chunks at most", SEARCH, "kind == INTERLEAVED ? most : first", "first"),
    ("choices: chunks of unequal length", SEARCH, " && q->model.L % (mesh->p * v) != 0", " && false"),
    ("choices: a said number of chunks has to be equal", SEARCH, "v > first && q->v <= 0 &&", "v > first &&"),
    ("choices: divisors below the root", SEARCH, "k <= (i < pair[1])", "k < 1"),
    ("choices: the root twice", SEARCH, "k <= (i < pair[1])", "k <= 1"),
    ("choices: micro-batches of one", SEARCH, "i * i <= replica", "i < 2"),
    ("choices: the trainer's rules are not asked", SEARCH, "if (!step_check(setup, &error)) {", "if (0) {"),
    ("choices: --tp is ignored", SEARCH, "!is_wanted(q->t, t) || ", ""),
    ("choices: --dp is ignored", SEARCH, " || !is_wanted(q->d, d)", ""),
    ("choices: --micro-batch is ignored", SEARCH, " || !is_wanted(x->q->B, (int)pair[k])", ""),
    ("choices: --zero 0 is any", SEARCH, "return asked == ANY || asked == value;", "return asked <= 0 || asked == value;"),
    ("choices: --zero has to fit one replica", SEARCH, "if (mesh->d > 1 && !is_chosen(q->zero", "if (!is_chosen(q->zero"),
    ("choices: half of the ranks do nothing", SEARCH, "t * p * d != q->ranks || ", ""),
    # The search
    ("search: worst bound first", SEARCH, "return x < y ? -1 : x > y;", "return x > y ? -1 : x < y;"),
    ("search: not sorted", SEARCH, "qsort(all.list", "if (0) qsort(all.list"),
    ("search: ends at the first row's time", SEARCH, "a->row[q->rows - 1].cost.seconds) return false",
     "a->row[0].cost.seconds) return false"),
    ("search: ends before there are enough rows", SEARCH, "if (a->n == q->rows && c.bound", "if (a->n > 0 && c.bound"),
    ("search: leaves a row at the first rival", SEARCH, "if (rival >= 0 && c.bound > a->row", "if (rival >= 0 && 1 > a->row"),
    ("search: what does not fit is a row", SEARCH, "if (c.memory.bytes > setup_room(&c.setup) && !q->any_memory) {", "if (0) {"),
    ("search: the most memory, not the least", SEARCH,
     "c.memory.bytes < a->least_memory", "c.memory.bytes > a->least_memory"),
    ("search: a worse choice takes the place", SEARCH, "if (rival < 0 || choice_is_better(&c, &a->row[rival])) ", ""),
    ("search: rows are not in order", SEARCH, "at > 0 && choice_is_better(c, &a->row[at - 1])", "at > 0 && false"),
    ("search: rows differ in the mesh alone", SEARCH, "&& x->schedule == y->schedule", ""),
    ("search: a row for every choice", SEARCH, "x->t == y->t && x->p == y->p &&", "a->bound == b->bound &&"),
    ("search: a rival before there is room", SEARCH, "a->n < rows ? -1 : a->n - 1", "a->n < 1 ? -1 : a->n - 1"),
    ("search: clipping always", SEARCH, "setup.clip = q->clip;", ""),
    ("search: the bound is twice", SEARCH, "const double bound = step_bound(&s)", "const double bound = 2 * step_bound(&s)"),
    ("search: ranks that are faster alone", SEARCH, "/ fastest * (1", "* (1"),
    ("search: threads are not shared", SEARCH, "if (!c->cores) return;", "return;"),
    ("search: every rank has all memory", SEARCH, "c->device.memory / mesh_size(&s->mesh)", "c->device.memory"),
    ("search: no memory is said, so none is there", SEARCH, "if (c->device.memory <= 0) return INFINITY;", ""),
    ("search: others' memory as ours", SEARCH, "if (s->software->ours) return plan_memory", "if (true) return plan_memory"),
    ("search: formulas without ZeRO", SEARCH, "s->mesh.zero > 0, s->mesh.d)", "false, s->mesh.d)"),
    ("search: an answer without any choice", SEARCH,
     "if (answer->n > 0 || answer->too_large > 0) return true;", "return true;"),
    ("recommended: the first", SEARCH, "if (a->row[i].memory.bytes < best", "if (0 && a->row[i].memory.bytes < best"),
    ("recommended: the smallest of all", SEARCH, "&& a->row[i].cost.seconds <= 1.001 * a->row[0].cost.seconds", ""),
    ("recommended: 1 % slower", SEARCH, "<= 1.001 *", "<= 1.01 *"),
    # The trainer's options
    ("flags: chunks are left out", FLAGS, 'if (m->v != schedule_usual_chunks(m->schedule)) fprintf', "if (0) fprintf"),
    ("flags: usual chunks are one", FLAGS, "m->v != schedule_usual_chunks(m->schedule)", "m->v > 2"),
    ("flags: the schedule is left out", FLAGS, "if (m->schedule != ONE_F_ONE_B) fprintf", "if (0) fprintf"),
    ("flags: ZeRO is left out", FLAGS, "if (m->zero) fprintf", "if (0) fprintf"),
    ("flags: recomputation is left out", FLAGS, "if (m->recompute != RECOMPUTE_NONE) fprintf", "if (0) fprintf"),
    ("flags: recomputation is always full", FLAGS, "recompute_names[m->recompute]", "recompute_names[2]"),
    ("flags: sequence parallelism is left out", FLAGS, "if (m->sequence_parallel) fprintf", "if (0) fprintf"),
    ("flags: micro-batches of one", FLAGS, "(long long)s->batch, s->B)", "(long long)s->batch, 1)"),
    ("flags: the batch is a replica's", FLAGS, "(long long)s->batch, s->B)", "(long long)s->batch / m->d, s->B)"),
    ("flags: t and p exchanged", FLAGS, "m->t, m->p, m->d);", "m->p, m->t, m->d);"),
    ("flags: sites are left out", FLAGS, "if (m->sites > 1) fprintf", "if (0) fprintf"),
    ("flags: clips always", FLAGS, "if (!s->clip) fprintf", "if (0) fprintf"),
    ("flags: as many key heads as query heads", FLAGS, "if (m->NKV != m->NH) fprintf", "if (0) fprintf"),
    ("flags: a preset without what changes it", FLAGS, "if (o->type == OPTION_INT) fprintf", "if (0) fprintf"),
    ("flags: the usual model in place of the preset", FLAGS, 'if (option_given(table, n, "model"))', "if (true)"),
    # Time
    ("time: the update is free", STEP, "list_seconds(g, work_optimizer, elements[k] / share) + gather", "gather"),
    ("time: ZeRO divides nothing", STEP, "const double share = mesh->zero ? mesh->d : 1, bytes", "const double share = 1, bytes"),
    ("time: three passes in equation 3", STEP, "return 96.0 * batch", "return 72.0 * batch"),
    ("time: a stage's wait is no bubble", STEP, "x->stage[r].spent[STEP_BUBBLE] += wait - message;", ""),
    ("time: sums cost nothing beside computing", STEP, "const double lost = p->overlap_cost *", "const double lost = 0 *"),
    ("time: the bound forgets to drain", STEP, "alone - weights + drain", "alone + weights + drain"),
    ("time: a head on every stage", STEP, "if (last) price_add(&c->forward, &lists->head[0], 1)",
     "if (true) price_add(&c->forward, &lists->head[0], 1)"),
    ("time: messages whole in spite of rows", STEP, "bytes / (rows || scatters ? mesh->t : 1)", "bytes"),
    ("links: one pass of an all-reduce", LINKS, "kind == PLAN_ALL_REDUCE ? 2 : 1", "1"),
    ("links: a node's adapters for one group", LINKS, "* g.inside / c->node_gpus;", ";"),
    ("links: oversubscription is free", LINKS, "fmax(1, c->oversubscription * leaving)", "1"),
    ("links: messages stay in the node", LINKS, "<= c->node_gpus) return cost;", "<= 1000000) return cost;"),
    ("links: a torus is as near everywhere", LINKS, "*hops += way,", "*hops += 0,"),
    ("work: attention forward as backward", WORK, "const double low = d->attention[0][backward]",
     "const double low = d->attention[0][0]"),
    ("work: hidden collectives count whole", WORK, "(1 - r->cluster->overlap_cost) * fmin(seconds, over)", "0"),
    ("work: kernels are tuned always", WORK, "op->bytes / r->software->kernels", "op->bytes"),
    ("cluster: an A100 with 512 TFLOP/s", CLUSTER, '{"dgx-a100", GENERATION_AMPERE, 312e12', '{"dgx-a100", GENERATION_AMPERE, 512e12'),
    ("cluster: bits are bytes", CLUSTER, "        value /= 8;\n", ""),
    ("cluster: what is given twice", CLUSTER, "if (r->given[which]) return", "if (0) return"),
    ("cluster: no usual values are named", CLUSTER, "l->kind == LINE_SHEET ? missing : c->assumed;", "missing;"),
    # Memory, measured machines
    ("memory: the first stage only", MEMORY, "at.pipeline < plan->p;", "at.pipeline < 1;"),
    ("memory: the last stage, not the largest", MEMORY, "if (x.bytes > largest->bytes) *largest = x;", "*largest = x;"),
    ("process: one copy of ZeRO's sums", PROCESS, "mesh->d > 2 ? 2 : 1", "1 ? 1 : 1"),
    ("process: no packed matrices", PROCESS, "2.0 * HUGE_PAGE * setup->threads", "0 * setup->threads"),
    ("process: tokens on every stage", PROCESS, "x.tokens = reads ?", "x.tokens = 1 ?"),
    ("measured: rates between points are linear", MEASURED, "log(x / axis[i]) / log(axis[i + 1] / axis[i])",
     "(x - axis[i]) / (axis[i + 1] - axis[i])"),
    ("measured: no tiles", MEASURED, "ceil(ceil(columns / across) / nr) * nr", "ceil(columns / across)"),
    ("measured: all threads are one", MEASURED, "? THREADS_ALL\n", "? THREADS_ONE\n"),
    ("measured: points may be missing", MEASURED, "if (g->value[c] == 0 &&", "if (0 && g->value[c] == 0 &&"),
    ("measured: points may be there twice", MEASURED, "if (*value != 0) return", "if (0) return"),
    ("measured: no room for the last axis", MEASURED, "cells *= g->n[a];", "cells *= a < 2 ? g->n[a] : 1;"),
    ("measured: rates of any size", MEASURED, "*value >= measured_least", "*value > 0"),
    ("calibrate: the wrong way round", CALIBRATE, "* seconds / cost.seconds", "* cost.seconds / seconds"),
    ("calibrate: what was known is forgotten", CALIBRATE, "measured_corrected(m, ranks) * seconds", "seconds"),
    ("measured: corrections are forgotten", MEASURED, "measured_corrected(m, busy) *", "1 *"),
    ("measured: more ranks are not slower", MEASURED, "fmax(1, k / g->axis[0][r])", "1"),
]


if __name__ == "__main__":
    sys.exit(mutate.main(FAULTS, TESTS))
