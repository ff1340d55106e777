#!/usr/bin/env python3
"""
mutate_datacenter.py: is test_datacenter able to fail? Plants faults in copies of dev/plan/facts.h and datacenter.h, one at
a time, builds the test there and runs it: it has to fail, or to crash.

    python3 dev/test/mutate_datacenter.py [WORD]      only the faults whose description contains WORD

One line a fault: "caught" with the first line of the test that failed, or "MISSED". Last line "N passed, N failed": N
faults were caught, N missed. Standard library only.
"""
import os
import shutil
import subprocess
import sys
import tempfile

CC = os.environ.get("CC", "gcc")
FACTS, PLAN = "dev/plan/facts.h", "dev/plan/datacenter.h"

# What is wrong; file, exact text, replacement.
FAULTS = [
    # Facts
    ("use: forgets the mark", FACTS, "if (f.mark > *weakest) *weakest = f.mark;", ""),
    ("use: the last mark counts, not the weakest", FACTS,
     "if (f.mark > *weakest) *weakest = f.mark;", "*weakest = f.mark;"),
    ("use: the strongest mark", FACTS, "f.mark > *weakest", "f.mark < *weakest"),
    ("result: the next formula has this one's mark", FACTS,
     "    *weakest = BACK_COMPUTED;\n    return f;", "    return f;"),
    ("result: computed is confirmed", FACTS,
     "    *weakest = BACK_COMPUTED;\n    return f;", "    *weakest = CONFIRMED;\n    return f;"),
    ("published: even if it is a guess", FACTS, "if (f.mark == BACK_COMPUTED && fabs", "if (fabs"),
    ("published: whatever the number", FACTS, " && fabs(f.value - published) <= within", ""),
    ("published: never", FACTS, "f.mark = CONFIRMED;\n    return f;", "f.mark = BACK_COMPUTED;\n    return f;"),
    ("units: percent is a tenth of a thousand", FACTS, '"%", 1, 100}', '"%", 1, 1000}'),
    ("units: MW are kW", FACTS, '{POWER, "MW", 1e6, 1}', '{POWER, "MW", 1e3, 1}'),
    ("units: GW are 2^30 W", FACTS, '{POWER, "GW", 1e9, 1}', '{POWER, "GW", 1073741824, 1}'),
    ("units: bits are bytes", FACTS, '{BIT_RATE, "Gbit/s", 1e9, 1}', '{BIT_RATE, "Gbit/s", 8e9, 1}'),
    ("units: us are ms", FACTS, '{SECONDS, "us", 1, 1e6}', '{SECONDS, "us", 1, 1e3}'),
    ("units: billions are millions", FACTS, '{PARAMETERS, "B", 1e9, 1}', '{PARAMETERS, "B", 1e6, 1}'),
    ("units: a unit in its own word may follow anything", FACTS, " || (unit && *end)) return", ") return"),
    ("numbers: hexadecimal, nan, inf", FACTS, ' || strspn(word, "0123456789.eE+-") < number', ""),
    ("numbers: infinite ones", FACTS, "return isfinite(*value);", "return true;"),
    ("print: no thousands", FACTS, "(n - i) % 3 == 0", "(n - i) % 4 == 0"),
    ("print: a prefix too late", FACTS, "fabs(value) >= 999.5 && i < 6", "fabs(value) >= 1000 && i < 6"),
    ("print: a prefix too far", FACTS, 'prefixes[] = {"", "k"', 'prefixes[] = {"k", "k"'),
    ("print: percent as shares", FACTS, ": \"%.1f %%\", value * 100);", ": \"%.1f %%\", value);"),
    # Inputs
    ("input: price", PLAN, "{3e6, BACK_COMPUTED}", "{3.1e6, BACK_COMPUTED}"),
    ("input: share", PLAN, "{0.7, CONFIRMED}", "{0.07, CONFIRMED}"),
    ("input: GPUs of a rack", PLAN, "{72, CONFIRMED}", "{64, CONFIRMED}"),
    ("input: a guess passes as published", PLAN, "{0.4, ASSUMED}", "{0.4, CONFIRMED}"),
    ("input: PUE", PLAN, "{1.30, BACK_COMPUTED}", "{1.33, BACK_COMPUTED}"),
    ("file: without a mark it is confirmed", PLAN, "    f->mark = ASSUMED;\n", "    f->mark = CONFIRMED;\n"),
    ("file: marks are left in the number", PLAN, "f->mark = (Mark)i;\n            n--;", "f->mark = (Mark)i;"),
    ("file: more words are ignored", PLAN, "if (n < 1 || n > 2 || !quantity_read", "if (n < 1 || !quantity_read"),
    ("file: halves of GPUs", PLAN, "if (in->whole && f->value", "if (0 && f->value"),
    ("file: below the range", PLAN, "f->value >= in->low && f->value <= in->high", "f->value <= in->high"),
    ("file: above the range", PLAN, "f->value >= in->low && f->value <= in->high", "f->value >= in->low"),
    ("file: lines counted from 0", PLAN, "for (int line = 1; ok && fgets", "for (int line = 0; ok && fgets"),
    ("file: names given twice", PLAN, "if (*given) return fail", "if (0) return fail"),
    ("file: a second model has the first one's lines", PLAN, "memset(lines->model, 0, sizeof lines->model);", ""),
    ("file: comments are words", PLAN, 'text[strcspn(text, "#")] = 0;', ""),
    ("file: long lines are two", PLAN, "if (!strchr(text, '\\n') && !feof(file))", "if (0)"),
    ("file: five stalls", PLAN, "== most)", "== most + 1)"),
    ("file: sizes above any model", PLAN, "if (of_model && d->models == 0)", "if (0)"),
    ("file: both powers", PLAN, "if (it && rack)", "if (0)"),
    ("file: PUEs the wrong way round", PLAN, "if (d->pue_low.value > d->pue_high.value)", "if (0)"),
    ("file: as many spares as GPUs", PLAN,
     "d->spares.value >= d->rack_gpus.value", "d->spares.value > d->rack_gpus.value"),
    ("file: 12 bit", PLAN, "if (bits != 16 && bits != 8 && bits != 4)", "if (0)"),
    ("file: names that nobody lists", PLAN, 'char names[900] = "stall";', 'char names[300] = "stall";'),
    # Racks, power, sites, failures
    ("racks: to the nearest hundred below the next digit", PLAN, "x / step >= 1000", "x / step >= 100"),
    ("racks: not rounded", PLAN,
     "result(&w, three_digits_below(use(&w, p->affordable)))", "result(&w, use(&w, p->affordable))"),
    ("racks: all of the budget", PLAN, "use(&w, d->budget) * use(&w, d->compute_share)", "use(&w, d->budget)"),
    ("racks: spares work", PLAN, "(use(&w, d->rack_gpus) - use(&w, d->spares)));\n}", "use(&w, d->rack_gpus));\n}"),
    ("power: a file's IT power does not count", PLAN, "if (d->it_power.value == 0) p->it_power", "p->it_power"),
    ("power: per GPU by rack", PLAN,
     "use(&w, p->it_power) / use(&w, p->gpus)", "use(&w, p->it_power) / use(&w, p->working)"),
    ("power: PUE added", PLAN,
     "use(&w, p->it_power) * use(&w, d->pue_low)", "use(&w, p->it_power) + use(&w, d->pue_low)"),
    ("power: the lower PUE twice", PLAN,
     "use(&w, p->it_power) * use(&w, d->pue_high)", "use(&w, p->it_power) * use(&w, d->pue_low)"),
    ("power: the rest without racks", PLAN,
     "use(&w, p->it_power) - use(&w, p->racks)", "use(&w, p->it_power) - use(&w, p->gpus)"),
    ("sites: at the lowest power", PLAN, "ceil(use(&w, p->power_high)", "ceil(use(&w, p->power_low)"),
    ("sites: rounded down", PLAN, "ceil(use(&w, p->power_high)", "floor(use(&w, p->power_high)"),
    ("sites: IT power only", PLAN, "ceil(use(&w, p->power_high)", "ceil(use(&w, p->it_power)"),
    ("sites: three by default", PLAN, "fact(2, CONFIRMED);", "fact(3, CONFIRMED);"),
    ("sites: a guess by default", PLAN, "fact(2, CONFIRMED);", "fact(2, ASSUMED);"),
    ("sites: equal parts are known", PLAN, "equal = fact(1, ASSUMED)", "equal = fact(1, CONFIRMED)"),
    ("sites: their power is not divided", PLAN, "use(&w, p->power_high) / use(&w, p->sites)", "use(&w, p->power_high)"),
    ("failures: hours are days", PLAN, "use(&w, d->failure_days) * 24 /", "use(&w, d->failure_days) /"),
    ("failures: minutes", PLAN, "use(&w, p->failure_hours) * 3600", "use(&w, p->failure_hours) * 60"),
    ("failures: Young without the two", PLAN, "sqrt(2 * use(&w, d->stall[i])", "sqrt(use(&w, d->stall[i])"),
    ("failures: all of the interval is lost", PLAN, "interval / (2 * mtbf)", "interval / mtbf"),
    ("failures: restarts are free", PLAN, " + use(&w, d->restart) / mtbf", " + 0 * use(&w, d->restart) / mtbf"),
    # Shape and mesh
    ("memory: 8 bytes of Adam", PLAN, "12 * n / data", "8 * n / data"),
    ("memory: Adam is not divided", PLAN, "12 * n / data", "12 * n"),
    ("memory: gradients are free", PLAN, "{2 * n, r->gradient_bytes * n,", "{2 * n, 0 * n,"),
    ("memory: parameters of 4 bytes", PLAN, "{2 * n, r->gradient_bytes * n,", "{4 * n, r->gradient_bytes * n,"),
    ("memory: activations are not cut by TP", PLAN,
     "r->micro_batch * r->hidden / r->tensor;", "r->micro_batch * r->hidden;"),
    ("memory: activations of one layer", PLAN, "2 * rows * L, 34 * rows", "2 * rows, 34 * rows"),
    ("memory: nothing kept in recomputation", PLAN, "2 * rows * L, 34 * rows", "0 * rows * L, 34 * rows"),
    ("memory: 10 of 34", PLAN, "34 * rows}", "10 * rows}"),
    ("memory: the layer at work is forgotten", PLAN, "m->activations + m->recomputed;", "m->activations;"),
    ("memory: always fits", PLAN, "memory_sum(&m) <= r->hbm", "memory_sum(&m) <= 2 * r->hbm"),
    ("mesh: the shallowest stage", PLAN,
     "for (int deep = L; deep > 0; deep--) {", "for (int deep = 1; deep <= L; deep++) {"),
    ("mesh: stages need not be equal", PLAN, "if (equal && (L % deep || (chunks && deep % chunks))) continue;", ""),
    ("mesh: a prime number of layers stays", PLAN, "chunks > all || 2 * *deep > all", "1"),
    ("mesh: TP up to twice a rack", PLAN, "while (2 * power <= x) power *= 2;", "while (power <= x) power *= 2;"),
    ("mesh: spares are in groups", PLAN,
     "power_of_two_below(use(&w, d->rack_gpus) - use(&w, d->spares))", "power_of_two_below(use(&w, d->rack_gpus))"),
    ("shape: width rounded down", PLAN, "floor(h / unit + 0.5)", "floor(h / unit)"),
    ("shape: square root", PLAN, "h = cbrt(", "h = sqrt("),
    ("shape: 8 h^2 a layer", PLAN,
     "floor(use(&w, m->asked) / (12 * room.hidden", "floor(use(&w, m->asked) / (8 * room.hidden"),
    ("shape: one layer more", PLAN, "fmax(1, by_size)", "1 + by_size"),
    ("shape: 8 h^2 parameters a layer", PLAN, "12 * use(&w, m->layers)", "8 * use(&w, m->layers)"),
    ("shape: heads of 64", PLAN, "use(&w, m->hidden) / use(&w, d->head)", "use(&w, m->hidden) / 64"),
    ("mesh: DP rounded up", PLAN, "floor(use(&w, p->working) /", "ceil(use(&w, p->working) /"),
    ("mesh: DP of all GPUs, spares too", PLAN, "floor(use(&w, p->working) /", "floor(use(&w, p->gpus) /"),
    ("mesh: no TP in the GPUs that are used", PLAN,
     "use(&w, m->data) * use(&w, m->tensor) * use(&w, m->pipeline)", "use(&w, m->data) * use(&w, m->pipeline)"),
    ("mesh: racks hold what they have", PLAN,
     "floor((d->rack_gpus.value - d->spares.value) / tensor) * tensor", "(d->rack_gpus.value - d->spares.value)"),
    ("mesh: too few GPUs for a replica", PLAN, "if (m->data.value < 1)", "if (0)"),
    ("mesh: chunks that are said are not heeded", PLAN, "m->chunks = chunks ? wish->chunks : cut;", "m->chunks = cut;"),
    ("mesh: layers in stages of different size", PLAN,
     "deep = L % stages == 0 ? L / stages : 0;", "deep = L / stages;"),
    # Work and time
    ("work: 2 FLOP a parameter", PLAN,
     "6 * use(&w, m->parameters) * use(&w, m->tokens)", "2 * use(&w, m->parameters) * use(&w, m->tokens)"),
    ("work: tokens of the shape", PLAN,
     "use(&w, d->tokens_per_parameter) * use(&w, m->asked)", "20 * use(&w, m->asked)"),
    ("law: exponents exchanged", PLAN,
     "406.4 / pow(P, 0.34) + 410.7 / pow(D, 0.28)", "406.4 / pow(P, 0.28) + 410.7 / pow(D, 0.34)"),
    ("law: optimum's exponents exchanged", PLAN, "g * pow(C / 6, 0.28 / 0.62)", "g * pow(C / 6, 0.34 / 0.62)"),
    ("time: hours are days", PLAN, "use(w, utilisation) * 86400", "use(w, utilisation) * 3600"),
    ("time: utilisation is forgotten", PLAN, "use(w, peak) * use(w, utilisation)", "use(w, peak)"),
    ("time: precisions the wrong way round", PLAN,
     "bits == 16 ? d->peak_bf16 : bits == 8", "bits == 4 ? d->peak_bf16 : bits == 8"),
    ("time: precision's mark is forgotten", PLAN,
     "const double bits = use(&w, d->precision);", "const double bits = d->precision.value;"),
    ("time: smaller models see more tokens", PLAN, "sqrt(in_time / (6 *", "sqrt(in_time / (6 * 2 *"),
    ("time: tokens a parameter of the shape", PLAN,
     "use(&w, m->tokens_in_time) / use(&w, m->asked)", "use(&w, m->tokens_in_time) / use(&w, m->parameters)"),
    ("time: peak the other way round", PLAN,
     "use(&w, m->days) / use(&w, d->days_limit));", "use(&w, d->days_limit) / use(&w, m->days));"),
    # Batch
    ("wall: depends on PP", PLAN,
     "use(&w, m->chunks) * use(&w, m->tensor)));", "use(&w, m->chunks) * use(&w, m->pipeline)));"),
    ("wall: without chunks", PLAN, "use(&w, m->chunks) * use(&w, m->tensor)));", "use(&w, m->tensor)));"),
    ("wall: of one micro-batch of any size", PLAN,
     "idle * use(&w, m->used) * use(&w, d->micro_batch) /", "idle * use(&w, m->used) /"),
    ("wall: without a pipeline", PLAN, "use(&w, m->pipeline) > 1; // no pipeline, no bubble", "1;"),
    ("batch: rounded down", PLAN, "floor(use(&w, m->wall) / step + 0.5)", "floor(use(&w, m->wall) / step)"),
    ("batch: too small for everyone", PLAN, "near >= least ? near", "1 ? near"),
    ("batch: the file's is ignored", PLAN, "if (wish->batch.value > 0)", "if (0)"),
    ("bubble: without chunks", PLAN, "(use(&w, m->chunks) * use(&w, m->micro_batches))", "use(&w, m->micro_batches)"),
    ("bubble: PP / (v m)", PLAN, "(use(&w, m->pipeline) - 1) /", "use(&w, m->pipeline) /"),
    ("micro-batches: of sequences", PLAN, "(use(&w, m->data) * use(&w, d->micro_batch))", "use(&w, m->data)"),
    ("step: minus the bubble", PLAN, "(1 + use(&w, m->bubble))", "(1 - use(&w, m->bubble))"),
    # Links
    ("TP: (n + 1) / n", PLAN, "return 2 * (n - 1) / n;", "return 2 * (n + 1) / n;"),
    ("TP: two all-reduces", PLAN, "4 * all_reduce_share", "2 * all_reduce_share"),
    ("TP: of all layers", PLAN, "use(&w, m->layers) / use(&w, m->pipeline));", "use(&w, m->layers));"),
    ("TP: one byte an element", PLAN, "use(&w, m->hidden) * 2); // s b h x 2", "use(&w, m->hidden)); // s b h x 2"),
    ("TP: recomputation doubles", PLAN, "1.5 * use(&w, m->tp_rate)", "2 * use(&w, m->tp_rate)"),
    ("micro-batch: of one sequence always", PLAN,
     "use(&w, stage) * use(&w, d->sequence) * use(&w, d->micro_batch)", "use(&w, stage) * use(&w, d->sequence)"),
    ("PP: one direction", PLAN, "2 * boundaries", "boundaries"),
    ("PP: one boundary", PLAN, "> 1 ? use(&w, m->chunks) : 0;", "> 1 ? 1 : 0;"),
    ("PP: without a pipeline", PLAN, "use(&w, m->pipeline) > 1 ? use(&w, m->chunks) : 0;", "use(&w, m->chunks);"),
    ("PP: bytes are bits", PLAN, "use(&w, m->pp_bytes) * 8 /", "use(&w, m->pp_bytes) /"),
    ("DP: bytes are bits", PLAN,
     "use(&w, m->dp_bytes) * 8 / use(&w, m->step)", "use(&w, m->dp_bytes) / use(&w, m->step)"),
    ("DP: at the fibres' rate", PLAN,
     "use(&w, m->dp_bytes) * 8 / use(&w, d->nic)", "use(&w, m->dp_bytes) * 8 / use(&w, d->fibre_pair)"),
    ("DP: bf16 always", PLAN, "use(&w, stage) * use(&w, d->gradient_bytes)", "use(&w, stage) * 2"),
    ("WAN: bf16 always", PLAN, "use(&w, m->parameters) * use(&w, d->gradient_bytes)", "use(&w, m->parameters) * 2"),
    ("WAN: of two sites always", PLAN, "all_reduce_share(use(&w, p->sites))", "all_reduce_share(2)"),
    ("WAN: fibres rounded down", PLAN, "ceil(use(&w, m->wan_rate)", "floor(use(&w, m->wan_rate)"),
    ("WAN: bits on their way", PLAN, "use(&w, d->wan_delay) / 8", "use(&w, d->wan_delay)"),
    ("WAN: half a round trip", PLAN,
     "result(&w, apart * use(&w, d->wan_delay) / use(&w, m->step))",
     "result(&w, 0.5 * apart * use(&w, d->wan_delay) / use(&w, m->step))"),
    ("WAN: a round trip within a site", PLAN,
     "const double apart = use(&w, p->sites) > 1;", "const double apart = use(&w, p->sites) > 0;"),
    ("WAN: sites' mark is forgotten", PLAN, "    use(&w, p->sites);\n", ""),
    ("checkpoint: of all GPUs", PLAN,
     "use(&w, m->checkpoint) / use(&w, m->used)", "use(&w, m->checkpoint) / use(&w, p->gpus)"),
    # Print
    ("limits: at least is at most", PLAN, "row->limit == AT_MOST ? value <= limit", "1 ? value <= limit"),
    ("limits: 0 is one", PLAN,
     "row->limit != NO_LIMIT && fact_in(base, row->limit_at).value != 0", "row->limit != NO_LIMIT"),
    ("rows: the limit's mark is forgotten", PLAN,
     "if (row_is_limited(row, base)) use(&w, fact_in(base, row->limit_at));", ""),
    ("rows: the mark of the last model", PLAN, "if (m > mark) mark = m;", "mark = m;"),
    ("rows: the first model twice", PLAN, "&p->model[first + n - 1]", "&p->model[first]"),
    ("rows: a last model alone is left out", PLAN,
     "first < p->models; first += 2", "first + 1 < p->models; first += 2"),
    ("rows: not counted", PLAN, "    marks[mark]++;\n", "    marks[ASSUMED]++;\n"),
    ("rows: every stall is the first", PLAN, "row.at += (size_t)k * sizeof(Fact);", ""),
]


def copy_sources(folder):
    for pattern in ("", "dev/plan", "dev/test", "dev/plan/clusters"):
        os.makedirs(os.path.join(folder, pattern), exist_ok=True)
        for name in os.listdir(pattern or "."):
            if name.endswith((".h", ".txt")) or name == "test_datacenter.c":
                shutil.copy2(os.path.join(pattern, name), os.path.join(folder, pattern))


def mutated(path, text, replacement):
    """A source with its fault."""
    with open(path, encoding="utf-8") as f:
        source = f.read()
    if source.count(text) != 1:
        sys.exit(f"mutate_datacenter.py: {path} has {source.count(text)} times, not once: {text!r}: the list of faults is "
                 "out of date")
    return source.replace(text, replacement)


def verdict(folder):
    """What the test had to say, in one line; None if it saw nothing."""
    made = subprocess.run([CC, "-std=gnu11", "-O0", "-w", "dev/test/test_datacenter.c", "-o", "test", "-lm"], cwd=folder,
                          capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"mutate_datacenter.py: does not compile:\n{made.stderr}")
    try:
        test = subprocess.run(["./test", "--short"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=60,
                              env=dict(os.environ, TMPDIR=folder))
    except subprocess.TimeoutExpired:
        return "hangs"
    if test.returncode == 0:
        return None
    lines = test.stdout.splitlines() or [""]
    return next((line[4:].strip() for line in lines if line.startswith("FAIL")), f"status {test.returncode}: {lines[-1]}")


def main():
    faults = [fault for fault in FAULTS if len(sys.argv) < 2 or sys.argv[1] in fault[0]]
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    for fault in faults:
        mutated(*fault[1:])
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        copy_sources(folder)
        line = verdict(folder)
        if line:
            sys.exit(f"mutate_datacenter.py: the sources as they are do not pass: {line}")
        for fault in faults:
            copy_sources(folder)
            with open(os.path.join(folder, fault[1]), "w", encoding="utf-8") as f:
                f.write(mutated(*fault[1:]))
            line = verdict(folder)
            caught += line is not None
            print(f"caught  {fault[0]}: {line[:120]}" if line else f"MISSED  {fault[0]}", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    return 0 if caught == len(faults) and faults else 1


if __name__ == "__main__":
    sys.exit(main())
