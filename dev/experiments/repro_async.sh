#!/bin/sh
# dev/experiments/repro_async.sh [OPTIONS]   DC-S3GD on its own ground, on this machine: a small CNN, SGD with momentum,
# large batches; a run takes a second or two, all of them some hours. --quick: does everything work here? --report: the
# tables and the verdicts again. Results in repro_async_cnn/; how it works is said in dev/experiments/async_cnn.py.
set -eu
project=$(cd "$(dirname "$0")/../.." && pwd)
"$project/scripts/install.sh" python3:python3 make:make gcc:gcc /usr/include/stdio.h:libc6-dev
make -s -C "$project" build/async_cnn
exec python3 "$project/dev/experiments/async_cnn.py" "$@"
