#!/bin/bash
# The whole trainer with the CUDA kernels, on the emulator: in fp32 it has to train what the CPU's kernels train, in
# bf16 nearly that; every kind of mesh trains what one rank trains; a run that is stopped and resumed
# ends with the same bits, also where parameters are rounded; its checkpoints are read by the CPU's trainer. Ranks
# exchange through the host, by MPI, and through NCCL, that is the imitation in dev/test/fake. LONG=1: twice as many
# meshes, and in bf16 also a trainer that knows nothing of NCCL; else ranks of the one that does exchange through the
# host where they share a GPU. $BUILD/emulated/PRECISION/train_gpt, $BUILD/emulated/bf16/train_gpt_nccl
# and ./train_gpt are built already.
#
# Bounds, relative errors of losses (6 steps). fp32: 1e-5, as between meshes on the CPU (test_equivalence.c).
# bf16: a rounding errs by u = 2^-8 at most; a loss of about 5 is the mean of some thousand rows whose errors
# are nearly independent, but roundings of weights are common to all of them: u / 4. Between meshes as between the CPU
# and one rank.
# shellcheck disable=SC2086  # options are lists of words
set -u
project=$PWD
build=$project/${BUILD:-build}
. dev/test/system/checks.sh
mpirun=$project/scripts/mpirun.sh
export OMP_NUM_THREADS=1 CUDA_ON_CPU_THREADS=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMPI_MCA_btl_vader_backing_directory=$work

# NCCL takes ranks that share a GPU only where they seem to be on hosts of their own: NCCL=1.
cat >rank.sh <<'SH'
#!/bin/sh
[ -z "${NCCL:-}" ] || export NCCL_HOSTID=host${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
exec "$@"
SH
chmod +x rank.sh

# trains_as WHAT RUN OTHER BOUND: losses as near as the bound, norms 8 times that
trains_as() { NORM=8 verify "$1" python3 "$project/dev/test/system/check_run.py" same "${@:2}"; }

# counted: the bytes that the last run counted, beside the formulas, as printed at its end
counted() {
    awk '/^  (pipeline|data) |^   +together / && $NF ~ /^[0-9.]+$/ && $(NF - 1) ~ /^[0-9.]+$/ {
        n++; wrong += $NF != $(NF - 1); print } END { exit !n || wrong }' out
}

seq 1 12000 | tr '\n' ' ' >text.txt
common="--data text.txt --seq 40 --global-batch 4 --warmup 2 --lr 1e-3 --eps 1e-3 --eval-every 3 --eval-sequences 3"
gpt2="--layers 4 --hidden 64 --heads 1 $common"                                       # flash attention: heads of 64
llama="--arch llama --layers 4 --hidden 128 --heads 2 --kv-heads 1 --ffn 144 $common" # grouped heads
states="--arch llama --layers 4 --hidden 128 --heads 2 --ffn 144 --caat-ranks 2 $common"
caat="$states --caat-fraction 0.5" caat_odd="$states --caat-fraction 0.4" # 64 and 51 of 128 channels
declare -A bound=([fp32]=1e-5 [bf16]=1e-3)

# trainer PRECISION: the program; cpu: with the CPU's kernels
trainer() {
    case $1 in
    cpu) echo "$project/train_gpt" ;;
    bf16) [ -n "${LONG:-}" ] && [ -z "${NCCL:-}" ] && echo "$build/emulated/bf16/train_gpt" ||
        echo "$build/emulated/bf16/train_gpt_nccl" ;;
    *) echo "$build/emulated/$1/train_gpt" ;;
    esac
}
# one PRECISION ARCH OUT OPTIONS...: one rank. STEPS: 6, SAMPLE: never
one() {
    train=$(trainer "$1")
    timeout 120 "$train" ${!2} --steps "${STEPS:-6}" --sample-every "${SAMPLE:-0}" --out "$3" \
        "${@:4}" >out 2>err </dev/null || { cat err; return 1; }
}
# ranks N PRECISION ARCH OUT OPTIONS...
ranks() {
    train=$(trainer "$2")
    timeout --foreground -k 5 240 "$mpirun" -np "$1" ./rank.sh "$train" ${!3} --steps 6 --sample-every 0 --out "$4" \
        "${@:5}" >out 2>err </dev/null || { cat err; return 1; }
}

# CAAT-Nets: both states on one rank, packed 16 bytes at a time or not
for arch in gpt2 llama caat caat_odd; do
    verify "$arch cpu" one cpu $arch cpu_$arch --micro-batch 2
    for precision in fp32 bf16; do
        [ "$precision $arch" != "fp32 caat_odd" ] || continue
        verify "$arch $precision" one $precision $arch ${precision}_$arch --micro-batch 2
        trains_as "$arch $precision trains what the CPU trains:" ${precision}_$arch cpu_$arch ${bound[$precision]}
    done
done
STEPS=1 SAMPLE=1 verify "it writes" one bf16 caat caat_writes --micro-batch 2
verify "what it writes" grep -q "sample:" out

# resumed, with the same bits
verify "bf16, stopped after 3 steps" one bf16 gpt2 half --micro-batch 2 --save-every 3
rm -r half/step_00000006
verify "and resumed" one bf16 gpt2 half --micro-batch 2 --resume
verify "the same weights and moments" same_weights {half,bf16_gpt2}/step_00000006
trains_as "the same log" half bf16_gpt2 0
STEPS=7 verify "the CPU continues a run of bf16" one cpu gpt2 half --micro-batch 2 --resume
STEPS=1 verify "bf16 starts from the weights of the CPU" one bf16 llama init2 --micro-batch 2 \
    --init cpu_llama/step_00000006
# Where nothing is trained there are no masters either.
goes_on() { timeout 120 "$(trainer bf16)" $gpt2 --init bf16_gpt2/step_00000006 --generate "one two" \
    --max-new-tokens 30 >out 2>err </dev/null; }
verify "it continues a text" goes_on
verify "the continuation" grep -q "^one two." out

# The host must not touch device memory, nor a kernel what is not its own; both architectures, all that a rank alone
# does.
for arch in gpt2 llama; do
    writes=2
    [ $arch = llama ] || [ -n "${LONG:-}" ] || writes=0 # takes a minute
    verify "bf16 $arch under AddressSanitizer and UBSan" env ASAN_OPTIONS=detect_leaks=0 timeout 240 \
        "$build/asan/bf16/train_gpt" ${!arch} --steps 2 --micro-batch 2 --sample-every $writes --recompute full \
        --out asan_$arch
done

# Sites that do not wait for each other: as on the CPU, through the host and through NCCL; stopped and resumed,
# with the same bits, of own weights that are rounded too.
modes=("--dp-mode dc-s3gd --sites 2" "--dp-mode diloco --local-steps 3" "--dp-mode diloco --local-steps 2 --sites 2")
for i in "${!modes[@]}"; do
    read -ra mode <<<"--micro-batch 1 ${modes[i]}"
    [ "$i" -lt 2 ] || [ -n "${LONG:-}" ] || continue
    verify "CPU ${modes[i]}" ranks 4 cpu llama "sites_cpu$i" "${mode[@]}"
    verify "fp32 ${modes[i]}" ranks 4 fp32 llama "sites_fp32$i" "${mode[@]}"
    trains_as "... trains what the CPU trains:" "sites_fp32$i" "sites_cpu$i" "${bound[fp32]}"
    NCCL=1 verify "bf16 ${modes[i]}, NCCL" ranks 4 bf16 llama "sites_bf16$i" "${mode[@]}" --save-every 4
    trains_as "... trains what the CPU trains:" "sites_bf16$i" "sites_cpu$i" "${bound[bf16]}"
    cp -r "sites_bf16$i" "sites_again$i"
    rm -r "sites_again$i/step_00000006"
    NCCL=1 verify "... resumed after 4 steps" ranks 4 bf16 llama "sites_again$i" "${mode[@]}" --resume
    verify "... ends with the same bits" diff -r "sites_again$i/step_00000006" "sites_bf16$i/step_00000006"
done

if [ "${MPIRUN-mpirun}" = "" ] || ! grep -q MPI_Init "$project/train_gpt"; then
    echo "left out: meshes, there is no MPI"
else
    # mesh PRECISION ARCH OPTIONS: trains what one rank trains, and sends what the formulas say
    mesh() {
        local tp=1 pp=1 dp=1 options=$3
        set -- "$1" "$2" $3
        for ((i = 3; i < $#; i++)); do
            case ${!i} in --tp | --pp | --dp) local "${!i#--}=${*:i+1:1}" ;; esac
        done
        rm -rf mesh
        verify "$1 $2 $options${NCCL:+, NCCL}" ranks $((tp * pp * dp)) "$1" "$2" mesh --micro-batch 1 "${@:3}"
        [ -z "${NCCL:-}" ] || verify "... with queues for all streams" grep -q "CONNECTIONS 32 instead of 1" out
        [ -z "${NCCL:-}" ] || verify "... by NCCL:" grep -E "^groups    NCCL takes ([1-9][0-9]*\.[0-9]|0\.[1-9]) MB" out
        verify "... counts the bytes that the formulas say:" counted
        trains_as "... trains what one rank trains:" mesh "${1}_$2" "${bound[$1]}"
    }
    n=0
    while read -r precision arch options; do
        n=$((n + 1))
        [ -n "${LONG:-}" ] || [ $((n % 2)) = 0 ] || continue
        mesh "$precision" "$arch" "$options"
    done <<'CASES'
fp32 gpt2 --dp 2
bf16 llama --dp 2 --zero 1
fp32 llama --tp 2
fp32 llama --tp 2 --pp 2 --dp 2 --sequence-parallel --zero 2
fp32 gpt2 --pp 2 --schedule zb-v
bf16 gpt2 --pp 2 --schedule interleaved --recompute full
bf16 llama --tp 2 --sequence-parallel --recompute selective
bf16 llama --tp 2 --pp 2 --no-scatter-gather
bf16 gpt2 --pp 2 --dp 2 --zero 2
bf16 llama --tp 2 --pp 2 --dp 2 --zero 1 --schedule zb-h1
fp32 caat --tp 2
bf16 caat --tp 2 --pp 2 --recompute full
bf16 caat_odd --tp 2 --caat-grad-dtype same
bf16 gpt2 --dp 4 --allreduce multitree --topology torus:2x2
CASES
    for options in "llama --pp 2 --schedule zb-v" "llama --tp 2 --pp 2 --dp 2 --zero 1 --sequence-parallel" \
        "llama --dp 2 --zero 2 --allreduce multitree" "llama --dp 2 --allreduce double-tree" \
        "caat --tp 2 --pp 2 --zero 1"; do
        NCCL=1 CUDA_DEVICE_MAX_CONNECTIONS=1 mesh bf16 "${options%% *}" "${options#* }"
    done
    verify "bf16 --canonical, a rank" one bf16 gpt2 canonical1 --micro-batch 1 --canonical 4
    NCCL=1 verify "... and four" ranks 4 bf16 gpt2 canonical4 --micro-batch 1 --canonical 4 --dp 2 --zero 1 --pp 2 \
        --schedule zb-h1
    verify "... the same weights and moments" same_weights canonical{1,4}/step_00000006
    # a mesh stopped and resumed; copies are rounded identically, or the second half would differ
    verify "bf16, a mesh, 3 steps" ranks 4 bf16 llama again --micro-batch 1 --tp 2 --dp 2 --zero 1 --save-every 3
    mv again/step_00000006 whole
    verify "resumed" ranks 4 bf16 llama again --micro-batch 1 --tp 2 --dp 2 --zero 1 --resume
    verify "the same weights and moments" same_weights again/step_00000006 whole
fi
finish
