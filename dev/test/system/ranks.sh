#!/bin/bash
# ranks.sh: for tests whose ranks note their processes in $work/pids/, a file each: which of them are there. To be
# sourced. $program is what a rank executes, $work the test's folder.
program=""

# alive PROCESS: it is a rank (not another process that got its number after its end, and no zombie)
alive() { [ "$(readlink "/proc/$1/exe")" = "$program" ]; }

# gone: waits until no rank that was noted is there any more, for at most a minute
gone() {
    for _ in $(seq 600); do
        left=0
        for file in "$work"/pids/*; do ! alive "$(cat "$file")" || left=$((left + 1)); done
        [ $left -gt 0 ] || return 0
        sleep 0.1
    done
    return 1
}

# kill_ranks: at the end of a test, what is still there would be there for ever
kill_ranks() {
    for file in "$work"/pids/*; do
        [ ! -e "$file" ] || ! alive "$(cat "$file")" || kill -9 "$(cat "$file")"
    done
}
