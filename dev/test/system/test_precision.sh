#!/bin/bash
# bf16 on the processor as users meet it: which precision make chooses and says, and what the trainer in bf16 has to
# keep that float32's tests cannot see: bits, though weights are rounded at random; float32 masters in checkpoints and
# exports, read by trainers of both precisions. LONG=1: more meshes. test_mesh.sh and test_runs.sh with
# PRECISION=bf16 are the tests of meshes and of failing runs.
export PRECISION=bf16
. dev/test/system/mesh.sh

# ---- what make builds and says, of a program of a few lines
mkdir -p made/dev && cp "$project/Makefile" made && cp "$project"/dev/*.mk made/dev
cat >made/train_gpt.cu <<'C'
#include <stdio.h>
int main(void) {
#ifdef PRECISION_BF16
    return puts("bf16") < 0;
#else
    return puts("fp32") < 0;
#endif
}
C
making() {
    (unset MAKEFLAGS MAKELEVEL MFLAGS PRECISION &&
        exec make --no-print-directory -C made DEVICE=cpu MPI=no BUILD=b "$@")
}
for precision in bf16 fp32 bf16; do
    check "make PRECISION=$precision" \
        "making -s PRECISION=$precision train_gpt && [ \"\$(made/train_gpt)\" = $precision ]"
done
making PRECISION=bf16 train_gpt >out 2>err
check "which is made once" "! grep -q 'o train_gpt' out"
if [ "$(uname -m)" = x86_64 ]; then
    while IFS=: read -r arch options said; do
        ${CC:-gcc} -march="$arch" -E -x c /dev/null >/dev/null 2>&1 || continue # an older compiler
        making ARCH="$arch" $options report >out 2>err
        check "make ARCH=$arch $options: $(tail -n 1 out)" "tail -n 1 out | grep -q ' cores, $said'"
    done <<'END'
x86-64-v3::fp32$
x86-64-v3:PRECISION=bf16:bf16 by conversion to float32, unless 
cooperlake::bf16 by AVX-512 BF16$
cooperlake:PRECISION=fp32:fp32 (PRECISION=bf16: by AVX-512 BF16)$
sapphirerapids::bf16 by AMX$
END
fi
check "--version: $("$train" --version)" "'$train' --version | grep -q ', bf16, by [A-Za-z]'"

# ---- the same bits: threads, micro-batches of 32 tokens and more, stages, schedules
ways=("1 1:--micro-batch 4" "3 1:--micro-batch 8" "1 2:--pp 2 --schedule zb-v" "2 2:--pp 2 --vpp 2 --recompute full")
! full || ways+=("5 1:--micro-batch 2 --recompute selective" "1 2:--pp 2 --schedule gpipe" "1 2:--pp 2 --schedule zb-h1"
    "1 4:--pp 4 --micro-batch 2")
for arch in gpt2 "llama --kv-heads 2"; do
    read -ra options <<<"--arch $arch"
    rm -rf bits && trains "1:" "${run[@]}" "${options[@]}" --out bits
    for way in "${ways[@]}"; do
        read -ra more <<<"${way#*:}"
        threads=${way%% *} ranks=${way%%:*} && rm -rf other
        OMP_NUM_THREADS=$threads launch "${ranks#* }" "$train" "${run[@]}" "${options[@]}" --out other "${more[@]}"
        bits "$arch, $threads threads a rank, ${way#* }" bits other
    done
done

# ---- stopped at step 3 and resumed: masters and moments come back, and weights are rounded as they were
resumed=("1:--optimizer sgd" "2:--zero 2" "4:--tp 2 --zero 1 --check-replicas-every 1" "2:--dp-mode dc-s3gd"
    "2:--tp 2 --caat-fraction 0.5" "4:--tp 2 --zero 1")
! full || resumed+=("4:--pp 2 --zero 1 --schedule interleaved --vpp 2 --arch llama"
    "2:--dp-mode diloco --local-steps 2" "4:--tp 2 --pp 2 --sequence-parallel")
for mesh in "${resumed[@]}"; do
    read -ra options <<<"${mesh#*:}"
    all=("${run[@]}" "${options[@]}")
    [[ $mesh != *sgd* ]] || all=("${short[@]}" --steps 6 --save-every 3 "${options[@]}")
    rm -rf whole halves
    launch "${mesh%%:*}" "$train" "${all[@]}" --out whole && cp -r whole halves && rm -r halves/step_00000006
    launch "${mesh%%:*}" "$train" "${all[@]}" --out halves --resume
    check "$mesh: resumed at step 3" "[ $status = 0 ] && grep -q '^resume .*step 3$' out"
    bits "$mesh, resumed" whole halves
done

# ---- checkpoints and exports hold float32, which both trainers read
trains "1:" "${run[@]}" --out bits16
export PYTHONPATH=$project/dev/test/system PYTHONDONTWRITEBYTECODE=1
narrow() { # FILE: how many of its numbers bf16 could hold
    python3 -c 'import sys
from checks import read_safetensors
words = [word for _, _, data in read_safetensors(sys.argv[1]).values() for word in data.cast("I")]
narrow = sum(word & 0xffff == 0 for word in words)
sys.exit(narrow > len(words) // 50 and f"{narrow} of {len(words)} numbers are bf16")' "$1"
}
last=bits16/step_00000006/model.safetensors
verify "a checkpoint holds float32 masters:" narrow $last
trains "1:" "${model[@]}" --init $last --steps 0 --data text.txt --export wide
verify "an export of it, too:" narrow wide/model.safetensors
trains "1:" "${model[@]}" --init wide --steps 0 --data text.txt --export again
check "what comes in goes out, to the bit" "cmp {wide,again}/model.safetensors"
for text in "--init wide" "--out bits16 --resume"; do
    read -ra from <<<"$text"
    "$train" "${model[@]}" "${from[@]}" --generate "101 1" --temperature 0 --max-new-tokens 40 >"text_$from" 2>err
done
check "weights write what their checkpoint writes" "[ \$(wc -c <text_--init) = 46 ] && cmp text_--init text_--out"
if "$project/train_gpt" --version | grep -q ', fp32, '; then
    rm -rf mixed && cp -r bits16 mixed && rm -r mixed/step_00000006
    "$project/train_gpt" "${run[@]}" --out mixed --resume >out 2>err
    check "float32 resumes bf16's run" "grep -q '^resume .*step 3$' out"
    verify_py "and continues it:" same bits16 mixed $near
    rm -rf mixed/step_00000006 && head -n 3 mixed/log.jsonl >kept && mv kept mixed/log.jsonl
    trains "2:--pp 2" "${run[@]}" --out mixed --resume && bits "bf16 resumes it after that" bits16 mixed
fi

# ---- the planner knows what the trainer takes
if [ -x "$project/plan" ]; then
    printf 'base dgx-h100\ncores 4\n' >cores.txt
    shape=(--layers 4 --hidden 64 --heads 4 --seq 64 --global-batch 8 --micro-batch 2 --tp 1 --pp 2 --dp 2 --zero 1)
    "$project/plan" "${shape[@]}" --vocab 256 --cluster cores.txt --gpus 4 --schedule 1f1b --recompute none \
        --software threefold-cpu-bf16 --json >planned
    "$train" "${shape[@]}" --data text.txt --dry-run >out
    check "./plan: bytes of the largest rank, $(grep -o '"bytes":[0-9]*' planned)" \
        "[ \"\$(sed 's/.*\"bytes\":\([0-9]*\).*/\1/' planned | awk '{ printf \"%.1f\", \$1 / 1e6 }')\" = \
        \"\$(awk '/^  0  /{ print \$11 }' out)\" ]"
fi

# ---- numbers that are none; more: test_runs.sh
launch 2 "$train" "${short[@]}" --lr 1000 --steps 200 --tp 2
ended 1 "not finite" "a learning rate of 1000"
finish_ranks
