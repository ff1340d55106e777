#!/bin/sh
# dev/plot/pictures.sh [SCHEDULE [COLLECTIVE [PLAN]]]   draws, as docs/images/NAME.svg, each pipeline schedule at 4
# stages and 8 micro-batches, MultiTree's trees, steps and links, asynchronous data parallelism's modes, the ranks that
# write a checkpoint, the floors of a step on a GPU, lost updates in bf16, and a step that the planner recommends.
# SCHEDULE, COLLECTIVE and PLAN are the built draw_schedule, draw_collective and plan; the first two, where they are not
# given, are compiled here for the moment.
set -eu
folder=$(dirname "$0")
images=$folder/../../docs/images
schedule_tool=${1:-}
collective_tool=${2:-}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
if [ -z "$schedule_tool" ]; then
    schedule_tool=$built/draw_schedule
    ${CC:-cc} -O2 -std=gnu11 -Wno-unknown-pragmas "$folder/draw_schedule.c" -o "$schedule_tool" -lm
fi
if [ -z "$collective_tool" ]; then
    collective_tool=$built/draw_collective
    ${CC:-cc} -O2 -std=gnu11 -Wno-unknown-pragmas "$folder/draw_collective.c" -o "$collective_tool" -lm
fi
for schedule in gpipe 1f1b interleaved zb-h1 zb-v; do
    "$schedule_tool" --schedule "$schedule" --pp 4 --microbatches 8 --out "$images/$schedule.svg"
done
# NAME TOPOLOGY ALGORITHM WHAT: a picture is there as a whole or as it was.
collective() {
    "$collective_tool" --topology "$2" --algorithm "$3" --what "$4" >"$built/picture"
    cat "$built/picture" >"$images/$1.svg"
}
collective multitree_trees torus:4x4 multitree trees
collective multitree_steps mesh:3x3 multitree steps
collective multitree_links torus:8x8 multitree links
collective halving-doubling_links torus:4x4 halving-doubling links
for name in async_plan checkpoint_plan roofline rounding; do
    ${CC:-cc} -O1 -std=gnu11 -Wno-unknown-pragmas "$folder/draw_${name%_plan}.c" -o "$built/draw_$name" -lm
    "$built/draw_$name" >"$built/picture"
    cat "$built/picture" >"$images/$name.svg"
done
[ -n "${3:-}" ] || exit 0
"$3" --model gpt3-39.1B --cluster selene --gpus 64 --global-batch 64 --svg "$images/plan.svg" >"$built/said"
