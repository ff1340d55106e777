"""Faults of dev/test/gpu_check.sh and of what make finds for CUDA. Tests: sections of test_gpu_check.sh."""
CHECK, MAKE = "dev/test/gpu_check.sh", "dev/gpu.mk"
SECONDS = 300

FAULTS = [
    ("124 is a failure", "ends", CHECK, "    124 | 137) row", "    137) row"),
    ("137 is a failure", "parts", CHECK, "    124 | 137) row", "    124) row"),
    ("time-outs are no failure", "ends", CHECK, '[ "${rows[FAIL]}${rows[timed out]}" = 00 ]',
     '[ "${rows[FAIL]}" = 0 ]'),
    ("a step has more time than the call", "ends", CHECK, '    [ "$(left)" -gt "$most" ] || most=$(left)\n', ""),
    ("nothing is left out for time", "ends", CHECK, "-lt $((most / 8 + 5)) ]", "-lt -999 ]"),
    ("ten lines of a log", "parts", CHECK, "tail -n 40", "tail -n 10"),
    ("the report without choices and versions", "all", CHECK, "grep -h '^matmul:\\|^versions:'", "grep -h '^nothing'"),
    ("choices of tests, too", "all", CHECK, "export BUILD log arch", "export BUILD log arch MATMUL_LIST=1"),
    ("tokens in the archive", "all", CHECK, " --exclude=tokens.bin", ""),
    ("without cuBLASLt all runs", "parts", CHECK, '"$part" || [ "$part" != preflight ] || {', '"$part" || true || {'),
    ("wgmma without TMA", "parts", CHECK, '"$bin/bf16/preflight_tma" || families=mma', '"$bin/bf16/preflight_tma"'),
    ("mma alone on a Hopper GPU", "all", CHECK, 'families="mma wgmma"', "families=mma"),
    ("not Hopper's own architecture", "all", CHECK, "arch=90a ", "arch=90 "),
    ("a kernel's precision is missing", "all", CHECK, "{bf16,fp32}/cuda_{rows", "bf16/cuda_{rows"),
    ("the roofline with other flags", "all", CHECK, "    for program in $(all_programs); do targets=",
     '    make BUILD="$BUILD" DEVICE=cpu "$targets"\n    for program in $(all_programs); do targets='),
    ("mpirun without MPI", "parts", CHECK, "if uses fp32/train_gpt MPI_Init; then", "if true; then"),
    ("the memory of an H200", "parts", CHECK, " --memory $((memory / 1024 - 1))", ""),
    ("unknown models are left out", "parts", CHECK, "absent=FAIL", 'absent="left out"'),
    ("PyTorch's failure is ours", "all", CHECK, ' || echo "did not run"', ""),
    ("the fastest step instead of the median", "all", CHECK, "sort -n | sed -n 5p", "sort -n | tail -n 1"),
    ("the card's first line instead of its largest", "all", CHECK, "$k + 0 > most { most", "NR == 1 { most"),
    ("many steps through one GPU", "all", CHECK, "--tp 2 --pp 2 --steps 4", "--tp 2 --pp 2 --steps 40"),
    ("all ranks have one host", "all", CHECK, "=rank${OMPI_COMM_WORLD_RANK:-$PMI_RANK}", "=rank"),
    ("the commit that is named is not reported", "parts", CHECK, "commit=${COMMIT:-$(git rev-parse --short HEAD "
     "2>/dev/null || echo unknown)}", "commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"),
    ("--built builds", "parts", CHECK, "    --built) built=yes ;;", "    --built) ;;"),
    ("no report after a signal", "ends", CHECK, "    write_report\n    echo", "    echo"),
    ("a step outlives the call", "ends", CHECK, "|| kill $running $watcher 2>/dev/null", "|| true"),
    ("wheels are not looked for", "libraries", MAKE, "$(system_places) $(wheel_places))", "$(system_places))"),
    ("a library of another CUDA", "libraries", MAKE, "cublasLt.h,libcublasLt.so.$(cuda_version))",
     "cublasLt.h,libcublasLt.so.1*)"),
    ("no path for the loader", "libraries", MAKE, " -Xlinker -rpath -Xlinker $(dir $(l)))", ")"),
    ("a wheel's headers are not found", "libraries", MAKE, "-isystem $(dir $(l))../include)", ")"),
    ("code for every GPU", "libraries", MAKE,
     "(filter compute_80 compute_90 compute_100,$(or $(known_archs),compute_80))",
     "(or compute_80 compute_90 compute_100)"),
    ("wheels before the toolkit", "libraries", MAKE, "$(cuda_home) $(system_places) $(wheel_places)",
     "$(wheel_places) $(cuda_home)"),
    ("no word about a missing cuBLASLt", "libraries", MAKE, "$(if $(filter cuda,$(DEVICE)$(cublaslt)),", "$(if ,"),
]


def run(test, planted):
    # `sh -c`: the first failure is enough
    return "plan", ["sh", "-c", f"exec bash dev/test/system/test_gpu_check.sh {test}"]
