#!/usr/bin/env python3
"""planner/datacenter.py [FILE] [--models 20T,400T]: a datacenter for one training run, from money to the largest model.

After Gherghescu et al. 2024, "I've got 99 problems but FLOPS ain't one" (HotNets; arXiv 2407.12819). FILE has what
differs from planner/clusters/next-generation.txt, a line an input. Money becomes racks, power and sites; a model of a
size is then a question to ./plan (PLAN names another one), whose mesh, memory and step over these sites are the answer.
Few numbers are known: money, racks, GPUs, power, sizes of the models. All else is arithmetic with inputs that have to
be chosen, and nothing validates the step on such machines.

    sites        one place supplies at most `site_plants` times the mean output of the largest US plant
    GPUs         in each site the largest number 2^a 3^b 5^c of racks, which a mesh can divide; a rack is a node
    shape        P = 12 L h^2; h a multiple of (head x GPUs of a rack) within a quarter of `aspect` L, L = 2^a 3^b 5^c;
                 the nearest to the size from below
    batch        a whole multiple or part of the racks: with a rack as tensor group the m = batch / (d B) micro-batches
                 are then a multiple of the p stages, as interleaved schedules need
    precision    of the products' rate only; values have 16 bits, sums and optimizer 32, as in the trainer
    failures     one in (hours of one GPU) / G, at any time as likely. With a checkpoint every t s of work, work takes
                 MTBF e^(restart/MTBF) (e^((t + stall)/MTBF) - 1) / t times as long (Daly 2006); t is the best, where
                 (1 - t/MTBF) e^((t + stall)/MTBF) = 1. Days include that of the first of `stalls`
    transport    the rate between nodes is divided by `transport_factor`, the tail of a transport beside one without
                 collisions (docs/transport.md: spraying 1.02, subflows 1.6, ECMP 8.8)
    laws         best tokens D = D0 (C/C0)^e for C = 6 P D FLOP; so C0 (6 P D0/C0)^(1/(1-e)) makes P the best. r tokens
                 a parameter: e = 1/2. Of a loss E + A/P^a + B/D^b (Hoffmann et al. 2022): e = a/(a+b), P = g
                 (C/6)^(b/(a+b)), g = (a A/(b B))^(1/(a+b)). Besiroglu et al. 2024 refute the fit of that loss, and fit
                 it again. Errors of e: 10 to 90 % of Hoffmann et al.'s approach 2; a standard error of Besiroglu et
                 al.; where none is published, the rounding of the constants
    batch        at most batch_tokens; a table has the first model's answer over larger ones. What limits a batch is the
                 critical batch size, from which on more tokens a step save fewer steps
    largest      days = D / tokens a second, whose logarithm is interpolated between sizes that were searched
"""
import argparse, collections, json, math, os, re, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PLAN = os.environ.get("PLAN", os.path.join(HERE, "..", "plan"))
DAY = 86400

# ---- Inputs ---------------------------------------------------------------------------------------------------------

UNITS = {"count": {"": 1, "B": 1e9, "T": 1e12}, "percent": {"%": 0.01}, "money": {"$": 1, "M$": 1e6, "B$": 1e9},
         "power": {"W": 1, "kW": 1e3, "MW": 1e6, "GW": 1e9}, "flops": {"TFLOP/s": 1e12, "PFLOP/s": 1e15},
         "bits": {"bit": 1}, "bytes": {"GB": 1e9, "TB": 1e12}, "seconds": {"us": 1e-6, "ms": 1e-3, "s": 1},
         "rate": {"GB/s": 1e9, "TB/s": 1e12, "Gbit/s": 1e9 / 8, "Tbit/s": 1e12 / 8}, "days": {"d": 1}}
OPTIONAL = {"it_power": "power", "site_power": "power", "sites": "count"}  # by rule, where a file does not have them
WHOLE = ("rack_gpus", "spares", "sites", "precision", "fibre_pairs", "vocabulary", "sequence", "micro_batch", "head")
NONE = ("spares", "micro_batch", "restart")  # may be 0


def parse(name, words, kinds):
    """The values of a line "name value [unit] ...", and their kind of unit, one of `kinds`."""
    values, kind, at = [], None, 0
    while at < len(words):
        found = re.match(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", words[at])
        number, unit = (float(found[0]), words[at][found.end():]) if found else (math.nan, "")
        if found and not unit and at + 1 < len(words) and any(words[at + 1] in UNITS[kind] for kind in kinds):
            at, unit = at + 1, words[at + 1]
        kind = next((kind for kind in kinds if unit in UNITS[kind]), None)
        if not found or kind is None:
            units = ", ".join(unit for kind in kinds for unit in UNITS[kind] if unit)
            raise ValueError(f'{name}: "{words[at]}" is not a number with one of the units {units}')
        value = number * UNITS[kind][unit] if UNITS[kind][unit] >= 1 else number / round(1 / UNITS[kind][unit])
        if not math.isfinite(value) or value < 0 or (value == 0 and name not in NONE):
            raise ValueError(f'{name}: "{words[at]}" is out of range')
        if name in WHOLE and value != int(value):
            raise ValueError(f'{name}: "{words[at]}" is not a whole number')
        values.append(int(value) if name in WHOLE else value)
        at += 1
    if not values or (len(values) > 1 and name not in ("models", "stalls")):
        raise ValueError(f"{name}: takes one value" + ("" if not values else f", and not {len(values)}"))
    return values, kind


def read(path, inputs, kinds):
    """Reads a file into inputs: {name: value, or a list}. kinds: {name: kind of unit}, to which a first file adds."""
    first, given = not inputs, set()
    for i, line in enumerate(open(path, encoding="utf-8")):
        name, *words = line.split("#")[0].split() or [""]
        if not name:
            continue
        try:
            if name in given or not (first or name in kinds):
                raise ValueError(f'"{name}" is ' + ("given twice" if name in given else
                                                    f"not known; there are {', '.join(kinds)}"))
            values, kinds[name] = parse(name, words, list(UNITS) if first else [kinds[name]])
        except ValueError as error:
            raise ValueError(f"{path}:{i + 1}: {error}") from None
        given.add(name)
        inputs[name] = values if name in ("models", "stalls") else values[0]


def datacenter_read(path, models=None):
    inputs, kinds = {}, {}
    read(os.path.join(HERE, "clusters", "next-generation.txt"), inputs, kinds)
    kinds.update(OPTIONAL)
    read(path, inputs, kinds)
    if models:
        inputs["models"] = parse("models", models.split(","), ["count"])[0]
    if inputs["pue_low"] > inputs["pue_high"]:
        raise ValueError(f"{path}: pue_low {inputs['pue_low']:g} is above pue_high {inputs['pue_high']:g}")
    if inputs["spares"] >= inputs["rack_gpus"]:
        raise ValueError(f"{path}: {inputs['spares']} spares of {inputs['rack_gpus']} GPUs leave none to work")
    if f"peak_{'bf' if inputs['precision'] == 16 else 'fp'}{inputs['precision']}" not in inputs:
        raise ValueError(f"{path}: precision: {inputs['precision']} bit, where 16, 8 or 4 are known")
    return inputs


# ---- Scaling laws ---------------------------------------------------------------------------------------------------

class Law(collections.namedtuple("Law", "name source flops tokens exponent low high")):
    """The tokens that are best for C FLOP: tokens x (C / flops)^exponent. low, high: by the exponent's error."""
    def tokens_of(self, C):
        return self.tokens * (C / self.flops) ** self.exponent

    def flops_of(self, P):
        """The C at which P parameters are best."""
        return self.flops * (6 * P * self.tokens / self.flops) ** (1 / (1 - self.exponent))


def loss_tokens(A, B, a, b, C):
    """The best tokens of a loss E + A/P^a + B/D^b."""
    return (C / 6) ** (a / (a + b)) / (a * A / (b * B)) ** (1 / (a + b))


def laws_known(ratio):
    """The first three in terms of Chinchilla, 70B on 1.4T tokens; Llama 3's extrapolation was 402B on 16.55T."""
    C, llama = 6 * 70e9 * 1.4e12, 16.55e12
    hoffmann, refit = loss_tokens(406.4, 410.7, 0.34, 0.28, C), loss_tokens(482.01, 2085.43, 0.3478, 0.3658, C)
    return (Law("tokens/parameter", "Hoffmann et al. 2022, table 2", C, math.sqrt(ratio * C / 6), 0.5, 0.466, 0.538),
            Law("Hoffmann's loss", "Hoffmann et al. 2022, equation 10", C, hoffmann, 0.34 / 0.62, 0.542, 0.549),
            Law("refit of that loss", "Besiroglu et al. 2024", C, refit, 0.3478 / 0.7136, 0.467, 0.507),
            Law("Llama 3", "Dubey et al. 2024, section 3.2.1", 6 * 402e9 * llama, llama, 0.53, 0.525, 0.535))


# ---- From money to sites --------------------------------------------------------------------------------------------

def three_digits_below(x):
    """As the paper rounds: 23,333 to 23,300."""
    step = 1
    while x / step >= 1000:
        step *= 10
    return x // step * step


def smooth_below(x):
    """The largest 2^a 3^b 5^c that is not above x >= 1."""
    best, five = 1, 1
    while five <= x:
        three = five
        while three <= x:
            best, three = max(best, three << int(x // three).bit_length() - 1), 3 * three
        five *= 5
    return best


def nic_fraction():
    """The part of an adapter's rate that all clusters begin with."""
    with open(os.path.join(HERE, "clusters", "ampere.txt"), encoding="utf-8") as file:
        return float(re.search(r"^nic_fraction +(\S+)", file.read(), re.M)[1])


def checkpoint_plan(stall, restart, mtbf):
    """The best interval of work between checkpoints, by bisection, and the part of the time that all costs."""
    if stall + restart > 30 * mtbf:
        raise ValueError(f"a failure every {mtbf:.3g} s leaves no time for a checkpoint of {stall:g} s")
    low, high = 0.0, mtbf
    for _ in range(100):
        t = (low + high) / 2
        low, high = (t, high) if math.log1p(-t / mtbf) + (t + stall) / mtbf > 0 else (low, t)
    return {"stall": stall, "interval": t,
            "cost": mtbf * math.exp(restart / mtbf) * math.expm1((t + stall) / mtbf) / t - 1}


def datacenter_plan(d):
    """Racks, power, sites, failures and the machines as ./plan knows them, {name: value}."""
    p = {}
    p["compute"] = d["budget"] * d["compute_share"]
    p["affordable"] = int(p["compute"] / d["rack_price"] * (1 + 1e-12))
    p["racks"] = racks = three_digits_below(p["affordable"])
    p["gpus"] = racks * d["rack_gpus"]
    p["node"] = node = d["rack_gpus"] - d["spares"]
    p["working"] = racks * node
    if racks < 1:
        raise ValueError("the money does not buy one rack")
    p["it_power"] = d.get("it_power", racks * d["rack_power"])
    p["rack_power"], p["gpu_power"] = p["it_power"] / racks, p["it_power"] / p["gpus"]
    p["beside_racks"] = p["it_power"] - racks * d["rack_rating"]
    p["power_low"], p["power_high"] = p["it_power"] * d["pue_low"], p["it_power"] * d["pue_high"]
    p["site_power"] = d.get("site_power", d["plant_power"] * d["site_plants"])
    p["sites"] = sites = d.get("sites", math.ceil(p["power_high"] / p["site_power"]))  # the fewest, in equal parts
    for name, of in (("site_gpus", "gpus"), ("site_it", "it_power"), ("site_low", "power_low"),
                     ("site_high", "power_high")):
        p[name] = p[of] / sites
    if racks < sites:
        raise ValueError(f"{sites} sites, but {racks} racks")
    p["mesh_racks"] = sites * smooth_below(racks // sites)
    p["mesh_gpus"] = p["mesh_racks"] * node
    p["failure_hours"] = d["failure_gpus"] * d["failure_days"] * 24 / d["failures"]
    p["mtbf"] = mtbf = p["failure_hours"] * 3600 / p["gpus"]
    p["checkpoints"] = [checkpoint_plan(stall, d["restart"], mtbf) for stall in d["stalls"]]
    p["slower"] = 1 + p["checkpoints"][0]["cost"]
    p["peak"] = d[f"peak_{'bf' if d['precision'] == 16 else 'fp'}{d['precision']}"]
    p["site_rate"] = d["fibre_pairs"] * d["fibre_pair"]
    p["cluster"] = ["base gb200", f"nodes {p['mesh_racks']}", f"node_gpus {node}", f"nics {node}", f"sites {sites}",
                    f"peak {p['peak'] / 1e12:.15g} TFLOP/s", f"memory {d['hbm'] / 1e9:.15g} GB",
                    f"nvlink {d['scale_up'] / 1e9:.15g} GB/s", f"nic {d['nic'] / 1e9:.15g} GB/s",
                    f"nic_fraction {nic_fraction() / d['transport_factor']:.15g}",
                    f"site_rate {p['site_rate'] / 1e9:.15g} GB/s", f"site_delay {d['wan_delay'] / 2 * 1e3:.15g} ms"]
    return p


# ---- A model: shape and question ------------------------------------------------------------------------------------

def model_shape(d, p, asked):
    """{layers, hidden, heads} by the rules at the top, and what follows from them."""
    unit = d["head"] * p["node"]
    near = max(1, math.floor((d["aspect"] * asked / 12) ** (1 / 3) / unit + 0.5))
    reach, best = min(near // 4, 64), (0, 0)
    for h in range((near - reach) * unit, (near + reach) * unit + 1, unit):
        L = smooth_below(max(1, asked / (12 * h * h)))
        best = max(best, (L, h), key=lambda shape: shape[0] * shape[1] ** 2)
    L, h = best
    P = L * (12 * h * h + 13 * h) + (d["vocabulary"] + d["sequence"] + 2) * h  # GPT-2's, with a tied embedding
    m = {"asked": asked, "layers": L, "hidden": h, "heads": h // d["head"], "parameters": P}
    racks, most = p["mesh_racks"], min(d["batch_tokens"] / d["sequence"], 1 << 30)
    parts = [i for k in range(1, math.isqrt(racks) + 1) if racks % k == 0 for i in (k, racks // k) if i <= most]
    m["batch"] = max([1, int(most // racks) * racks, *parts])
    m["tokens"] = d["tokens_per_parameter"] * P
    m["flops"] = 6 * P * m["tokens"]
    m["question"] = f"--arch gpt2 --layers {L} --hidden {h} --heads {m['heads']} --seq {d['sequence']} --vocab " \
        f"{d['vocabulary']} --gpus {p['mesh_gpus']} --global-batch {m['batch']} --rows 1" + \
        (f" --micro-batch {d['micro_batch']}" if d["micro_batch"] else "")
    return m


def ask(p, m, *options):
    """The best choice of ./plan --json; where no mesh has room only its "bytes", that the smallest one would need."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(p["cluster"]) + "\n")
        file.flush()
        command = [PLAN, "--cluster", file.name, *m["question"].split(), "--json", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    least = re.search(r"has room .* needs ([\d.]+) (\w+) a rank", done.stderr)
    if done.returncode and not least:
        raise ValueError(f"model of {m['asked'] / 1e12:g} T: {done.stderr.strip()}")
    sys.stderr.write("" if least else done.stderr)  # a time limit
    return {"bytes": float(least[1]) * UNITS["bytes"][least[2]]} if least else json.loads(done.stdout)[0]


def model_plan(d, p, laws, asked, modes=("dc-s3gd", "diloco")):
    """A model's shape, mesh, step and time."""
    m = model_shape(d, p, asked)
    best = m["best"] = ask(p, m)
    step = best.get("seconds", math.inf)
    m.update(tensor=best.get("tp", 0), pipeline=best.get("pp", 0), data=best.get("dp", 0), chunks=best.get("vp", 0),
             micro_batches=m["batch"] // (best["dp"] * best["micro_batch"]) if "dp" in best else 0,
             memory=best["bytes"], room=best.get("room", d["hbm"]), step=step, rate=m["batch"] * d["sequence"] / step,
             mfu=best.get("mfu", 0))
    for name in ("bubble", "tensor", "data"):
        m[f"{name}_share"] = best.get(name, 0) / step
    m["sync"] = step if p["sites"] > 1 else math.nan
    for mode in modes:
        m[mode] = ask(p, m, "--dp-mode", mode).get("seconds", math.nan) if p["sites"] > 1 else math.nan
    m["wan_bytes"] = best.get("sent", 0) * p["mesh_gpus"] / p["sites"]
    m["wan_rate"], m["wan_capacity"] = m["wan_bytes"] / step, p["site_rate"] * (p["sites"] - 1)
    for i, law in enumerate(laws):
        tokens = law.tokens_of(law.flops_of(m["parameters"]))
        m[f"days{i}"] = tokens / m["rate"] * p["slower"] / DAY if m["rate"] else math.inf
    slower = m["days0"] / d["days_limit"]
    m.update(limit=d["days_limit"], mfu_needed=m["mfu"] * slower, mfu_most=1, peak=p["peak"],
             peak_needed=p["peak"] * slower, ratio=d["tokens_per_parameter"],
             ratio_in_time=m["rate"] / p["slower"] * d["days_limit"] * DAY / m["parameters"])
    return m


def ladder(d, p, laws, steps=6):
    """(size, tokens a second, failures included) around the sizes that the laws make of a tenth of the peak in 90 days,
    and of half of it in 1,000. Those without a mesh are left out."""
    C = [part * days * DAY * p["mesh_gpus"] * p["peak"] for part, days in ((0.1, 90), (0.5, 1000))]
    least, most = (pick(c / 6 / law.tokens_of(c) for law in laws) for pick, c in zip((min, max), C))
    for i in range(steps):
        m = model_shape(d, p, max(1e9, least * (most / least) ** (i / (steps - 1))))
        best = ask(p, m)
        if "seconds" in best:
            yield m["parameters"], m["batch"] * d["sequence"] / best["seconds"] / p["slower"]


def rate_of(sizes, P):
    """Tokens a second of a model of P parameters, failures included: on the line through the two nearest sizes, of
    logarithms."""
    i = next((i for i in range(1, len(sizes)) if sizes[i][0] >= P), len(sizes) - 1)
    (a, fast), (b, slow) = sizes[max(i - 1, 0)], sizes[i]
    return fast * (P / a) ** (math.log(slow / fast) / math.log(b / a) if b > a else -1)


def largest(sizes, law, days):
    """The largest model that `days` are enough for, by a law; nan: no size has a mesh."""
    low, high = 1e6, 1e20
    while sizes and high / low > 1 + 1e-12:
        P = math.sqrt(low * high)
        enough = law.tokens_of(law.flops_of(P)) <= days * DAY * rate_of(sizes, P)
        low, high = (P, high) if enough else (low, P)
    return low if sizes else math.nan


# ---- Tables ---------------------------------------------------------------------------------------------------------

# What, its name, its kind, formula or source, and the name of what it may be at most (a count: at least).
PLACE = """Money
for compute | compute | money | budget x share
racks that buys | affordable | count | at the price of a rack
racks | racks | count | down to 3 digits, from which the price was derived
GPUs | gpus | count | racks x rack_gpus; overview v2: 1.67 million
GPUs at work | working | count | without spares
Power
IT power | it_power | power | racks x rack_power, which was derived from 3.6 GW
_ of a rack | rack_power | power | IT power / racks
_ of a GPU | gpu_power | power | IT power / GPUs
_ network, storage, other | beside_racks | power | - racks x rack_rating
power with cooling, least | power_low | power | x pue_low, derived from 4.16 GW
power with cooling, most | power_high | power | x pue_high, derived from 4.71 GW
Sites
one place supplies | site_power | power | plant_power x site_plants, or site_power
one site, least | power_low | power | power with cooling | site_power
one site, most | power_high | power | power with cooling | site_power
sites | sites | count | most power / supply; overview v2: 2 coasts
_ GPUs of each | site_gpus | count | in equal parts
_ IT power of each | site_it | power | in equal parts
_ power of each, least | site_low | power | in equal parts | site_power
_ power of each, most | site_high | power | in equal parts | site_power
racks in a mesh | mesh_racks | count | in each site 2^a 3^b 5^c of them
GPUs in a mesh | mesh_gpus | count | without spares
Failures
GPU-hours of a failure | failure_hours | count | Llama 3: failure_gpus x failure_days / failures
time between failures | mtbf | seconds | / GPUs"""
CHECKPOINT = """a checkpoint that stalls for | stall | seconds | input
_ is best taken every | interval | seconds | of work, Daly 2006
_ and costs, with what is lost | cost | percent | of the time without failures"""
MODEL = """Model, by rule or as the file says
parameters asked for | asked | parameters | asked for; abstract v1: 50T or 100T
layers L | layers | count | asked / (12 h^2), or a little less
width h | hidden | count | multiple of head x GPUs of a rack
heads | heads | count | h / head
parameters P | parameters | parameters | 12 L h^2, embeddings, biases
tokens | tokens | large | tokens_per_parameter x P: Hoffmann et al.
FLOP C | flops | large | 6 P tokens
batch, sequences | batch | count | racks, times or divided by a whole number
Mesh and step, as ./plan answers
tensor t | tensor | count | searched
pipeline p | pipeline | count | searched
data d | data | count | GPUs / (t p), over the sites
chunks v | chunks | count | searched
micro-batches m | micro_batches | count | batch / (d B), whole
memory of a GPU | memory | bytes | largest rank; with no mesh, the smallest need | room
step | step | seconds | simulated
tokens a second | rate | large | batch / step
MFU | mfu | percent | (6 N + 6 L C T) tokens/s / peak
bubble, of the step | bubble_share | percent | waiting for other stages
tensor sums | tensor_share | percent | not hidden
sums of gradients | data_share | percent | not hidden
Between sites
step, sync | sync | seconds | the best mesh; - : no room, or one site
_ dc-s3gd | dc-s3gd | seconds | --dp-mode, by its defaults
_ diloco | diloco | seconds | --dp-mode, by its defaults
bytes of a step, each way | wan_bytes | bytes | of a site, simulated
_ rate, over the whole step | wan_rate | rate | if the step hides it | wan_capacity
Time, with failures and checkpoints of the first stall
days by tokens_per_parameter | days0 | days | tokens / (tokens a second) | limit
_ by Hoffmann et al.'s loss | days1 | days | the law's tokens for P | limit
_ by Besiroglu et al.'s | days2 | days | the law's tokens for P | limit
_ by Llama 3's law | days3 | days | the law's tokens for P | limit
MFU, if tokens, precision hold | mfu_needed | percent | MFU x days / days_limit | mfu_most
peak, if tokens, MFU hold | peak_needed | flops | peak x days / days_limit | peak
tokens a parameter, if both hold | ratio_in_time | count | in days_limit | ratio"""


def text_of(value, kind):
    """Three digits and a unit; counts in full; "-": there is none."""
    if not math.isfinite(value):
        return "-"
    prefixed = {"power": "W", "flops": "FLOP/s", "bytes": "B", "rate": "bit/s"}
    if kind in prefixed or (kind == "seconds" and 0.1 <= value < 999.5) or (kind == "seconds" and value == 0):
        value, at = value * (8 if kind == "rate" else 1), 0
        while abs(value) >= 999.5 and at < 6:
            value, at = value / 1000, at + 1
        digits = (abs(value) < 99.95) + (abs(value) < 9.995)
        return f"{value:.{digits}f} {'kMGTPE'[at - 1:at] if at else ''}{prefixed.get(kind, 's')}"
    if kind == "large":
        return re.sub(r"e\+0*(\d)", r"e\1", f"{value:.2e}")
    if kind == "percent":
        return f"{100 * value:.2g} %" if value < 0.001 else f"{100 * value:.{2 if value < 0.1 else 1}f} %"
    if kind == "parameters":
        return f"{value / 1e12:.4g} T"
    if kind == "money":
        return f"{value / 1e9:.1f} B$" if value >= 1e9 else f"{value / 1e6:.2f} M$"
    if kind == "seconds" and value < 0.1:
        return f"{1e3 * value:.3g} ms"
    whole = value >= (100 if kind == "days" else 1000) or value == int(value)
    return (f"{value:,.0f}" if whole else f"{value:.4g}") + {"days": " d", "seconds": " s"}.get(kind, "")


def print_rows(rows, columns):
    """Of some dictionaries, side by side. "; <= 192 GB: kept, VIOLATED" is a verdict a column, or one if they agree."""
    for row in rows.split("\n"):
        what, *row = row.replace("_", " ", row.startswith("_")).split(" | ")
        if not row:
            print(f"\n{what}")
            continue
        name, kind, source, *limit = row
        line = f"  {what:34}" + "".join(f" {text_of(column[name], kind):>13}" for column in columns) + f"  # {source}"
        if limit:
            kept = [column[name] >= column[limit[0]] if kind == "count" else column[name] <= column[limit[0]]
                    for column in columns]
            said = [("VIOLATED", "kept")[k] for k in (kept[:1] if len(set(kept)) == 1 else kept)]
            line += f"; {'>=' if kind == 'count' else '<='} {text_of(columns[0][limit[0]], kind)}: {', '.join(said)}"
        print(line)


def print_batches(d, p, laws):
    """The first model with larger batches."""
    print("\nThe first model over the batch, and days by each law")
    print("     tokens  sequences    m     step    MFU  bubble" + "".join(f"  {law.name}" for law in laws))
    for factor in (1, 5, 20):
        more = {**d, "batch_tokens": factor * d["batch_tokens"]}
        m = model_plan(more, p, laws, d["models"][0], ())
        if m["rate"]:
            print(f"  {m['batch'] * d['sequence']:9.3g} {m['batch']:10,} {m['micro_batches']:4} {m['step']:6.4g} s "
                  f"{100 * m['mfu']:5.1f}% {100 * m['bubble_share']:6.1f}%" +
                  "".join(f"  {m[f'days{i}']:{len(law.name)},.0f}" for i, law in enumerate(laws)))
    print("  A batch is limited by the critical one, which grows with the tokens\n"
          "  (Zhang et al. 2024, arXiv 2410.21676, up to 1.2B parameters); at this size it is not known.")


def print_largest(d, laws, sizes):
    """Days and laws, with the range by the error of a law's exponent: more tokens, fewer parameters."""
    print(f"\nThe largest model, 10^12 parameters, and its range by the law's error; {d['precision']} bit; from "
          f"{len(sizes)} sizes\n  days" + "".join(f"  {law.name:>20}" for law in laws))
    for days in (90, 180, 365, 545, 730, 1000):
        print(f"  {days:4}", end="")
        for law in laws:
            x = [largest(sizes, law._replace(exponent=e), days) / 1e12 for e in (law.exponent, law.high, law.low)]
            print(f"  {'%.3g (%.3g to %.3g)' % tuple(x):>20}", end="")
        print()
    for law in laws:
        print(f"  {law.name:20} {law.source}; far outside its data")


def datacenter_print(d):
    p, laws = datacenter_plan(d), laws_known(d["tokens_per_parameter"])
    models = [model_plan(d, p, laws, asked) for asked in d["models"]]
    sizes = sorted([(m["parameters"], m["rate"] / p["slower"]) for m in models if m["rate"]] +
                   list(ladder(d, p, laws)))
    print_rows(PLACE, [p])
    for checkpoint in p["checkpoints"]:
        print_rows(CHECKPOINT, [checkpoint])
    for i in range(0, len(models), 2):
        print_rows(MODEL, models[i:i + 2])
    print_batches(d, p, laws)
    print_largest(d, laws, sizes)
    late = [(m["asked"], min(m[f"days{i}"] for i in range(4))) for m in models]
    late = [f"{asked / 1e12:g} T takes {days:.0f} days or more" for asked, days in late
            if d["days_limit"] < days < math.inf]
    if late:
        print("Not in days_limit by any of these laws: " + ", ".join(late))
    print("\nThe same questions to ./plan, and the trainer's options that answer them; cluster.txt:")
    print("".join(f"    {line}\n" for line in p["cluster"]), end="")
    for m in models:
        answer = m["best"].get("flags", "no mesh has room").strip()
        print(f"\n./plan --cluster cluster.txt {m['question']}\n    {answer}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", nargs="?", default=os.path.join(HERE, "clusters", "next-generation.txt"))
    parser.add_argument("--models", help="other models, such as 50T,100T parameters")
    args = parser.parse_args()
    try:
        datacenter_print(datacenter_read(args.file, args.models))
    except (ValueError, OSError) as error:
        sys.exit(f"datacenter.py: {error}")


if __name__ == "__main__":
    main()
