#!/bin/sh
# dev/experiments/repro_caat.sh speed [OPTIONS]   CAAT-Net against its authors' claims, on this machine.
#
#   repro_caat.sh speed                   training, prefill and decoding on rate-limited links; about an hour on two
#                                         cores; root, Linux; results in repro_caat_speed/
#   repro_caat.sh speed --quick --out try does everything work here? A few minutes
#   repro_caat.sh speed --report --docs   writes tables, picture and verdicts into docs/
#
# The same command goes on after an interruption. --help lists all options; how it works is said in
# dev/experiments/caat_speed.py.
set -eu
project=$(cd "$(dirname "$0")/../.." && pwd)
what=${1:-}
case $what in
speed) shift ;;
*) sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$0"; case $what in -h | --help) exit 0 ;; *) exit 2 ;; esac ;;
esac
case " $* " in
*" --report "* | *" --help "* | *" -h "*) ;;
*)
    "$project/scripts/install.sh" python3:python3 make:make gcc:gcc /usr/include/stdio.h:libc6-dev \
        mpicc:libopenmpi-dev mpirun:openmpi-bin ip:iproute2 tc:iproute2 unshare:util-linux sysctl:procps
    make -s -C "$project" PRECISION=fp32 train_gpt build/bf16/train_gpt
    ;;
esac
exec python3 "$project/dev/experiments/caat_speed.py" "$@"
