#!/usr/bin/env python3
"""
assembly.py: what the machine code of the CUDA kernels says, without a GPU: registers, occupancy, widths of memory
accesses. check_assembly.py, which says what they have to be, also reads the hot loops.

    assembly.py --launches PROGRAM [--all] [--only WORD] FILE...     make assembly

FILE: a cubin or a program by nvcc; every architecture in it is taken. PROGRAM: dev/bench/launches.cu, which says with
how many threads and how much shared memory kernels are launched. cuobjdump is searched for on PATH, beside nvcc, and in
Python's packages (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm). Standard library only.

A line for each kernel that a training step launches (--all: for every kernel):

    regs stack spills   registers and bytes of stack of a thread; spills: instructions that load or store local memory
    shared              bytes of a block, static and dynamic
    blocks warps limit  that fit on a multiprocessor, and what they are limited by
    wide                accesses of global memory, in the program text, that move 16 bytes a thread
    flight              KB that the loads of all resident warps have under way at most: the largest number of bytes that
                        a thread has asked for and not yet used. Little's law: bandwidth times latency, for an H200
                        4.3 TB/s x 700 ns / 132 = 23 KB, must be in flight to keep the memory busy.

The hot loop: of all loops (backward branches) the smallest with nearly as many accesses of memory as any has, or with
all tensor core instructions; loops inside it with tensor cores as often as their shapes say. What is jumped over inside
it by a forward branch, and has no such instruction, is rare: masks of diagonal tiles, ends of rows.
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

CHIPS = {80: ("A100", 164), 90: ("H200", 228), 100: ("B200", 228)}  # KB for all blocks of a multiprocessor
REGISTERS, THREADS, BLOCKS = 65536, 2048, 32  # of a multiprocessor

Instruction = collections.namedtuple("Instruction", "at guard op text")


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
                code.append(Instruction(int(found[1], 16), found[2], found[3], found[4]))
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
              "shared": CHIPS[kernel.arch][1] * 1024 // shared if shared else BLOCKS}
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


def is_tensor(i):
    return i.op.split(".")[0] in ("HMMA", "HGMMA", "IMMA")


def inner_turns(kernel, begin, end, wanted):
    """Of a loop with tensor core instructions: its code, the instructions of loops inside it repeated as often as
    `wanted` of these need it to be."""
    loops = [l for l in loops_of(kernel)
             if begin <= l[0] and l[1] <= end and l != (begin, end) and weight(body(kernel, *l))[0]]
    code = body(kernel, begin, end)
    skip = rare(code)
    inside = [any(l[0] <= i.at <= l[1] for l in loops) for i in code]
    a = sum(1 for k, i in enumerate(code) if is_tensor(i) and not inside[k])
    b = sum(1 for k, i in enumerate(code) if is_tensor(i) and inside[k])
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
            print(f"{path}: sm_{arch}, {CHIPS[arch][0]}\n")
            print_table([k for k in kernels if k.arch == arch], launches, options.all)
            print()


if __name__ == "__main__":
    main()
