#!/usr/bin/env python3
"""
mutate_kernels.py: are the tests of the CUDA kernels able to fail? Plants faults in copies of the sources, one at a time: a
missing barrier or wait, an off-by-one, a wrong lane or index, a forgotten tail. Each has the test, and the build of it, that
has to see it.

    python3 dev/test/mutate_kernels.py [WORD]      only the faults whose line contains WORD

Builds: plain; order (the same, with the threads of a block started in other orders); asan (AddressSanitizer and UBSan); tsan
(ThreadSanitizer); fake (with the imitation of cuBLASLt). One line a fault: "caught" with what the test said, or "MISSED". Last
line "N passed, N failed": N faults were caught, N missed. Two at a time. Standard library only; make kernel_faults.
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile

COMMON = "g++ -std=gnu++17 -march=native -w -pthread -DUSE_CUDA -x c++".split()
BUILDS = {
    "plain": ["-O1"],
    "order": ["-O1"],
    "asan": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g", "-fsanitize=thread"],
    "fake": ["-O1", "-DFAKE_CUBLASLT"],
}
SECONDS = 240  # for a run

ATTENTION, ROWS, UPDATE, MATMUL = "cuda_attention", "cuda_rows", "cuda_update", "cuda_matmul"

# File in kernels/, exact text, replacement; test, build, precision.
FAULTS = [
    # barriers and waits
    ("sum.cuh", "    if (blockDim.x == 32) return;\n    __syncthreads();\n    for (int k = 0; k < K; k++) {",
     "    if (blockDim.x == 32) return;\n    for (int k = 0; k < K; k++) {", ROWS, "tsan", "BF16"),
    ("sum.cuh", "    __syncthreads(); // before the next call writes\n}\ntemplate <class T>", "}\ntemplate <class T>",
     ROWS, "tsan", "BF16"),
    ("sum.cuh", "    tile[threadIdx.y][threadIdx.x] = sum;\n    __syncthreads();\n",
     "    tile[threadIdx.y][threadIdx.x] = sum;\n", ROWS, "plain", "BF16"),
    ("attention.cuh", "        await_tiles(); // k is here, and v is free\n", "", ATTENTION, "tsan", "BF16"),
    ("attention.cuh", "        await_tiles(); // v is here, and k is free\n", "", ATTENTION, "tsan", "BF16"),
    ("attention.cuh", "    copy_async_wait<0>();\n    __syncthreads();\n}", "    __syncthreads();\n}", ATTENTION, "plain", "BF16"),
    ("attention.cuh", "    copy_async_wait<0>();\n    __syncthreads();\n}", "    copy_async_wait<0>();\n}", ATTENTION, "tsan",
     "BF16"),
    ("attention.cuh", "    __syncwarp(); // all lanes have read them\n", "", ATTENTION, "tsan", "BF16"),
    ("matmul.cuh", "    for (int i = 0; i < W; i++) sums[warp][lane * W + i] = sum[i];\n    __syncthreads();\n",
     "    for (int i = 0; i < W; i++) sums[warp][lane * W + i] = sum[i];\n", MATMUL, "tsan", "BF16"),
    # masks, lanes, fragments
    ("attention.cuh", "if (ROWS_ARE_KEYS ? y > x : x > y)", "if (ROWS_ARE_KEYS ? y > x : x >= y)", ATTENTION, "plain",
     "BF16"),
    ("attention.cuh", "v += __shfl_xor_sync(0xffffffffu, v, 1);\n    return v + ",
     "v += __shfl_xor_sync(0x0fffffffu, v, 1);\n    return v + ", ATTENTION, "plain", "BF16"),
    ("attention.cuh", "    return v + __shfl_xor_sync(0xffffffffu, v, 2);", "    return v;", ATTENTION, "plain", "FP16"),
    ("attention.cuh", "tile + (row + i) * flash_row<HS> + piece, head", "tile + (row + i) * flash_row<HS> + piece + 4, head",
     ATTENTION, "plain", "BF16"),
    ("sum.cuh", "for (int i = 16; i > 0; i /= 2) v[k] += __shfl_xor_sync(0xffffffffu, v[k], i);\n        if (blockDim.x",
     "for (int i = 8; i > 0; i /= 2) v[k] += __shfl_xor_sync(0xffffffffu, v[k], i);\n        if (blockDim.x", ROWS, "plain",
     "BF16"),
    # tails and bounds
    ("attention.cuh", "const int from = min(first + (int)row + i, T - 1);", "const int from = first + (int)row + i;", ATTENTION,
     "asan", "BF16"),
    ("attention.cuh", "if (to < T) store(head", "if (to <= T) store(head", ATTENTION, "asan", "BF16"),
    ("gelu.cuh", "    if (i >= n) return;\n    Packed<floatX, W> v = load<W>(x + i);\n    for",
     "    if (i > n) return;\n    Packed<floatX, W> v = load<W>(x + i);\n    for", ROWS, "asan", "BF16"),
    ("crossentropy.cuh", "return c + i < V_local ? (float)v[i] : -INFINITY;", "return (float)v[i];", UPDATE, "plain", "BF16"),
    ("crossentropy.cuh", "d[i] = (floatX)(c + i < used ? g : 0.0f);", "d[i] = (floatX)g;", UPDATE, "plain", "BF16"),
    ("matmul.cuh", "if (column < OC) { // W divides OC", "if (true) {", MATMUL, "asan", "BF16"),
    ("matmul.cuh", "end = min(begin + rows, (int64_t)N)", "end = begin + rows", MATMUL, "asan", "BF16"),
    ("sum.cuh", "for (int team = 1; team <", "for (int team = 2; team <", ROWS, "plain", "BF16"),
    # indices and signs
    ("embedding.cuh", "rank += range[i] < n;", "rank += range[i] <= n;", ROWS, "plain", "BF16"),
    ("embedding.cuh", "t += SEGMENT) {", "t += 2 * SEGMENT) {", ROWS, "plain", "FP32"),
    ("adamw.cuh", "a.beta2 * v + (1.0f - a.beta2) * (g * g)", "a.beta2 * v + (1.0f - a.beta1) * (g * g)", UPDATE, "plain",
     "FP32"),
    ("adamw.cuh", "first / 4 + (uint64_t)group);", "(uint64_t)group);", UPDATE, "plain", "BF16"),
    ("adamw.cuh", "+ (random & mask)) & ~mask", "+ mask / 2) & ~mask", UPDATE, "plain", "BF16"),
    # cuBLASLt's arguments
    ("matmul.cuh", "C, N, OC, w, false, dout, false, dx);", "C, N, OC, w, true, dout, false, dx);", MATMUL, "fake", "BF16"),
    ("matmul.cuh", "aux_ld = s->m", "aux_ld = s->k", MATMUL, "fake", "BF16"),
    ("matmul.cuh", "trial.d = borrowed = matmul_borrow", "borrowed = matmul_borrow", MATMUL, "fake", "BF16"),
    ("matmul.cuh", "    if ((uintptr_t)bias % 16 == 0) return bias;", "    return bias;", MATMUL, "fake", "BF16"),
    ("matmul.cuh", "d_is_float ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE",
     "CUBLASLT_REDUCTION_SCHEME_MASK", MATMUL, "fake", "BF16"),
    ("matmul.cuh", "    matmul_set_pointers(plan, p);\n    return cublasLtMatmul", "    return cublasLtMatmul", MATMUL, "fake",
     "BF16"),
    ("matmul.cuh", "fused.shape.epilogue = CUBLASLT_EPILOGUE_BGRADB;", "fused.shape.epilogue = CUBLASLT_EPILOGUE_BGRADA;",
     MATMUL, "fake", "BF16"),
]


def describe(fault):
    file, old, new, test, build, precision = fault
    short = " ".join(old.split())
    to = " ".join(new.split()) or "nothing"
    return f"{file}: {short[:60]} -> {to[:60]} ({test} {precision.lower()} {build})"


def run(fault):
    """Returns (caught, what was seen)."""
    file, old, new, test, build, precision = fault
    with tempfile.TemporaryDirectory() as folder:
        for name in ("kernels", "dev/test"):
            shutil.copytree(name, f"{folder}/{name}", ignore=shutil.ignore_patterns("reference"))
        shutil.copy("base.h", folder)
        path = f"{folder}/kernels/{file}"
        text = open(path).read()
        if text.count(old) != 1:
            return False, f"the text occurs {text.count(old)} times: the list is out of date"
        open(path, "w").write(text.replace(old, new))
        command = COMMON + BUILDS[build] + [f"-DPRECISION_{precision}", f"dev/test/{test}.cu", "-o", "test", "-lm"]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if made.returncode != 0:
            return False, "does not compile: " + made.stderr[:200]
        seen = ""
        for order in ("1", "2", "3") if build == "order" else ("0",):
            environment = dict(os.environ, CUDA_ON_CPU_ORDER=order, ASAN_OPTIONS="detect_leaks=0",
                               TSAN_OPTIONS="halt_on_error=1", CUDA_ON_CPU_THREADS="2")
            try:
                result = subprocess.run(["./test"] + ([] if build in ("plain", "fake") else ["--short"]), cwd=folder,
                                        capture_output=True, text=True, errors="replace", timeout=SECONDS, env=environment)
            except subprocess.TimeoutExpired:
                return True, "waits for ever"
            if result.returncode != 0:
                lines = (result.stdout + result.stderr).splitlines()
                signs = ("FAIL", "ERROR: AddressSanitizer", "runtime error", "WARNING: ThreadSanitizer", ".cuh:")
                seen = next((line for line in lines if any(s in line for s in signs)), f"exit status {result.returncode}")
                return True, " ".join(seen.split())[:110]
        return False, "the test passes"


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    faults = [f for f in FAULTS if word in describe(f)]
    caught = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for fault, (ok, seen) in zip(faults, pool.map(run, faults)):
            caught += ok
            print(f"{'caught' if ok else 'MISSED'}  {describe(fault)}: {seen}", flush=True)
    print(f"{caught} passed, {len(faults) - caught} failed")
    sys.exit(caught < len(faults) or not faults)


if __name__ == "__main__":
    main()
