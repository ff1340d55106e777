#!/bin/sh
# dev/draw/pictures.sh [TOOL]   draws each pipeline schedule at 4 stages and 8 micro-batches: dev/draw/NAME.svg
# TOOL is the built draw_schedule; without it, it is compiled here for the moment.
set -eu
folder=$(dirname "$0")
tool=${1:-}
if [ -z "$tool" ]; then
    built=$(mktemp -d)
    trap 'rm -rf "$built"' EXIT
    tool=$built/draw_schedule
    ${CC:-cc} -O2 -std=gnu11 -Wno-unknown-pragmas "$folder/draw_schedule.c" -o "$tool" -lm
fi
for schedule in gpipe 1f1b interleaved zb-h1 zb-v; do
    "$tool" --schedule "$schedule" --pp 4 --microbatches 8 --out "$folder/$schedule.svg"
done
