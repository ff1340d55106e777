#!/bin/sh
# peer_llmc.sh: tokens per second of llm.c's train_gpt2.c (GPT-2 124M, CPU, float32), the peer of `make bench`.
#
#     dev/bench/peer_llmc.sh PATH [B] [T]        PATH: a checkout of https://github.com/karpathy/llm.c
#     STEPS=5 CC=clang OMP_NUM_THREADS=2 dev/bench/peer_llmc.sh ~/llm.c
#
# Builds a copy of it in a temporary folder with its own Makefile and its own flags (-Ofast -march=native -fopenmp),
# gives it the files that it opens, filled with random numbers, and stops it after STEPS measured steps. B = 4 and
# T = 64 are constants in its main(); other values are put into the copy. The time is what it prints for a step: next
# batch, forward, backward, AdamW. Prints one line of JSON: the median and the minimum without step 0, which allocates.
# Exit status: 1 when the build or the run failed, 2 for wrong arguments. Needs 3 GB of memory and 0.5 GB in TMPDIR.
set -eu

fail() {
    echo "peer_llmc.sh: $1" >&2
    exit "${2:-1}"
}

[ $# -ge 1 ] && [ $# -le 3 ] || fail "usage: peer_llmc.sh PATH [B] [T]" 2
B=${2:-4} T=${3:-64} STEPS=${STEPS:-5} CC=${CC:-cc}
for n in "$B" "$T" "$STEPS"; do
    case $n in *[!0-9]* | 0* | "") fail "$n is not a positive number" 2 ;; esac
done
[ "$T" -le 1024 ] || fail "T = $T: GPT-2 has 1024 positions" 2
[ "$STEPS" -le 19 ] || fail "STEPS = $STEPS: at most 19, before it samples text" 2
[ -f "$1/train_gpt2.c" ] && [ -d "$1/llmc" ] || fail "$1: no checkout of llm.c (no train_gpt2.c and llmc/ in it)" 2

work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || :; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The program
cp -R "$1/train_gpt2.c" "$1/llmc" "$1/Makefile" "$work"
version=$(git -C "$1" rev-parse --short HEAD 2>/dev/null || echo unknown)
cd "$work"
sed "s/int B = 4;/int B = $B;/; s/int T = 64;/int T = $T;/" train_gpt2.c > edited.c
grep -q "int B = $B;" edited.c && grep -q "int T = $T;" edited.c || fail "$1/train_gpt2.c: no B = 4, T = 64 in main()"
mv edited.c train_gpt2.c
make CC="$CC" train_gpt2 > make.log 2>&1 || { cat make.log >&2; fail "its build failed"; }

# Its files: weights, and one shard of tokens that serves for training and validation. Formats: 256 int32 of header;
# then the tensors as float32, linear weights (out, in); or the tokens as uint16.
python3 - $((B * T * (STEPS + 8) + 1)) <<'END' || fail "$work: cannot write its files (0.5 GB)"
import array, random, sys
V, VP, T, L, NH, C, tokens = 50257, 50304, 1024, 12, 12, 768, int(sys.argv[1])
random.seed(1)
noise = array.array("f", (random.gauss(0, 0.02) for _ in range(C * C)))  # again and again
ones = array.array("f", [1]) * C
header = lambda *words: array.array("i", [*words, *[0] * (256 - len(words))])
with open("gpt2_124M.bin", "wb") as file:  # wte wpe, ln1 qkv attproj, ln2 fc fcproj, lnf
    header(20240326, 3, T, V, L, NH, C, VP).tofile(file)
    LC = L * C
    for i, size in enumerate((VP * C, T * C, LC, LC, 3 * C * LC, 3 * LC, C * LC, LC, LC, LC, 4 * C * LC, 4 * LC,
                              4 * C * LC, LC, C, C)):
        part = ones if i in (2, 8, 14) else noise  # norms' weights
        for at in range(0, size, len(part)):
            part[:size - at].tofile(file)
with open("tokens.bin", "wb") as file:
    header(20240520, 1, tokens).tofile(file)
    array.array("H", (random.randrange(V) for _ in range(tokens))).tofile(file)
END
mkdir -p dev/data/tinyshakespeare
for split in train val; do ln -s ../../../tokens.bin dev/data/tinyshakespeare/tiny_shakespeare_$split.bin; done

# The run
stdbuf -oL ./train_gpt2 > log 2>&1 &
pid=$!
until grep -q "^step $STEPS:" log; do
    kill -0 "$pid" 2>/dev/null || { cat log >&2; fail "it stopped before step $STEPS"; }
    sleep 0.2
done
peak_kb=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status")
kill "$pid"
wait "$pid" 2>/dev/null || :
pid=

compiler=$($CC --version | head -n 1 | tr -d '"\\')
sed -n 's/^step [1-9][0-9]*: train loss \([-0-9.naif]*\) (took \([0-9.]*\) ms)/\2 \1/p' log | head -n "$STEPS" > steps
loss=$(tail -n 1 steps | cut -d ' ' -f 2)
median=$(sort -n steps | awk '{ ms[NR] = $1 } END { print (ms[int((NR + 1) / 2)] + ms[int(NR / 2) + 1]) / 2 }')
minimum=$(sort -n steps | head -n 1 | cut -d ' ' -f 1)
awk -v B="$B" -v T="$T" -v kb="$peak_kb" -v version="$version, $compiler" -v threads="${OMP_NUM_THREADS:-$(nproc)}" \
    -v median="$median" -v minimum="$minimum" -v loss="$loss" 'BEGIN {
    printf "{\"peer\": \"llm.c\", \"version\": \"%s\", \"B\": %d, \"T\": %d, ", version, B, T
    printf "\"threads\": %d, \"median_ms\": %.1f, \"min_ms\": %.1f, ", threads, median, minimum
    printf "\"tokens_per_s\": %.1f, \"peak_mb\": %.1f, \"loss\": %.3f}\n", 1000 * B * T / median, kb * 1.024e-3, loss
}'
