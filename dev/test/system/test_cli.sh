#!/bin/bash
# The trainer as people use it: runs that work, runs that are stopped and resumed, and everything that can be
# wrong with arguments, files and disks. Bad input has to end with one clear line on stderr, exit status 2 (arguments)
# or 1 (the rest), and nothing half-written: there the programs are built with AddressSanitizer and UBSan. Then the
# planner, whose commands the trainer has to take.
# shellcheck disable=SC2034,SC2046,SC2086,SC2206,SC2317  # options are lists of words, and conditions are evaluated
set -u
BUILD=${BUILD:-build}
train=$PWD/$BUILD/sanitized/train_gpt
fast=$PWD/train_gpt
plan=$PWD/plan
tokenize=$PWD/$BUILD/sanitized/tokenize
reference=$PWD/dev/test/reference
source=$PWD
. dev/test/system/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=2

# refuses STATUS WORDS ARGUMENTS...: exits with STATUS and one line on stderr, which has the words: the option or file
# that is wrong
refuses() { refused_by "$train" "$@"; }
plan_refuses() { refused_by "$source/$BUILD/sanitized/plan" "$@"; }
refused_by() {
    program=$1 status=$2 text=$3
    shift 3
    timeout 240 "$program" "$@" >out 2>err
    got=$?
    if [ $got = "$status" ] && [ "$(wc -l <err)" = 1 ] && says "$text" err; then ok "$* -> $(cat err)"
    else bad "$*: exit status $got (expected $status), stderr (expected \"$text\"): $(head -c 600 err)"; fi
}

# logged FOLDER EXPRESSION: the expression in Python, of `lines`, the objects of FOLDER/log.jsonl
logged() {
    python3 -c 'import json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/log.jsonl")]
print(eval(sys.argv[2]))' "$@"
}

common="--heads 2 --seq 32 --micro-batch 2 --warmup 2"
small="--hidden 32 --layers 2 $common"

# ---- a run, and what it leaves
seq 1 12000 | tr '\n' ' ' >text.txt
"$train" $small --data text.txt --steps 4 --eval-every 2 --out run >out 2>err
check "a short run ends with status 0, prints a line a step, and validates every other" \
    "[ $? = 0 ] && [ \$(grep -c '^step ' out) = 4 ] && [ \$(grep -c '\"val_loss\":[0-9]' run/log.jsonl) = 2 ]"
"$fast" $small --data text.txt --steps 100000 --eval-every 0 >shown 2>err & pid=$!
until grep -qs "^step " shown; do sleep 0.05; done
check "ps and pgrep find it by its name, and as it was started" "[ \$(cat /proc/$pid/comm) = train_gpt ] &&
    [ \"\$(tr '\\0' '\\n' </proc/$pid/cmdline | head -n 1)\" = '$fast' ]"
kill $pid && wait $pid
loops=()
for _ in $(seq "$(getconf _NPROCESSORS_ONLN)"); do (while :; do :; done) & loops+=($!); done
"$fast" $small --data text.txt --steps 1 >shown 2>err
check "beside other programs the header says so" \
    "grep -q '^busy  *[0-9]* threads* of other programs runs* on its cores; OMP_NUM_THREADS=1 may' shown"
kill "${loops[@]}"
files="config.json model.safetensors optimizer.safetensors tokenizer.json tokenizer_config.json"
check "it leaves a checkpoint, and nothing temporary" \
    "[ \"\$(cd run/step_00000004 && echo *)\" = '$files trainer.json' ] && [ -z \"\$(find run -name '*.tmp*')\" ]"
# ---- options in a file, and samples
"$train" $small --data text.txt --steps 100 --init run/step_00000004 --dry-run >out 2>err
check "slower with trained weights" "[ ! -s err ] && grep -q '^lr  *0.0003 after .*; cosine to 3e-05 at' out"
"$fast" $small --data text.txt --steps 6 --eval-every 0 --save-every 3 --init run/step_00000004 --out tuned >out 2>err
sed 's/"tokens".*//' tuned/log.jsonl >rates && rm -rf tuned/step_00000006
"$fast" --config tuned/options.txt --resume >out 2>err
check "and as slow when its options resume it" "grep -q '^step *4' out && sed 's/\"tokens\".*//' tuned/log.jsonl |
    cmp - rates && rm -rf tuned"
losses='[(x["loss"], x["val_loss"]) for x in lines]'
check "it leaves its options" "grep -qx -- '--steps 4' run/options.txt && grep -qx -- '--heads 2' run/options.txt &&
    grep -qx -- '# --lr 0.003' run/options.txt && ! grep -q -- '--resume' run/options.txt"
"$train" --config run/options.txt --out again >out 2>err
check "--config does the same run" "[ $? = 0 ] && [ ! -s err ] &&
    [ \"\$(logged run \"\$losses\")\" = \"\$(logged again \"\$losses\")\" ]"
check "and leaves the same options but --out" \
    "[ \"\$(diff run/options.txt again/options.txt | grep '^[<>]' | grep -v started)\" = '< --out run
> --out again' ]"
"$fast" --config again/options.txt --steps=6 --resume --sample-every 2 >out 2>err
check "the command line wins, and --resume goes on" "[ $? = 0 ] && [ \$(wc -l <again/log.jsonl) = 6 ] &&
    grep -qx -- '--steps 6' again/options.txt"
unclipped="$small --data text.txt --steps 4 --save-every 2 --eval-every 0 --sample-every 0 --clip 0"
"$fast" $unclipped --out unclipped >out 2>err && mkdir skipped && cp -r unclipped/step_00000002 skipped &&
    sed -n '1p;2s/,"tokens"/,"skipped":true&/p' unclipped/log.jsonl >skipped/log.jsonl
"$fast" $unclipped --out skipped --resume >out 2>err
check "the step after one that was skipped is made, also without clipping and after a restart" \
    "grep -c skipped skipped/log.jsonl | grep -qx 1 && same_weights {unclipped,skipped}/step_00000004"
seq 5000 9000 >other.txt
pair="$small --data text.txt,other.txt --val text.txt --steps 4 --save-every 2 --eval-every 2 --sample-every 0"
"$fast" $pair --out pair >out 2>err && mkdir parted && cp -r pair/step_00000002 parted &&
    { head -n 2 pair/log.jsonl && seq 2000; } >parted/log.jsonl
"$fast" $pair --out parted --resume >out 2>err
check "two files, and a text to validate on: a resumed run ends with the same bits" \
    "same_weights {pair,parted}/step_00000004"
check "  and what its log had beyond the checkpoint is cut off" \
    "[ \$(wc -l <parted/log.jsonl) = 4 ] && [ \$(grep -c '^{\"step\"' parted/log.jsonl) = 4 ]"
cp -r pair/step_00000002 parted/step_00000003 && "$fast" $pair --out parted --resume --keep-last 1 >out 2>err
check "a run that was killed before it removed old checkpoints removes them, though nothing is left to train" \
    "[ \"\$(cd parted && echo step_*)\" = step_00000004 ]"
refuses 2 "--config" --config nowhere.txt
refuses 2 "--data" $small --data "text.txt " --out nothing
check "which leaves nothing" "[ ! -e nothing ]"
"$fast" --config run/options.txt --steps 20 --eval-every 7 --log-every 5 --out every >out 2>err
check "--log-every prints some, and logs all" \
    "[ \"\$(sed -n 's/^step *\([0-9]*\).*/\1/p' out | tr '\n' ' ')\" = '5 7 10 14 15 20 ' ] &&
    [ \$(wc -l <every/log.jsonl) = 20 ]"
check "--version says one: $($fast --version)" \
    "$fast --version | grep -qx \"train_gpt \$(cat '$source/$BUILD/version'), fp32, by [A-Za-z].*\" &&
    [ \"\$($plan --version | sed 's/ .*//')\" = plan ]"
staged=$work/staged
check "make install copies the programs, which run there" \
    "make -s -C $source BUILD=$BUILD PREFIX=/opt DESTDIR=$staged install >out 2>err &&
    [ \"\$(ls $staged/opt/bin | tr '\n' ' ')\" = 'plan tokenize train_gpt ' ] &&
    $staged/opt/bin/train_gpt --version | cmp - <($fast --version) && $staged/opt/bin/plan --clusters | grep -q ^selene"

# ---- memory: what validations, evaluations, texts and saves take is in the plan that was printed
seq 1 200000 | tr '\n' ' ' >large.txt
# Without huge pages (PR_SET_THP_DISABLE): where the system has one free, 2 MB are taken for the first byte.
small_pages='import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])'
takes() { # OPTIONS...: MB of the plan, and MB of the process at most
    rm -rf taken
    python3 -c "$small_pages" "$fast" $small --data text.txt --val large.txt --steps 2 --eval-every 0 --sample-every 0 \
        "$@" --out taken >out 2>err
    sed -n 's/^memory .*together \([0-9.]*\) MB/\1/p' out
    grep -o 'peak_mem_bytes":[0-9]*' taken/log.jsonl | tail -n 1 | sed 's/.*://; s/......$//'
}
read -r planned peak < <(takes | tr '\n' ' ')
for what in "--eval-every 2 --eval-sequences 1000000" "--sample-every 1 --max-new-tokens 2000" "--save-every 1"; do
    read -r more most < <(takes $what | tr '\n' ' ')
    check "$what: $peak MB become $most, planned $planned become $more MB" \
        "[ -n '$most' ] && python3 -c 'exit($most - $peak > $more - $planned + 3)'"
done

# ---- names that would command a terminal: a folder with ESC and BEL, and files with a line break too
odd=$'o\e[31m\aodd'
mkdir "$odd" && cp text.txt "$odd/"$'\n'odd.txt
cp "$reference/evaluation.choices" "$odd/odd.choices"
printf 'ranks 2\nlink 0 1\nlink 1 0\n' >"$odd/odd.net"
hides() { # OPTIONS...: what it prints has them as ?
    timeout 120 "$fast" "$@" >out 2>err
    local status=$?
    check "shown without what commands a terminal: $(echo "${@@Q}" | cut -c 1-200)" \
        "cat out err | grep -qF 'o?[31m?odd' && [ $status -le 2 ] &&
        ! cat out err | LC_ALL=C grep -q $'[\001-\010\013-\037\177]\|^odd'"
}
named=($small --steps 2 --eval-every 1 --sample-every 0)
hides "${named[@]}" --data "o*/*.txt" --val "$odd/*.txt" --evaluate "$odd/odd.choices" --out "$odd/out" --save-every 1 \
    --trace "$odd/trace" --export "$odd/weights"
printf x >>"$odd/out/step_00000002/model.safetensors"
hides --out "$odd/out" --resume --steps 4
hides --out "$odd/none" --resume "${named[@]}" --data text.txt --explain --tokenizer "$odd/odd.net"
hides --init "$odd/out" --generate a --evaluate "$odd/odd.choices"
hides "${named[@]}" --data "o*/*.txt" --dp 2 --allreduce ring --topology "$odd/odd.net" --dry-run
rm -r "$odd"

# ---- stopped and resumed
trained='[(x["step"], x["loss"], x["grad_norm"]) for x in lines]'
for arch in gpt2 llama; do
    options="$small --arch $arch --data text.txt --steps 12 --global-batch 4 --eval-every 0"
    "$fast" $options --out whole_$arch >/dev/null
done
# killed after three steps or a few more, which are made again; at any moment, and again and again: torture.py
"$fast" $options --save-every 1 --keep-last 0 --out parts >shown 2>err & pid=$!
until grep -qs "^saved .*step_00000003" shown; do sleep 0.01; done
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
rm -rf parts/step_0000000[4-9] parts/step_0000001?
"$fast" $options --save-every 1 --out parts --resume >out 2>err
check "killed, and bit-identical to one never interrupted" \
    "grep -q '^resume .*step 3$' out && same_weights {whole_llama,parts}/step_00000012"
check "the log is complete, each step once, the same losses" \
    "[ \"\$(logged whole_llama \"\$trained\")\" = \"\$(logged parts \"\$trained\")\" ]"
# forge SEQUENCES: a copy of that run whose trainer.json says it had so many, and a checksum that fits
forge() {
    rm -rf forged && cp -r whole_gpt2 forged
    PYTHONPATH=$source/dev/test/system PYTHONDONTWRITEBYTECODE=1 python3 -c '
import re, sys
from check_checkpoint import checksum
path = "forged/step_00000012/trainer.json"
text, n = re.subn("(\"sequences\": )[^,]*", lambda m: m[1] + sys.argv[1], open(path).read(), count=1)
head = text[:text.rindex("\"checksum\": \"") + len("\"checksum\": \"")]
open(path, "w").write(head + "%016x" % checksum(head.encode()) + "\"\n}\n")
assert n == 1' "$1"
}
for sequences in 9223372036854775807 47 '0,"rounds":"\u001b[2Jsites"'; do
    forge "$sequences"
    refuses 2 "forged" $small --data text.txt --steps 13 --global-batch 4 --eval-every 0 --out forged --resume
done
check "what it says is shown without control characters" "! grep -q \$'\\033' out err"
refuses 2 "--global-batch" $small --data text.txt --steps 12 --global-batch 2 --out whole_gpt2 --resume
refuses 2 "--data" $small --data text.txt,text.txt --steps 12 --global-batch 4 --out whole_gpt2 --resume
refuses 2 "--micro-batch" --data text.txt --micro-batch 1 --global-batch 4194304 --dry-run
check "ten thousand stages are planned, without their middle" "timeout 60 $fast --pp 10000 --layers 10000 --dry-run \
    >out && [ \$(grep -c '^stage ' out) = 32 ] && [ \$(wc -l <out) -lt 100 ]"
# ---- --out DIR --resume alone: the model is the checkpoint's, the other options are those of DIR/options.txt
resumed() { # resumed FOLDER OPTIONS...: a copy of it
    rm -rf resumed && cp -r "$1" resumed && timeout 60 "$fast" --out resumed --resume "${@:2}" >out 2>err
    status=$?
}
resumed whole_llama --steps 14
check "it needs nothing else" "[ $status = 0 ] && [ ! -s err ] && grep -q '^options .*resumed/options.txt' out &&
    grep -q '^resume .*step 12$' out && grep -qx -- '--steps 14' resumed/options.txt"
resumed whole_llama --steps 13 --export weights_13
"$fast" --out resumed --resume --steps 14 >out 2>err
check "an export is not the next run's too" "[ $? = 0 ] && [ ! -s err ] && ! grep -q '^export' out &&
    ! grep -q '^--export' resumed/options.txt && rm -r weights_13"
resumed whole_llama --steps 5
check "beyond --steps there is nothing to train, which is success" "[ $status = 0 ] && [ ! -s err ] &&
    grep -q '^done' out && [ ! -e resumed/step_00000013 ] && cmp {whole_llama,resumed}/options.txt"
for option in "--tie-embeddings yes" "--hidden 64" "--optimizer sgd" "--model llama-130M" \
    "--config run/options.txt --arch gpt2"; do
    resumed whole_llama --steps 14 $option
    name=${option##*--}
    check "$option is refused: $(cat err)" "[ $status = 2 ] && grep -q -- '--${name%% *} ' err"
done
resumed whole_llama --steps 14 --decay linear --clip 2
check "another curve and clip are taken: $(grep '^lr' out)" \
    "[ $status = 0 ] && grep -q '^lr .*linear' out && grep -q '^optimizer .*clip 2$' out"
"$fast" $small --arch llama --data text.txt --steps 1 --export theta >out 2>err
sed -i 's/"rope_theta": 10000.0/"rope_theta": 500.0/; s/"rms_norm_eps": 1e-05/"rms_norm_eps": 0.001/' theta/config.json
"$fast" $small --init theta --data text.txt --steps 3 --eval-every 0 --out theta_run >out 2>err
rm theta_run/options.txt
"$fast" $small --arch llama --data text.txt --steps 5 --eval-every 0 --out theta_run --resume >out 2>err
check "what shapes and options do not say is the checkpoint's" \
    "[ $? = 0 ] && grep -q '\"rope_theta\": 500.0' theta_run/step_00000005/config.json &&
    grep -q '\"rms_norm_eps\": 0.001' theta_run/step_00000005/config.json"

# ---- weights that are not there
refuses 1 "run, OUT/best" $small --init run --data text.txt
refuses 1 "nowhere" $small --init nowhere --data text.txt
rm -rf resumed && cp -r whole_gpt2 resumed && rm resumed/step_00000012/optimizer.safetensors
refuses 1 "none of the 1 checkpoints" --out resumed --resume

# ---- a log with a damaged line
rm -rf resumed && cp -r whole_llama resumed
python3 - <<'PY'
lines = open("resumed/log.jsonl").read().splitlines(True)
lines[2] = lines[2].replace(":", "\0", 2)
lines[6] = "\n"
lines[9] = lines[9][:50] + "\n"
open("resumed/log.jsonl", "w").write("".join(lines) + lines[11].replace('"step":12', '"step":14') + '{"step":12,"lo')
PY
cp resumed/log.jsonl damaged.jsonl
"$fast" --out resumed --resume --steps 14 >out 2>err
status=$?
check "all lines up to the checkpoint stay as they were, and the run adds its own" \
    "[ $status = 0 ] && [ \"\$(head -n 12 resumed/log.jsonl | cksum)\" = \"\$(head -n 12 damaged.jsonl | cksum)\" ] &&
    [ \"\$(tail -n +13 resumed/log.jsonl | sed 's/,.*//; s/.*://' | tr '\n' ' ')\" = '13 14 ' ]"

# ---- arguments
refuses 2 "--steps" --steps -1
refuses 2 "--out: the value is missing" --out --resume
check "a run that ends within its warm-up says so" \
    "$train --steps 100 --warmup 2000 --dry-run | grep -q '^lr  *up to 0.00015: '"
large="--model gpt3-1008B --data text.txt --dry-run"
check "a model of terabytes is not listed in megabytes, nor trained" \
    "$train $large >out 2>err && $train $large --tp 2 >two.out 2>err && grep -q '^memory .* TB' out &&
    ! grep -q '[0-9]\{7\}[.][0-9]* MB\|^step' out && grep -q 'TB: params' two.out"
refuses 2 "did you mean llama-7B?" --model llama-7b
refuses 2 "-np 8" --tp 2 --dp 2 --pp 2
refuses 2 "--heads" --heads 5
refuses 2 "--kv-heads" --arch llama --kv-heads 3
refuses 2 "--arch" --kv-heads 2
refuses 2 "--out" --resume
refuses 2 "--out" --save-every 3
refuses 2 "--micro-batch" --micro-batch 1000000 --seq 10000 --data text.txt
refuses 1 "--micro-batch" --model gpt3-1008B --vocab 256 --seq 64 --micro-batch 1 \
    --data text.txt # more than any machine has
refuses 2 "--min-lr, --lr" $small --data text.txt --min-lr 1e-2
refuses 2 "--beta2" --beta2 0.99999999

# ---- data; test_token_files has every way in which a file is none
python3 - <<'PY'
import struct
def write(name, *parts):
    with open(name, 'wb') as f:
        for format, numbers in parts: f.write(struct.pack('<%d%s' % (len(numbers), format), *numbers))
tokens = [(i * 7919) % 50257 for i in range(3000)]
write('good.bin', ('i', [20240520, 1, 3000] + [0] * 253), ('H', tokens))
write('low.bin', ('i', [20240520, 1, 3000] + [0] * 253), ('H', [t % 60 for t in tokens]))
write('megatron.bin', ('i', tokens)) # as sequences of 100
write('megatron.idx', ('B', b'MMIDIDX\0\0'), ('q', [1]), ('B', [4]), ('q', [30, 3]), ('i', [100] * 30),
      ('q', [400 * i for i in range(30)] + [0, 5, 30]))
PY
head -c 20 text.txt >tiny.txt
printf '{"text":"a"}\n{"body":"b"}\n' >field.jsonl
refuses 1 "nowhere.txt" $small --data text.txt,nowhere.txt
refuses 1 "good.bin, 256" --data good.bin --vocab 256
refuses 1 "--seq" --data tiny.txt
refuses 1 "good.bin" $small --data text.txt --val good.bin
refuses 2 "megatron.bin" --data megatron.bin
refuses 2 "--generate" $small --data low.bin --vocab 64 --tokenizer "$reference/tokenizer_gpt2.json" --steps 2 \
    --out unread --generate "the dog"
check "... before anything is trained" "[ ! -e unread ]"
refuses 1 "field.jsonl:2:1, text" $small --data field.jsonl
check "a large vocabulary for bytes is reported" "$fast $small --data text.txt --vocab 50257 --dry-run >out 2>err &&
    grep -q -- '--vocab 256' err && $fast $small --data text.txt --dry-run >out 2>err && [ ! -s err ]"
losses() { grep '^step' "$1" | grep -o 'loss [0-9.]*'; }
same_losses() { [ "$(losses one)" = "$(losses out)" ] && [ -n "$(losses out)" ]; }
# trains DATA OPTIONS...: two steps
trains() { "$fast" $small --data "$1" --steps 2 --eval-every 0 "${@:2}" >out 2>err; }
check "llm.c's shards are trained on" "trains good.bin && grep -q 'vocabulary 50257' out && mv out one"
check "Megatron's data sets as the same tokens" "trains megatron.bin --vocab 50257 &&
    grep -q '^data *megatron.bin: .*, 3000 tokens' out && same_losses"
seq 1 500 | sed 's/.*/{"n":&,"text":"the line & of a file: \\u00e9t\\u00e9"}/' >lines.jsonl
"$tokenize" --tokenizer "$reference/tokenizer_gpt2.json" --data lines.jsonl --out shards >out 2>err
check "JSON lines are trained on, by a vocabulary" \
    "trains lines.jsonl --tokenizer shards --out lines && grep -q '^data *lines.jsonl: ' out && mv out one"
check "as the same tokens in a shard" "trains 'shards/train_*.bin' && same_losses"
check "resumed by the vocabulary of the checkpoint" \
    "trains lines.jsonl --out lines --steps 3 --resume && grep -q '^step *3' out"
check "as bytes without one" "trains lines.jsonl --val lines.jsonl && grep -q '^model .*vocabulary 256' out"
head -c 30000 text.txt >part_a.txt && tail -c 9000 text.txt >part_b.txt
two="$fast $small --data part_a.txt,part_b.txt --val part_b.txt --steps 8 --global-batch 4 --eval-every 4"
check "two files are trained on" "$two --out two >out 2>err"
refuses 2 "--data" $small --data part_b.txt --val part_b.txt --steps 9 --global-batch 4 --out two --resume
tr 1 2 <text.txt >other.txt
held="$small --steps 4 --global-batch 4"
check "5 % are held out, in blocks" "$fast $held --data text.txt --eval-every 2 --save-every 2 --out held >one 2>err &&
    grep -q '^val .* in 8 blocks' one && cp -r held held_other && rm -rf held*/step_00000004"
check "and stay held out where a resumed run does not validate" \
    "$fast $held --data text.txt --eval-every 0 --out held --resume >out 2>err && [ ! -s err ] &&
    [ \"\$(losses one | tail -n 2)\" = \"\$(losses out)\" ]"
check "other data of the same length are reported" \
    "$fast $held --data other.txt --eval-every 2 --out held_other --resume >out 2>err &&
    grep -q 'held_other/step_00000002' err"
"$fast" $held --data text.txt --eval-every 0 --out whole_text >out 2>err
refuses 2 "--val, --eval-every" $held --data text.txt --eval-every 2 --out whole_text --resume

# ---- a file of weights of another shape; test_pretrained and test_safetensors have weights that lie
model=whole_gpt2/step_00000012/model.safetensors
refuses 1 "transformer.wte.weight" $common --layers 2 --hidden 64 --data text.txt --init $model
refuses 1 "h.2.ln_1.weight" $common --hidden 32 --layers 3 --data text.txt --init $model
refuses 1 "transformer.h.1" $common --hidden 32 --layers 1 --data text.txt --init $model

# ---- folders and disks; full disks: torture.py
refuses 1 "text.txt" $small --data text.txt --out text.txt
refuses 1 "--out" $small --data text.txt --out nowhere/deep
(ulimit -f 100; exec "$fast" $small --data text.txt --steps 2 --out full >out 2>err)
check "files of 100 KB at most" "[ $? = 1 ] && [ \$(wc -l <err) = 1 ] && grep -q 'File too large' err &&
    [ -z \"\$(find full -name 'step_*')\" ]"

# ---- the default: no option at all
timeout 600 "$fast" --steps 20 >out 2>err
check "without options it trains on text that is always there, and writes" \
    "[ $? = 0 ] && [ ! -s err ] && [ \$(sed '1,/^done/d' out | wc -c) -gt 20 ]"

# ---- what the programs say, beside numbers that are computed here
while read -r name program; do
    python3 "$source/dev/test/system/check_$name.py" "$program" >out 2>err
    check "check_$name.py" "grep -qx '[1-9][0-9]* passed, 0 failed' out || { grep -v '^ok' out err; false; }"
done <<<"explain $fast
planner $plan
datacenter $plan
roofline $plan"
refuses 2 "--explain, --steps" --explain --steps 0

# ---- the planner
shape="--arch llama --layers 4 --hidden 64 --heads 4 --seq 32 --vocab 256"

# planned ARGUMENTS...: the planner's command, with as many ranks as it says, is one that the trainer takes for the same
# model
planned() {
    timeout 240 "$plan" "$@" >out 2>err
    check "plan $*" "[ $? = 0 ] && [ ! -s err ] && grep -q '^run  ' out && [ \$(grep -c '%' out) -ge 3 ]"
    command=$(sed -n 's/^run .*\(train_gpt\|run_slurm.sh\) //p' out | sed 's/--data [^ ]* //')
    timeout 240 "$train" $command --data text.txt --dry-run >dry 2>err
    check "  train_gpt $command" \
        "[ $? = 0 ] && ! grep -qv 'warning: the model has a vocabulary' err" # the text is bytes
    ranks=$(sed -n 's/^run .*-np \([0-9]*\) .*/\1/p; s/^run .*nodes=\([0-9]*\) --.*-node=\([0-9]*\) .*/\1 * \2/p' out)
    parameters=$(sed -n 's/.* \([0-9]*\) parameters.*/\1/p' dry)
    check "  is of as many ranks and parameters" "grep -q '^mesh  *$((ranks)) rank' dry &&
        grep -q \"; $(python3 -c "print('%.4g' % ($parameters / 1e9))") B parameters\" out"
}
planned
planned $shape --gpus 4 --kv-heads 2 --global-batch 8 --recompute full
planned --model gpt3-1008B --cluster selene --gpus 3072 --global-batch 3072 --tp 8 --pp 64 --zero 1 --rows 3 --margin 2
check "  with three rows, the fastest first" "[ \$(sed -n '/^ *t   p/,/^\$/p' out | grep -c '^[* ] *[0-9]') = 3 ]"
planned --model gpt2-124M --cluster $source/planner/clusters/selene.txt --gpus 8 --schedule zb-v --pp 2 --micro-batch 2
# has TEXT: the command of the plan ends with it
has() { check "  the command has all of it" "grep -q -- '$1\$' <<<'$command'"; }
planned --gpus 16 --global-batch 32 --micro-batch 2 --tp 2 --pp 2 --vpp 3 --schedule interleaved --zero 1 --rows 1 \
    --sequence-parallel yes --recompute selective --no-scatter-gather
has "--model gpt2-124M --global-batch 32 --micro-batch 2 --tp 2 --pp 2 --dp 4 --schedule interleaved --vpp 3 \
--sequence-parallel --zero 1 --no-scatter-gather --recompute selective"
planned --gpus 16 --global-batch 32 --tp 2 --dp 4 --wan 100 --dp-mode diloco --local-steps 64
has "--dp-mode diloco --sites 2 --local-steps 64"
check "  and what its sites exchange" "grep -q '^sites .*to other sites' out"
planned --gpus 8 --dp 4 --tp 2 --dp-mode dc-s3gd --caat-fraction 0.5 --caat-grad-dtype same --micro-batch 2 \
    --tp-comm-overlap
has "sites 4 --caat-fraction 0.5 --caat-grad-dtype same --tp-comm-overlap"
planned --gpus 16 --global-batch 32 --wan 10 --search dp-mode,local-steps,caat-fraction
check "  searched among the modes" "grep -q 'run .*--dp-mode d' out"
check "--timeline: what each stage does" "$plan $shape --gpus 4 --pp 4 --timeline >out 2>err && [ ! -s err ] &&
    awk -F '\t' 'NR > 2 && NF == 6 && \$6 > \$5 && \$1 < 4 { n++ } END { exit !(NR > 9 && n == NR - 2) }' out"
make -C "$source/planner" OUT="$PWD/alone" CFLAGS="-O0 -Werror -Wall -Wextra" >out 2>&1
check "the planner alone: make -C planner" \
    "alone/plan --flags | diff - <('$plan' --flags) && alone/simulate --help >out"
# test_planner_search, test_planner_modes and test_planner_cluster have what no mesh, no mode and no file may be.
plan_refuses 2 "--gpus" --gpus 0
plan_refuses 2 "--cluster" --cluster nowhere
plan_refuses 2 "--model, --heads" --arch llama --layers 24 --hidden 2048
plan_refuses 2 "--margin 86" --margin 86
plan_refuses 2 "--precision fp32, --software llama3" --software llama3 --precision fp32
plan_refuses 1 "room for this model" --model llama-7B --gpus 1 --margin 79
"$plan" --gpus 1 --precision fp32 >out 2>err
check "--precision fp32 plans float32" \
    "[ $? = 0 ] && grep -q 'software  threefold-fp32' out && grep -q PRECISION=fp32 out"
plan_refuses 2 "--software megatron-core, --dp-mode" --software megatron-core --dp-mode dc-s3gd
plan_refuses 2 "--wan, --sites 3" --wan 100 --sites 3
plan_refuses 2 "--wan-ms, --wan" --wan-ms 3
plan_refuses 2 "--runs nowhere.tsv, cannot open" --runs nowhere.tsv
finish
