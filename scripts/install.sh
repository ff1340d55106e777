#!/bin/sh
# scripts/install.sh NAME:PACKAGE ...   installs, with apt, the packages whose command (or file, if NAME is a path) is
# missing. Does nothing if all are there. Where it may not install, it says what to type.
set -eu
missing=""
for pair in "$@"; do
    name=${pair%%:*}
    case $name in
    /*) test -e "$name" && continue ;;
    *) command -v "$name" >/dev/null 2>&1 && continue ;;
    esac
    missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
echo "missing:$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "There is no apt-get here: install$missing with your system's package manager, then run this again." >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "Installing needs root. Ask for: apt-get install$missing" >&2
        exit 1
    fi
    sudo="sudo "
fi
echo "+ ${sudo}apt-get install$missing"
# shellcheck disable=SC2086  # lists of words
{
    ${sudo}env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    ${sudo}env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
