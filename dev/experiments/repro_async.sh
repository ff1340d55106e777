#!/bin/sh
# dev/experiments/repro_async.sh [OPTIONS]   asynchronous data parallelism against the claims of its papers, on this
# machine: a small GPT, four replicas on a slow network, eight ways to train it, three seeds each. Most of an hour on
# two cores; root, Linux.
#
#   repro_async.sh                      all of it, on TinyShakespeare, which is fetched; results in repro_async/
#   repro_async.sh --data my.txt        on another text
#   repro_async.sh --quick --out try    does everything work here? A few minutes; the losses say nothing
#   repro_async.sh --sweep sync         how the learning rate was chosen
#   repro_async.sh --report             the table, the picture and the verdicts again
#   repro_async.sh frontier             another experiment: the loss that is left at few bytes, of DiLoCo, MuLoCo and
#                                       SparseLoCo; a day on two cores, no root; the text is of Debian's package
#                                       linux-source (140 MB); results in repro_frontier/; dev/experiments/frontier.py
#   repro_async.sh cnn [OPTIONS]        DC-S3GD on its own ground instead: a small CNN, SGD with momentum, large
#                                       batches; --quick, --report; results in repro_async_cnn/
#   repro_async.sh hidden [OPTIONS]     how much of what is sent is hidden, with no core, half a core and a core to
#                                       spare; ten minutes, root; dev/experiments/hidden.py
#
# The results: report.md (table and verdicts, also printed), loss.svg, results.json, and a log.jsonl for every run. The
# same command goes on after an interruption. --help lists all options; how it works is said in
# dev/experiments/async.py.
set -eu
project=$(cd "$(dirname "$0")/../.." && pwd)
if [ "${1:-}" = cnn ]; then
    shift
    "$project/scripts/install.sh" python3:python3 make:make gcc:gcc /usr/include/stdio.h:libc6-dev
    make -s -C "$project" build/async_cnn
    exec python3 "$project/dev/experiments/async_cnn.py" "$@"
fi
"$project/scripts/install.sh" python3:python3 make:make gcc:gcc /usr/include/stdio.h:libc6-dev mpicc:libopenmpi-dev \
    mpirun:openmpi-bin
if [ "${1:-}" = frontier ]; then
    shift
    text=$project/data/linux/text
    case " $* " in
    *" --report "* | *" --help "* | *" -h "*) ;;
    *" --data"* | *" --quick "*) make -s -C "$project" train_gpt ;;
    *)
        make -s -C "$project" train_gpt
        [ -f "$text" ] || [ -d "$text.sources" ] || "$project/dev/experiments/fetch_linux.sh" "$text.sources"
        set -- --make-text "$text.sources" --data "$text" "$@"
        ;;
    esac
    exec python3 "$project/dev/experiments/frontier.py" "$@"
fi
"$project/scripts/install.sh" ip:iproute2 tc:iproute2 unshare:util-linux sysctl:procps
if [ "${1:-}" = hidden ]; then
    shift
    make -s -C "$project" PRECISION=fp32 train_gpt
    exec python3 "$project/dev/experiments/hidden.py" "$@"
fi
data=missing
for argument in "$@"; do
    case $argument in
    -h | --help) exec python3 "$project/dev/experiments/async.py" --help ;;
    --data | --data=* | --report) data=given ;;
    esac
done
[ "$data" = given ] || {
    text=$project/data/tinyshakespeare
    "$project/scripts/download_data.sh" tinyshakespeare "$text" >&2
    set -- --data "$text/input.txt" "$@"
}
make -s -C "$project" PRECISION=fp32 train_gpt
exec python3 "$project/dev/experiments/async.py" "$@"
