#!/bin/sh
# dev/plot/pictures.sh [--check]   draws the pictures of tables as docs/images/NAME.svg; --check compares those that are
# there with what is drawn now; numbers may differ by rounding. `make pictures` builds the programs that draw them.
#
# The other pictures show measurements or runs: async_cnn.svg and overlap.svg (docs/async_dp.md),
# caat_quality.svg and caat_speed.svg (docs/caat.md), ladder.svg (docs/ladder/README.md),
# measured.svg (docs/schedules.md), network.svg (docs/collectives.md), report.png (docs/usage.md), shakespeare.svg
# (docs/benchmarks.md), transport.svg (docs/transport.md) have their commands there.
set -eu
cd "$(dirname "$0")/../.."
here=$PWD
BUILD=${BUILD:-build}
measured="figures async_cnn caat_quality caat_speed ladder measured network overlap plan shakespeare transport"
drawn=$(mktemp -d)
trap 'rm -rf "$drawn"' EXIT
trap 'exit 1' INT TERM HUP

collective() { # NAME TOPOLOGY ALGORITHM WHAT
    "$BUILD/draw_collective" --topology "$2" --algorithm "$3" --what "$4" >"$drawn/$1.svg"
}
layout() { # NAME OPTIONS...
    name=$1
    shift
    "$BUILD/draw_layout" "$@" >"$drawn/$name.svg"
}
for schedule in gpipe 1f1b interleaved zb-h1 zb-v; do
    "$BUILD/draw_schedule" --schedule "$schedule" --pp 4 --microbatches 8 --out "$drawn/$schedule.svg"
done
collective multitree_trees torus:4x4 multitree trees
collective multitree_steps mesh:3x3 multitree steps
collective multitree_links torus:8x8 multitree links
collective halving-doubling_links torus:4x4 halving-doubling links
for name in async_plan caat_plan checkpoint_plan roofline rounding; do
    "$BUILD/draw_${name%_plan}" >"$drawn/$name.svg"
done
layout tensor --what tensor --tp 2
layout sequence --what tensor --tp 2 --sequence-parallel
layout memory --what memory --model gpt2-124M --dp 8 --zero 1
layout buckets --what buckets --dp 4 --zero 1
layout step --what flops --model gpt2-124M

words() { sed 's/-\{0,1\}[0-9][0-9.]*/\n&\n/g' "$1"; } # a number a line
same() { # the last digit of a number depends on the compiler's multiply-adds
    [ -f "$1" ] && [ -f "$2" ] || return 1
    words "$1" >"$drawn/words"
    words "$2" | paste "$drawn/words" - | awk -F '\t' '$1 != $2 {
        if ($1 !~ /^-?[0-9]+\.[0-9]+$/ || $2 !~ /^-?[0-9]+\.[0-9]+$/ || ($1 - $2) ^ 2 > 0.011 ^ 2) exit 1 }'
}
if [ "${1:-}" != --check ]; then
    for picture in "$drawn"/*.svg; do
        same "$picture" "docs/images/${picture##*/}" || cp "$picture" docs/images
    done
    exit
fi
passed=0 failed=0
for name in $( (cd "$drawn" && ls -- *.svg && cd "$here/docs/images" && ls -- *.svg) | sort -u); do
    case " $measured " in *" ${name%.svg} "*) continue ;; esac
    if same "$drawn/$name" "docs/images/$name"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL  docs/images/$name is not what is drawn now: make pictures, or a line of dev/plot/pictures.sh"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
