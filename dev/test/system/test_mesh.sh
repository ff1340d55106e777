#!/bin/bash
# The trainer with several ranks, as people use it: it trains what one rank trains (test_equivalence.c: on every mesh),
# resumes on another mesh, writes texts, and refuses wrong arguments with one line and exit status 2. PARTS=quick: one
# mesh. LONG=1: more meshes.
. dev/test/system/mesh.sh

# ---- several meshes, and what a run prints and leaves
meshes=("1:" "4:--pp 4" "4:--tp 2 --zero 1" "4:--tp 2 --pp 2 --sequence-parallel --recompute full"
    "8:--tp 2 --pp 2 --dp 2 --zero 1 --recompute selective")
sizes=("1 1 1" "1 4 1" "2 1 2" "2 2 1" "2 2 2") # t p d
[ "${PARTS:-}" != quick ] || meshes=("1:" [3]="${meshes[3]}")
for i in "${!meshes[@]}"; do
    mesh=${meshes[$i]}
    trains "$mesh" "${run[@]}" --out "mesh$i" || continue
    mv out "out$i"
    verify_py "$mesh: log.jsonl has the documented keys," keys "mesh$i"
    steps=$(grep -c '^step ' "out$i") lines=$(grep -c '^model \|^startup \|^done ' "out$i")
    check "$mesh: one rank prints, and nothing is wrong" "[ $steps = 6 ] && [ $lines = 3 ] && ! grep -q ^train_gpt err"
    [ "$i" != 0 ] || continue
    read -ra tpd <<<"${sizes[$i]}"
    bound=$near
    [ "${tpd[0]}${tpd[2]}" != 11 ] || bound=0
    verify_py "$mesh: losses and norms are those of one rank:" same mesh0 "mesh$i" $bound
    verify_py "$mesh: bytes, counted and by formula:" traffic "out$i" "mesh$i" "${tpd[@]}" "$mesh"
    check "$mesh: checkpoints, and nothing temporary" \
        "[ '$(cd "mesh$i" && echo ./*)' = './best ./log.jsonl ./options.txt ./step_00000003 ./step_00000006' ] &&
        [ '$(cd "mesh$i/step_00000006" && echo ./*.*)' = '$(cd mesh0/step_00000006 && echo ./*.*)' ] &&
        [ $(find "mesh$i/step_00000006" -type f | wc -l) = 6 ]"
done
[ "${PARTS:-}" != quick ] || finish_ranks
check "${meshes[1]}: the checkpoint is one rank's, byte for byte" "same_weights mesh{0,1}/step_00000006"
for i in 2 3 4; do
    verify_py "${meshes[$i]}: weights are one rank's:" weights mesh{0,$i}/step_00000006/model.safetensors $near_weights
done

trains "4:--pp 2" "${small[@]}" --steps 2 --eval-every 0 --sample-every 2 && sed '1,/^sample:/d' out >sample2
check "two stages write, while another replica waits" "[ \$(wc -c <sample2) -gt 400 ]"

# ---- --generate: nothing is trained; the likeliest text is the same on every mesh. The 46 bytes are more than the
# context of 32 tokens; the short text goes beyond it. A drawn text is the same to the bit where sums have the same
# order.
from_six=("${model[@]}" --out mesh0 --resume)
writes() { # writes MESH OPTIONS...: to `written`; stdout has nothing else
    trains "$1" "${from_six[@]}" "${@:2}" && mv out written
}
before=$(cd mesh0 && find . | xargs ls -ld --time-style=full-iso | cksum)
texts=("101 1" "101 102 103 104 105 106 107 108 109 110 111 11")
generating=("4:--tp 2 --pp 2" "2:--pp 2 --schedule zb-v --zero 2 --recompute full")
full && generating+=("2:--tp 2" "2:--dp 2" "4:--tp 4 --sequence-parallel" "2:--pp 2 --schedule interleaved")
for text in "${texts[@]}"; do
    writes "1:" --generate "$text" --temperature 0 --max-new-tokens 60 && mv written greedy
    check "one rank continues ${#text} bytes" "[ \$(wc -c <greedy) = $((${#text} + 61)) ] && head -c ${#text} greedy |
        grep -qx '$text'"
    for mesh in "${generating[@]}"; do
        writes "$mesh" --generate "$text" --temperature 0 --max-new-tokens 60
        check "$mesh continues ${#text} bytes in the same way" "cmp greedy written"
    done
done
writes "1:" --generate "20" --top-k 20 --top-p 0.9 --max-new-tokens 50 && mv written drawn
writes "2:--pp 2" --generate "20" --top-k 20 --top-p 0.9 --max-new-tokens 50
check "two stages draw what one rank draws" "cmp drawn written"
check "no prompt: a text of its own" "'$train' ${from_six[*]} --generate '' --max-new-tokens 9 2>err >written &&
    [ \$(wc -c <written) -ge 5 ]"
launch 2 "$train" "${model[@]}" --tp 2 --init mesh0/step_00000006/model.safetensors --generate "101 1" --temperature 0 \
    --max-new-tokens 60
check "--init writes what --resume writes" "[ $status = 0 ] && head -c 6 out | grep -q '101 1' &&
    [ \$(wc -c <out) = 66 ]"
check "where nothing is trained there are no gradients and no moments" \
    "grep -q '^  0  .* 0.0  *0.0  ' err && grep -q '^weights   mesh0/step_00000006/model.safetensors' err"
launch 2 "$sanitized" "${from_six[@]}" --tp 2 --generate "101 102 103 104 105 106 107 108 109 1" --max-new-tokens 20
check "--generate, sanitized" "[ $status = 0 ] && ! grep -aq 'Sanitizer\|runtime error' err"
check "nothing is written to --out" \
    "[ '$before' = \"\$(cd mesh0 && find . | xargs ls -ld --time-style=full-iso | cksum)\" ]"
refuses 2 "--resume" 2 "${model[@]}" --out mesh0 --generate a
refuses 2 "nowhere" 1 "${model[@]}" --out nowhere --resume --generate a
refuses 2 "--tokenizer" 1 "${model[@]}" --vocab 100 --generate a
refuses 2 "--top-k, --temperature" 1 "${model[@]}" --generate a --temperature 0 --top-k 3
refuses 2 "--sample-every" 1 "${short[@]}" --steps 2 --generate a

launch 2 "$train" --help
check "--help on two ranks is printed once" "[ $status = 0 ] && '$train' --help | cmp - out"

# ---- the program built with sanitizers: no report, the same losses
launch 4 "$sanitized" "${run[@]}" --out clean --tp 2 --pp 2 --sequence-parallel
check "sanitized" "[ $status = 0 ] && ! grep -aq 'Sanitizer\|runtime error' err"
verify_py "sanitized: losses are those of one rank:" same mesh0 clean $near

# ---- checkpoints of one mesh, resumed on another: from step 3 as if the run had been there from the start
for a in 0 1 2 3; do
    for b in 0 1 2 3; do
        full || [ "$a$b" = 10 ] || [ "$a$b" = 31 ] || [ "$a$b" = 22 ] || continue
        rm -rf on && mkdir on on/step_00000005.tmp && cp -r mesh$a/step_00000003 mesh$a/log.jsonl on
        cp mesh$a/step_00000006/* on/step_00000005.tmp # complete, but never given its name
        trains "${meshes[$b]}" "${run[@]}" --out on --resume || continue
        what="[${meshes[$a]}] resumed on [${meshes[$b]}]"
        grep -q '^resume .*step 3$' out || bad "$what: $(grep resume out)"
        case $a$b in
        00 | 01 | 10 | 11) verify_py "$what, to the bit:" same mesh0 on 0 3 ;;
        *) verify_py "$what:" same mesh0 on $near 3 ;;
        esac
        [ $a != $b ] || check "$what: the checkpoint, to the bit" "same_weights {mesh$a,on}/step_00000006"
    done
done

# --out alone says how a run is resumed, on as many ranks; or a mesh does that is given beside it
for resumed in 4: "2:--tp 2" "2:--dp 2" "2:--pp 1"; do
    [ "$resumed" = 4: ] || full || continue
    rm -rf on && cp -r mesh3 on && rm -r on/step_00000006
    trains "$resumed" --out on --resume || continue
    verify_py "[${meshes[3]}] resumed with [$resumed] alone:" same mesh0 on $near
    [ "$resumed" != 4: ] || check "its mesh is the run's" "grep -qx -- '--sequence-parallel' on/options.txt"
    [ "$resumed" = 4: ] || check "its mesh is not the run's" \
        "! grep -q -- '^--sequence-parallel\|^--pp[ =][2-9]' on/options.txt"
done
rm -rf on && cp -r mesh3 on
refuses 2 "--tp, --pp" 2 --out on --resume --steps 7

# What options.txt says of its mesh is left out where the command line has another: every option that depends on the
# mesh, on every other mesh. The sites of an asynchronous run are part of what it is.
of_mesh=("4:--dp 4 --allreduce multitree --topology torus:2x2" "4:--dp 4 --sites 2" "2:--pp 2 --schedule zb-v"
    "2:--pp 2 --no-scatter-gather" "4:--tp 2 --zero 2 --sequence-parallel" "2:--tp 2 --tp-comm-overlap --micro-batch 8")
others=("--tp 1" "--tp 4" "--pp 4" "--pp 2 --schedule interleaved" "--dp 8" "--dp 2 --allreduce native"
    "--tp 2 --dp 4 --tp-comm-overlap --micro-batch 2" "--dp 2 --zero 1")
for was in "${of_mesh[@]}"; do
    read -ra options <<<"${was#*:}"
    rm -rf of && trains "${was%%:*}:" "${short[@]}" --steps 1 --out of "${options[@]}" || continue
    left=""
    for other in "${others[@]}"; do
        # shellcheck disable=SC2086  # options
        "$train" --out of --resume --steps 2 $other --dry-run >out 2>err || left="$left [$other] $(head -n 1 err)"
    done
    check "a run with ${was#*:} continues on each of ${#others[@]} meshes$left" "[ -z '$left' ]"
done
trains "4:--dp 4" "${short[@]}" --steps 1 --out late --dp-mode dc-s3gd --sites 4
refuses 2 "--sites 4, --dp" 2 --out late --resume --steps 2 --dp 2

# ---- arguments: one line, from one rank, the status that one rank has; test_layout, test_schedule, test_topology and
# test_async_schedule have what no mesh may be
refuses 2 "--tp" 3 "${small[@]}" --tp 2
refuses 2 "--dp" 2 "${small[@]}" --dp 4
refuses 2 "--tp-comm-overlap, --micro-batch" 2 "${small[@]}" --tp 2 --tp-comm-overlap --micro-batch 1
refuses 2 "--tp-comm-overlap, --sequence-parallel" 2 "${small[@]}" --tp 2 --tp-comm-overlap --micro-batch 2 \
    --sequence-parallel
refuses 2 "--dp" 3 "${small[@]}"
refuses 2 "--micro-batch" 2 "${model[@]}" "${data[@]}" --global-batch 8 --micro-batch 3
refuses 2 "mesh0" 2 "${small[@]}" --out mesh0
refuses 2 "--seed" 2 "${run[@]}" --seed 7 --out mesh0 --resume --pp 2
refuses 2 "--config nowhere.txt" 2 --config nowhere.txt

# ---- schedules
while read -r schedule v halves; do
    rm -rf scheduled
    trains "2:--pp 2 --schedule $schedule" "${run[@]}" --out scheduled || continue
    bits "$schedule, beside one rank" mesh0 scheduled
    trains "2:--pp 2 --schedule $schedule" "${short[@]}" --steps 2 --trace trace.json
    verify_py "$schedule: the trace:" chunks trace.json 2 "$v" 8 2 "$halves"
done <<END
gpipe 1 whole
interleaved 2 whole
zb-h1 1 halves
zb-v 2 halves
END
launch 2 "$train" "${small[@]}" --pp 2 --vpp 2 --dry-run
check "--vpp 2 alone is an interleaved schedule" "[ $status = 0 ] && grep -q '^schedule  interleaved with 2 chunks' out"
refuses 2 "--schedule" 2 "${small[@]}" --schedule gpipe
refuses 2 "--vpp" 2 "${small[@]}" --vpp 2
refuses 2 "--zero" 4 "${small[@]}" --pp 2 --schedule zb-h1 --zero 2
launch 4 "$train" "${short[@]}" --lr 1000 --steps 200 --pp 2 --schedule zb-h1 --clip 0
ended 1 "not finite" "4 ranks with a learning rate of 1000 and no clipping"

# ---- sums of gradients by plan, and between sites of two replicas
printf 'ranks 4 # a square without one side\nlink 0 1\nlink 1 3 2GB/s 1us\nlink 2 0\n' >links.txt
planned=("4:--dp 4 --allreduce multitree --topology torus:2x2" "8:--tp 2 --pp 2 --zero 1 --allreduce ring"
    "4:--dp 4 --allreduce multitree --topology links.txt" "8:--pp 2 --sites 2")
full && planned+=("4:--dp 4 --allreduce 2d-ring --topology mesh:2x2" "4:--tp 2 --zero 2 --allreduce multitree"
    "8:--dp 8 --allreduce halving-doubling")
for mesh in "${planned[@]}"; do
    rm -rf by_plan on
    trains "$mesh" "${run[@]}" --out by_plan || continue
    verify_py "$mesh: losses and norms are those of one rank:" same mesh0 by_plan $near
    mkdir on && cp -r by_plan/step_00000003 by_plan/log.jsonl on
    trains "$mesh" "${run[@]}" --out on --resume || continue
    check "$mesh: resumed, the same bits" \
        "cmp by_plan/step_00000006/model.safetensors on/step_00000006/model.safetensors"
done
launch 4 "$sanitized" "${short[@]}" --steps 2 --dp 4 --allreduce multitree --topology torus:2x2
check "the same with sanitizers" "[ $status = 0 ]"
launch 4 "$train" "${short[@]}" --steps 2 --dp 4 --allreduce 2d-ring --topology torus:2x2
check "2d-ring: what it sends, counted and by formula" "grep -q 'and more  *\([0-9.]*\)  *\1$' out"
refuses 2 "--allreduce" 2 "${small[@]}" --tp 2 --allreduce ring
refuses 2 "torus:2x2" 2 "${small[@]}" --allreduce ring --topology torus:2x2
refuses 2 "--topology, --allreduce" 2 "${small[@]}" --topology ring:2

# ---- CAAT-Net: a model of four tensor ranks is the same on four, two and one; on another number of them it is not
caat=(--caat-fraction 0.4 --caat-ranks 4)
trains "4:--tp 4" "${run[@]}" --caat-fraction 0.4 --out caat0
caats=("2:--tp 2" "4:--tp 2 --pp 2 --schedule zb-v")
full && caats+=("1:" "4:--tp 4 --recompute full" "8:--tp 2 --pp 2 --zero 2")
i=0
for mesh in "${caats[@]}"; do
    i=$((i + 1))
    trains "$mesh" "${run[@]}" "${caat[@]}" --out caat$i || continue
    verify_py "CAAT-Net, $mesh: losses and norms are those of four ranks:" same caat0 caat$i $near
    verify_py "CAAT-Net, $mesh: weights are:" weights caat{0,$i}/step_00000006/model.safetensors $near_weights4
    rm -rf on && mkdir on && cp -r caat0/step_00000003 caat0/log.jsonl on
    trains "$mesh" "${run[@]}" "${caat[@]}" --out on --resume || continue
    verify_py "CAAT-Net, resumed on $mesh:" same caat0 on $near 3
done
caat_text=(--generate "31 3" --temperature 0 --max-new-tokens 40 --init caat0/step_00000006)
trains "1:" "${model[@]}" "${caat[@]}" "${caat_text[@]}" && mv out caat_greedy
trains "4:--tp 2 --pp 2" "${model[@]}" "${caat[@]}" "${caat_text[@]}" &&
    check "CAAT-Net continues a text as one rank" "cmp caat_greedy out"
trains "2:--tp 2" "${run[@]}" --caat-fraction 1 --caat-ranks 2 --out caat_all
verify_py "all channels shared: an ordinary model:" same mesh0 caat_all $near
trains "2:--tp 2" "${run[@]}" --caat-fraction 0.4 --out caat_two
check "two ranks that share a part of the channels are another model" \
    "! python3 '$check_run' same caat0 caat_two 1e-3 2>/dev/null"
refuses 2 "--caat-grad-dtype, --caat-fraction, --caat-ranks" 2 "${small[@]}" --tp 2 --caat-grad-dtype same
refuses 1 "--caat-fraction, --caat-ranks" 2 "${run[@]}" --tp 2 --caat-fraction 0.5 --out caat1 --resume
refuses 1 "--caat-fraction, --caat-ranks" 2 "${short[@]}" --tp 2 --caat-fraction 0.4 --init caat0/step_00000006
trains "2:--tp 2" "${short[@]}" --steps 1 --caat-fraction 0.5 --init mesh0/step_00000006/model.safetensors &&
    ok "a file of weights may become a CAAT-Net"
launch 2 "$sanitized" "${run[@]}" "${caat[@]}" --tp 2 --out caat_clean
check "CAAT-Net, sanitized" "[ $status = 0 ] && ! grep -aq 'Sanitizer\|runtime error' err"
verify_py "CAAT-Net, sanitized: losses are those of four ranks:" same caat0 caat_clean $near

# ---- traces and plans
trains "4:--tp 2 --pp 2" "${short[@]}" --steps 2 --trace trace.json
verify_py "--trace, 2 x 2 x 1:" trace trace.json 2 2 1 8 2
trains "4:--pp 2 --zero 2" "${short[@]}" --steps 1 --trace trace.json
verify_py "--trace, 1 x 2 x 2:" trace trace.json 1 2 2 4 1
timeout 100 "$train" --model gpt3-175B --tp 8 --pp 8 --dp 48 --global-batch 1536 --data text.txt --dry-run >out 2>err
check "--dry-run of 3072 ranks on one, soon, with a line a stage" "[ $? = 0 ] && grep -q '^mesh      3072 ranks' out &&
    [ \$(grep -c '^  [0-9]*\.\.[0-9]* ' out) = 8 ]"
big=(--layers 8 --hidden 512 --heads 8 --seq 128 --vocab 50257 --data text.txt --global-batch 16 --micro-batch 1)
"$train" "${big[@]}" --tp 2 --pp 2 --dp 2 --dry-run >out 2>err
verify_py "--dry-run of 2 x 2 x 2: what the ranks hold:" plan out 2 2 2 8 512 50257 128 0
launch 8 "$train" "${big[@]}" --tp 2 --pp 2 --zero 1 --dry-run
check "--dry-run on 8 ranks prints once, and runs nothing" \
    "[ $status = 0 ] && [ \$(grep -c '^model' out) = 1 ] && ! grep -q ^step out"
verify_py "--dry-run on 8 ranks, ZeRO 1: what they hold:" plan out 2 2 2 8 512 50257 128 1

finish_ranks
