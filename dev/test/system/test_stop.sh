#!/bin/bash
# Runs that are asked to stop (trainer/graceful_stop.h): the trainer on a mesh that is drawn anew each time (LONG=1: on
# all of a list), asked through mpirun or through one rank, and resumed: its end is that of a run that was left alone.

# A job in a shell's background ignores SIGINT, and so would all processes that it starts.
case $(trap -p INT) in *"''"*) exec env --default-signal=INT "$0" "$@" ;; esac
. dev/test/system/mesh.sh
export OMPI_MCA_mpi_yield_when_idle=1
context() { head -c 900 err; }

# ---- the trainer alone: who reads what it prints, descriptors that are closed, two runs in one folder
alone=(--hidden 16 --layers 2 --heads 2 --seq 16 --global-batch 1 "${data[@]}" "${quiet[@]}" --steps 60)
timeout 150 "$train" "${alone[@]}" --out headless 2>err </dev/null | head -n 1 >out
is "whose reader goes after a line, it ends well" "0 step_00000060" \
    "${PIPESTATUS[0]} $(find headless -name 'step_*' -printf %f)"
timeout 150 "$train" "${alone[@]}" --out closed <&- >&- 2>&-
is "without the three standard descriptors: lines of log.jsonl" "0 60 60" \
    "$? $(wc -l <closed/log.jsonl) $(grep -c '^{"step"' closed/log.jsonl)"
# A run that waits for a folder that another one has, which begins meanwhile.
mkdir both
exec 9<both
flock -s 9
"$train" "${alone[@]}" --out both >out 2>err </dev/null 9<&- &
for _ in $(seq 6000); do
    [ -z "$(find -L /proc/$!/fd -samefile both 2>/dev/null)" ] || break
    sleep 0.02
done
echo theirs >both/log.jsonl
exec 9<&-
wait $!
is "a folder that gets a run while another waits for it" "2 theirs 1" \
    "$? $(cat both/log.jsonl) $(grep -c -e --resume err)"

# ---- several ranks
model=("${small[@]}" --eval-every 10 --eval-sequences 4 --sample-every 0)
losses() { sed 's/"tokens".*//' "$1/log.jsonl"; }
steps() { sed -n 's/^{"step":\([0-9]*\),.*/\1/p' "$1/log.jsonl" | tail -n 1; }
same() { # DIR: its end is that of whole
    losses "$1" >found
    losses whole | cmp -s - found && same_weights {whole,"$1"}/step_00000024
}
meshes=("--tp 2 --pp 2" "--dp 4 --zero 1" "--pp 4" "--pp 2 --dp 2 --schedule zb-v" "--tp 2 --dp 2 --allreduce ring")
meshes+=("--dp 4 --dp-mode dc-s3gd" "--dp 4 --sites 2 --dp-mode dc-s3gd" "--dp 4 --dp-mode diloco --local-steps 4"
    "--dp 4 --sites 2 --dp-mode diloco --local-steps 5" "--tp 2 --dp 2 --dp-mode diloco --local-steps 3")
[ -n "${LONG:-}" ] || meshes=("${meshes[RANDOM % 10]}")
signals=("USR1 launcher" "USR1 rank" "TERM rank" "INT rank" "HUP rank")
for mesh in "${meshes[@]}"; do
    read -ra mesh_options <<<"$mesh"
    command=(4 "$rank" "$train" "${model[@]}" --steps 24 "${mesh_options[@]}")
    rm -rf whole parts
    begins 24 "${command[@]}" --out whole
    wait $launcher || bad "$mesh: ends with status $?: $(head -c 400 err)"
    read -r signal who <<<"${signals[RANDOM % 5]}"
    begins $((1 + RANDOM % 9)) "${command[@]}" --out parts
    if [ "$who" = rank ]; then victim=$(cat "pids/$((RANDOM % 4))"); else
        victim=$(tr -d ' ' <"/proc/$launcher/task/$launcher/children"); fi
    kill -s "$signal" "$victim"
    [ "$signal" = INT ] || kill -s "$signal" "$victim" 2>/dev/null # a second one changes nothing
    wait $launcher
    status=$? at=$(steps parts)
    is "$mesh, $signal to $who: status" 75 $status
    check "after step $at, which is saved: $(grep -a '^stopped' out)" \
        "[ $at -lt 24 ] && [ -d parts/step_$(printf %08d "$at") ] && [ -z \"\$(find parts -name '*.tmp*')\" ] &&
        grep -aq '^stopped   after step $at of 24, as a signal has asked; saved' out"
    check "the watchdog says nothing, and one rank at most answers Ctrl-C" \
        "! grep -aq '^train_gpt' err && [ \$(grep -ac 'Ctrl-C once more' err) -le 1 ]"
    begins 24 "${command[@]}" --out parts --resume
    wait $launcher
    check "resumed, it ends as the run that was left alone, to the bit" \
        "[ $? = 0 ] && grep -q '^resume .*step $at$' out && same parts"
done

# A second Ctrl-C ends a run at once, also one that cannot come to the end of its step.
begins 3 2 "$rank" "$train" "${model[@]}" --steps 100000 --tp 2 --out twice
kill -STOP "$(cat pids/1)"
kill -INT "$(cat pids/0)"
for _ in $(seq 10000); do ! grep -q 'Ctrl-C once more' err || break; sleep 0.01; done
kill -INT "$(cat pids/0)"
wait $launcher
check "a second SIGINT ends a run at once, unsaved" "[ $? != 0 ] && [ -z \"\$(find twice -name 'step_*')\" ]"
gone || bad "ranks of a run that was interrupted twice are left"

# In a terminal (script makes one): mpirun itself would kill its ranks a second after Ctrl-C.
mkfifo keys
seen() { # WHAT TIMES: waits until it was printed so often, or the run is over
    until [ "$(grep -ac "$1" out)" -ge "$2" ] || ! kill -0 $launcher; do sleep 0.02; done 2>/dev/null
}
for presses in 1 2; do
    rm -f pids/*
    : >out
    command="$mpirun -np 2 $rank $train ${model[*]} --steps 100000 --tp 2 --out terminal$presses"
    env --default-signal=INT timeout 150 script -qefc "$command" /dev/null <keys >out 2>err &
    launcher=$!
    exec 8>keys
    seen '^step ' 3
    [ $presses = 1 ] || kill -STOP "$(cat pids/1)"
    printf '\003' >&8
    [ $presses = 1 ] || { seen 'once more' 1 && printf '\003' >&8; } # two at once would be one
    wait $launcher
    status=$?
    exec 8>&-
    if [ $presses = 1 ]; then
        check "Ctrl-C in a terminal: saved, status $status" "[ $status = 75 ] &&
            grep -aq 'signal has asked; saved' out && [ -n \"\$(find terminal1 -name 'step_*')\" ]"
    else
        check "twice: the job ends, though a rank hangs, status $status" \
            "[ $status != 0 ] && [ $status != 124 ] && grep -aq 'once more' out"
    fi
    gone || bad "ranks are left after Ctrl-C"
done
begins 3 2 "$rank" "$train" "${model[@]}" --steps 100000 --tp 2
kill -USR1 "$(cat pids/1)"
wait $launcher
check "without --out it stops as well, and says that nothing is saved" \
    "[ $? = 75 ] && grep -q 'without --out nothing is saved' out"

finish
