#!/bin/sh
# dev/experiments/repro_caat.sh speed|quality [OPTIONS]   CAAT-Net against its authors' claims, on this machine.
#
#   repro_caat.sh speed                   training, prefill and decoding on rate-limited links; about an hour on two
#                                         cores; root, Linux; results in repro_caat_speed/
#   repro_caat.sh speed --report --docs   writes tables, picture and verdicts into docs/
#   repro_caat.sh quality                 losses with P = 0.5 and 0.25, N = 2, 4, 8, three seeds each; half a day
#                                         on two cores; the text is of Debian's package linux-source (140 MB), which is
#                                         fetched to data/linux/; results in repro_caat_quality/
#   repro_caat.sh quality --data my.txt   on another text, of 36 MB or more
#   repro_caat.sh quality --report        the table, the picture and the verdicts again
#
# With --quick --out try, both say in a few minutes whether everything works here. The same command goes on after an
# interruption. --help lists all options; how it works is said in dev/experiments/caat_{speed,quality}.py.
set -eu
project=$(cd "$(dirname "$0")/../.." && pwd)
what=${1:-}
case $what in
speed | quality) shift ;;
*) sed -n '1d;/^#/!q;s/^# \{0,1\}//p' "$0"; case $what in -h | --help) exit 0 ;; *) exit 2 ;; esac ;;
esac

case " $* " in
*" --report "* | *" --help "* | *" -h "*) ;;
*)
    "$project/scripts/install.sh" python3:python3 make:make gcc:gcc /usr/include/stdio.h:libc6-dev
    if [ "$what" = quality ]; then
        make -s -C "$project" train_gpt
        text=$project/data/linux/text
        case " $* " in
        *" --data"* | *" --quick "*) ;;
        *)
            [ -f "$text" ] || [ -d "$text.sources" ] || "$project/dev/experiments/fetch_linux.sh" "$text.sources"
            set -- --make-text "$text.sources" --data "$text" "$@"
            ;;
        esac
    else
        "$project/scripts/install.sh" mpicc:libopenmpi-dev mpirun:openmpi-bin ip:iproute2 tc:iproute2 \
            unshare:util-linux sysctl:procps
        make -s -C "$project" PRECISION=fp32 train_gpt build/bf16/train_gpt
    fi
    ;;
esac
exec python3 "$project/dev/experiments/caat_$what.py" "$@"
