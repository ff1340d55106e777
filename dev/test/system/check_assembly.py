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

Called by test_nvcc.sh for the program that it has made, and by make assembly_check for all architectures. Last line
"N passed, N failed". Standard library only.
"""
import re, sys

import checks
import assembly

# Bytes of stack that a kernel may have. These use all registers that there are (255, 168), and keep in memory, which
# stays in L1, a number or two that is needed once a tile, and addresses that are needed once a row.
SPILLS = {"flash_backward_keys<64>": 8, "norm_backward_kernel<8, true, true>": 72}

# Tensor core instructions of Hopper's own kernels, in their program text: each product is written down once, those of
# forward's first and last tile once more. By wgmma: heads of 64 or 128 numbers are 4 or 8 steps of k, 128 keys 8, 64
# queries 4.
HOPPER = {
    "hopper_forward_kernel<64>": 2 * 4 + 2 * 8, "hopper_forward_kernel<128>": 2 * 8 + 2 * 8,
    "hopper_backward_queries<64>": 4 + 4 + 8, "hopper_backward_queries<128>": 8 + 8 + 8,
    "hopper_backward_keys<64>": 4 + 4 + 4 + 4, "hopper_backward_keys<128>": 8 + 8 + 4 + 4,
}
# Exponentials of a thread in a tile: of 64 rows and 128 columns, or 64, by 128 threads. All of them stand between a
# wait that leaves a product in flight and the next wait.
BESIDE_PRODUCTS = {"hopper_forward_kernel": 64, "hopper_backward_queries": 64, "hopper_backward_keys": 32}

DOUBLE = ("squares_kernel", "squares_add_kernel", "delay_squares_kernel", "losses_add_kernel")

# Kernels whose packs are of 16 bytes: accesses of that width in their program text, at least.  (loads, stores)
WIDE = {
    "accumulate_kernel<4>": (2, 1), "bias_partial_kernel<8>": (4, 0), "crossentropy_backward_kernel<8>": (4, 1),
    "crossentropy_fused_kernel<8>": (5, 1), "crossentropy_max_kernel<8>": (4, 0),
    "crossentropy_sum_kernel<8>": (4, 0), "each_kernel<4, AddScaled, float*, float const*>": (2, 1),
    "each_kernel<4, Outer, float*, float*, float const*>": (3, 2), "embedding_forward_kernel<8>": (1, 1),
    "gelu_backward_kernel<8>": (2, 1), "gelu_forward_kernel<8>": (1, 1),
    "norm_backward_kernel<8, true, false>": (12, 15),
    "norm_backward_kernel<8, true, true>": (12, 27), "norm_backward_kernel<8, false, true>": (12, 21),
    "norm_forward_kernel<8, false, true>": (6, 1), "norm_forward_kernel<8, true, true>": (11, 2),
    "places_sum_kernel<8>": (3, 2), "position_backward_kernel<8>": (3, 2), "position_forward_kernel<8>": (2, 1),
    "residual_kernel<8>": (3, 1), "norm_backward_kernel<8, false, false>": (12, 9),
    "norm_forward_kernel<8, false, false>": (5, 1), "norm_forward_kernel<8, true, false>": (10, 2),
    "rope_kernel<8>": (6, 2), "squares_kernel": (16, 0), "swiglu_backward_kernel<8>": (3, 2),
    "swiglu_forward_kernel<8>": (2, 1), "caat_pack_kernel<8, bf16>": (1, 1), "caat_unpack_kernel<8, bf16>": (2, 1),
    "update_kernel<4, AdamW>": (4, 3), "update_kernel<4, SGD>": (3, 2),
}
SINGLE = {"crossentropy_sum_kernel<8>": 1}  # the target's logit

def check(good, text):
    """Prints what fails only, as there are thousands."""
    checks.passed += bool(good)
    return good or checks.check(False, text)


def check_kernel(k):
    where = f"sm_{k.arch} {k.name}"
    allowed = SPILLS.get(k.name, 0)
    check(k.stack <= allowed and (allowed or not k.spills()),
          f"{where}: {k.stack} bytes of stack, {k.spills()} spills; {allowed} allowed")
    doubles = [i for i in k.code if re.match(r"D(FMA|ADD|MUL|SETP|MNMX)\b", i.op) or ".F64" in i.op]
    check(not doubles or re.sub("<.*", "", k.name) in DOUBLE, f"{where}: float64: {len(doubles)}, {doubles[:1]}")
    # But HFMA2 R, -RZ, RZ, constant is how constants come into registers, and HADD2.F32 R, -RZ, R makes a float of an
    # fp16.
    halves = [i for i in k.code if re.match(r"H(FMA2|ADD2|MUL2|MNMX2|SET2|SETP2)\b", i.op) and
              "-RZ, RZ" not in i.text and not (i.op == "HADD2.F32" and "-RZ, " in i.text)]
    check(not halves, f"{where}: computes with 16-bit numbers: {halves[:1]}")

    accesses = k.accesses()
    if k.name in WIDE:
        loads, stores = (sum(w // 16 for w in accesses[kind]) for kind in ("load", "store"))  # of 32 bytes: two
        check(loads >= WIDE[k.name][0] and stores >= WIDE[k.name][1],
              f"{where}: {loads} loads and {stores} stores of 16 bytes; wanted {WIDE[k.name]}")
    if k.name in WIDE and not k.name.startswith("update"):  # whose ends may be cut
        single, allowed = sum(w == 2 for kind in accesses for w in accesses[kind]), SINGLE.get(k.name, 0)
        check(single <= allowed, f"{where}: {single} accesses of single 16-bit numbers; {allowed} allowed")
    if k.name in HOPPER and k.arch == 90:
        ops = [i.op.split(".")[0] for i in k.code]
        for op, wanted in (("HGMMA", HOPPER[k.name]), ("HMMA", 0), ("USETMAXREG", 2)):  # wgmma, mma, registers change
            check(ops.count(op) == wanted, f"{where}: {ops.count(op)} {op}; wanted {wanted}")
        beside, wanted = assembly.exponentials_beside_products(k), BESIDE_PRODUCTS[k.name.split("<")[0]]
        check(beside >= wanted, f"{where}: {beside} exponentials between waits, a product in flight; wanted {wanted}")
        check("UTMALDG" in ops and "UTMASTG" in ops, f"{where}: tiles do not travel by TMA")
    elif not k.name.startswith("flash_"):
        check(not any(map(assembly.is_tensor, k.code)), f"{where}: has tensor core instructions")


def main():
    if not assembly.cuobjdump():
        print("the assembly is not checked: cuobjdump or nvdisasm is not there (they come with the CUDA Toolkit; or "
              "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return
    for path in sys.argv[1:]:
        kernels = assembly.read_kernels(path)
        for k in kernels:
            check_kernel(k)
        for arch in {k.arch for k in kernels}:
            missing = {*WIDE, *SPILLS} - {k.name for k in kernels if k.arch == arch}
            check(not missing, f"sm_{arch}: no such kernels, or they are not compiled: {missing}")
    check(checks.passed, "kernels were checked")
    checks.finish()


if __name__ == "__main__":
    main()
