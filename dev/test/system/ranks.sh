#!/bin/bash
# ranks.sh: for tests whose ranks note their processes in $work/pids/, a file each: how they begin, end, and which of
# them are there. To be sourced in $work, the test's folder. $program is what a rank executes, $mpirun its launcher.
program=""
mkdir pids

# $rank COMMAND...: as a rank, notes its process, and starts in a folder of its own where there is one.
cat >rank.sh <<'SH'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
echo $$ >"$noted/pids/$rank"
[ ! -d "${folders:-none}$rank" ] || cd "$folders$rank" || exit 9
exec "$@"
SH
chmod +x rank.sh
export noted=$work
rank="$work/rank.sh"

# begins STEPS RANKS COMMAND...: in the background; returns after that many steps, or when it is over.
# --foreground, or timeout would signal mpirun twice, which Open MPI takes as "leave at once", without its ranks.
begins() {
    rm -f pids/*
    : >out
    timeout --foreground -k 5 400 "$mpirun" -np "${@:2}" >out 2>err </dev/null &
    launcher=$!
    while kill -0 $launcher 2>/dev/null && [ "$(grep -ac '^step ' out)" -lt "$1" ]; do sleep 0.02; done
}

# ends: waits for it; its exit status to $status, how long that took to $seconds
ends() {
    started=$SECONDS
    wait $launcher 2>/dev/null
    status=$? seconds=$((SECONDS - started))
}

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
