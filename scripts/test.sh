#!/bin/sh
# Installs what the tests need where it is missing (make, gcc, g++, python3, Open MPI), builds, and runs make test.
# The last line is "N passed, N failed"; exit status 0 only if none failed.
set -eu
cd "$(dirname "$0")/.."
scripts/install.sh make:make gcc:gcc g++:g++ /usr/include/stdio.h:libc6-dev python3:python3 \
    mpicc:libopenmpi-dev mpirun:openmpi-bin
make -s -j "$(getconf _NPROCESSORS_ONLN)" build_tests
exec make -s test
