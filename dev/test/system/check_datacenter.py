#!/usr/bin/env python3
"""
check_datacenter.py PLAN: planner/datacenter.py. The published numbers; shapes and batches beside brute force; laws
beside closed forms and the minimum of their loss; the largest model beside the solution for a known speed; a model's
answer beside that of PLAN for the printed question; files that are refused.
"""
import itertools, json, math, os, re, sys, tempfile

from checks import ROOT, check, finish, launch, near
import datacenter as dc

dc.PLAN = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory()
FILE = os.path.join(FOLDER.name, "center.txt")
SMOOTH = sorted(2 ** a * 3 ** b * 5 ** c for a, b, c in itertools.product(range(15), range(10), range(7)))


def inputs(text="", models=None):
    with open(FILE, "w", encoding="utf-8") as file:
        file.write(text)
    return dc.datacenter_read(FILE, models)


def plan(text):
    return dc.datacenter_plan(inputs(text))


def check_published():
    d = inputs()
    p = dc.datacenter_plan(d)
    check((p["affordable"], p["racks"], p["gpus"]) == (23333, 23300, 1677600), "$100B: 23,300 racks, 1,677,600 GPUs")
    check((p["working"], p["mesh_racks"], p["mesh_gpus"]) == (1491200, 23040, 1474560), "racks of a mesh: 2 2^8 3^2 5")
    check([round(p[name] / 1e9, 2) for name in ("power_low", "power_high", "site_it", "site_low")] ==
          [4.16, 4.71, 1.81, 2.08] and p["sites"] == 2 and p["site_gpus"] == 838800, "3.62 GW x 1.15, 1.30; 2 sites")
    for cap, sites in ((5, 1), (4.5, 2), (2.4, 2), (2.3, 3)):
        check(plan(f"site_power {cap} GW")["sites"] == sites ==
              plan(f"plant_power {cap / 4} GW\nsite_plants 4")["sites"], f"{cap} GW: {sites} sites")
    check(plan("sites 7")["mesh_racks"] == 7 * 3240, "7 sites of 3,328 racks: 2^3 3^4 5 of each")
    for asked, flops in zip(d["models"], (3e29, 1.2e30)):  # of the model that is found, up to 2 % smaller
        m = dc.model_shape(d, p, asked)
        check(near(m["flops"], flops * (m["parameters"] / asked) ** 2) and 0.98 < m["parameters"] / asked <= 1,
              f"FLOP {m['flops']:.4g} of {m['parameters']:.4g} parameters")
    check(abs(p["failure_hours"] - 50700) < 50 and abs(p["mtbf"] - 109) < 0.5, "a failure in 109 s")
    check([round(100 * x["cost"]) for x in p["checkpoints"]] == [15, 38, 133] and
          near(p["slower"], 1 + p["checkpoints"][0]["cost"]), "checkpoints cost 15, 38, 133 %; days have the first")
    for text, peak, part in (("precision 16 bit", 2500, 0.75), ("precision 8 bit", 5000, 0.75),
                             ("precision 4 bit", 10000, 0.75), ("transport_factor 1.5", 5000, 0.5)):
        check(plan(text)["cluster"] ==
              ["base gb200", "nodes 23040", "node_gpus 64", "nics 64", "sites 2", f"peak {peak} TFLOP/s",
               "memory 192 GB", "nvlink 900 GB/s", "nic 100 GB/s", f"nic_fraction {part}", "site_rate 30000 GB/s",
               "site_delay 32.5 ms"], f"{text}: the cluster's file")


def check_failures():
    """The best interval beside others, by the closed form of the time between failures."""
    for stall, restart, mtbf in ((1, 0, 109), (30, 0, 109), (5, 20, 1000)):
        best = dc.checkpoint_plan(stall, restart, mtbf)
        time = lambda t: mtbf * math.exp(restart / mtbf) * (math.exp((t + stall) / mtbf) - 1) / t
        check(all(time(best["interval"]) <= time(best["interval"] * x) for x in (0.8, 0.99, 1.01, 1.25)) and
              near(1 + best["cost"], time(best["interval"])), f"{stall} s, a failure in {mtbf} s: the best interval")


def check_shapes():
    check(all(dc.smooth_below(x) == dc.smooth_below(x + 0.9) == max(n for n in SMOOTH if n <= x)
              for x in range(1, 10000)), "2^a 3^b 5^c below 1 to 10,000")
    for asked in (1e12 * 1.7 ** i for i in range(16)):
        d = inputs(f"rack_gpus {72 if asked > 1e14 else 24}")
        p = dc.datacenter_plan(d)
        unit = 128 * p["node"]
        usual = math.floor((512 * asked / 12) ** (1 / 3) / unit + 0.5)
        best = max(12 * max((n for n in SMOOTH if 12 * n * h * h <= asked), default=0) * h * h
                   for h in range(unit, 1 << 21, unit) if abs(h // unit - usual) <= usual // 4)
        m = dc.model_shape(d, p, asked)
        L, h = m["layers"], m["hidden"]
        check(12 * L * h * h == best <= asked and best > 0.9 * asked and h % unit == 0 and m["heads"] * 128 == h,
              f"{asked / 1e12:.4g} T: {L} x {h}, the nearest from below")
    for most in (3.1 ** i for i in range(13)):
        d = inputs(f"batch_tokens {most * 8192}")
        p = dc.datacenter_plan(d)
        racks, batch = p["mesh_racks"], dc.model_shape(d, p, 50e12)["batch"]
        best = max(i for i in range(1, int(most * (1 + 1e-12)) + 1) if i % racks == 0 or racks % i == 0)
        check(batch == best, f"at most {most:.1f} sequences: {batch}, a whole part or multiple of {racks}")


def check_laws():
    laws = dc.laws_known(20)
    for law in laws:
        worst = max(abs(law.flops_of(10.0 ** k) / 6 / law.tokens_of(law.flops_of(10.0 ** k)) / 10.0 ** k - 1)
                    for k in range(9, 16))
        check(worst < 1e-11 and law.low < law.exponent < law.high, f"{law.name}: C of P, and P of C, to {worst:.1e}")
    check(near(laws[0].flops_of(3e12), 120 * 9e24), "20 tokens a parameter: C = 120 P^2")
    for law, (A, B, a, b) in zip(laws[1:], ((406.4, 410.7, 0.34, 0.28), (482.01, 2085.43, 0.3478, 0.3658))):
        for C in (2.99e29, 1.2e30):
            P = C / 6 / law.tokens_of(C)
            least = min((A / x ** a + B / (C / 6 / x) ** b, x) for x in (P * 1.0003 ** k for k in range(-300, 300)))
            check(near(least[1], P, 1e-3), f"{law.name}: P {P:.4e}, where the loss is least {least[1]:.4e}")
    check(near(laws[3].tokens_of(6 * 402e9 * 16.55e12), 16.55e12) and
          near(laws[3].tokens_of(60 * 402e9 * 16.55e12), 16.55e12 * 10 ** 0.53), "Llama 3: 402B on 16.55T, 0.53")
    speed = 1e21  # FLOP/s, of every size: the largest model is what the law makes of all FLOP
    sizes = [(P, speed / 6 / P) for P in (2e12, 9e12, 40e12, 100e12)]
    for law in laws:
        for days in (30, 300, 3000):
            C = speed * days * dc.DAY
            check(all(near(dc.largest(sizes[:n], law, days), C / 6 / law.tokens_of(C)) for n in (1, 2, 4)),
                  f"{law.name}: the largest model of {days} days")
    sizes = [(1e12, 5e8), (4e12, 1e8), (16e12, 1e7)]  # another slope between each two: each size in its own time
    check(all(near(dc.largest(sizes, laws[0], 20 * P / rate / dc.DAY), P) for P, rate in sizes) and
          math.isnan(dc.largest([], laws[0], 90)), "interpolated between sizes; none of none")


def check_search():
    """2 sites of 8 racks of 8 GPUs: ./plan has the same answer to what is printed, and time follows from it."""
    text = "rack_gpus 8\nspares 0\nbudget 68571429 $\nsequence 2048\nbatch_tokens 524288\nhbm 80 GB\nmicro_batch 0\n"
    for sites in (1, 2, 4):
        d = inputs(f"{text}sites {sites}\nmodels 20B")
        p = dc.datacenter_plan(d)
        m = dc.model_plan(d, p, dc.laws_known(20), 20e9)
        said = launch(f"{ROOT}/planner/datacenter.py", FILE, PLAN=dc.PLAN).stdout
        with open(FILE, "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in re.findall(r"^    (\w+ [\w./]+(?: \S+)?)$", said, re.M)))
        question = re.search(r"^./plan --cluster cluster.txt (.*)\n    (--.*)$", said, re.M)
        run = lambda *more: launch(dc.PLAN, "--cluster", FILE, *question[1].split(), *more).stdout
        best = json.loads(run("--json"))[0]
        check(run("--flags").split() == question[2].split() and m["step"] == best["seconds"],
              f"{sites} sites: {question[2]}")
        parameters = run().split(" B parameters")[0].split()[-1]
        check(near(m["parameters"] / 1e9, float(parameters), 1e-3), "  as many parameters as the trainer's model")
        check(m["tensor"] * m["pipeline"] * m["data"] == 128 and m["memory"] <= m["room"] and
              m["micro_batches"] * m["data"] * best["micro_batch"] == m["batch"], "  all GPUs, whole batches, room")
        check(near(m["rate"], m["batch"] * 2048 / m["step"]) and near(m["tokens"], 20 * m["parameters"]) and
              near(m["days0"], m["tokens"] * p["slower"] / m["rate"] / dc.DAY) and
              near(m["ratio_in_time"], 20 * 1000 / m["days0"]), "  time follows from the step")
        sent = 2 * (sites - 1) / sites * 4 * m["parameters"]
        check(abs(m["wan_bytes"] - sent) <= 0.02 * sent, f"  sends 2 (S - 1)/S 4 P = {sent:.3g} B to other sites")
        modes = [m[mode] for mode in ("sync", "dc-s3gd", "diloco")]
        check(all(map(math.isnan, modes)) if sites == 1 else modes[0] == m["step"] and len(set(modes)) == 3,
              f"  modes: {modes}")
    d = inputs(text + "sites 2\nmodels 5T")
    m = dc.model_plan(d, dc.datacenter_plan(d), dc.laws_known(20), 5e12)
    check(math.isinf(m["step"]) and m["memory"] > 80e9 and math.isinf(m["days0"]) and m["mfu"] == 0, "no room, no time")


def check_files():
    d = inputs("it_power 3 GW # less\nprecision 16 bit\nmodels 400 B 20T\nstalls 20 ms\n")
    check(d["it_power"] == 3e9 and d["budget"] == 100e9 and d["models"] == [400e9, 20e12] and d["stalls"] == [0.02] and
          d["compute_share"] == 0.7 and d["nic"] == 1e11, "a file has what differs from the paper's")
    check(inputs("", "1T,50T")["models"] == [1e12, 50e12], "--models")
    for text, word in (("budgett 100 B$", "budgett"), ("budget 100 BB$", '"100"'), ("budget", "one value"),
                       ("rack_gpus 72.5", "whole number"), ("spares 72", "72 spares"), ("pue_low 1.5", "pue_high"),
                       ("precision 12 bit", "12 bit"), ("hbm 0 GB", "out of range"), ("hbm 1e400 GB", "out of range"),
                       ("hbm nan GB", "nan"), ("sites 2 3", "and not 2"), ("sites 1\n\nsites 2", ":3: "),
                       ("budget 5 M$\nsites 2", "1 racks"), ("budget 1 M$", "one rack"),
                       ("aspect 1\nmodels 50T", "--layers"), ("budget 9e6 B$\nfailures 1e-3", "--gpus"),
                       ("failures 1e9", "checkpoint")):
        said = ""
        try:
            dc.datacenter_print(inputs(text))
        except ValueError as error:
            said = str(error)
        check(word in said, f"refused: {text}: {said.replace(FILE, '')}")


check_published()
check_failures()
check_shapes()
check_laws()
check_search()
check_files()
finish()
