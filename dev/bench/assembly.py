#!/usr/bin/env python3
"""
assembly.py: what the machine code of the CUDA kernels says, without a GPU. check_assembly.py says what it has to be.

    assembly.py [--only WORD] FILE...     make assembly

FILE: a cubin or a program by nvcc; every architecture in it is taken. cuobjdump is searched for on PATH, beside nvcc,
and in Python's packages (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm). Standard library only. A line for
each kernel whose name contains WORD:

    regs stack spills   registers and bytes of stack of a thread; spills: instructions that load or store local memory
    shared              bytes of a block's static shared memory
    mma                 tensor core instructions in the program text
    loads stores        accesses of global memory there, and how many of them move 16 bytes a thread
"""
import argparse, collections, glob, os, re, shutil, subprocess, sys

Instruction = collections.namedtuple("Instruction", "op text")


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

    def spills(self):
        return sum(i.op.split(".")[0] in ("LDL", "STL") for i in self.code)

    def accesses(self):
        """Bytes a thread of each load and each store of global memory, as lists."""
        found = {"load": [], "store": []}
        for i in self.code:
            if i.op.split(".")[0] in ("LDG", "STG", "LD", "ST", "LDGSTS"):
                found["load" if i.op.startswith("LD") else "store"].append(width(i.op))
        return found


def width(op):
    """Bytes that a load or store moves for a thread."""
    for word, size in ((".256", 32), (".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1), (".S8", 1)):
        if word in op:
            return size
    return 4


CODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;\s+/\* 0x[0-9a-f]{16} \*/")


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

    # Both come one architecture after the other. -res-usage names that for programs, but not for cubins.
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
                code.append(Instruction(found[1], found[2]))
        elif found := re.match(r"\s*code for sm_(\d+)", line):
            arch, code = int(found[1]), None
        elif found := re.match(r"\s*Function : (\S+)", line):
            registers, stack, shared, local = usage.get((arch, found[1]), (0, 0, 0, 0))
            kernels.append(Kernel(found[1], arch, registers, stack + local, shared))
            code = kernels[-1].code
    for kernel, name in zip(kernels, demangle([k.name for k in kernels])):
        kernel.name = short_name(name)
    return kernels


def exponentials_beside_products(kernel):
    """MUFU.EX2 in the program text between a wait for products that leaves some in flight and the next instruction of
    a warpgroup."""
    found, beside = 0, False
    for i in kernel.code:
        if i.op.startswith("WARPGROUP."):
            beside = i.op.startswith("WARPGROUP.DEPBAR") and not i.text.rstrip().endswith("0x0")
        found += beside and i.op.startswith("MUFU.EX2")
    return found


def is_tensor(i):
    return i.op.split(".")[0] in ("HMMA", "HGMMA", "IMMA")


def print_table(kernels):
    print(f"{'kernel':60} {'regs':>4} {'stack':>5} {'spills':>6} {'shared':>6} {'mma':>4} {'loads':>5} {'wide':>4} "
          f"{'stores':>6} {'wide':>4}")
    for k in sorted(kernels, key=lambda k: k.name):
        counts = [n for widths in k.accesses().values() for n in (len(widths), sum(w >= 16 for w in widths))]
        counts = [k.registers, k.stack, k.spills(), k.shared, sum(map(is_tensor, k.code)), *counts]
        print(f"{k.name[:60]:60} " + "{:4} {:5} {:6} {:6} {:4} {:5} {:4} {:6} {:4}".format(*counts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--only", default="", metavar="WORD", help="kernels whose name contains WORD")
    options = parser.parse_args()
    for path in options.files:
        kernels = [k for k in read_kernels(path) if options.only in k.name]
        for arch in sorted({k.arch for k in kernels}):
            print(f"{path}: sm_{arch}\n")
            print_table([k for k in kernels if k.arch == arch])
            print()


if __name__ == "__main__":
    main()
