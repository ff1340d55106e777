#!/bin/sh
# scripts/install.sh COMMAND:PACKAGE ...   installs, with apt, the packages whose commands are missing.
# Does nothing if all are there. Where it may not install, it says what to type.
set -eu
missing=""
for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
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
    sudo=sudo
fi
echo "+ $sudo apt-get install$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086  # a list of words
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
