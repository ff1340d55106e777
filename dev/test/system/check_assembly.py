#!/usr/bin/env python3
"""
check_assembly.py: what the machine code of the CUDA kernels has to be like, in bf16 builds, and is, without a GPU:

    memory      no stack and no spills, but where SPILLS says why
    tensor      Hopper's attention has just the wgmma instructions that it needs; only attention has any
    width       kernels for packs of 16 bytes load and store global memory so, and nowhere a single 16-bit number
    overlap     Hopper's attention computes its exponentials while products are in flight
    double      float64 only where sums are meant to be taken in it
    half        16-bit numbers are not computed with (cuda_utils.cuh)

    check_assembly.py FILE...     programs or cubins by nvcc for bf16; all architectures in them
    check_assembly.py --faults    plants faults in copies of the sources: is each of them seen?

Called by test_nvcc.sh for the program that it has made, and by make assembly_check for all architectures, with the
faults. Last line "N passed, N failed". Standard library only.
"""
import argparse, glob, os, re, shutil, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "dev", "bench"))
import assembly  # noqa: E402

# Bytes of stack that a kernel may have. This one uses all 255 registers that there are, and keeps a number or two that
# is needed once a tile in memory, which stays in L1.
SPILLS = {
    "flash_backward_keys<64>": 8,
}

# Tensor core instructions of Hopper's own kernels, in their program text: each product is written down once, those of
# forward's first and last tile once more. By wgmma: heads of 64 or 128 numbers are 4 or 8 steps of k, 128 keys 8, 64
# queries 4.
HOPPER = {
    "hopper_forward_kernel<64>": 2 * 4 + 2 * 8,
    "hopper_forward_kernel<128>": 2 * 8 + 2 * 8,
    "hopper_backward_queries<64>": 4 + 4 + 8,
    "hopper_backward_queries<128>": 8 + 8 + 8,
    "hopper_backward_keys<64>": 4 + 4 + 4 + 4,
    "hopper_backward_keys<128>": 8 + 8 + 4 + 4,
}
# Exponentials of a thread in a tile: of 64 rows and 128 columns, or 64, by 128 threads. All of them stand between a
# wait that leaves a product in flight and the next wait.
BESIDE_PRODUCTS = {"hopper_forward_kernel": 64, "hopper_backward_queries": 64, "hopper_backward_keys": 32}

DOUBLE = ("squares_kernel", "squares_add_kernel", "delay_squares_kernel", "losses_add_kernel")

# Kernels whose packs are of 16 bytes: accesses of that width in their program text, at least.  (loads, stores)
WIDE = {
    "accumulate_kernel<4>": (2, 1),
    "bias_partial_kernel<8>": (4, 0),
    "crossentropy_backward_kernel<8>": (4, 1),
    "crossentropy_fused_kernel<8>": (5, 1),
    "crossentropy_max_kernel<8>": (4, 0),
    "crossentropy_sum_kernel<8>": (4, 0),
    "each_kernel<4, AddScaled, float*, float const*>": (2, 1),
    "each_kernel<4, Outer, float*, float*, float const*>": (3, 2),
    "embedding_forward_kernel<8>": (1, 1),
    "gelu_backward_kernel<8>": (2, 1),
    "gelu_forward_kernel<8>": (1, 1),
    "norm_backward_kernel<8, true>": (12, 15),
    "norm_forward_kernel<8, false, true>": (6, 1),
    "norm_forward_kernel<8, true, true>": (11, 2),
    "places_sum_kernel<8>": (3, 2),
    "position_backward_kernel<8>": (3, 2),
    "position_forward_kernel<8>": (2, 1),
    "residual_kernel<8>": (3, 1),
    "norm_backward_kernel<8, false>": (12, 9),
    "norm_forward_kernel<8, false, false>": (5, 1),
    "norm_forward_kernel<8, true, false>": (10, 2),
    "rope_kernel<8>": (6, 2),
    "squares_kernel": (16, 0),
    "swiglu_backward_kernel<8>": (3, 2),
    "swiglu_forward_kernel<8>": (2, 1),
    "caat_pack_kernel<8, bf16>": (1, 1),
    "caat_unpack_kernel<8, bf16>": (2, 1),
    "update_kernel<4, AdamW>": (4, 3),
    "update_kernel<4, SGD>": (3, 2),
}
SINGLE = {"crossentropy_sum_kernel<8>": 1}  # the target's logit

class Results:
    def __init__(self):
        self.passed, self.failures = 0, []

    def check(self, good, text):
        if good:
            self.passed += 1
        else:
            self.failures.append(text)
            print(f"FAIL  {text}")


def check_kernel(k, results):
    where = f"sm_{k.arch} {k.name}"
    allowed = SPILLS.get(k.name, 0)
    results.check(k.stack <= allowed and (allowed or not k.spills()),
                  f"{where}: {k.stack} bytes of stack, {k.spills()} spills; {allowed} allowed")

    doubles = [i for i in k.code if re.match(r"D(FMA|ADD|MUL|SETP|MNMX)\b", i.op) or ".F64" in i.op]
    results.check(not doubles or re.sub("<.*", "", k.name) in DOUBLE,
                  f"{where}: float64, {len(doubles)} instructions ({doubles[:1]})")
    # But HFMA2 R, -RZ, RZ, constant is how constants come into registers, and HADD2.F32 R, -RZ, R makes a float of an
    # fp16.
    halves = [i for i in k.code if re.match(r"H(FMA2|ADD2|MUL2|MNMX2|SET2|SETP2)\b", i.op) and
              "-RZ, RZ" not in i.text and not (i.op == "HADD2.F32" and "-RZ, " in i.text)]
    results.check(not halves, f"{where}: computes with 16-bit numbers: {halves[:1]}")

    accesses = k.accesses()
    if k.name in WIDE:
        wide = [sum(w // 16 for w in accesses[kind])
                for kind in ("load", "store")] # those of 32 bytes, on sm_100, are two
        results.check(wide[0] >= WIDE[k.name][0] and wide[1] >= WIDE[k.name][1],
                      f"{where}: {wide[0]} loads and {wide[1]} stores of 16 bytes; wanted {WIDE[k.name][0]} and "
                      f"{WIDE[k.name][1]}")
    if k.name in WIDE and not k.name.startswith("update"): # whose ends may be cut
        single, allowed = sum(1 for kind in accesses for w in accesses[kind] if w == 2), SINGLE.get(k.name, 0)
        results.check(single <= allowed, f"{where}: {single} accesses of single 16-bit numbers; {allowed} allowed")

    if k.name in HOPPER and k.arch == 90:
        count = lambda op: sum(1 for i in k.code if i.op.split(".")[0] == op)
        products = HOPPER[k.name]
        results.check(count("HGMMA") == products and count("HMMA") == 0,
                      f"{where}: {count('HGMMA')} wgmma, {count('HMMA')} mma; wanted {products}, 0")
        beside, wanted = assembly.exponentials_beside_products(k), BESIDE_PRODUCTS[k.name.split("<")[0]]
        results.check(beside >= wanted,
                      f"{where}: {beside} exponentials between waits, while a product is in flight; wanted {wanted}")
        results.check(count("UTMALDG") > 0 and count("UTMASTG") > 0, f"{where}: tiles do not travel by TMA")
        results.check(count("USETMAXREG") == 2,
                      f"{where}: {count('USETMAXREG')} warpgroups change their registers; wanted 2")
    elif not k.name.startswith("flash_"):
        results.check(not any(assembly.is_tensor(i) for i in k.code),
                      f"{where}: has tensor core instructions")


def check_all(kernels, results, complete=True):
    for k in kernels:
        check_kernel(k, results)
    names = set(k.name for k in kernels)
    for name in list(WIDE) + list(SPILLS) if complete else []:
        results.check(name in names, f"{name}: no such kernel, or it is not compiled")


# ---- Faults: file, exact text, replacement; a word of the message that has to come -----------------------------------

FAULTS = [
    ("kernels/gelu.cuh", "    Packed<floatX, W> v = load<W>(x + i);",
     "    Packed<floatX, W> v;\n    for (int k = 0; k < W; k++) v[k] = x[i + k];",
     "loads and"),
    ("kernels/gelu.cuh", "v[k] = (floatX)gelu_of((float)v[k]);", "v[k] = (floatX)gelu_of((float)(v[k] * v[k]));",
     "16-bit numbers"),
    ("kernels/gelu.cuh", "    store(dx + i, d);", "    for (int k = 0; k < W; k++) dx[i + k] = d[k];", "single"),
    ("kernels/swiglu.cuh", "const float s = __fdividef(1.0f, 1.0f + e);", "const float s = 1.0 / (1.0 + e);",
     "float64"),
    ("kernels/residual.cuh", "const Packed<float, W> v = load<W>(x + i);",
     "Packed<float, W> v;\n    for (int k = 0; k < W; k++) v[k] = x[i + k];",
     "loads and"),
    ("kernels/adamw.cuh", "word = place % 4 == k ? random.word[k] : word;", "word = random.word[place % 4];", "stack"),
    ("kernels/adamw.cuh", "const Packed<float, 4> gradient = load<4>(g + i);",
     "Packed<float, 4> gradient;\n        for (int k = 0; k < 4; k++) gradient[k] = g[i + k];", "loads and"),
    ("kernels/crossentropy.cuh", "sum += exp_fast(f[k][i] - max);", "sum += exp2((double)(f[k][i] - max));", "float64"),
    ("kernels/crossentropy.cuh", "f[k][i] = (float)v[k][i];", "f[k][i] = (float)v[(k + used) % 4][i];", "stack"),
    ("kernels/swiglu.cuh", "store_global(dgate_up + at + F, dup);", "store(dgate_up + at + F, dup);", "stores of 16"),
    ("kernels/layernorm.cuh", "__launch_bounds__(COLUMN_THREADS)\n    layernorm_backward",
     "__launch_bounds__(COLUMN_THREADS, 2)\n    layernorm_backward",
     "stack"),
    ("kernels/layernorm.cuh", "sum += g[k][i] * xhat[k][i];", "sum += g[k][(i + N) % W] * xhat[k][i];", "stack"),
    ("kernels/matmul.cuh", "sum[i] += (float)d[i];\n        }",
     "sum[i] += (float)dout[n * OC + column + i];\n        }", "loads and"),
    ("kernels/embedding.cuh", "v = load<W>(wte + row * C + i % C);",
     "for (int k = 0; k < W; k++) v[k] = wte[row * C + i % C + k];", "loads and"),
    ("kernels/attention.cuh", "__launch_bounds__(FLASH_THREADS, 2)\n    flash_forward",
     "__launch_bounds__(FLASH_THREADS, 3)\n    flash_forward", "stack"),
    ("kernels/attention_hopper.cuh", "            finish_before_wait(sum);\n", "", "between waits"),
    ("kernels/attention_hopper.cuh", "            finish_before_wait(p);\n", "", "between waits"),
]


def compile_cubin(root, source, to, arch="90a"):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    subprocess.run([nvcc, "-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-DUSE_CUDA",
                    "-DPRECISION_BF16", "-w", "-x", "cu", "-cubin",
                    "-I", root, os.path.join(root, source), "-o", to], check=True, cwd=root)


def seen(file, text, replacement, folder, results_of):
    """The failures that a fault leads to. Only its file is compiled, with what that includes, or the one that launches
    its kernels."""
    root = tempfile.mkdtemp(dir=folder)
    for part in ("kernels", "dev/emulator", "util"):
        shutil.copytree(os.path.join(ROOT, part), os.path.join(root, part))
    for header in glob.glob(os.path.join(ROOT, "*.h")):
        shutil.copy(header, root)
    path = os.path.join(root, file)
    with open(path) as f:
        source = f.read()
    if text is not None:
        if source.count(text) != 1:
            return None
        with open(path, "w") as f:
            f.write(source.replace(text, replacement))
    compile_cubin(root, file.replace("attention_hopper", "attention"), os.path.join(root, "cubin"))
    results = results_of()
    check_all(assembly.read_kernels(os.path.join(root, "cubin")), results, complete=False)
    return results.failures


def check_faults(only):
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(set(fault[0] for fault in FAULTS if only in fault[1] + fault[0])):
            failures = seen(file, None, None, folder, Quiet)
            good = failures == []
            passed, failed = passed + good, failed + (not good)
            print(f"{'ok    ' if good else 'FAIL  '}{file} as it is: {failures or 'nothing is found'}", flush=True)
        for file, text, replacement, word in FAULTS:
            if only not in text + file:
                continue
            failures = seen(file, text, replacement, folder, Quiet)
            found = [f for f in failures or [] if word in f]
            passed, failed = passed + bool(found), failed + (not found)
            what = " ".join(replacement.split())[:70] or "(removed) " + " ".join(text.split())[:60]
            print(f"{'caught' if found else 'MISSED'}  {file}: {what}: "
                  f"{found[0] if found else failures if failures is not None else 'no such text'}", flush=True)
    return passed, failed


class Quiet(Results):
    def check(self, good, text):
        if not good:
            self.failures.append(text)


def main():
    parser = argparse.ArgumentParser(description="contracts of the machine code of the CUDA kernels; make "
                                                 "assembly_check")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--only", default="", metavar="WORD", help="faults with this word")
    options = parser.parse_args()
    if not assembly.cuobjdump():
        print("the assembly is not checked: cuobjdump or nvdisasm is not there (they come with the CUDA Toolkit; or "
              "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return 0
    results = Results()
    for path in options.files:
        kernels = assembly.read_kernels(path)
        for arch in sorted(set(k.arch for k in kernels)):
            check_all([k for k in kernels if k.arch == arch], results)
    passed, failed = results.passed, len(results.failures)
    if options.faults:
        caught, missed = check_faults(options.only)
        passed, failed = passed + caught, failed + missed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
