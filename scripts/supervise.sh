#!/bin/bash
# scripts/supervise.sh [--restarts N] [--pause SECONDS] [--out DIR] -- COMMAND...
# runs a training, and again when it fails:
#
#   scripts/supervise.sh -- scripts/mpirun.sh -np 4 ./train_gpt --tp 2 --pp 2 --data "my/*.txt" --out run1
#
# Whatever ends COMMAND but its own success (status 0), wrong arguments (2), or a program that cannot be started (126,
# 127), is worth another try: a crash, a kill, a rank that hung (1), a signal after which it was saved (75). It is run
# again with --resume, at most N times (5) in a row without a newer checkpoint in DIR; a run that has come further than
# any before has all N again. The first pause is SECONDS long (5), each further one twice as long, at most five minutes.
# DIR is by default COMMAND's --out.
#
# SIGUSR1, SIGTERM and SIGINT go to COMMAND (these two as SIGUSR1, which mpirun hands to the ranks, so that they can
# save; a second one as it is), and then it is not run again. The exit status is that of the last run.
set -u

say() { echo "supervise.sh: $(date '+%F %T')  $*" >&2; }
stop() { # STATUS MESSAGE
    echo "supervise.sh: $2" >&2
    exit "$1"
}
number() { # OPTION VALUE
    case $2 in '' | *[!0-9]* | ????????*) stop 2 \
        "$1 takes a whole number from 0 up, not \"$2\" (see supervise.sh --help)" ;; esac
}

restarts=5 pause=5 out=""
[ $# -gt 0 ] || set -- --none
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
    -h | --help | --none) sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$0"; [ "$1" != --none ] || exit 2; exit 0 ;;
    --restarts | --pause | --out) [ $# -gt 1 ] || stop 2 "$1: the value is missing" ;;
    *) stop 2 "$1 is no option; COMMAND comes behind -- (see supervise.sh --help)" ;;
    esac
    case $1 in
    --restarts) number "$1" "$2" && restarts=$((10#$2)) ;;
    --pause) number "$1" "$2" && pause=$((10#$2)) ;;
    --out) out=$2 ;;
    esac
    shift 2
done
[ $# -gt 1 ] || stop 2 "there is no COMMAND behind -- (see supervise.sh --help)"
shift
resumes="" before=""
for word; do
    case $word in
    --out=*) out=${out:-${word#*=}} ;;
    --resume) resumes=yes ;;
    *) [ "$before" != --out ] || out=${out:-$word} ;;
    esac
    before=$word
done
[ -n "$out" ] || stop 2 "COMMAND has no --out DIR: there would be no checkpoint to go on from"

# The step of the newest checkpoint; 0: there is none. What is not complete has another name.
newest() {
    step=$(find "$out" -maxdepth 1 -name 'step_*' 2>/dev/null | sed -n 's/.*step_\([0-9][0-9]*\)$/\1/p' | sort -n |
        tail -n 1)
    echo $((10#${step:-0}))
}

asked="" signals=0 run=""
# shellcheck disable=SC2317  # the traps call it
pass_on() { # SIGNAL
    signals=$((signals + 1))
    [ -z "$run" ] || kill -s "$([ -z "$asked" ] && echo USR1 || echo "$1")" "$run" 2>/dev/null
    asked=$1
}
for signal in USR1 TERM INT; do
    # shellcheck disable=SC2064  # now
    trap "pass_on $signal" $signal
done

# Waits for $run; its status to $code. A signal interrupts wait, which is then called again.
await() {
    local first="" seen=-1
    while [ $seen != $signals ]; do
        seen=$signals
        wait "$run" 2>/dev/null # or bash says, too, that it was killed
        code=$?
        if [ $code = 127 ] && [ -n "$first" ]; then code=$first; fi # it was over the first time
        first=$code
    done
    run=""
}

best=$(newest) failures=0 number=0
while [ -z "$asked" ]; do
    number=$((number + 1)) started=$SECONDS
    say "run $number: $*"
    (trap - INT QUIT USR1 TERM && exec "$@") </dev/null & # what is run in the background ignores SIGINT, if not told
    run=$!
    [ -z "$asked" ] || kill -s USR1 "$run" # it came a moment ago
    await
    status=$code reached=$(newest) how="status $status"
    [ "$status" -le 128 ] || how="$how (signal $((status - 128)))"
    how="ended with $how after $((SECONDS - started)) s, its newest checkpoint is of step $reached"
    if [ "$status" = 0 ]; then
        say "run $number has come to its end"
        exit 0
    fi
    [ -z "$asked" ] || break
    case $status in 2 | 126 | 127) say "run $number $how: not to be mended by another try" && exit "$status" ;; esac
    if [ "$reached" -gt "$best" ]; then best=$reached failures=0 wait_for=$pause; fi
    [ $failures -gt 0 ] || wait_for=$pause
    if [ $failures -ge "$restarts" ]; then
        say "run $number $how: given up after $failures restarts without a newer one"
        exit "$status"
    fi
    failures=$((failures + 1))
    say "run $number $how: again in $wait_for s (restart $failures of $restarts)"
    [ -n "$resumes" ] || set -- "$@" --resume
    resumes=yes
    sleep "$wait_for" &
    run=$!
    await
    wait_for=$((2 * wait_for < 300 ? 2 * wait_for : 300))
done
say "run $number has ended with status $status; it was asked to stop ($asked), and is not run again"
exit "$status"
