#!/bin/bash
# make equivalence: does every mesh train the same model? test_equivalence.c with eight ranks: all meshes of up to
# eight, all settings, a line a case; then a table: how far a mesh of N ranks was from one rank at most, beside the
# bound. All of it is kept in $BUILD/log/equivalence.log. On two idle cores it takes about forty-five minutes. Before
# it, with --full, the meshes that have one rank's bytes by --canonical (test_canonical.sh).
#
#   dev/test/system/equivalence.sh [OPTION...]     other options for test_equivalence than --full, such as --mesh 2 2 2
#
# PRECISION=bf16: the build in bf16. The last line is "N passed, N failed".
set -u -o pipefail
[ $# -gt 0 ] || set -- --full
BUILD=${BUILD:-build}
program=$BUILD/${PRECISION:-fp32}/test_equivalence
program=${program/\/fp32/}
log=$BUILD/log/equivalence.log
limit=${EQUIVALENCE_TIMEOUT:-10800} # seconds for all meshes: waiting for each other for ever is a failure
if [ -z "${MPIRUN-mpirun}" ]; then
    echo "equivalence.sh: there is no MPI, so there are no ranks to compare: scripts/quickstart.sh installs it" >&2
    exit 1
fi
mkdir -p build "$BUILD/log" # the test itself always writes to build
make --no-print-directory BUILD="$BUILD" "$program" || exit 1

canonical=0
if [ "$*" = --full ]; then
    make --no-print-directory BUILD="$BUILD" PRECISION=fp32 train_gpt "$BUILD/bf16/train_gpt" || exit 1
    LONG=1 dev/test/system/test_canonical.sh || canonical=1
fi

# --foreground, or timeout would signal mpirun twice, which Open MPI takes as "leave at once": its ranks would stay.
timeout --foreground -k 10 "$limit" scripts/mpirun.sh -np 8 "$program" "$@" 2>&1 </dev/null | tee "$log"
status=$?
[ $status != 124 ] || echo "FAIL  stopped after $limit s: do some ranks wait for others that never come?"

# Of the test's lines: mesh, settings, and pairs "loss 1.2e-08 norm ..."; "same bits" where there was no difference. A
# run that has no last line, or ended otherwise than that says, is one failure more.
awk -v status=$status -v canonical=$canonical '
    function number(text) { return text ~ /inf|nan/ ? 1e300 : text + 0 }
    /^ok  / { seen++ }
    /^[0-9]+ passed, [0-9]+ failed$/ { passed = $1; wrong = $3; done = 1 }
    $2 ~ /^t=/ {
        n = substr($2, 3) * substr($3, 3) * substr($4, 3)
        cases[n]++
        failed[n] += $1 == "FAIL"
        exact[n] += /bound same bits/
        bound[n] += / same bits bound/
        if (match($0, /bound [0-9][0-9.e-]*/)) limit = substr($0, RSTART + 6, RLENGTH - 6)
        for (i = 5; i < NF; i++) {
            if ($i !~ /^(loss|norm|params|val|decoded)$/) continue
            x = number($(i + 1))
            if (x > worst[n, $i]) worst[n, $i] = x
        }
    }
    END {
        print "\nLargest errors, relative; same bits: where t = d = 1 all have to be, elsewhere some happen to be"
        printf "%5s %6s %7s %10s %9s %9s %9s %9s %10s %9s\n", "ranks", "cases", "failed", "same bits", "loss", "norm",
            "params", "decoded", "validation", "bound"
        for (n = 1; n <= 8; n++) {
            if (!cases[n]) continue
            printf "%5d %6d %7d %6d/%-3d", n, cases[n], failed[n], bound[n], exact[n]
            printf " %9.1e %9.1e %9.1e %9.1e %10.1e %9s\n", worst[n, "loss"], worst[n, "norm"], worst[n, "params"],
                worst[n, "decoded"], worst[n, "val"], exact[n] == cases[n] ? "same bits" : limit
        }
        if (!done || (status != 0 && !wrong)) wrong++
        wrong += canonical
        print (done ? passed : seen) + 0 " passed, " wrong + 0 " failed"
        exit wrong > 0 || !(passed + seen)
    }' "$log" | tee -a "$log"
