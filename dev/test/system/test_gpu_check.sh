#!/bin/bash
# test_gpu_check.sh: does dev/test/gpu_check.sh do what it says? Without a GPU: programs of the same names stand in for
# nvidia-smi, make, mpirun, nm, compute-sanitizer, PyTorch and for all that make would have built; they note how they
# were called, and say what the real ones would. Needs $BUILD/roofline.
set -u
cd "$(dirname "$0")/../../.." || exit 1
roofline=${BUILD:-build}/roofline
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX")
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
ok() { passed=$((passed + 1)) && echo "ok    $*"; }
bad() { failed=$((failed + 1)) && echo "FAIL  $*"; }
# expect WHAT COMMAND...: it has to succeed
expect() {
    local what=$1
    shift
    if "$@" >/dev/null 2>&1; then ok "$what"; else bad "$what"; fi
}
has() { grep -q -- "$1" "$2"; }
hasnt() { ! grep -q -- "$1" "$2"; }
times() { [ "$(grep -c -- "$1" "$2")" = "$3" ]; }

# ---- What stands in
export calls=$work/calls real_python
real_python=$(command -v python3)
mkdir -p "$work/bin" "$work/empty"
cat >"$work/bin/nvidia-smi" <<'END'
#!/bin/bash
case $* in
*compute_cap*) echo "${FAKE_CAPABILITY:-9.0}" ;;
*-lms*) echo "1000, 1500, 300.0"; echo "51200, 1755, 650.5"; exec sleep 100 ;;
*) echo "NVIDIA H200, 580.1, 1980 MHz, 345 MHz, 30" ;;
esac
END
cat >"$work/bin/make" <<'END'
#!/bin/bash
echo "make $*" >>"$calls"
END
cat >"$work/bin/mpirun" <<'END'
#!/bin/bash
echo "mpirun $*" >>"$calls"
case $*${FAKE_SLOW:-} in *-np*mpirun) exec sleep 100 ;; esac
[ "$1" != -np ] || exec "$3" "${@:4}"
END
cat >"$work/bin/nm" <<'END'
#!/bin/bash
echo "U ncclCommInitRank"
END
cat >"$work/bin/compute-sanitizer" <<'END'
#!/bin/bash
echo "compute-sanitizer $*" >>"$calls"
echo "ERROR SUMMARY: 0 errors"
END
cat >"$work/bin/python3" <<'END'
#!/bin/bash
case $* in
*"import torch"*) exit ${FAKE_TORCH:-0} ;;
*peer_pytorch.py*)
    echo "peer_pytorch $*" >>"$calls"
    case $* in *llama-7B*) echo "OutOfMemoryError: no" && exit 1 ;; esac
    echo '{"peer": "pytorch", "version": "2.9 compiled", "tokens_per_s": 250000.0, "peak_mb": 1.0}' ;;
*check_replicas.py*) echo "1 passed, 0 failed" ;;
*) exec "$real_python" "$@" ;;
esac
END
cat >"$work/program" <<'END'
#!/bin/bash
name=$(basename "$(dirname "$0")")/$(basename "$0")
echo "$name ATTENTION=${ATTENTION:-} $*" >>"$calls"
case " ${FAKE_FAILS:-} " in *" $name "*) echo "FAIL  this one"; exit 1 ;; esac
case " ${FAKE_SLOW:-} " in *" $name "*) exec sleep 100 ;; esac
case $name in
*/train_gpt)
    out=""
    while [ $# -gt 0 ]; do [ "$1" != --out ] || out=$2; shift; done
    if [ -n "$out" ]; then
        mkdir -p "$out/step_1"
        echo "weights ${FAKE_WEIGHTS:+$out}" >"$out/step_1/weights"
        [ "${FAKE_LOSS:+$(basename "$out")}" != bf16-again ] || FAKE_OFF=1e-6
        awk -v off="${FAKE_OFF:-0}" -v swing="${FAKE_SWING:-0}" -v name="$name" 'BEGIN { for (i = 1; i <= 200; i++)
            printf "{\"loss\":%.6f,\"grad_norm\":2.0}\n", 5.5 - i / 80 + (name !~ /bf16/ ? 0 : \
                off + (i > 20) * (i % 2 ? 1 : -1) * swing) }' >"$out/log.jsonl"
    fi
    for i in 1 2 3 4 5 6 7 8 9 10; do
        case $i in 1) rate=1000 ;; 3) rate=100000 ;; 7) rate=900000 ;; *) rate=500000 ;; esac
        echo "step $i/10 | loss 5.5 | norm 1.0 | lr 1e-4 | 131.1 ms | $rate tok/s | mfu 40 % | 0 s left"
    done ;;
*) echo "5 passed, 0 failed" ;;
esac
END
chmod +x "$work"/bin/* "$work/program"
for precision in bf16 fp16 fp32; do
    mkdir -p "$work/build/cuda/$precision"
    for program in train_gpt test_gpt test_equivalence bench_gpu test_trainer \
        $(basename -s .cu dev/test/cuda/cuda_*.cu); do
        ln -s "$work/program" "$work/build/cuda/$precision/$program"
    done
done
cp "$roofline" "$work/build/roofline" || exit 1

# check NAME ARGUMENTS...: the script's output to $work/NAME, its status to $status
check() {
    local name=$1
    shift
    : >"$calls"
    PATH="$work/bin:$PATH" BUILD="$work/build" MPIRUN=mpirun timeout 120 dev/test/gpu_check.sh "$@" \
        "$work/$name.out" >"$work/$name" 2>&1
    status=$?
}
rows() { grep -c "^$1" "$work/$2"; }

# ---- Everything
families=$(! grep -q '"wgmma"' kernels/attention*.cuh || echo wgmma)
check all
expect "all parts: exit status $status" [ $status = 0 ]
expect "nothing failed, nothing was left out: $(tail -n 1 "$work/all")" [ "$(rows 'FAIL\|^left out' all)" = 0 ]
expect "each part builds, and the roofline, for Hopper: sm_90a" [ "$(grep -c 'make .*GPU_ARCH=90a' "$calls")" = 7 ]
expect "with the same flags, or all would be built anew" \
    [ "$(grep '^make' "$calls" | sed 's/.*DEVICE/DEVICE/; s/90a .*//' | sort -u | wc -l)" = 1 ]
for precision in bf16 fp16 fp32; do
    for file in dev/test/cuda/cuda_*.cu; do
        test=$(basename "$file" .cu)
        case $test in cuda_*bugs | cuda_comm) continue ;; esac
        grep -q "^$precision/$test ATTENTION= *$" "$calls" || bad "$precision/$test was not run"
    done
done
ok "every kernel's test in three precisions"
expect "the whole model, in bf16 and fp32" [ "$(grep -c '^bf16/test_gpt ATTENTION= *$\|^fp32/test_gpt' "$calls")" = 2 ]
expect "two runs that have to be the same, in bf16" \
    [ "$(grep -c '^bf16/train_gpt ATTENTION=mma .*--steps 200' "$calls")" = 2 ]
expect "all kernels are measured, once" times '^bf16/bench_gpu ATTENTION= --json' "$calls" 1
expect "with the clock and the power that the card had meanwhile" has 'SM clock up to 1755 MHz, power up to 650.5 W' \
    "$work/all.out"
for model in gpt2-124M gpt2-350M gpt2-774M gpt2-1558M llama-1.1B llama-7B; do
    expect "a training step of $model" times "^bf16/train_gpt ATTENTION=mma .*--model $model" "$calls" 1
    expect "and PyTorch's" has "peer_pytorch .*--model $model" "$calls"
done
expect "in the micro-batches that fit: 2 of 8 sequences of 7B" has \
    'train_gpt.*llama-7B --seq 2048 --vocab 32000 --micro-batch 2 --global-batch 8' "$calls"
expect "MFU of 500,000 tokens/s of 124M: 40.6 %, and of all attention 43.5 %" has \
    'gpt2-124M  *500000 tokens/s .*MFU 40.6 % causal 43.5 % full' "$work/all"
expect "memory and clock are the largest that the card said" has '50.0 GiB.*SM clock up to 1755' "$work/all"
expect "beside PyTorch: twice as fast" has 'gpt2-124M .*PyTorch 2.9 compiled; we are 2.00 times' "$work/all"
expect "where PyTorch has too little memory it tries less at once" [ "$(grep -c 'peer_pytorch.*llama-7B' "$calls")" = \
    2 ]
expect "which is no failure" has 'ok .*PyTorch, llama-7B.*did not run: OutOfMemory' "$work/all"
expect "meshes, through the host and by NCCL" [ "$(rows 'ok .*through the host\|ok .*NCCL' all)" = 7 ]
for tool in memcheck racecheck; do
    expect "compute-sanitizer's $tool" [ "$(grep -c "compute-sanitizer.*--tool $tool" "$calls")" -ge 5 ]
done
expect "the report has the rows and the steps" grep -q 'gpt2-124M .*tokens/s' "$work/all.out"
expect "lines of JSON" "$real_python" -c "
import json
rows = [json.loads(line) for line in open('$work/build/gpu_check/train.json')]
assert len([r for r in rows if 'peer' in r]) == 5 and len([r for r in rows if 'model' in r]) >= 6"
if [ -n "$families" ]; then
    expect "attention by wgmma: tests, model, bench, steps" [ "$(grep -c 'ATTENTION=wgmma' "$calls")" -ge 12 ]
else
    expect "there is one family of attention" hasnt 'ATTENTION=wgmma' "$calls"
fi

# ---- Parts, failures, what is not there
check one --only bench,kernels
expect "--only bench,kernels: nothing else" [ "$status$(grep -c 'train_gpt\|test_gpt\|mpirun' "$calls")" = 00 ]
FAKE_CAPABILITY=8.0 check ampere --only bench
expect "another GPU: its own architecture, one family" \
    [ "$(grep -c 'GPU_ARCH=native' "$calls")$(grep -c 'ATTENTION=wgmma' "$calls")" = 10 ]
FAKE_FAILS="fp16/cuda_rows bf16/cuda_update" check broken --only kernels,bench
expect "two programs fail: status $status, two rows, the others go on" [ "$status$(rows 'FAIL *[0-9]* s' broken)" = 12 ]
expect "and are counted: $(tail -n 1 "$work/broken")" has ' 2 failed' "$work/broken"
# noise, see check_precision.py, is 2^-8 x 0.02 x 2 = 1.6e-4
runs=1
[ -z "$families" ] || runs=2
for fault in FAKE_OFF=0.0005 FAKE_SWING=0.002 FAKE_LOSS=1 FAKE_WEIGHTS=1; do
    export "${fault?}"
    check curve --only model
    unset "${fault%=*}"
    case $fault in
    *OFF*) what="a curve that is 5e-4 above float32's in all steps" ;;
    *SWING*) what="one that is 2e-3 beside it, now above and now below" ;;
    *LOSS*) what="a second run with another loss" ;;
    *) what="a second run with other weights" ;;
    esac
    expect "$what: a failure, and the only one" \
        [ "$status $(rows 'FAIL *[0-9]* s' curve) $(grep -c '^FAIL  bf16' "$work/curve")" = "1 $runs $runs" ]
done
check model --only train --models "gpt2-774M"
expect "--models: that one" times '^bf16/train_gpt ATTENTION=mma .*gpt2-774M' "$calls" 1
expect "--models: no other" hasnt 'gpt2-124M\|llama' "$calls"
check unknown --only train --models "gpt5"
expect "an unknown model fails" [ $status = 1 ]
FAKE_TORCH=1 check torchless --only train --models gpt2-124M
expect "without PyTorch: said, and no failure" [ "$status$(rows 'left out.*PyTorch' torchless)" = 01 ]
rm "$work/bin/compute-sanitizer"
[ -e /usr/local/cuda/bin/compute-sanitizer ] || {
    check nosanitizer --only sanitizer
    expect "without compute-sanitizer: said" [ "$status$(rows 'left out' nosanitizer)" = 01 ]
}
begin=$SECONDS
SECONDS_LIMIT=6 FAKE_SLOW=mpirun check slow --only meshes
expect "what hangs is ended" [ "$status$(rows 'FAIL.*messages, through' slow)" = 11 ]
expect "in time" [ $((SECONDS - begin)) -lt 60 ]
expect "and that there is no time for the rest is said" has 'left out.*meshes, through.*another call' "$work/slow"
for wrong in "--only nothing" "--only" "--what" "a b"; do
    # shellcheck disable=SC2086  # words
    PATH="$work/bin:$PATH" BUILD="$work/build" dev/test/gpu_check.sh $wrong >"$work/wrong" 2>&1
    expect "$wrong: refused" [ "$?$(wc -l <"$work/wrong")" = 21 ]
done
if ! command -v nvidia-smi >/dev/null; then
    BUILD="$work/build" dev/test/gpu_check.sh >"$work/none" 2>&1
    expect "without a GPU: one line, status 1" [ "$?$(wc -l <"$work/none")" = 11 ]
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
