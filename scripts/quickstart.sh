#!/bin/sh
# From a bare Debian or Ubuntu to a GPT that has learnt something, in two minutes to four, by the processor:
#   1. installs a C compiler, make and MPI if they are missing      2. builds ./train_gpt
#   3. fetches Shakespeare's plays; where they do not come in ten seconds, the text is the C headers of this system
#   4. trains a small model on it, and lets it write
# Arguments go to the trainer: scripts/quickstart.sh --data "my/*.txt" --steps 1000
set -eu
cd "$(dirname "$0")/.."
echo "== 1. what is needed"
needed="make:make gcc:gcc /usr/include/stdio.h:libc6-dev"
# Without MPI there is one process instead of many; that is no reason to stop.
# shellcheck disable=SC2086  # a list of words
scripts/install.sh $needed mpicc:libopenmpi-dev mpirun:openmpi-bin || {
    echo "MPI cannot be installed: going on without it"
    scripts/install.sh $needed
}
echo "== 2. make"
make
echo "== 3. a text"
text=data/tinyshakespeare/input.txt
case " $* " in
*" --data"* | *" --resume "*) ;;
*)
    command -v wget >/dev/null 2>&1 ||
        scripts/install.sh curl:curl /etc/ssl/certs/ca-certificates.crt:ca-certificates || true
    if timeout 10 scripts/download_data.sh tinyshakespeare >/dev/null 2>&1; then
        set -- --data "$text" "$@"
    else
        echo "$text could not be fetched in ten seconds: going on with the C headers of this system"
    fi
    ;;
esac
echo "== 4. ./train_gpt $*"
./train_gpt "$@"
echo "== done. Try ./train_gpt --help, or read train_gpt.cu"
make -s --no-print-directory run_line
