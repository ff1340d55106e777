#!/usr/bin/env python3
"""
assembly.py: what the machine code of the CUDA kernels says, without a GPU: registers, occupancy, widths of memory
accesses, the instructions of the hot loops, and what an estimate makes of them.

    assembly.py --launches PROGRAM [--all] [--only WORD] FILE...     make assembly

FILE: a cubin or a program by nvcc; every architecture in it is taken. PROGRAM: dev/bench/launches.cu, which says with
how many threads and how much shared memory kernels are launched. cuobjdump is searched for on PATH, beside nvcc, and in
Python's packages (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm). Standard library only.

The first table has a line for each kernel that a training step launches (--all: for every kernel):

    regs stack spills   registers and bytes of stack of a thread; spills: instructions that load or store local memory
    shared              bytes of a block, static and dynamic
    blocks warps limit  that fit on a multiprocessor, and what they are limited by
    wide                accesses of global memory, in the program text, that move 16 bytes a thread
    flight              KB that the loads of all resident warps have under way at most: the largest number of bytes that
                        a thread has asked for and not yet used. Little's law: bandwidth times latency, for an H200
                        4.3 TB/s x 700 ns / 132 = 23 KB, must be in flight to keep the memory busy.

The second one has the hot loop: of all loops (backward branches) the smallest with nearly as many accesses of memory as
any has, or with all tensor core instructions. Loops inside it count once, but for those with tensor cores, whose turns
follow from the shapes. What is jumped over inside it by a forward branch, and has no such instruction, counts as rare:
masks of diagonal tiles, ends of rows. Beside the instructions of one turn by class, it has the clocks that a
multiprocessor needs for a turn of one warp in each of its units, if each unit did nothing else:

    issue     4 warp instructions a clock, one for each scheduler
    tensor    mma m16n8k16: 2048 multiply-adds. A100: 1024 a clock, which is its peak. H100: mma.sync has about 62 % of
              the 2048 a clock that wgmma has (quoted from Luo et al. 2024, arXiv 2402.13499; not measured here: an
              estimate). B200: no figure is known; 1024 is assumed, as on A100, for its peak is that of tcgen05, which
              mma.sync does not use
    fma       multiply-adds of floats: A100 64, H100 and B200 128 lanes a clock; of integers (IMAD): 64
    alu       64 lanes a clock: all other integers, and comparison, selection, minimum and maximum of floats
    mufu      16 lanes a clock (exponentials, reciprocals, logarithms)
    convert   64 lanes a clock for float to 16 bits in pairs; 16 for those with float64 and integers
    shared    128 bytes a clock; LDSM.x4 and a 16-byte access of all lanes take 4, if no banks collide
    double    64 lanes a clock; A100 32 DFMA

Rates: CUDA Programming Guide 13.0, "arithmetic instructions"; A100 and H100 architecture white papers; what alu and fma
do: Nsight Compute documentation, "Pipelines". The largest is what limits the loop. `one warp` is the sum of the stall
counts that the compiler wrote into the instructions: a warp alone takes that long even if nothing is ever waited for.

The third is a prediction for the flash attention kernels, at the clock of the data sheet: TFLOP/s where all units work
at the same time, and where tensor cores and issue of all else take turns. Tiles beyond the diagonal and idle warps of
diagonal tiles are counted as time, but operations as half of the square. The kernel of the keys has two roles, and what
only one of them does is counted for both. Nothing of this was measured; waiting for barriers and memory comes on top,
so these are upper bounds.
"""
import argparse
import collections
import glob
import math
import os
import re
import shutil
import subprocess
import sys

# A multiprocessor and its chip. shared: KB for all blocks; 1 KB of it is the system's for each block. mma:
# multiply-adds a clock by mma.sync of 16-bit numbers; peak: TFLOP/s of the data sheet.
Chip = collections.namedtuple("Chip", "name count ghz shared mma fp32 double peak")
CHIPS = {
    80: Chip("A100", 108, 1.41, 164, 1024, 64, 32, 312.0),
    90: Chip("H200", 132, 1.83, 228, 0.62 * 2048, 128, 64, 989.4),
    100: Chip("B200", 148, 1.85, 228, 1024, 128, 64, 2250.0),
}
REGISTERS, THREADS, BLOCKS = 65536, 2048, 32

Instruction = collections.namedtuple("Instruction", "at guard op text stall")
UNITS = ("issue", "tensor", "fma", "alu", "mufu", "convert", "shared", "double")


def die(text):
    sys.exit(f"assembly: {text}")


def tool_of(name):
    """The path of one of the toolkit's programs, or None."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), name)
    packages = [p for folder in sys.path for p in glob.glob(os.path.join(folder, "nvidia", "*", "bin", name))]
    paths = [os.environ.get(name.upper()), shutil.which(name), beside] + packages
    return next((p for p in paths if p and os.access(p, os.X_OK)), None)


def cuobjdump():
    """The path of cuobjdump, or None; also where nvdisasm is missing, which it starts."""
    return tool_of("cuobjdump") if tool_of("nvdisasm") else None


def short_name(name):
    """Of a demangled function: without its result, arguments, namespaces and casts in template arguments."""
    depth, begin = 0, 0
    for long, short in (("(int)", ""), ("(bool)1", "true"), ("(bool)0", "false"), ("__nv_bfloat16", "bf16"),
                        ("__half", "fp16")):
        name = name.replace(long, short)
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if depth == 0 and c == " ":
            begin = i + 1
        if depth == 0 and c == "(":
            return name[begin:i]
    return name[begin:]


def demangle(names):
    tool = shutil.which("c++filt") or die("c++filt is not there (binutils)")
    return subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout.split("\n")


class Kernel:
    """One kernel of one architecture: name, arch, registers, stack, shared (static), code (list of Instruction)."""

    def __init__(self, name, arch, registers, stack, shared):
        self.name, self.arch, self.code = name, arch, []
        self.registers, self.stack, self.shared = registers, stack, shared

    def count(self, pattern):
        return sum(1 for i in self.code if re.match(pattern, i.op))

    def spills(self):
        return self.count(r"(LDL|STL)\b")

    def accesses(self):
        """Bytes a thread of each load and each store of global memory, as lists."""
        found = {"load": [], "store": []}
        for i in self.code:
            if re.match(r"(LDG|STG|LD|ST|LDGSTS)\b", i.op):
                kinds = ("load",) if i.op.startswith("LDG") or i.op.split(".")[0] == "LD" else ("store",)
                for kind in kinds:
                    found[kind].append(width(i.op))
        return found


def width(op):
    """Bytes that a load or store moves for a thread."""
    for word, size in ((".256", 32), (".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1), (".S8", 1)):
        if word in op:
            return size
    return 4


CODE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;\s+/\* 0x[0-9a-f]{16} \*/")
WORD = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")


def read_kernels(path):
    """The kernels in a cubin, object or program."""
    tool = cuobjdump() or die("cuobjdump or nvdisasm is not there: they come with the CUDA Toolkit, or: "
                              "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    path_with_both = os.pathsep.join([os.path.dirname(tool_of("nvdisasm")), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path_with_both}

    def run(option):
        ran = subprocess.run([tool, option, path], capture_output=True, text=True, env=environment)
        if ran.returncode != 0:
            die(f"cuobjdump {option} {path}: {ran.stderr.strip() or ran.stdout.strip()}")
        return ran.stdout

    # Both come one architecture after the other. -res-usage names that in "arch = sm_90" for programs, but not for
    # cubins.
    usage, arch = {}, None
    text = run("-sass")
    archs = [int(a) for a in re.findall(r"code for sm_(\d+)", text)]
    for line in run("-res-usage").split("\n"):
        if found := re.match(r"\s*arch = sm_(\d+)", line):
            arch = int(found[1])
        elif found := re.match(r"\s*Function (\S+):", line):
            function = found[1]
        elif found := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            usage[arch or archs[0], function] = [int(found[k]) for k in (1, 2, 3, 4)]
    kernels, arch, code = [], None, None
    for line in text.split("\n"):
        if found := CODE.match(line):
            if code is not None:
                code.append(Instruction(int(found[1], 16), found[2], found[3], found[4], 0))
        elif code and (found := WORD.match(line)):
            # Bits 105 to 108 of the 128: clocks until the warp's next instruction (Jia et al. 2018, arXiv 1804.06826,
            # for Volta; the same place since).
            code[-1] = code[-1]._replace(stall=int(found[1], 16) >> 41 & 15)
        elif found := re.match(r"\s*code for sm_(\d+)", line):
            arch, code = int(found[1]), None
        elif found := re.match(r"\s*Function : (\S+)", line):
            registers, stack, shared, local = usage.get((arch, found[1]), (0, 0, 0, 0))
            kernels.append(Kernel(found[1], arch, registers, stack + local, shared))
            code = kernels[-1].code
    for kernel, name in zip(kernels, demangle([k.name for k in kernels])):
        kernel.name = short_name(name)
    return kernels


def read_launches(program):
    """{kernel: (blocks, threads, dynamic shared memory)} as launches.cu tells them; the last model counts."""
    ran = subprocess.run([program], capture_output=True, text=True, check=True)
    symbols = {}
    for line in subprocess.run(["nm", "-C", program], capture_output=True, text=True, check=True).stdout.split("\n"):
        if found := re.match(r"([0-9a-f]+) \w (.*)", line):
            symbols.setdefault(int(found[1], 16), found[2])
    main = next(at for at, name in symbols.items() if name == "main")
    launches = {}
    for line in ran.stdout.split("\n"):
        if line:
            at, blocks, threads, shared = map(int, line.split())
            launches[short_name(symbols[main + at])] = (blocks, threads, shared)
    return launches


def occupancy(kernel, threads, dynamic):
    """Blocks on a multiprocessor, and what they are limited by."""
    warps = (threads + 31) // 32
    a_warp = math.ceil(kernel.registers * 32 / 256) * 256
    fixed = 1024 if kernel.arch == 80 else 0  # from sm_90 on, cuobjdump counts the system's KB
    shared = math.ceil((kernel.shared + dynamic + fixed) / 128) * 128
    limits = {"threads": THREADS // (warps * 32), "blocks": BLOCKS,
              "registers": REGISTERS // 4 // a_warp * 4 // warps if a_warp else BLOCKS,
              "shared": CHIPS[kernel.arch].shared * 1024 // shared if shared else BLOCKS}
    limit = min(limits, key=lambda k: limits[k])
    return limits[limit], limit


def registers_of(text):
    return set(re.findall(r"\bR(\d+)\b", text))


def destinations(instruction):
    """Registers that a load writes."""
    found = re.match(r"(?:P\w+,\s*)?R(\d+)", instruction.text)
    return set(str(int(found[1]) + k) for k in range(max(1, width(instruction.op) // 4))) if found else set()


def bytes_in_flight(kernel):
    """The most that one thread has loaded from global memory and not yet used, along the text of the program."""
    most, waiting = 0, {}
    for i in kernel.code:
        copies = i.op.startswith("LDGSTS")
        if i.op.startswith("LDG.") and not copies:
            used = registers_of(i.text.split(",", 1)[-1])
        else:
            used = registers_of(i.text)
        for at in [at for at, (registers, _) in waiting.items() if registers & used]:
            del waiting[at]
        if i.op.startswith(("LDGDEPBAR", "DEPBAR", "BAR")):
            waiting = {at: w for at, w in waiting.items() if w[0]}
        if i.op.startswith("LDG.") and not copies:
            waiting[i.at] = (destinations(i), width(i.op))
        elif copies:
            waiting[i.at] = (set(), width(i.op))
        elif i.op in ("RET.REL.NODEC", "EXIT") and not i.guard:
            waiting = {}
        most = max(most, sum(size for _, size in waiting.values()))
    return most


def exponentials_beside_products(kernel):
    """MUFU.EX2 in the program text between a wait for products that leaves some in flight and the next instruction of
    a warpgroup."""
    found, beside = 0, False
    for i in kernel.code:
        if i.op.startswith("WARPGROUP."):
            beside = i.op.startswith("WARPGROUP.DEPBAR") and not i.text.rstrip().endswith("0x0")
        found += beside and i.op.startswith("MUFU.EX2")
    return found


# ---- Loops -----------------------------------------------------------------------------------------------------------


def target(instruction):
    found = re.search(r"0x([0-9a-f]+)", instruction.text) if instruction.op.split(".")[0] == "BRA" else None
    return int(found[1], 16) if found else None


def loops_of(kernel):
    """(begin, end) of all loops: from the target of a backward branch to the branch. The one at the end of a program,
    to itself, is padding; and where the program ends in between, rare code was moved behind that end, and this is its
    way back."""
    ends = {}
    for i in kernel.code:
        to = target(i)
        if to is not None and to < i.at:
            ends[to] = max(i.at, ends.get(to, 0))
    exits = [i.at for i in kernel.code if i.op == "EXIT" and not i.guard]
    return sorted(l for l in ends.items() if not any(l[0] <= at <= l[1] for at in exits))


def weight(code):
    """How much a loop matters: tensor core instructions before all else, then bytes of memory."""
    return (sum(1 for i in code if "MMA" in i.op and i.op[0] == "H" and not i.op.startswith("HFMA2")),
            sum(width(i.op) for i in code if i.op.startswith(("LDG", "STG"))), len(code))


def body(kernel, begin, end):
    return [i for i in kernel.code if begin <= i.at <= end]


def useful(i):
    if i.op.startswith("STG"):
        return width(i.op) >= 8
    return i.op.startswith(("HMMA", "HGMMA", "LDSM", "LDG", "BAR", "LDS", "STS"))


def rare(code):
    """Instructions that a forward branch inside the loop jumps over, and that neither load, nor synchronise, nor store
    packs."""
    at = {i.at: k for k, i in enumerate(code)}
    found = set()
    for k, i in enumerate(code):
        to = target(i)
        if i.guard and to in at and at[to] > k + 1 and not any(useful(j) for j in code[k + 1:at[to]]):
            found.update(range(k + 1, at[to]))
    return found


def hot_loop(kernel):
    """(begin, end) of the smallest loop that has most of the memory accesses of any loop, or all tensor core
    instructions."""
    loops = [l for l in loops_of(kernel) if l[1] - l[0] > 16]
    if not loops:
        return None
    weights = {l: weight(body(kernel, *l)) for l in loops}
    total = weight(kernel.code)[0]
    if total:
        least = lambda w: w[0] == total
    else:
        most = max(w[1] for w in weights.values())
        least = lambda w: w[1] >= 0.6 * most
    enough = [l for l in loops if least(weights[l])] or loops
    return min(enough, key=lambda l: l[1] - l[0])


CLASSES = ("tensor", "ldsm", "mufu", "fp32", "convert", "global", "shared", "integer", "move", "double", "other")


def class_of(i):
    op = i.op.split(".")[0]
    if op in ("HMMA", "HGMMA", "IMMA"):
        return "tensor"
    if op == "LDSM":
        return "ldsm"
    if op == "MUFU":
        return "mufu"
    if op in ("FFMA", "FMUL", "FADD", "FMNMX", "FMNMX3", "FSEL", "FSETP", "FSET", "FCHK", "FFMA2", "FADD2", "FMUL2"):
        return "fp32"
    if op in ("F2FP", "F2F", "I2F", "F2I", "I2FP", "FRND"):
        return "convert"
    if op in ("LDG", "STG", "LDGSTS", "LD", "ST", "RED", "REDG", "ATOMG", "LDL", "STL"):
        return "global"
    if op in ("LDS", "STS", "ATOMS", "SHFL"):
        return "shared"
    if op in ("DFMA", "DADD", "DMUL", "DSETP"):
        return "double"
    if i.op.startswith("IMAD.MOV") or op in ("MOV", "CS2R", "UMOV", "S2R", "S2UR", "R2UR", "LDC", "ULDC", "LDCU", "P2R",
                                             "R2P", "HFMA2"):
        return "move"
    if op.startswith("U") or op in ("IMAD", "IADD3", "LOP3", "SHF", "LEA", "ISETP", "SEL", "PRMT", "IMNMX", "VIADD",
                                    "VIADDMNMX", "VIMNMX", "VIMNMX3", "IABS", "PLOP3", "IDP", "POPC", "FLO", "BFE",
                                    "BMSK", "SGXT", "I2IP", "VABSDIFF"):
        return "integer"
    return "other"


def clocks(code, chip):
    """{unit: clocks of a multiprocessor for one turn of one warp}"""
    t = dict.fromkeys(UNITS, 0.0)
    for i in code:
        t["issue"] += 1 / 4
        kind, op = class_of(i), i.op.split(".")[0]
        if kind == "tensor":
            t["tensor"] += 2048 / chip.mma
        elif op in ("FFMA", "FMUL", "FADD", "FFMA2", "FMUL2", "FADD2"):
            t["fma"] += 32 / chip.fp32 * (2 if op.endswith("2") else 1)
        elif op == "IMAD" or op == "HFMA2":
            t["fma"] += 32 / 64
        elif kind == "mufu":
            t["mufu"] += 32 / 16
        elif kind == "convert":
            t["convert"] += 32 / (64 if op in ("F2FP", "I2FP") else 16)
        elif kind == "ldsm":
            t["shared"] += 4 if ".4" in i.op else 2 if ".2" in i.op else 1
        elif op in ("LDS", "STS", "SHFL", "ATOMS"):
            t["shared"] += max(1, width(i.op) / 4)
        elif kind == "double":
            t["double"] += 32 / chip.double
        elif kind in ("integer", "fp32") and not op.startswith("U") or op in ("MOV", "P2R", "R2P"):
            t["alu"] += 32 / 64
    return t


def inner_turns(kernel, begin, end, wanted):
    """Of a loop with tensor core instructions: its code, the instructions of loops inside it repeated as often as
    `wanted` of these need it to be."""
    loops = [l for l in loops_of(kernel)
             if begin <= l[0] and l[1] <= end and l != (begin, end) and weight(body(kernel, *l))[0]]
    code = body(kernel, begin, end)
    skip = rare(code)
    inside = [any(l[0] <= i.at <= l[1] for l in loops) for i in code]
    a = sum(1 for k, i in enumerate(code) if class_of(i) == "tensor" and not inside[k])
    b = sum(1 for k, i in enumerate(code) if class_of(i) == "tensor" and inside[k])
    turns = (wanted - a) // b if b and wanted > a else 1
    kept = []
    for k, i in enumerate(code):
        if k not in skip:
            kept += [i] * (turns if inside[k] else 1)
    return kept, len(skip)


# ---- Attention -------------------------------------------------------------------------------------------------------


def flash_shape(kernel):
    """Of a flash attention kernel: (pass, HS, rows of others in a turn of the loop, products in it), or None."""
    found = re.match(r"flash_(forward_kernel|backward_queries|backward_keys)<(\d+)>", kernel.name)
    if not found:
        return None
    HS = int(found[2])
    return {"forward_kernel": (found[1], HS, 64, 2), "backward_queries": (found[1], HS, 32, 3),
            "backward_keys": (found[1], HS, 4096 // HS, 2)}[found[1]]


def wanted_products(kernel):
    """mma m16n8k16 of a warp in one turn of the loop: 32 rows of its own, and those of others, for each product."""
    shape = flash_shape(kernel)
    return 32 * shape[2] * shape[1] * shape[3] // 2048 if shape else 0


def warp_turns(which, others, T):
    """Turns of warps, for a head of T rows, with those that wait for others of their block."""
    if which == "backward_keys":  # 4 warps for 64 keys, queries from there on
        return sum(4 * math.ceil((T - first) / others) for first in range(0, T, 64))
    # Warps own 32 queries; one skips what none of its queries sees.
    return sum(math.ceil((first + 32) / others) for first in range(0, T, 32))


def attention(kernels, chip):
    """{kernel: {T: (TFLOP/s overlapped, in turns)}}"""
    found = {}
    for kernel in kernels:
        shape = flash_shape(kernel)
        loop = hot_loop(kernel) if shape else None
        if not loop:
            continue
        which, HS, others, products = shape
        code, _ = inner_turns(kernel, *loop, wanted_products(kernel))
        # copies of the loop's body, in the program text
        copies = sum(1 for i in code if class_of(i) == "tensor") / wanted_products(kernel)
        t = {unit: time / copies for unit, time in clocks(code, chip).items()}
        rest = sum(1 for i in code if class_of(i) != "tensor") / 4 / copies
        found[kernel.name] = {}
        for T in (1024, 2048, 4096):
            # backward: 2.5 times the forward pass in all, 5 products; that of the queries is counted as 2, of the keys
            # as 3
            flops = 2 * T * T * HS * {"forward_kernel": 1, "backward_queries": 1, "backward_keys": 1.5}[which]
            turns = warp_turns(which, others, T)
            overlapped, in_turns = (flops / (turns * time) * chip.count * chip.ghz * 1e-3
                                    for time in (max(t.values()), t["tensor"] + rest))
            found[kernel.name][T] = (overlapped, in_turns, flops)
    return found


# ---- Tables ----------------------------------------------------------------------------------------------------------


def print_table(kernels, launches, everything):
    print(f"{'kernel':44} {'regs':>4} {'stack':>5} {'spills':>6} {'threads':>7} {'shared':>7} {'blocks':>6} "
          f"{'warps':>5} {'limit':9} {'wide loads':>10} {'wide stores':>11} {'flight':>7}")
    for k in sorted(kernels, key=lambda k: k.name):
        if k.name not in launches and not everything:
            continue
        _, threads, dynamic = launches.get(k.name, (0, 0, 0))
        accesses = k.accesses()
        wide = [f"{sum(1 for w in accesses[kind] if w >= 16)} of {len(accesses[kind])}" for kind in ("load", "store")]
        line = f"{k.name[:44]:44} {k.registers:4} {k.stack:5} {k.spills():6} "
        if threads:
            blocks, limit = occupancy(k, threads, dynamic)
            warps = blocks * ((threads + 31) // 32)
            line += f"{threads:7} {k.shared + dynamic:7} {blocks:6} {warps:5} {limit:9} "
            flight = f"{bytes_in_flight(k) * warps * 32 / 1024:5.0f} K"
        else:
            line += f"{'':7} {k.shared:7} {'':6} {'':5} {'':9} "
            flight = f"{bytes_in_flight(k):5} B"
        print(line + f"{wide[0]:>10} {wide[1]:>11} {flight:>7}")


def print_loops(kernels, launches, chip, everything):
    print("\nhot loops: instructions of a warp in a turn; clocks of a multiprocessor for it; what limits")
    print(f"{'kernel':36} {'all':>5} " + " ".join(f"{c:>7}" for c in CLASSES)
          + f" {'rare':>5} | " + " ".join(f"{u:>7}" for u in UNITS) + " | one warp")
    for k in sorted(kernels, key=lambda k: k.name):
        loop = hot_loop(k)
        if not loop or (k.name not in launches and not everything):
            continue
        code, skipped = inner_turns(k, *loop, wanted_products(k))
        counts = collections.Counter(class_of(i) for i in code)
        t = clocks(code, chip)
        limit = max(t, key=lambda u: t[u])
        print(f"{k.name[:36]:36} {len(code):5} " + " ".join(f"{counts[c]:7}" for c in CLASSES) + f" {skipped:5} | "
              + " ".join(f"{t[u]:7.1f}" for u in UNITS) + f" | {sum(i.stall for i in code):4} {limit}")


def print_attention(kernels, chip):
    found = attention(kernels, chip)
    if not found:
        return
    print("\nflash attention, predicted: TFLOP/s if all units overlap / if tensor cores and the rest take turns "
          "(causal half counted)")
    print(f"{'kernel':36} " + " ".join(f"{f'T = {T}':>14}" for T in (1024, 2048, 4096))
          + "   share of the data sheet's peak at 2048")
    for name, rates in sorted(found.items()):
        print(f"{name:36} " + " ".join(f"{f'{a:.0f} / {b:.0f}':>14}" for a, b, _ in rates.values())
              + "   " + " / ".join(f"{100 * r / chip.peak:.0f} %" for r in rates[2048][:2]))
    for HS in (64, 128):
        both = [found.get(f"flash_backward_{side}<{HS}>") for side in ("queries", "keys")]
        if all(both):
            line = []
            for T in (1024, 2048, 4096):
                flops = sum(b[T][2] for b in both)
                line.append(" / ".join(f"{flops / sum(b[T][2] / b[T][k] for b in both):.0f}" for k in (0, 1)))
            print(f"{f'backward, HS = {HS}, both':36} " + " ".join(f"{x:>14}" for x in line))


def main():
    parser = argparse.ArgumentParser(description="what the machine code of the CUDA kernels says; make assembly")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--launches", required=True, metavar="PROGRAM")
    parser.add_argument("--all", action="store_true", help="kernels, too, that no training step launches")
    parser.add_argument("--only", default="", metavar="WORD", help="kernels whose name contains WORD")
    options = parser.parse_args()
    launches = read_launches(options.launches)
    for path in options.files:
        kernels = [k for k in read_kernels(path) if options.only in k.name]
        for arch in sorted(set(k.arch for k in kernels)):
            if arch not in CHIPS:
                die(f"{path}: sm_{arch} is not known; known are {', '.join(f'sm_{a}' for a in CHIPS)}")
            some, chip = [k for k in kernels if k.arch == arch], CHIPS[arch]
            print(f"{path}: sm_{arch}, {chip.name}, {chip.count} multiprocessors at {chip.ghz} GHz\n")
            print_table(some, launches, options.all)
            print_loops(some, launches, chip, options.all)
            print_attention(some, chip)
            print()


if __name__ == "__main__":
    main()
