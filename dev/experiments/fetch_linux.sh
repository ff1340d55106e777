#!/bin/sh
# dev/experiments/fetch_linux.sh TREE   writes the folder TREE: Linux's sources, of Debian's package linux-source, of
# which tuned.py makes a text.
set -eu
project=$(cd "$(dirname "$0")/../.." && pwd)
"$project/scripts/install.sh" apt-get:apt dpkg-deb:dpkg tar:tar xz:xz-utils
package=$(apt-cache depends linux-source | sed -n 's/.*Depends: //p;' | head -n 1)
[ -n "$package" ] || { echo "apt knows no linux-source: apt-get update, or give --data TEXT" >&2; exit 1; }
mkdir -p "$1.part"
(cd "$1.part" && apt-get download "$package")
dpkg-deb --fsys-tarfile "$1.part"/linux-source-*.deb | tar -x -O --wildcards './usr/src/linux-source-*.tar.xz' |
    tar -x -J -C "$1.part" --strip-components=1
mv "$1.part" "$1"
