#!/bin/bash
# The trainer with several ranks, as people use it: every kind of mesh trains what one rank trains; a run is stopped and
# taken up again on another mesh; wrong arguments, files and disks; ranks that were not started alike; ranks that die.
# Whatever is wrong has to end soon, with one line of the trainer on stderr (mpirun adds its own), the exit status that
# one rank has, and nothing half-written. LONG=1: each of five meshes takes up each one's checkpoint. MPIRUN is the mpirun that belongs to the build; train_gpt is built already.
set -u
project=$PWD
train=$project/train_gpt
sanitized=$project/${BUILD:-build}/sanitized/train_gpt
mpirun=$project/scripts/mpirun.sh
if [ "${MPIRUN-mpirun}" = "" ] || ! grep -q MPI_Init "$train"; then
    echo "left out: no MPI"
    echo "0 passed, 0 failed"
    exit 0
fi
export MPIRUN=${MPIRUN:-mpirun} ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1
work=$(mktemp -d)
mounted="" building=""
. dev/test/system/ranks.sh
program=$train
clean() {
    kill_ranks
    [ -z "$building" ] || kill "$building" 2>/dev/null
    [ -z "$mounted" ] || umount "$mounted"
    rm -rf "$work"
}
trap clean EXIT
cd "$work" || exit 1
export OMPI_MCA_btl_vader_backing_directory=$work # not /dev/shm, where jobs that are killed leave their memory for ever
mkdir pids
passed=0 failed=0

ok() { passed=$((passed + 1)) && echo "ok    $*"; }
bad() { failed=$((failed + 1)) && echo "FAIL  $*"; }
check() { if eval "$2"; then ok "$1"; else bad "$1: $2"; fi; }

# verify WHAT COMMAND...: succeeds; what it prints (a measured error, a reason) is shown
verify() {
    if "${@:2}" >said 2>&1; then ok "$1 $(tail -n 1 said)"; else bad "$1 ($*): $(tail -n 3 said)"; fi
}

# launch RANKS COMMAND...: its output to out and err, its exit status to $status, how long it took to $seconds.
# --foreground, or timeout would signal mpirun twice, which Open MPI takes as "leave at once", without its ranks.
launch() {
    started=$SECONDS
    timeout --foreground -k 5 120 "$mpirun" -np "$@" >out 2>err </dev/null
    status=$? seconds=$((SECONDS - started))
}

# trains MESH OPTIONS...: MESH is RANKS:OPTIONS; one rank is started without mpirun. Succeeds if the run does.
trains() {
    read -ra mesh_options <<<"${1#*:}"
    if [ "${1%%:*}" = 1 ]; then
        "$train" "${@:2}" >out 2>err </dev/null
        status=$?
    else
        launch "${1%%:*}" "$train" "${mesh_options[@]}" "${@:2}"
    fi
    [ $status = 0 ] && return
    bad "$*: exit status $status, stderr: $(head -c 600 err)"
    return 1
}

# told STATUS TEXT WHAT: the launch ended with STATUS, soon, and the trainer said one line, which has TEXT
told() {
    if [ $status = "$1" ] && [ $seconds -le 100 ] && [ "$(grep -ac '^train_gpt: ' err)" = 1 ] &&
        grep -a '^train_gpt: ' err | grep -qF -- "$2"; then ok "$3 -> $(grep -a '^train_gpt: ' err)"
    else bad "$3: exit status $status (expected $1) after $seconds s, stderr (expected \"$2\"): $(head -c 900 err)"; fi
}

# refuses STATUS TEXT RANKS OPTIONS...
# Wrong arguments (status 2) are found by every rank alike, by the same function. So after the first ten, where the mesh is one
# for so many ranks, it is a process alone that plans that mesh; LONG=1: all are started for real.
refused=0
refuses() {
    if [ "$1" = 2 ] && [ $((refused += 1)) -gt 10 ] && [ -z "${LONG:-}" ] && replicas=$(replicas_of "$3" "${@:4}"); then
        "$train" "${@:4}" --dp "$replicas" --dry-run >out 2>err </dev/null
        status=$? seconds=0
    else
        launch "$3" "$train" "${@:4}"
    fi
    told "$1" "$2" "$3 ranks, ${*:4}"
}

# replicas_of RANKS OPTIONS...: how many replicas such a mesh has; fails where options say so themselves, or it does not fit
replicas_of() {
    local ranks=$1 model_ranks=1
    while shift && [ $# -gt 0 ]; do
        case $1 in
        --tp | --pp) [ "$2" -gt 0 ] 2>/dev/null && model_ranks=$((model_ranks * $2)) || return 1 ;;
        --dp | --dry-run | --out) return 1 ;;
        esac
    done
    [ $((ranks % model_ranks)) = 0 ] && echo $((ranks / model_ranks))
}

# As a rank: notes its process, starts in a folder of its own where there is one, and rank $full_rank may not write
# beyond the 10 MB (20 MB where sh is bash) of a file.
cat >rank.sh <<'SH'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
echo $$ >"$noted/pids/$rank"
[ ! -d "${folders:-none}$rank" ] || cd "$folders$rank" || exit 9
[ "${full_rank:-none}" != "$rank" ] || { trap '' XFSZ && ulimit -f 20000; }
exec "$@"
SH
chmod +x rank.sh
export noted=$work
rank="$work/rank.sh"

# begins STEPS RANKS COMMAND...: in the background; returns when it has made so many steps or is over
begins() {
    rm -f pids/*
    : >out
    timeout --foreground -k 5 200 "$mpirun" -np "${@:2}" >out 2>err </dev/null &
    launcher=$!
    while kill -0 $launcher 2>/dev/null && [ "$(grep -ac '^step ' out)" -lt "$1" ]; do sleep 0.02; done
}

# ends: waits for it
ends() {
    started=$SECONDS
    wait $launcher 2>/dev/null
    status=$? seconds=$((SECONDS - started))
}

# named RANK: the launcher has said which one died; MPICH's says only that one has (and shows any one's process number)
named() { grep -aqi "rank $1\|BAD TERMINATION" err out; }

cat >check.py <<'PY'
import json, re, struct, sys

def log(folder): return [json.loads(line) for line in open(folder + '/log.jsonl')]

def same(a, b, bound, first=0):
    """Loss, validation loss and norm of every step after `first`: largest relative difference."""
    a, b = ([x for x in log(f) if x['step'] > int(first)] for f in (a, b))
    assert a and [x['step'] for x in a] == [x['step'] for x in b], 'other steps'
    worst = 0
    for x, y in zip(a, b):
        assert (x['val_loss'] is None) == (y['val_loss'] is None)
        for key in ('loss', 'val_loss', 'grad_norm'):
            if x[key] is not None: worst = max(worst, abs(x[key] - y[key]) / abs(x[key]))
    assert worst <= float(bound), f'{worst:.1e}'
    print(f'{worst:.1e}, bound {float(bound):.0e}')

def printed(a, b):
    """What people see: the losses of both, of which the last digit may be rounded otherwise."""
    line = re.compile(r'^step +(\d+)/\d+ \| loss ([\d.]+)(?: \| val ([\d.]+))?', re.M)
    a, b = (line.findall(open(f).read()) for f in (a, b))
    assert len(a) == len(b) > 0 and [x[0] for x in a] == [x[0] for x in b], 'other steps'
    for x, y in zip(a, b):
        for u, v in zip(x[1:], y[1:]): assert (u == v == '') or abs(float(u) - float(v)) < 1.5e-4, (x, y)
    print(f'{len(a)} steps')

def skipped(folder):
    """Lines are JSON, whatever the losses are."""
    lines = log(folder)
    for x in lines:
        assert ('skipped' in x) == (x['loss'] is None or x['grad_norm'] is None), x
    print(f'{len(lines)} lines, {sum("skipped" in x for x in lines)} skipped')

def unusual(a, b, first):
    """The scores of two runs after step `first`, of which the second has the losses before it from its log."""
    a, b = ([[x['step'], x.get('loss_z', 0), x.get('grad_norm_z', 0)] for x in log(f) if x['step'] > int(first)] for f in (a, b))
    assert len(a) == len(b) > 0 and any(x[1] for x in a) and any(x[2] for x in a)
    for x, y in zip(a, b): assert all(abs(u - v) < 0.02 for u, v in zip(x, y)), (x, y)
    print(f'{len(a)} steps')

def keys(folder):
    expected = 'step loss val_loss grad_norm lr tokens ms tokens_per_s mfu bytes bubble peak_bytes'.split()
    lines = log(folder)
    for x in lines:
        assert list(x) == expected + ['version'] * (x is lines[0]) and list(x['bytes']) == ['tp', 'pp', 'dp'], list(x)
        assert x['tokens'] == 8 * 32 and x['peak_bytes'] > 1e6 and x['ms'] > 0
        assert x['bytes'] == lines[0]['bytes'], 'a step sends what the one before has sent'
    print(f'{len(lines)} lines')

def traffic(out, folder, t, p, d, options):
    """The bytes of log.jsonl, the table at the end and its formulas agree; and with the papers' formulas, here."""
    t, p, d, text = int(t), int(p), int(d), open(out).read()
    rows = re.findall(r'^  (?:         +together|pipeline .*|data .*?) +([\d.]+) +([\d.]+)$', text, re.M)
    assert len(rows) == 3, rows
    counted = log(folder)[-1]['bytes']
    for (a, b), name in zip(rows, ('tp', 'pp', 'dp')):
        assert a == b, f'{name}: {a} MB counted, {b} by formula'
        assert abs(float(a) * 1e6 - counted[name]) <= 501, (name, a, counted)
    tokens, C, L, V, T = 8 * 32, 32, 4, 256, 32
    tied = 2 * 4 * V * C * d if p > 1 else 0 # all-reduce over two stages, on each of their ranks 2 (2-1)/2
    if 'zero' in options and p > 1: tied //= d
    parts = t if t > 1 and 'whole' not in options or 'sequence' in options else 1
    boundary = 4 * tokens * C * 2 * (p - 1) * t // parts # forth and back
    assert abs(counted['pp'] - (boundary + tied)) <= 0.02 * tied, ('pp', counted['pp'], boundary, tied)
    layers = 4 * 8 * tokens * C * (t - 1) * L # 8 b s h (t-1)/t on each of t ranks
    halves = (10, 13) if 'sequence' in options else (8, 10) # gatherings and scatterings; a sum is two
    layers = layers * halves['full' in options] // 8
    assert layers <= counted['tp'] <= 1.25 * layers, ('tp', counted['tp'], layers)
    parameters = L * (12 * C * C + 13 * C) + V * C + T * C + 2 * C + (V * C if p > 1 else 0) # a tied head: twice
    data = 2 * 4 * (d - 1) * parameters # over all shares of the model, which are t p
    if 'zero 2' in options: data *= (8 // d + 1) / 2 # a sum for each micro-batch, one gathering
    assert data <= counted['dp'] <= 1.25 * data, ('dp', counted['dp'], data)
    print(counted)

def trace(path, t, p, d, m, steps):
    """One process a rank; every stage has a span of each pass over each micro-batch, in its order; and waits."""
    t, p, d, m, steps = int(t), int(p), int(d), int(m), int(steps)
    events = json.load(open(path))['traceEvents']
    names = {e['pid']: e['args']['name'] for e in events if e['name'] == 'process_name'}
    assert sorted(names) == list(range(t * p * d)), names
    tracks = {(e['pid'], e['tid']): e['args']['name'] for e in events if e['name'] == 'thread_name'}
    spans = [e for e in events if e['ph'] == 'X']
    assert all(e['dur'] >= 0 for e in spans)
    for rank in names:
        assert names[rank] == f'rank {rank}: t {rank % t} p {rank // (t * d)} d {rank // t % d}', names[rank]
        mine = sorted((e for e in spans if e['pid'] == rank), key=lambda e: e['ts'])
        compute = [e for e in mine if tracks[rank, e['tid']] == 'compute']
        for what in ('forward', 'backward'):
            found = [e['name'] for e in compute if e['name'].startswith(what)]
            assert found == [f'{what} {k}' for k in range(m)] * steps, (rank, found)
        assert sum(e['name'] == 'update' for e in compute) == steps
        tied = p > 1 and rank // (t * d) in (0, p - 1)
        ends = ['reduce', 'tie', 'norm', 'update', 'update tied'] if tied else ['reduce', 'norm', 'update']
        assert [e['name'] for e in compute][-len(ends):] == ends, (rank, [e['name'] for e in compute])
        assert [e['name'] for e in mine if tracks[rank, e['tid']] == 'step'] == [f'step {k + 1}' for k in range(steps)]
        passes = [e['name'][0] for e in compute if e['name'].split()[0] in ('forward', 'backward')]
        assert passes.index('b') == min(m, p - rank // (t * d)), (rank, passes) # 1F1B: so many forward passes first
        for a, b in zip(compute, compute[1:]): assert a['ts'] + a['dur'] <= b['ts'] + 0.002, 'two at once'
        assert any(tracks[rank, e['tid']] == 'wait' for e in mine), f'rank {rank} never waits'
        sends = [e for e in mine if e['name'].startswith('send') and tracks[rank, e['tid']] != 'wait'] # a wait for one is named so too
        stage = rank // (t * d)
        assert len(sends) == m * steps * ((stage > 0) + (stage < p - 1)), (rank, len(sends))
    begins = [tuple(e['ts'] for e in spans if e['pid'] == rank) for rank in names]
    assert len(set(begins)) == len(names), 'two ranks have the same spans'
    print(f'{len(spans)} spans')

def chunks(path, p, v, m, steps, halves):
    """Every stage has spans of both passes of every micro-batch through each of its chunks, in order."""
    p, v, m, steps = int(p), int(v), int(m), int(steps)
    file = json.load(open(path))
    events, about = file['traceEvents'], file['otherData']
    assert (about['p'], about['v'], about['m']) == (p, v, m), about
    for rank in range(p):
        spans = sorted((e for e in events if e['ph'] == 'X' and e['pid'] == rank), key=lambda e: e['ts'])
        for chunk in range(v):
            prefix = f'chunk {chunk} ' if v > 1 else ''
            mine = [e['name'][len(prefix):] for e in spans if e['name'].startswith(prefix)]
            whats = ('forward', 'backward') if halves == 'whole' else \
                ('forward', 'backward input half', 'backward weight half')
            for what in whats:
                found = [n for n in mine if n.rsplit(' ', 1)[0] == what]
                assert found == [f'{what} {k}' for k in range(m)] * steps, (rank, chunk, found)
            assert mine.count('reduce') == steps and mine.count('update') == steps, mine
    print(f'{p} stages of {v} chunks')

def plan(out, t, p, d, L, C, V, T, zero):
    """The sum of the ranks' "params": every tensor as often as it is held, four bytes each. Moments: two of each, in d
    parts with ZeRO. Gradients: as parameters (ZeRO 2, which has two buckets and shares, is not looked at)."""
    t, p, d, L, C, V, T, zero = map(int, (t, p, d, L, C, V, T, zero))
    row = re.compile(r'^  (\d+)' + r' +(\d+)' * 3 + r' +(\d+)\.\.(\d+)' + r' +([\d.]+)' * 3, re.M)
    rows = row.findall(open(out).read())
    assert [int(r[0]) for r in rows] == list(range(t * p * d)), rows
    assert all(int(r[1]) + t * (int(r[3]) + d * int(r[2])) == int(r[0]) for r in rows), 'coordinates'
    assert sorted({(int(r[5]) + 1 - int(r[4])) for r in rows}) == [L // p], 'layers'
    cut, whole = 12 * C * C + 7 * C, 6 * C # of a block: matrices, biases of qkv and fc; norms, biases of projections
    held = d * (L * (cut + t * whole) + (2 if p > 1 else 1) * V * C + t * T * C + t * 2 * C)
    found = sum(float(r[6]) for r in rows)
    assert abs(found - 4 * held / 1e6) <= len(rows) * 0.06, (found, 4 * held / 1e6) # each is rounded to 0.1
    for r in rows:
        params, grads, moments = map(float, r[6:9])
        assert abs(moments - 2 * params / (d if zero else 1)) < 0.16, r
        assert abs(grads - params - (params / d if zero else 0)) < 0.16, r
    print(f'{found:.1f} MB, {4 * held / 1e6:.1f} expected')

def weights(a, b, bound):
    """Two model.safetensors: the same header, every number alike to bound x the largest of its tensor."""
    def read(path):
        data = open(path, 'rb').read()
        n = struct.unpack('<Q', data[:8])[0]
        header = json.loads(data[8:8 + n])
        header.pop('__metadata__', None)
        return header, memoryview(data)[8 + n:]
    (ha, da), (hb, db) = read(a), read(b)
    assert ha == hb, 'other headers'
    worst = 0
    for name, x in ha.items():
        u, v = (d[slice(*x['data_offsets'])].cast('f') for d in (da, db))
        worst = max(worst, max(abs(i - j) for i, j in zip(u, v)) / max(map(abs, u)))
    assert worst <= float(bound), f'{worst:.1e}'
    print(f'{worst:.1e}, bound {float(bound):.0e}')

globals()[sys.argv[1]](*sys.argv[2:])
PY
verify_py() { verify "$1" python3 check.py "${@:2}"; }

# MPICH's build of the same sources, made while the rest is tested. -O1: what it computes is tested, not how fast.
if command -v mpicc.mpich >/dev/null && command -v mpirun.mpich >/dev/null && ! "$MPIRUN" --version 2>&1 | grep -q HYDRA
then
    mkdir mpich mpich/dev
    cp -r "$project/dev/emulator" mpich/dev
    cp -r "$project"/*.h "$project/train_gpt.cu" "$project/Makefile" "$project"/{checkpoint,comm,dataloader,kernels,methods,parallel,planner,trainer,util} mpich
    (unset MAKEFLAGS MAKELEVEL MFLAGS && exec make -s -C mpich MPICC=mpicc.mpich MPIRUN=mpirun.mpich MPI=yes BUILD=b \
        FAST=-O1 train_gpt) >mpich.log 2>&1 &
    building=$!
fi

seq 1 12000 | tr '\n' ' ' >text.txt
data=(--data text.txt)
model=(--layers 4 --hidden 32 --heads 4 --seq 32 --warmup 2)
batch=(--global-batch 8 --micro-batch 1)
small=("${model[@]}" "${batch[@]}" "${data[@]}")
quiet=(--eval-every 0 --sample-every 0)
short=("${small[@]}" "${quiet[@]}")
# --eps: AdamW divides by the size of the gradient, so that of an entry without a gradient it would make a step out of rounding alone.
run=("${small[@]}" --eps 1e-5 --sample-every 0 --steps 6 --save-every 3 --eval-every 3 --eval-sequences 5)

# ---- several meshes, and what a run prints and leaves. Bound of the differences: sums of at most 8192 terms in another
# order are off by 1e-7 of their size, a few times that after six updates; 1e-5 is what dev/test/unit/test_equivalence.c has.
meshes=("1:" "2:--tp 2" "2:--pp 2" "4:--pp 4 --first-layers 1" "4:--tp 2 --zero 1"
    "4:--tp 2 --pp 2 --sequence-parallel --recompute full" "2:--zero 2" "4:--tp 4 --recompute full"
    "8:--tp 2 --pp 2 --dp 2 --zero 1 --recompute selective" "4:--tp 2 --pp 2 --whole-boundary")
sizes=("1 1 1" "2 1 1" "1 2 1" "1 4 1" "2 1 2" "2 2 1" "1 1 2" "4 1 1" "2 2 2" "2 2 1") # t p d
for i in "${!meshes[@]}"; do
    mesh=${meshes[$i]}
    trains "$mesh" "${run[@]}" --out "mesh$i" || continue
    mv out "out$i"
    verify_py "$mesh: log.jsonl has the documented keys," keys "mesh$i"
    steps=$(grep -c '^step ' "out$i") lines=$(grep -c '^model \|^ready \|^done ' "out$i")
    check "$mesh: one rank prints, and nothing is wrong" "[ $steps = 6 ] && [ $lines = 3 ] && ! grep -q ^train_gpt err"
    [ "$i" != 0 ] || continue
    verify_py "$mesh: prints the losses of one rank," printed out0 "out$i"
    case $mesh in
    *--tp* | *--zero*) verify_py "$mesh: losses and norms are those of one rank:" same mesh0 "mesh$i" 1e-5 ;;
    *) verify_py "$mesh: losses and norms are those of one rank, to the bit:" same mesh0 "mesh$i" 0 ;;
    esac
    read -ra tpd <<<"${sizes[$i]}"
    verify_py "$mesh: bytes, counted and by formula:" traffic "out$i" "mesh$i" "${tpd[@]}" "$mesh"
    check "$mesh: checkpoints, and nothing temporary" "[ '$(cd "mesh$i" && echo ./*)' = './best ./log.jsonl ./options.txt ./step_00000003 \
./step_00000006' ] && [ '$(LC_ALL=C && cd "mesh$i/step_00000006" && echo ./*.*)' = \
'./config.json ./generation_config.json ./model.safetensors ./optimizer.safetensors ./tokenizer.json ./tokenizer_config.json ./trainer.json' ]"
done
for i in 2 3; do
    for file in model optimizer; do
        check "${meshes[$i]}: $file.safetensors is one rank's, byte for byte" \
            "cmp mesh0/step_00000006/$file.safetensors mesh$i/step_00000006/$file.safetensors"
    done
done
for i in 1 4 5 8; do
    verify_py "${meshes[$i]}: weights are one rank's:" weights mesh{0,$i}/step_00000006/model.safetensors 1e-4
done

trains "1:" "${small[@]}" --steps 2 --eval-every 0 --sample-every 2 && sed '1,/^The model writes/d' out >sample0
trains "4:--pp 2" "${small[@]}" --steps 2 --eval-every 0 --sample-every 2 && sed '1,/^The model writes/d' out >sample2
check "two stages write, while another replica waits" "[ \$(wc -c <sample2) -gt 400 ]"
trains "2:--pp 2" "${small[@]}" --steps 2 --eval-every 0 --sample-every 2 && sed '1,/^The model writes/d' out >sample1
check "two stages write what one rank writes" "cmp sample0 sample1"
trains "2:--tp 2" "${small[@]}" --steps 2 --eval-every 0 --sample-every 2
check "two tensor ranks write" "[ \$(sed '1,/^The model writes/d' out | wc -c) -gt 400 ]"

# ---- --generate: nothing is trained; the likeliest text is the same on every mesh. The 46 bytes are more than the context of 32
# tokens; the short text goes beyond it. A drawn text is the same to the bit where sums have the same order.
from_six=("${model[@]}" --out mesh0 --resume)
writes() { # writes MESH OPTIONS...: to `written`; stdout has nothing else
    trains "$1" "${from_six[@]}" "${@:2}" && mv out written
}
before=$(cd mesh0 && find . | xargs ls -ld --time-style=full-iso | cksum)
for text in "101 1" "101 102 103 104 105 106 107 108 109 110 111 11"; do
    writes "1:" --generate "$text" --temperature 0 --tokens 60 && mv written greedy
    check "one rank goes on with ${#text} bytes" "[ \$(wc -c <greedy) = $((${#text} + 61)) ] && head -c ${#text} greedy | grep -qx '$text'"
    for mesh in "2:--tp 2" "2:--pp 2" "2:--dp 2" "4:--tp 2 --pp 2" "4:--tp 4 --sequence-parallel" \
        "2:--pp 2 --schedule interleaved" "2:--pp 2 --schedule zb-v --zero 2 --recompute full"; do
        writes "$mesh" --generate "$text" --temperature 0 --tokens 60
        check "$mesh goes on with ${#text} bytes in the same way" "cmp greedy written"
    done
done
writes "1:" --generate "20" --top-k 20 --top-p 0.9 --tokens 50 && mv written drawn
writes "2:--pp 2" --generate "20" --top-k 20 --top-p 0.9 --tokens 50
check "two stages draw what one rank draws" "cmp drawn written"
writes "1:" --generate "20" --top-k 20 --top-p 0.9 --tokens 50 --seed 7
check "another seed draws another text" "! cmp -s drawn written"
check "a prompt by stdin" "printf 20 | '$train' ${from_six[*]} --generate - --top-k 20 --top-p 0.9 --tokens 50 2>err | cmp - drawn"
check "no prompt: a text of its own" "'$train' ${from_six[*]} --generate '' --tokens 9 2>err >written && [ \$(wc -c <written) -ge 5 ]"
launch 2 "$train" "${model[@]}" --tp 2 --init mesh0/step_00000006/model.safetensors --generate "101 1" --temperature 0 --tokens 60
check "--init writes what --resume writes" "[ $status = 0 ] && head -c 6 out | grep -q '101 1' && [ \$(wc -c <out) = 66 ]"
check "where nothing is trained there are no gradients and no moments" \
    "grep -q '^  0  .* 0.0  *0.0  ' err && grep -q '^weights   mesh0/step_00000006/model.safetensors' err"
launch 2 "$sanitized" "${from_six[@]}" --tp 2 --generate "101 102 103 104 105 106 107 108 109 1" --tokens 20
check "--generate, sanitized" "[ $status = 0 ] && ! grep -aq 'Sanitizer\|runtime error' err"
check "nothing is written to --out" "[ '$before' = \"\$(cd mesh0 && find . | xargs ls -ld --time-style=full-iso | cksum)\" ]"
refuses 2 "nothing is written there; add --resume" 2 "${model[@]}" --out mesh0 --generate a
refuses 2 "there is no checkpoint in nowhere" 1 "${model[@]}" --out nowhere --resume --generate a
refuses 2 "the model has 100 tokens, and there is no vocabulary" 1 "${model[@]}" --vocab 100 --generate a
refuses 2 "--top-k has no meaning with --temperature 0" 1 "${model[@]}" --generate a --temperature 0 --top-k 3
refuses 2 "samples begin with the text, and --sample-every 0 has none" 1 "${short[@]}" --steps 2 --generate a

"$train" --help >help
launch 2 "$train" --help
check "--help on two ranks is printed once" "[ $status = 0 ] && cmp help out"

# ---- the program built with sanitizers: no report, the same losses
for mesh in "4:--tp 2 --pp 2 --sequence-parallel" "4:--pp 2 --zero 2 --recompute full"; do
    read -ra options <<<"${mesh#*:}"
    launch "${mesh%%:*}" "$sanitized" "${run[@]}" --out "clean${mesh%% *}" "${options[@]}"
    check "$mesh sanitized" "[ $status = 0 ] && ! grep -aq 'Sanitizer\|runtime error' err"
    verify_py "$mesh sanitized: losses are those of one rank:" same mesh0 "clean${mesh%% *}" 1e-5
done

# ---- documents: files of 17 bytes, in sequences of 32; all stages know where. A run is taken up with them, and not without
mkdir documents
split -b 17 -a 4 text.txt documents/
packed=("${model[@]}" --global-batch 8 --micro-batch 2 --data "documents/*" --sample-every 0 --steps 6 --save-every 3 --eval-every 3 --eval-sequences 5)
documents=(1: "4:--pp 4" "4:--tp 2 --pp 2 --sequence-parallel --recompute full" "2:--tp 2 --recompute selective"
    "2:--pp 2 --schedule zb-v --recompute selective" "2:--sync 0.5 --tp 2" "1:--sync 0.5 --sync-ranks 2")
for i in "${!documents[@]}"; do
    mesh=${documents[$i]}
    options=("${packed[@]}" --documents)
    [ "${mesh%%:*}" != 1 ] || read -ra more <<<"${mesh#*:}"
    [ "${mesh%%:*}" != 1 ] || options+=("${more[@]}")
    trains "$mesh" "${options[@]}" --out "packed$i" || continue
    case $mesh in
    1:) check "documents: told what they are" "grep -q '^data .*; every file is a document$' out" ;;
    1:*) verify_py "documents, $mesh: losses and norms are those of two ranks:" same packed5 "packed$i" 1e-5 ;;
    *--sync*) ;;
    *--tp*) verify_py "documents, $mesh: losses and norms are those of one rank:" same packed0 "packed$i" 1e-5 ;;
    *) verify_py "documents, $mesh: losses and norms are those of one rank, to the bit:" same packed0 "packed$i" 0 ;;
    esac
done
trains "1:" "${packed[@]}" --out unpacked
check "documents make other losses" "! python3 check.py same packed0 unpacked 1e-3 2>/dev/null"
rm -r packed1/step_00000006
refuses 2 "for the ranks that are here" 1 --out packed1 --resume
trains "1:" --tp 1 --out packed1 --resume
verify_py "documents, taken up by one rank, to the bit:" same packed0 packed1 0
refuses 2 "every file is a document, this is one with --dp-mode sync: a resumed run needs the same" 2 "${packed[@]}" --documents=no --out packed1 --resume
refuses 2 "this is one with --dp-mode sync, every file is a document" 2 "${packed[@]}" --documents --out unpacked --resume

# ---- checkpoints of one mesh, taken up on another: from step 3 as if the run had been there from the start
for a in 0 1 3 4 5; do
    for b in 0 1 3 4 5; do
        [ -n "${LONG:-}" ] || [ $a = $b ] || [ $(((a + 2 * b) % 5)) = 1 ] || continue # 9 of the 25
        rm -rf on && mkdir on on/step_00000005.tmp && cp -r mesh$a/step_00000003 mesh$a/log.jsonl on
        cp mesh$a/step_00000006/* on/step_00000005.tmp # complete, but never given its name
        trains "${meshes[$b]}" "${run[@]}" --out on --resume || continue
        what="[${meshes[$a]}] taken up on [${meshes[$b]}]"
        grep -q '^resume .*step 3$' out || bad "$what: $(grep resume out)"
        case $a$b in
        00 | 03 | 30 | 33) verify_py "$what, to the bit:" same mesh0 on 0 3 ;;
        *) verify_py "$what:" same mesh0 on 1e-5 3 ;;
        esac
        [ $a = $b ] || continue
        for file in model optimizer; do
            check "$what: $file.safetensors, to the bit" "cmp {mesh$a,on}/step_00000006/$file.safetensors"
        done
    done
done
trains "1:" "${short[@]}" --steps 2 --init mesh8/step_00000006 --out init0
trains "4:--tp 2 --pp 2" "${short[@]}" --steps 2 --init mesh3/step_00000006 --out init1
verify_py "--init from another mesh's checkpoint:" same init0 init1 1e-5

# --out alone says how a run is resumed, on as many ranks; or a mesh does that is given beside it
for resumed in 4: "2:--tp 2" "2:--dp 2" "2:--pp 1"; do
    rm -rf on && cp -r mesh5 on && rm -r on/step_00000006
    trains "$resumed" --out on --resume || continue
    verify_py "[${meshes[5]}] resumed with [$resumed] alone:" same mesh0 on 1e-5
    [ "$resumed" != 4: ] || check "its mesh is the run's" "grep -qx -- '--sequence-parallel' on/options.txt"
    [ "$resumed" = 4: ] || check "its mesh is not the run's" "! grep -q -- '^--sequence-parallel\|^--pp' on/options.txt"
done
rm -rf on && cp -r mesh5 on
refuses 2 "give --tp and --pp for the ranks that are here" 2 --out on --resume --steps 7

# killed at any moment, with a checkpoint a step, again and again, until it is through
options=("${short[@]}" --steps 24 --save-every 1 --tp 2 --zero 1)
launch 4 "$train" "${options[@]}" --out whole
resumed_at=0
for try in 1 2 3 4 5 6; do
    begins $((1 + RANDOM % 3)) 4 "$rank" "$train" "${options[@]}" --out parts --resume
    sleep "0.0$((RANDOM % 4))"
    if [ $((try % 2)) = 0 ]; then kill -9 "$(cat pids/$((RANDOM % 4)))" 2>/dev/null
    else cat pids/* | xargs kill -9 2>/dev/null; fi
    ends
    gone || bad "killed, try $try: ranks are left"
    at=$(sed -n 's/^resume .*step \([0-9]*\)$/\1/p' out)
    [ $try = 1 ] || [ "${at:-0}" -ge "$resumed_at" ] || bad "killed, try $try: resumed at ${at:-none} after $resumed_at"
    resumed_at=${at:-0}
done
launch 4 "$train" "${options[@]}" --out parts --resume
at=$(sed -n 's/^resume .*step //p' out)
check "killed six times, last resumed at step ${at:=0}, it ends" "[ $status = 0 ] && [ $at -gt 3 ]"
verify_py "with the log of the run that was never killed:" same whole parts 0
for file in model optimizer; do
    check "with its $file.safetensors" "cmp {whole,parts}/step_00000024/$file.safetensors"
done
check "and nothing temporary" "[ -z \"\$(find parts -name '*.tmp*')\" ]"

# ---- arguments: one line, from one rank, the status that one rank has
refuses 2 "does not divide the 3 ranks" 3 "${small[@]}" --tp 2
refuses 2 "does not divide --heads 4" 3 "${small[@]}" --tp 3
refuses 2 "--pp 5 stages for --layers 4" 5 "${small[@]}" --pp 5
refuses 2 "= 4 ranks, but 2 were started" 2 "${small[@]}" --dp 4
refuses 2 "--sequence-parallel needs --tp" 2 "${small[@]}" --sequence-parallel
refuses 2 "does not divide --seq 33" 2 "${data[@]}" --seq 33 --tp 2 --sequence-parallel
refuses 2 "--tp 2 and --kv-heads 3" 2 "${data[@]}" --arch llama --hidden 48 --heads 6 --kv-heads 3 --tp 2
refuses 2 "does not divide --ffn 129" 2 "${small[@]}" --ffn 129 --tp 2
refuses 2 "is more than --vocab" 4 "${small[@]}" --vocab 3 --tp 4
refuses 2 "is not a multiple of --dp 3" 3 "${small[@]}"
refuses 2 "is not a multiple of --micro-batch 3" 2 "${model[@]}" "${data[@]}" --global-batch 8 --micro-batch 3
refuses 2 "do not fit --layers 4" 2 "${small[@]}" --pp 2 --first-layers 4
refuses 2 "need a pipeline" 2 "${small[@]}" --first-layers 2
refuses 2 "--zero 3" 2 "${small[@]}" --zero 3
refuses 2 "--recompute" 2 "${small[@]}" --recompute some
refuses 2 "unknown option" 2 "${small[@]}" --nodes 2
refuses 2 "holds a run already" 2 "${small[@]}" --out mesh0
refuses 2 "--seed is 7" 2 "${run[@]}" --seed 7 --out mesh0 --resume --pp 2
launch 4 "$sanitized" "${small[@]}" --tp 4 --ffn 130
told 2 "does not divide --ffn 130" "4 ranks, sanitized, --ffn 130"

# ---- files and disks
refuses 1 "no file is named" 2 "${model[@]}" --data nowhere.txt
refuses 1 "is not a folder" 2 "${small[@]}" --out text.txt
refuses 1 "cannot make the folder" 2 "${small[@]}" --out nowhere/deep
refuses 1 "nowhere" 4 "${small[@]}" --init nowhere --tp 2
for kind in cut flipped gone; do
    cp -r mesh4 broken
    case $kind in
    cut) truncate -s -4 broken/step_00000006/optimizer.safetensors ;;
    flipped) python3 -c 'f=open("broken/step_00000006/model.safetensors","r+b");f.seek(30000);b=f.read(1);f.seek(30000);f.write(bytes([b[0]^16]))' ;;
    gone) rm broken/step_00000006/config.json ;;
    esac
    trains "4:--tp 2 --zero 1" "${run[@]}" --out broken --resume
    check "a checkpoint $kind: $(grep '^resume    not' out)" \
        "grep -q '^resume    not from step 6: .*broken/step_00000006/' out && grep -q '^resume .*step 3$' out"
    check "the run goes on from the one before, to the bit" "cmp {mesh4,broken}/step_00000006/model.safetensors"
    [ $kind = gone ] || rm -r broken
done
rm broken/step_00000006/config.json broken/step_00000003/model.safetensors
refuses 1 "none of the 2 checkpoints in broken is sound" 4 "${run[@]}" --out broken --resume --tp 2 --zero 1
refuses 1 "GB of memory" 2 --model llama-7B --vocab 256 --seq 64 --micro-batch 64 --global-batch 128 --data text.txt
mkdir full
if mount -t tmpfs -o size=600k tmpfs full 2>/dev/null; then
    mounted=$work/full
    refuses 1 "No space left" 2 "${short[@]}" --steps 2 --tp 2 --out full/run
    check "a full disk leaves no checkpoint" "[ -z \"\$(find full/run -name 'step_*')\" ]"
    mount -o remount,ro full
    refuses 1 "Read-only" 2 "${small[@]}" --out full
else echo "left out: a full disk (no right to mount one)"; fi
large=(--layers 4 --hidden 256 --heads 4 --seq 32 "${data[@]}" --global-batch 2 --steps 1 "${quiet[@]}")
full_rank=1 launch 2 "$rank" "$train" "${large[@]}" --tp 2 --out large
told 1 "rank 1: the checkpoint of step 1 was not saved: large/" "the disk of rank 1 takes no more in the middle of a checkpoint of 40 MB"
check "which is not there then" "[ -z \"\$(find large -name 'step_*')\" ]"
mkdir -p locked/log.jsonl
refuses 1 "rank 0: locked/log.jsonl: cannot write" 2 "${short[@]}" --out locked --resume
refuses 1 "--trace nowhere/trace.json: cannot write" 2 "${short[@]}" --steps 2 --trace nowhere/trace.json

# ---- ranks that are not alike
launch 1 "$train" "${short[@]}" --steps 4 : -np 1 "$train" "${short[@]}" --steps 5
told 2 'differs from rank 0 in arguments: "--steps 5' "other arguments"
check "which names the rank, and what it should be" "grep -q 'rank 1 (host .* instead of \"--steps 4' err"
launch 1 "$train" "${short[@]}" --steps 4 : -np 2 "$train" "${short[@]}" --steps 4 : -np 1 "$train" "${short[@]}"
told 2 'rank 3 (host ' "the last of four ranks has an option less"
launch 1 "$train" "${short[@]}" --steps 4 : -np 1 "$train" "${short[@]}" --step 4
told 2 'rank 1 (host ' "a wrong option on one rank"
many=$(printf 'text.txt,%.0s' {1..600})text.txt # as where a shell has expanded a pattern
launch 1 "$train" "${model[@]}" --data "$many" --steps 2 : -np 1 "$train" "${model[@]}" --data "$many" --steps 3
told 2 'rank 1 (host ' "other arguments, after 5400 characters"
cp "$train" other && printf x >>other
launch 1 "$train" "${short[@]}" --steps 4 : -np 1 ./other "${short[@]}" --steps 4
told 2 'rank 1 (host ' "another executable"
check "which says so" "grep -q '^train_gpt: .*differs from rank 0 in executable: ' err"
mkdir on_rank0 on_rank1 on_rank2
export folders=$work/on_rank
cp text.txt on_rank0 && cp text.txt on_rank1 && sed 's/9876/9875/' text.txt >on_rank2/text.txt
launch 3 "$rank" "$train" "${model[@]}" "${data[@]}" "${quiet[@]}" --global-batch 9 --steps 4
told 2 'rank 2 (host ' "other data, of the same size"
check "which says so" "grep -q '^train_gpt: .*differs from rank 0 in data: ' err"
rm on_rank1/text.txt
launch 3 "$rank" "$train" "${model[@]}" "${data[@]}" "${quiet[@]}" --global-batch 9 --steps 4
told 1 'rank 1: no file is named "text.txt"' "data that one rank does not have"

# ---- ranks that die
for signal in KILL SEGV; do
    unset folders
    begins 2 4 "$rank" "$train" "${short[@]}" --steps 1000000 --tp 2 --pp 2
    kill -$signal "$(cat pids/2)"
    ends
    check "SIG$signal of rank 2 ends the job: status $status, $seconds s" "[ $status != 0 ] && [ $seconds -le 100 ]"
    check "and it is named" "named 2"
    check "and nobody stays behind" gone
done
begins 2 4 "$rank" "$train" "${short[@]}" --steps 1000000 --pp 4
kill -TERM $launcher
ends
check "SIGTERM of mpirun ends all ranks: status $status, $seconds s" "[ $status != 0 ] && [ $seconds -le 100 ] && gone"
begins 2 4 "$rank" "$train" "${short[@]}" --steps 1000000 --tp 2
kill -KILL "$(tr -d ' ' <"/proc/$launcher/task/$launcher/children")" # below timeout: mpirun
ends
check "SIGKILL of mpirun as well: status $status, $seconds s" "[ $status != 0 ] && [ $seconds -le 100 ] && gone"
export folders=$work/on_rank
cp text.txt on_rank1 && cp text.txt on_rank0
begins 2 2 "$rank" "$train" "${short[@]}" --steps 1000000
truncate -s 0 on_rank1/text.txt
ends
check "a file that shrinks under rank 1 ends the job: status $status, $seconds s" \
    "[ $status != 0 ] && [ $seconds -le 100 ] && named 1 && gone"
unset folders

# ---- losses that are no numbers
launch 4 "$train" "${short[@]}" --lr 1000 --steps 200 --tp 2
told 1 "not finite; nothing was updated" "4 ranks with a learning rate of 1000"
check "which names the step" "grep -q '^train_gpt: step [0-9]*: the loss is' err"
check "and where it begins" "grep -q 'it begins with .* on ranks\? [0-3] (t [01], p 0, d [01])' err"
skips=("${short[@]}" --lr 1000 --steps 200 --tp 2 --on-nan skip --save-every 8 --out skips)
launch 2 "$train" "${skips[@]}"
told 1 "It is number 10 in a row" "ten steps that are skipped"
check "nine of them are told and logged: $(grep -ac '^skipped ' out)" \
    "[ \$(grep -ac '^skipped   step .* nothing was updated; it begins with' out) -ge 9 ] &&
    [ \$(tail -n 9 skips/log.jsonl | grep -c '\"skipped\":true') = 9 ]"
verify_py "as JSON:" skipped skips
grep -a '^train_gpt: ' err >last_words
launch 2 "$train" "${skips[@]}" --resume
check "a resumed run goes on counting, and ends likewise" "[ $status = 1 ] && grep -a '^train_gpt: ' err | cmp - last_words"
refuses 2 "--on-nan skip needs all ranks in every step" 2 "${short[@]}" --steps 1 --dp-mode dc-s3gd --on-nan skip
late=("${short[@]}" --dp-mode delayed --optimizer sgd --lr 1000 --clip 0 --steps 200 --save-every 1 --out late)
launch 2 "$train" "${late[@]}"
told 1 "is not finite; it is not saved" "a late gradient, at a learning rate of 1000"
launch 2 "$train" "${late[@]}" --resume
check "what was saved before can be taken up: $(grep -a '^resume' out)" "grep -q '^resume .*step' out"
told 1 "is not finite; it is not saved" "and ends as before"
launch 4 "$train" "${short[@]}" --lr 1000 --steps 200 --tp 2 --dp-mode dc-s3gd
check "a site says it once: $(grep -a '^train_gpt: ' err | head -n 1)" \
    "[ $status = 1 ] && [ \$(grep -ac '^train_gpt: site 0' err) -le 1 ] && grep -aq '^train_gpt: site [01]: step' err"

# ---- copies that differ, and what is unusual
mkdir -p build died
launch 4 "$project/${BUILD:-build}/test_health" --die died
told 1 "rank 3 (t 1, p 0, d 1) has other bits of transformer.h.0.ln_1.weight than 3 others that hold the same" \
    "a bit that is flipped on rank 3 of 4"
check "and nothing is saved that it is in: $(ls died)" "[ \"\$(cd died && echo step_*)\" = step_00000001 ]"
long=("${small[@]}" --eval-every 0 --sample-every 0 --steps 130 --outlier 0.3)
trains "1:" "${long[@]}" --out unusual
check "what is unusual is told, and logged: $(grep -m 1 '^outlier' out)" \
    "[ \$(grep -c '^outlier   step 1[0-3][0-9]: the ' out) -ge 10 ] &&
    [ \$(grep -c '^outlier' out) = \$(grep -o '_z\":' unusual/log.jsonl | wc -l) ]"
rm -rf taken && trains "1:" "${long[@]}" --save-every 110 --out taken && rm -rf taken/step_00000130
trains "1:" "${long[@]}" --out taken --resume
verify_py "and by a resumed run likewise:" unusual unusual taken 110

# ---- schedules
schedules=("gpipe 1 whole" "interleaved 2 whole" "zb-h1 1 halves" "zb-v 2 halves")
for line in "${schedules[@]}"; do
    read -r schedule v halves <<<"$line"
    rm -rf scheduled
    trains "2:--pp 2 --schedule $schedule" "${run[@]}" --out scheduled --trace trace.json || continue
    verify_py "$schedule: losses and norms are those of one rank, to the bit:" same mesh0 scheduled 0
    for file in model optimizer; do
        check "$schedule: $file.safetensors is one rank's, byte for byte" \
            "cmp mesh0/step_00000006/$file.safetensors scheduled/step_00000006/$file.safetensors"
    done
    trains "2:--pp 2 --schedule $schedule" "${quiet[@]}" "${small[@]}" --steps 2 --trace trace.json
    verify_py "$schedule: the trace:" chunks trace.json 2 "$v" 8 2 "$halves"
    rm -rf on && mkdir on && cp -r mesh0/step_00000003 mesh0/log.jsonl on
    trains "2:--pp 2 --schedule $schedule" "${run[@]}" --out on --resume
    verify_py "$schedule takes up one rank's checkpoint, to the bit:" same mesh0 on 0 3
    trains "2:--pp 2 --schedule $schedule" "${small[@]}" --steps 2 --eval-every 0 --sample-every 2
    check "$schedule: writes what one rank writes" "sed '1,/^The model writes/d' out | cmp - sample0"
done
launch 2 "$train" "${small[@]}" --pp 2 --vp 2 --dry-run
check "--vp 2 alone is an interleaved schedule" "[ $status = 0 ] && grep -q '^schedule  interleaved with 2 chunks' out"
refuses 2 "the nearest that work: 4 or 6" 2 "${model[@]}" "${data[@]}" --pp 2 --vp 2 --global-batch 5 --micro-batch 1
refuses 2 "--schedule 1f1b has one chunk a stage" 2 "${small[@]}" --pp 2 --schedule 1f1b --vp 2
refuses 2 "--schedule zb-v has --vp 2 chunks" 2 "${small[@]}" --pp 2 --schedule zb-v --vp 3
refuses 2 "--schedule interleaved needs --vp 2" 2 "${small[@]}" --pp 2 --schedule interleaved --vp 1
refuses 2 "--pp 2 x --vp 3 stages for --layers 4" 2 "${small[@]}" --pp 2 --vp 3
refuses 2 "--schedule needs a pipeline" 2 "${small[@]}" --schedule gpipe
refuses 2 "--vp needs a pipeline" 2 "${small[@]}" --vp 2
refuses 2 "which --zero 2 has no memory for" 4 "${small[@]}" --pp 2 --schedule zb-h1 --zero 2
refuses 2 "with --recompute full; use --recompute selective" 2 "${small[@]}" --pp 2 --schedule zb-v --recompute full
refuses 2 "--schedule" 2 "${small[@]}" --pp 2 --schedule 2f2b
launch 4 "$train" "${short[@]}" --lr 1000 --steps 200 --pp 2 --schedule zb-h1 --clip 0
told 1 "not finite; checkpoints are from before it" "4 ranks with a learning rate of 1000 and no clipping"

# ---- sums of gradients by plan
printf 'ranks 4 # a square without one side\nlink 0 1\nlink 1 3 2GB/s 1us\nlink 2 0\n' >links.txt
planned=("4:--dp 4 --allreduce multitree --topology torus:2x2" "4:--dp 4 --allreduce 2d-ring --topology mesh:2x2"
    "8:--tp 2 --pp 2 --zero 1 --allreduce ring" "4:--tp 2 --zero 2 --allreduce multitree:2"
    "4:--dp 4 --allreduce forest:2,3 --topology links.txt" "8:--dp 8 --allreduce halving-doubling --clip 0")
for i in "${!planned[@]}"; do
    mesh=${planned[$i]}
    rm -rf by_plan on
    trains "$mesh" "${run[@]}" --out by_plan || continue
    same=mesh0
    case $mesh in *--clip*) # another run: its own reference
        trains "1:" "${run[@]}" --clip 0 --out unclipped
        same=unclipped ;;
    esac
    verify_py "$mesh: losses and norms are those of one rank:" same $same by_plan 1e-5
    mkdir on && cp -r by_plan/step_00000003 by_plan/log.jsonl on
    trains "$mesh" "${run[@]}" --out on --resume || continue
    check "$mesh: taken up again, the same bits" "cmp by_plan/step_00000006/model.safetensors on/step_00000006/model.safetensors"
done
launch 4 "$sanitized" "${short[@]}" --steps 2 --dp 4 --allreduce multitree --topology torus:2x2
check "the same with sanitizers" "[ $status = 0 ]"
launch 4 "$train" "${short[@]}" --steps 2 --dp 4 --allreduce 2d-ring --topology torus:2x2
check "2d-ring: what it sends, counted and by formula" "grep -q 'and more  *\([0-9.]*\)  *\1$' out"
printf 'nodes 4\n0 1 100 0\n1 3 100 0\n3 2 100 0\n2 0 100 0\n' >square.txt
if "$project/dev/experiments/net_torus.sh" up square.txt 2>err; then # root, Open MPI 4, Linux with namespaces
    trap '"$project/dev/experiments/net_torus.sh" down; clean' EXIT
    timeout -k 5 200 "$project/dev/experiments/net_torus.sh" run 4 "$train" "${run[@]}" --out by_net --dp 4 --allreduce multitree \
        --topology torus:2x2 >out 2>err </dev/null
    check "on a network of namespaces: trains" "[ $? = 0 ]"
    verify_py "with the losses of one rank:" same mesh0 by_net 1e-5
    "$project/dev/experiments/net_torus.sh" bytes >sent
    check "over its links: $(tr '\n' ';' <sent)" "[ \$(wc -l <sent) = 8 ] && awk '\$3 < 100000 { exit 1 }' sent"
    "$project/dev/experiments/net_torus.sh" down
    trap clean EXIT
    check "and nothing is left of it" "! ip netns list | grep -q threefold-net"
else echo "left out: a network of namespaces ($(head -n 1 err))"; fi
refuses 2 "there is one replica" 2 "${small[@]}" --tp 2 --allreduce ring
refuses 2 "mash is no algorithm" 2 "${small[@]}" --allreduce mash
refuses 2 "torus:2x2 joins 4 ranks, but there are 2 replicas" 2 "${small[@]}" --allreduce ring --topology torus:2x2
refuses 2 "neither a name" 2 "${small[@]}" --allreduce ring --topology nowhere.txt
refuses 2 "reduce-scatter and all-gather that --zero" 4 "${small[@]}" --zero 1 --allreduce 2d-ring --topology torus:2x2
refuses 2 "--topology needs --allreduce" 2 "${small[@]}" --topology ring:2
printf 'ranks 3\nlink 0 1\n' >parted.txt
refuses 2 "no way leads from rank 2 to rank 0" 3 --global-batch 6 "${model[@]}" "${data[@]}" --allreduce ring --topology parted.txt

# ---- CAAT-Net: a model of four tensor ranks is the same on four, two and one; on another number of them it is not
caat=(--sync 0.4 --sync-ranks 4)
trains "4:--tp 4" "${run[@]}" --sync 0.4 --out caat0
caats=("1:" "2:--tp 2" "4:--tp 4 --recompute full" "4:--tp 2 --pp 2 --schedule zb-v" "8:--tp 2 --pp 2 --zero 2")
for i in "${!caats[@]}"; do
    mesh=${caats[$i]}
    trains "$mesh" "${run[@]}" "${caat[@]}" --out "caat$((i + 1))" || continue
    verify_py "CAAT-Net, $mesh: losses and norms are those of four ranks:" same caat0 "caat$((i + 1))" 1e-5
    verify_py "CAAT-Net, $mesh: weights are:" weights caat{0,$((i + 1))}/step_00000006/model.safetensors 1e-4
    rm -rf on && mkdir on && cp -r caat0/step_00000003 caat0/log.jsonl on
    trains "$mesh" "${run[@]}" "${caat[@]}" --out on --resume || continue
    verify_py "CAAT-Net, taken up on $mesh:" same caat0 on 1e-5 3
done
for i in "1:" "2:--tp 2" "4:--tp 2 --pp 2"; do
    trains "$i" "${small[@]}" "${caat[@]}" --init caat0/step_00000006 --steps 1 --eval-every 1 --sample-every 1 || continue
    mv out "caat_out${i%%:*}"
    check "CAAT-Net, ${i} writes" "[ \$(sed '1,/^The model writes/d' caat_out${i%%:*} | wc -c) -gt 400 ]"
    verify_py "CAAT-Net, ${i} prints the losses of one rank:" printed caat_out1 "caat_out${i%%:*}"
done
caat_text=(--generate "31 3" --temperature 0 --tokens 40 --init caat0/step_00000006)
trains "1:" "${model[@]}" "${caat[@]}" "${caat_text[@]}" && mv out caat_greedy
for i in "2:--tp 2" "4:--tp 4" "4:--tp 2 --pp 2"; do
    trains "$i" "${model[@]}" "${caat[@]}" "${caat_text[@]}" && check "CAAT-Net, $i goes on with a text as one rank" "cmp caat_greedy out"
done
trains "2:--tp 2" "${run[@]}" --sync 1 --sync-ranks 2 --out caat_all
verify_py "all channels shared: an ordinary model:" same mesh0 caat_all 1e-5
trains "2:--tp 2" "${run[@]}" --sync 0.4 --out caat_two
check "two ranks that share a part of the channels are another model" "! python3 check.py same caat0 caat_two 1e-3 2>/dev/null"
check "config.json says of which ranks" "grep -q '\"sync_ranks\": 4,' caat2/step_00000006/config.json &&
    ! grep -q sync mesh0/step_00000006/config.json"
refuses 2 "--tp 2 does not divide --sync-ranks 3" 2 "${small[@]}" --tp 2 --sync-ranks 3
refuses 2 "--sequence-parallel keeps one residual stream for all" 2 "${small[@]}" --tp 2 --sync 0.5 --sequence-parallel
refuses 2 "--sync-ranks 8 does not divide --heads 4" 2 "${small[@]}" --tp 2 --sync-ranks 8 --sync 0.5
refuses 2 "needs at least as many --kv-heads, not 2" 2 "${small[@]}" --arch llama --kv-heads 2 --tp 2 --sync-ranks 4
refuses 2 "--sync 1.5" 2 "${small[@]}" --tp 2 --sync 1.5
refuses 2 "--sync-scale needs --sync P or --sync-ranks N" 2 "${small[@]}" --tp 2 --sync-scale init
refuses 2 "--sync-gradient needs --sync P or --sync-ranks N" 2 "${small[@]}" --tp 2 --sync-gradient same
refuses 1 "is a CAAT-Net, this run has --sync 0.5 --sync-ranks 4 --sync-scale runtime: give --sync 0.4 --sync-ranks 4 --sync-scale runtime" 2 "${run[@]}" --tp 2 --sync 0.5 --out caat2 --resume
refuses 1 "give --sync 0.4 --sync-ranks 4" 2 "${short[@]}" --tp 2 --sync 0.4 --init caat0/step_00000006
refuses 1 "give --sync 0.4" 2 "${short[@]}" --tp 2 --sync-ranks 4 --sync 0.5 --init caat0/step_00000006
refuses 1 "is an ordinary model, this run has --sync 0.5" 2 "${short[@]}" --tp 2 --sync 0.5 --init mesh0/step_00000006
trains "2:--tp 2" "${short[@]}" --steps 1 --sync 0.5 --init mesh0/step_00000006/model.safetensors &&
    ok "a file of weights may become a CAAT-Net"
cp -r caat0/step_00000006 caat_broken && rm caat_broken/trainer.json && sed -i 's/"runtime"/"sometimes"/' caat_broken/config.json
refuses 1 '"sync_scale" is "sometimes"; it can be' 2 "${short[@]}" --tp 2 "${caat[@]}" --init caat_broken
launch 2 "$sanitized" "${run[@]}" "${caat[@]}" --tp 2 --out caat_clean
check "CAAT-Net, sanitized" "[ $status = 0 ] && ! grep -aq 'Sanitizer\|runtime error' err"
verify_py "CAAT-Net, sanitized: losses are those of four ranks:" same caat0 caat_clean 1e-5
launch 2 "$sanitized" "${small[@]}" "${caat[@]}" --tp 2 --steps 1 --eval-every 0 --sample-every 1
check "CAAT-Net, sanitized, writes" "[ $status = 0 ] && ! grep -aq 'Sanitizer\|runtime error' err"

# ---- traces and plans
trains "4:--tp 2 --pp 2" "${short[@]}" --steps 2 --trace trace.json
verify_py "--trace, 2 x 2 x 1:" trace trace.json 2 2 1 8 2
trains "4:--pp 2 --zero 2" "${short[@]}" --steps 1 --trace trace.json
verify_py "--trace, 1 x 2 x 2:" trace trace.json 1 2 2 4 1
started=$SECONDS
"$train" --model gpt3-175B --tp 8 --pp 8 --dp 48 --global-batch 1536 --data text.txt --dry-run >out 2>err
check "--dry-run of 3072 ranks on one, within seconds" "[ $? = 0 ] && [ $((SECONDS - started)) -le 100 ]"
check "with a line a stage" "grep -q '^mesh      3072 ranks' out && [ \$(grep -c '^  [0-9]*\.\.[0-9]* ' out) = 8 ]"
big=(--layers 8 --hidden 512 --heads 8 --seq 128 --vocab 50257 --data text.txt --global-batch 16 --micro-batch 1)
"$train" "${big[@]}" --tp 2 --pp 2 --dp 2 --dry-run >out 2>err
verify_py "--dry-run of 2 x 2 x 2: what the ranks hold:" plan out 2 2 2 8 512 50257 128 0
launch 8 "$train" "${big[@]}" --tp 2 --pp 2 --zero 1 --dry-run
check "--dry-run on 8 ranks prints once, and runs nothing" \
    "[ $status = 0 ] && [ \$(grep -c '^model' out) = 1 ] && ! grep -q ^step out"
verify_py "--dry-run on 8 ranks, ZeRO 1: what they hold:" plan out 2 2 2 8 512 50257 128 1

# ---- threads, and one process without a launcher
OMP_NUM_THREADS=3 launch 2 "$train" "${small[@]}" --dry-run
check "OMP_NUM_THREADS=3 is every rank's" "grep -q '^device .*, 3 threads a rank, 2 ranks here, 1 machine' out"
(
    unset OMP_NUM_THREADS
    launch 2 "$train" "${small[@]}" --dry-run
)
cores=$(($(env -u OMP_NUM_THREADS nproc) / 2))
check "without it the ranks share the cores" "grep -q '^device .*, $((cores > 0 ? cores : 1)) threads\? a rank' out"
mkdir nothing
env -i PATH=/nowhere HOME=/nowhere TMPDIR="$work/nothing" "$train" "${run[@]}" --out alone >out 2>err
check "alone, without mpirun, orted or PATH: trains, and leaves no trace of MPI" \
    "[ $? = 0 ] && [ ! -s err ] && [ -z \"\$(ls nothing)\" ]"
verify_py "with the same bits:" same mesh0 alone 0
launch 1 "$train" "${run[@]}" --out lonely
verify_py "mpirun -np 1, with the same bits:" same mesh0 lonely 0

# ---- another MPI
if [ -n "$building" ]; then
    wait $building
    check "MPICH's build: $(tail -n 1 mpich.log)" "[ $? = 0 ] && [ -x mpich/train_gpt ]"
    building=""
    MPIRUN=mpirun.mpich launch 4 mpich/train_gpt "${run[@]}" --tp 2 --pp 2 --out other_mpi
    check "MPICH: 4 ranks train" "[ $status = 0 ]"
    verify_py "MPICH: losses are those of one rank:" same mesh0 other_mpi 1e-5
    launch 2 mpich/train_gpt "${small[@]}" --steps 1
    check "MPICH's build under another mpirun: $(grep -m 1 -a '^train_gpt' err)" \
        "[ $status = 1 ] && grep -q '2 processes were started together but do not find each other' err"
else echo "left out: a second MPI (mpicc.mpich is not installed, or is the one that is tested)"; fi

left=$(for p in /proc/[0-9]*; do
    case "$(readlink "$p/cwd") $(readlink "$p/exe")" in
    "$work"*bash) ;; # this one
    "$work"*) readlink "$p/exe" ;;
    esac
done 2>/dev/null)
check "no process is left behind" "[ -z '$left' ]"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
