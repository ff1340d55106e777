#!/usr/bin/env python3
"""
plans.py: are test_collective and test_comm_planned able to fail? Plants faults in copies of the sources of networks
and plans (collective/*.h, comm/collectives/collectives.h) and, where there is MPI, of what runs them (comm/comm_planned.h, comm.h), one at a
time, builds the test there and runs it, the second one on 4 ranks: it has to fail, to crash, or to hang.

    python3 dev/test/mutants/plans.py [WORD]      only the faults whose description contains WORD

One line a fault: "caught" with the first line of the test that failed, or "MISSED". Last line "N passed, N failed": N
faults were caught, N missed. Standard library only.
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile

from mutate import copy_sources, mutated

SECONDS = 120  # for a run; it takes three
CC = os.environ.get("CC", "gcc")
COMPILE = [CC, "-std=gnu11", "-O0", "-w"]  # compiling takes longer than most runs
ALL, NETWORK, PLAN = "comm/collectives/collectives.h", "comm/collectives/topology.h", "comm/collectives/plan.h"
RUNNER, COMM = "comm/comm_planned.h", "comm.h"
RINGS, MULTITREE, FOREST = "comm/collectives/ring.h", "comm/collectives/multitree.h", "comm/collectives/forest.h"

# What is wrong; file, exact text, replacement.
FAULTS = [
    # Networks
    ("grid: the ports of the dimensions in the other order", NETWORK,
     "        for (int i = 0; i < net->dimensions; i++) {\n            for (int by = -1;",
     "        for (int i = net->dimensions - 1; i >= 0; i--) {\n            for (int by = -1;"),
    ("grid: up before down", NETWORK, "for (int by = -1; by <= 1; by += 2)", "for (int by = 1; by >= -1; by -= 2)"),
    ("torus: a side of 2 has two links", NETWORK, "(!net->wraps || side == 2)", "!net->wraps"),
    ("mesh: wraps, too", NETWORK, "net->wraps = ring || IS(\"torus\");", "net->wraps = grid;"),
    ("ring: does not close", NETWORK, "net->wraps = ring || IS(\"torus\");", "net->wraps = IS(\"torus\");"),
    ("coordinates: the first dimension runs fastest", NETWORK,
     "for (int i = net->dimensions - 1; i > dimension; i--) r /= net->sides[i];",
     "for (int i = 0; i < dimension; i++) r /= net->sides[i];"),
    ("ports: switches before ranks", NETWORK,
     "next[2 * net->link[i].from + (net->link[i].to >= net->ranks) + 1]++;",
     "next[2 * net->link[i].from + (net->link[i].to > net->ranks) + 1]++;"),
    ("fat tree: switches differ in the wrong digit", NETWORK, "for (int l = 0; l + 1 < levels; l++, stride *= k)",
     "for (int l = 0; l + 1 < levels; l++)"),
    ("fat tree: one level less", NETWORK, "l + 1 < levels", "l + 2 < levels"),
    ("fat tree: ways may be longer", NETWORK, "net->reach = 2 * levels - 1;", "net->reach = 2 * levels;"),
    ("bigraph: ways over three switches", NETWORK,
     "network_join(net, net->ranks + a, net->ranks + b);\n    }\n    net->reach = 2;",
     "network_join(net, net->ranks + a, net->ranks + b);\n    }\n    net->reach = 3;"),
    ("bigraph: upper switches are joined, too", NETWORK, "for (int b = switches / 2; b < switches; b++)",
     "for (int b = a + 1; b < switches; b++)"),
    ("dgx: seven links", NETWORK, "i < 8; i++) network_join(net, 16, 17)", "i < 7; i++) network_join(net, 16, 17)"),
    ("names: any number of numbers", NETWORK, "grid ? numbers < 2 : numbers != 2", "grid ? numbers < 2 : numbers < 1"),
    ("names: signs and spaces before numbers", NETWORK, " || *text < '0' || *text > '9') return 0;", ") return 0;"),
    ("names: numbers of any size", NETWORK, "x < 1 || x > NETWORK_LARGEST ||", "x < 1 ||"),
    ("names: 0 is a number", NETWORK, "end == text || x < 1 ||", "end == text || x < 0 ||"),
    ("names: an odd number of switches", NETWORK, "(bigraph && n[1] % 2 != 0) ||", "0 ||"),
    ("size: switches are not counted", NETWORK, "ranks + switches > NETWORK_LARGEST)", "ranks > NETWORK_LARGEST)"),
    ("size: one too many", NETWORK, "ranks + switches > NETWORK_LARGEST)", "ranks + switches > NETWORK_LARGEST + 256)"),
    ("full: of any size", NETWORK, "if (full && ranks > 1024)", "if (full && ranks > 1025)"),
    ("files: bits are bytes", NETWORK, "1e9 / 8, 1e6 / 8, 1e3 / 8", "1e9, 1e6 / 8, 1e3 / 8"),
    ("files: kbit are Mbit", NETWORK, "1e6 / 8, 1e3 / 8", "1e6 / 8, 1e6 / 8"),
    ("files: microseconds are milliseconds", NETWORK, "{1e-9, 1e-6, 1e-3, 1}", "{1e-9, 1e-3, 1e-3, 1}"),
    ("files: infinite bandwidths", NETWORK, "isfinite(x * factors[i]) && ", "x == x && "),
    ("files: a bandwidth of nothing", NETWORK, "units, factors, 6, 1, bandwidth", "units, factors, 6, 0, bandwidth"),
    ("files: negative latencies", NETWORK, "units, factors, 4, 0, latency", "units, factors, 4, -1, latency"),
    ("files: anything may follow a number", NETWORK, "end == word || *end ||", "end == word ||"),
    ("files: a rank may be the number of vertices", NETWORK, "network_word_number(words[2], 0, net->vertices - 1, &b)",
     "network_word_number(words[2], 0, net->vertices, &b)"),
    ("files: links to oneself", NETWORK, " || a == b)", ")"),
    ("files: ranks twice", NETWORK, "(ranks ? net->ranks > 0 :", "(ranks ? 0 :"),
    ("files: switches after links", NETWORK, "NETWORK_LARGEST, &a) || net->links ||", "NETWORK_LARGEST, &a) ||"),
    ("files: switches before ranks", NETWORK, ": net->ranks == 0 || network_has_switches(net))",
     ": network_has_switches(net))"),
    ("files: switches twice", NETWORK, ": net->ranks == 0 || network_has_switches(net))", ": net->ranks == 0)"),
    ("files: words beyond the latency", NETWORK, "n < 3 || n > 5 ||", "n < 3 ||"),
    ("files: oneway leads both ways", NETWORK, "if (both) network_add", "network_add"),
    ("files: the rest of a long line is a line", NETWORK, "if (!strchr(line, '\\n') && !feof(file))", "if (0)"),
    ("files: comments are words", NETWORK, "line[strcspn(line, \"#\")] = 0;", ""),
    ("files: a folder is an empty file", NETWORK, "if (ok && ferror(file))", "if (0)"),
    ("reversed: not sorted by ends", NETWORK, "net->link[i].to, net->link[i].from, net->link[i].bandwidth",
     "net->link[i].from, net->link[i].to, net->link[i].bandwidth"),
    ("symmetric: whatever the speeds", NETWORK,
     "back += net->link[k].to == a->from && net->link[k].bandwidth == a->bandwidth;",
     "back += net->link[k].to == a->from;"),
    ("symmetric: always", NETWORK, "if (there != back) return false;", "if (back == 0) return false;"),
    ("check: only ways from rank 0", NETWORK, "for (int way = 0; way < 2 && ok; way++)",
     "for (int way = 1; way < 2 && ok; way++)"),
    ("check: only ways to rank 0", NETWORK, "for (int way = 0; way < 2 && ok; way++)",
     "for (int way = 0; way < 1 && ok; way++)"),
    ("check: not at all", NETWORK, "if (ok && network_check(net, error)) return true;", "if (ok) return true;"),
    ("slowest: the fastest", NETWORK, "slowest = fmin(slowest", "slowest = fmax(slowest"),
    ("parallel links: never", NETWORK, "net->link[i].to) != i) return true;", "net->link[i].to) != i) return false;"),
    ("routes: the first dimension first", NETWORK,
     "    for (int i = net->dimensions - 1; i >= 0; i--) {\n        const int side = net->sides[i], by",
     "    for (int i = 0; i < net->dimensions; i++) {\n        const int side = net->sides[i], by"),
    ("routes: never around the end", NETWORK, "net->wraps && side > 2 && 2 * abs(by) > side", "false"),
    ("routes: around the end of a mesh", NETWORK, "net->wraps && side > 2 && 2 * abs(by) > side",
     "side > 2 && 2 * abs(by) > side"),
    ("routes: around the end too early", NETWORK, "2 * abs(by) > side", "2 * abs(by) > side - 2"),
    ("routes: no turns", NETWORK, "? to % near : -1", "? 0 : -1"),
    ("routes: hops forwards", NETWORK, "network_hops(&back, to, hops, hops + net->vertices);\n        for (int v = 0",
     "network_hops(net, to, hops, hops + net->vertices);\n        for (int v = 0"),
    # Plans
    ("chunks: the last ones are longer", PLAN, "min_i64(c % chunks, left)", "max_i64(0, c % chunks - (chunks - left))"),
    ("chunks: parts are not as long as each other", PLAN,
     "const int64_t parts = plan->kind == PLAN_ALL_REDUCE ? 1 : plan->ranks,",
     "const int64_t parts = 1,"),
    ("sort: ways stay behind", PLAN, "if (place) place[to] = i;", "if (place) place[to] = to;"),
    ("sort: later ones first", PLAN, "for (int64_t i = 0; i < plan->n; i++) {\n        const int64_t to",
     "for (int64_t i = plan->n - 1; i >= 0; i--) {\n        const int64_t to"),
    ("sent: what comes, too", PLAN, "if (plan->transfers[i].from == rank)",
     "if (plan->transfers[i].from == rank || plan->transfers[i].to == rank)"),
    ("room: rounded up", PLAN, "fmin(link->bandwidth / slowest * (1 + 1e-9), 1 << 30)",
     "fmin(ceil(link->bandwidth / slowest * (1 + 1e-9)), 1 << 30)"),
    ("room: without bound", PLAN, "fmin(link->bandwidth / slowest * (1 + 1e-9), 1 << 30)",
     "(link->bandwidth / slowest * (1 + 1e-9))"),
    ("room: always one", PLAN, "return (int)fmin(", "return 1 + 0 * (int)fmin("),
    ("room: exact", PLAN, "slowest * (1 + 1e-9)", "slowest * (1 - 1e-9)"),
    ("proof: 64 ranks at most", PLAN, "for (int w = 0; w < words; w++) {\n        const int left",
     "for (int w = 0; w < 1; w++) {\n        const int left"),
    ("proof: what is not there can be sent", PLAN, "if (set_is_empty(p->sent + (size_t)i * words, p->words))",
     "if (0)"),
    ("proof: adding to nothing", PLAN, "if (t->add && set_is_empty(set, p->words))", "if (0)"),
    ("proof: adding twice", PLAN, "if (t->add && (set[w] & came[w]))", "if (0)"),
    ("proof: losing something", PLAN, "if (!t->add && (set[w] & ~came[w]))", "if (0)"),
    ("proof: sums depend on their sides", PLAN, "return proof_mix((a < b ? a : b) + proof_mix(a < b ? b : a));",
     "return proof_mix(a + proof_mix(b));"),
    ("proof: all orders are one", PLAN, "return proof_mix((a < b ? a : b) + proof_mix(a < b ? b : a));",
     "return a + b;"),
    ("proof: orders are not compared", PLAN, "p->order[r] != p->order[0])", "0)"),
    ("proof: a step's sums are sent in it", PLAN, "const uint64_t* came = p->sent + (size_t)i * words;",
     "const uint64_t* came = p->sets + (size_t)t->from * words;"),
    ("proof: a step's order is sent in it", PLAN, "p->sent_order[i]) : p->sent_order[i];",
     "p->order[t->from]) : p->order[t->from];"),
    ("proof: only the owner's result counts", PLAN, "plan->kind == PLAN_REDUCE_SCATTER && r != owner", "r != owner"),
    ("proof: nobody's result counts in a reduce-scatter", PLAN, "plan->kind == PLAN_REDUCE_SCATTER && r != owner",
     "plan->kind == PLAN_REDUCE_SCATTER"),
    ("proof: only the first of a row's chunks", PLAN, "for (int c = 0; c < plan->transfers[i].chunks; c++) next[",
     "for (int c = 0; c < 1; c++) next["),
    ("proof: the last chunk is left out", PLAN, "for (int c = 0; c < plan->chunks && ok; c++) {\n        proof_begin",
     "for (int c = 0; c + 1 < plan->chunks && ok; c++) {\n        proof_begin"),
    ("proof: rows out of order", PLAN, " || (i > 0 && t->step < t[-1].step))", ")"),
    ("proof: messages to oneself", PLAN, "t->to >= plan->ranks || t->from == t->to ||", "t->to >= plan->ranks ||"),
    ("proof: steps without end", PLAN, "t->step < 0 || t->step >= plan->steps ||", "t->step < 0 ||"),
    ("proof: one chunk too many", PLAN, "t->chunks > plan->chunks - t->chunk ||",
     "t->chunks > plan->chunks - t->chunk + 1 ||"),
    ("proof: sums of chunks that overflow", PLAN, "t->chunks > plan->chunks - t->chunk ||",
     "t->chunks + t->chunk > plan->chunks ||"),
    ("proof: no chunks", PLAN, "t->chunk < 0 || t->chunks < 1 ||", "t->chunk < 0 ||"),
    ("proof: parts of chunks", PLAN, "(plan->kind != PLAN_ALL_REDUCE && plan->chunks % plan->ranks != 0))", "0)"),
    ("proof: another network", PLAN, "if (net && net->ranks != plan->ranks)", "if (0)"),
    ("links: not checked", PLAN, "if (plan->exclusive && net && !plan_check_links", "if (0 && !plan_check_links"),
    ("links: checked where nothing is promised", PLAN, "if (plan->exclusive && net &&", "if (net &&"),
    ("links: one more than there is room for", PLAN, "if (used[l] > plan_room", "if (used[l] > 1 + plan_room"),
    ("links: counted once for all steps", PLAN, "used[l] = step[l] == t->step + 1 ? used[l] + 1 : 1;", "used[l]++;"),
    ("links: ways with gaps", PLAN, "l >= net->links || net->link[l].from != at)", "l >= net->links)"),
    ("links: ways that end elsewhere", PLAN, "if (ok && at != t->to)", "if (0)"),
    ("cost: the sum of all latencies", PLAN, "longest = fmax(longest, latency);", "longest += latency;"),
    ("cost: links stay busy", PLAN, "from, links) - 1; k >= 0; k--) busy[links[k]] = 0;",
     "from, links) - 1; k >= 1; k--) busy[links[k]] = 0;"),
    ("cost: one chunk a row", PLAN, "plan->transfers[i].chunks * bytes / plan->chunks", "bytes / plan->chunks"),
    ("cost: the latency of the last link", PLAN, "latency += link->latency;", "latency = link->latency;"),
    # Rings
    ("ring order: forth and forth", RINGS, "i % 2 == 0 ? k : columns - 1 + from - k", "k"),
    ("ring order: not turned", RINGS, "A % 2 != 0 && B % 2 == 0", "false"),
    ("ring order: the snake goes forth only", RINGS, "order[(at - 1) * n + n - 1 - k] + stride",
     "order[(at - 1) * n + k] + stride"),
    ("ring order: the farthest rank", RINGS, "hops[r] < hops[nearest]", "hops[r] > hops[nearest]"),
    ("ring order: the last of the nearest", RINGS, "hops[r] < hops[nearest]", "hops[r] <= hops[nearest]"),
    ("ring: a wrong piece", RINGS, "(i - by * (s + add)) % n", "(i - by * s) % n"),
    ("ring: a step too few", RINGS, "for (int s = 0; s < n - 1; s++)", "for (int s = 0; s < n - 2; s++)"),
    ("ring-both: both the same way", RINGS, "if (kind != PLAN_ALL_GATHER) step = ring_pass(plan, &ring, d ? -1 : 1,",
     "if (kind != PLAN_ALL_GATHER) step = ring_pass(plan, &ring, 1,"),
    ("ring: the gathering begins too early", RINGS, "ring_pass(plan, &ring, d ? -1 : 1, step, false);",
     "ring_pass(plan, &ring, d ? -1 : 1, step - (step > 0), false);"),
    ("2d-ring: all parts begin in the first dimension", RINGS, "const int dimension = (q / 2 + i) % dimensions, side",
     "const int dimension = i % dimensions, side"),
    ("2d-ring: all parts go right", RINGS, "ring_pass(plan, &ring, q % 2 ? -1 : 1, step, true);",
     "ring_pass(plan, &ring, 1, step, true);"),
    ("torus-ring: every line shares the whole part", RINGS, "first += room *", "first += 0 *"),
    ("torus-ring: back in the same order", RINGS, "2 * dimensions - 1 - phase, dimension",
     "phase - dimensions, dimension"),
    ("torus-ring: all parts begin in the first dimension", RINGS,
     "dimension = (q / 2 + i) % dimensions;\n            for (int r",
     "dimension = i % dimensions;\n            for (int r"),
    ("halving: the nearest first in a reduce-scatter, too", RINGS,
     "r >> (kind == PLAN_ALL_REDUCE ? i : bits - 1 - i) & 1", "r >> i & 1"),
    ("halving: sends what it keeps", RINGS, "phase == 0 ? r ^ partner : r, round + 1", "r, round + 1"),
    ("halving: those aside get nothing", RINGS, "plan_add(plan, step, r - inside, r, 0, inside, false);",
     "plan_add(plan, step, r - inside, r, 0, inside - (inside > 1), false);"),
    ("halving: those aside get it too early", RINGS, "plan_add(plan, step, r - inside, r, 0, inside, false);",
     "plan_add(plan, step - 1, r - inside, r, 0, inside, false);"),
    ("double tree: one tree twice", RINGS, "return tree == 0 ? place : N % 2 == 0 ?",
     "return tree >= 0 ? place : N % 2 == 0 ?"),
    ("double tree: a chain", RINGS, "return i == 0 ? -1 : up < N ? up : i ^ bit;", "return i - 1;"),
    ("double tree: pieces wait for each other", RINGS, "plan_add(plan, piece + height - depth[i]",
     "plan_add(plan, 2 * piece + height - depth[i]"),
    ("double tree: down a step too early", RINGS, "piece + height + depth[i] - 1,", "piece + height + depth[i] - 2,"),
    # MultiTree
    ("multitree: those who joined in this step are parents", MULTITREE, "t->place[tree] < t->old[tree]",
     "t->place[tree] < t->count[tree]"),
    ("multitree: a step ends when the last tree did not grow", MULTITREE, "grown |= tree_turn(&t, tree);",
     "grown = tree_turn(&t, tree);"),
    ("multitree: one round of turns a step", MULTITREE, "for (bool grown = true; grown;) {",
     "for (bool grown = true; grown; grown = false) {"),
    ("multitree: the last tree first", MULTITREE,
     "for (int tree = 0; tree < t.trees; tree++) grown |= tree_turn(&t, tree);",
     "for (int tree = t.trees - 1; tree >= 0; tree--) grown |= tree_turn(&t, tree);"),
    ("multitree: links are free for ever", MULTITREE, "        t->left[t->from[at]]--;", "        (void)0;"),
    ("multitree: every link has room for one", MULTITREE, "t.full[i] = plan_room(&net->link[i], slowest);",
     "t.full[i] = slowest > 0;"),
    ("multitree: one search for all reaches", MULTITREE, "t->reach[tree] = 1;", "t->reach[tree] = net->reach;"),
    ("multitree: places stay for the next reach", MULTITREE, "t->reach[tree]++, t->place[tree] = 0)",
     "t->reach[tree]++)"),
    ("multitree: a switch less", MULTITREE, "t->reach[tree] <= t->net->reach;",
     "t->reach[tree] < t->net->reach || t->net->reach == 1 && t->reach[tree] == 1;"),
    ("multitree: switches counted wrongly", MULTITREE, "level_end = tail, switches++;", "switches++;"),
    ("multitree: any number of switches", MULTITREE, "if (to >= net->ranks && switches == reach) continue;", ""),
    ("multitree: parents dropped too early", MULTITREE, "keep = !tree_has(t, tree, net->link[k].to);",
     "keep = tree_has(t, tree, net->link[k].to) && net->links < 9;"),
    ("multitree: trees of a rank have other roots", MULTITREE, "tree_join(&t, tree, tree / per_rank);",
     "tree_join(&t, tree, tree % net->ranks);"),
    ("multitree: up in the order of down", MULTITREE, "first_step + t->steps - 1 - e->step", "first_step + e->step"),
    ("multitree: both phases at once", MULTITREE, "up ? rises->steps : 0, net", "0, net"),
    ("multitree: the way up is that down", MULTITREE, "up ? e->length - 1 - k : k", "k"),
    ("multitree: parallel links back are one", MULTITREE, "&& place-- == 0) return i;", ") return i;"),
    ("multitree: links back of any speed", MULTITREE,
     "net->link[i].to == l->from && net->link[i].bandwidth == l->bandwidth && place",
     "net->link[i].to == l->from && place"),
    ("multitree: one-way links lead back, too", MULTITREE, "const bool symmetric = network_is_symmetric(net), up",
     "const bool symmetric = true, up"),
    ("multitree: no ways where links are parallel", MULTITREE,
     "network_has_switches(net) || network_has_parallel_links(net)", "network_has_switches(net)"),
    ("multitree: promises nothing", MULTITREE, "plan->exclusive = true;", ""),
    # Forests
    ("forest: the most used links", FOREST, "used[l] > used[best] ||", "used[l] < used[best] ||"),
    ("forest: far ranks first", FOREST, "depth[order[i]] >= depth[net->link[best].from]",
     "depth[order[i]] < depth[net->link[best].from]"),
    ("forest: trees are laid once", FOREST, "enum { FOREST_ROUNDS = 4 }", "enum { FOREST_ROUNDS = 1 }"),
    ("forest: the old tree is not taken up", FOREST, "if (i >= trees) forest_use(net, parent, used, -1);", ""),
    ("forest: all trees from rank 0", FOREST, "(int)((int64_t)k * N / trees)", "0"),
    ("forest: roots stay where they are", FOREST, "for (int up = depth[at] / 2; up > 0; up--)",
     "for (int up = depth[at]; up > 0; up--)"),
    ("forest: used links count one way", FOREST, "parent[link->from] == link->to || parent[link->to] == link->from",
     "parent[link->from] == link->to"),
    ("forest: every link has room for one", FOREST, "steps[l].room = plan_room(&net->link[l], slowest);",
     "steps[l].room = slowest > 0;"),
    ("forest: steps have room without end", FOREST, "if (++l->used[step] == l->room)",
     "if (++l->used[step] == l->room + 1)"),
    ("forest: sums do not wait", FOREST, "ready[up] = (int)max_i64(ready[up], step + 1);", "ready[up] = step + 1;"),
    ("forest: sent on in the step in which it comes", FOREST, "ready[child] = step + 1;", "ready[child] = step;"),
    ("forest: promises nothing", FOREST, "plan->exclusive = true;", ""),
    ("forest: all trees take one share", FOREST, "tree * pieces + piece, steps, ready", "piece, steps, ready"),
    # Names of algorithms
    ("algorithms: beginnings of names", ALL, "strlen(algorithm_name(a)) != length ||", ""),
    ("algorithms: numbers that nobody takes", ALL, "if (!colon || (n > 0 && n <= most)) return true;",
     "if (!colon || n <= most) return true;"),
    ("algorithms: too many numbers", ALL, "if (!colon || (n > 0 && n <= most)) return true;",
     "if (!colon || n > 0) return true;"),
    ("algorithms: numbers of any size", ALL, "choice->numbers[i] > 1024", "choice->numbers[i] > 1025"),
    ("algorithms: rings of grids anywhere", ALL, "net->dimensions < 2) return", "net->dimensions < 1) return"),
    ("algorithms: double trees scatter", ALL, "a == TORUS_RING || a == DOUBLE_TREE) && parts)",
     "a == TORUS_RING) && parts)"),
    ("algorithms: halving anything", ALL, "(net->ranks & (net->ranks - 1)) != 0)", "0)"),
    ("algorithms: forests of switches", ALL, "a == FOREST && network_has_switches(net)",
     "a == FOREST && net->ranks == 0"),
    ("algorithms: forests of one-way links", ALL, "a == FOREST && !network_is_symmetric(net)",
     "a == FOREST && net->ranks == 0"),
    ("algorithms: ring-both is ring", ALL, "plan_ring(plan, kind, net, 2);", "plan_ring(plan, kind, net, 1);"),
    ("algorithms: other defaults", ALL, "a ? a : 8, b ? b : 32", "a ? a : 8, b ? b : 16"),
    ("algorithms: other pieces", ALL, "plan_double_tree(plan, net->ranks, a ? a : 8)",
     "plan_double_tree(plan, net->ranks, a ? a : 4)"),
    ("algorithms: multitree's number is ignored", ALL, "default: plan_multitree(plan, kind, net, a ? a : 1);",
     "default: plan_multitree(plan, kind, net, 1);"),
    ("algorithms: a forest scatters by one tree", ALL, "plan_multitree(plan, kind, net, 4);",
     "plan_multitree(plan, kind, net, 1);"),
    # What runs them
    ("runner: nobody waits for what comes", RUNNER, "            comm_edge(edges, p, writer[c], i);\n", ""),
    ("runner: operations share their tags", RUNNER, "const int tag = run->tag + row->number", "const int tag = row->number"),
    ("runner: more operations at once than tags", RUNNER, "    if (*place) plan_run_wait(*place);\n", ""),
    ("runner: what comes takes the place of the sum", RUNNER, "        plan_add_up(place, run->came[item], n, run->type);",
     "        memcpy(place, run->came[item], (size_t)(n * comm_type_bytes(run->type)));"),
    ("runner: adds what has come, whoever is next", RUNNER, "    if (run->waits[item] == 0) plan_run_begin_item(run, item);",
     "    plan_run_begin_item(run, item);"),
    ("runner: slabs begin where their chunk does", RUNNER, "    *start = from + all * k / slabs;", "    *start = from;"),
    ("runner: fp16 is added as bf16", RUNNER, "type == COMM_BF16, COMM_SUM", "true, COMM_SUM"),
    ("runner: a reduce-scatter of nothing", RUNNER, "        memcpy(run->own, r->in, bytes);\n", ""),
    ("runner: a reduce-scatter gives rank 0's part", RUNNER, "run->own + (size_t)run->comm->rank * part, part);",
     "run->own, part);"),
    ("runner: an all-gather without one's own part", RUNNER,
     "        memcpy(run->vector + (size_t)r->comm->rank * part, r->in, part);\n", ""),
    ("runner: counts what is received, too", RUNNER, "if (p->row[i].send) sent +=", "sent +="),
    ("runner: maxima are sums", RUNNER, " && r->op == COMM_SUM)", ")"),
    ("runner: a blocking call of MPI stops all plans", COMM, "    if (r->blocking) comm_plans_meet(r->comm);\n", ""),
    ("runner: whoever waits for MPI stops all plans", COMM,
     "    while (comm_plans_run(c) && !comm_mpi_is_done(r)) comm_plans_advance(c);\n", ""),
]
MPI_SHOW = subprocess.run([os.environ.get("MPICC", "mpicc"), "-show"], capture_output=True, text=True).stdout.split() \
    if shutil.which(os.environ.get("MPICC", "mpicc")) else []


def runs_ranks(file):
    return file in (RUNNER, COMM)


def build(folder, file=""):
    test, more = "test_collective", ["-lm"]
    if runs_ranks(file):
        test, more = "test_comm_planned", ["-DUSE_MPI"] + [w for w in MPI_SHOW[1:] if w[:2] in ("-I", "-L", "-l", "-D")] + ["-lm"]
    made = subprocess.run(COMPILE + [f"dev/test/unit/{test}.c", "-o", "test"] + more, cwd=folder, capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"plans.py: does not compile:\n{made.stderr}")


def verdict(folder, file=""):
    """What the test had to say, in one line; None if it saw nothing."""
    start = ["timeout", str(SECONDS), "./test", "--short"]
    if runs_ranks(file):
        start = ["timeout", "--foreground", "-k", "5", "40", "scripts/mpirun.sh", "-np", "4", "./test"]
    with subprocess.Popen(start, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace") as test:
        last = ""
        for line in test.stdout:
            last = line.strip() or last
            if line.startswith("FAIL") and not runs_ranks(file):  # enough is known
                test.kill()
                return line[4:].strip()
        status = test.wait()
    return f"status {status}: {last}" if status != 0 else None


def try_fault(root, fault):
    """Plants a fault in a copy of the sources. Returns what the test said of it."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        copy_sources(folder)
        with open(os.path.join(folder, fault[1]), "w", encoding="utf-8") as f:
            f.write(mutated(*fault[1:]))
        build(folder, fault[1])
        return verdict(folder, fault[1])


def main():
    faults = [fault for fault in FAULTS if len(sys.argv) < 2 or sys.argv[1] in fault[0]]
    if not MPI_SHOW:
        faults = [fault for fault in faults if not runs_ranks(fault[1])]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
    for fault in faults:
        mutated(*fault[1:])
    caught = 0
    with tempfile.TemporaryDirectory() as root, concurrent.futures.ThreadPoolExecutor(2) as pool:
        sound = os.path.join(root, "sound")
        copy_sources(sound)
        for file in ["", RUNNER] if MPI_SHOW else [""]:
            build(sound, file)
            line = verdict(sound, file)
            if line:
                sys.exit(f"plans.py: the sources as they are do not pass: {line}")
        said = pool.map(try_fault, [root] * len(faults), faults)
        for fault, line in zip(faults, said):
            caught += line is not None
            print(f"caught  {fault[0]}: {line[:120]}" if line else f"MISSED  {fault[0]}", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    return 0 if caught == len(faults) and faults else 1


if __name__ == "__main__":
    sys.exit(main())
