#!/usr/bin/env bash
# Tests the aarch64 kernels on another machine: builds tests/native for both machines, runs the aarch64
# program under emulation, and compares the hashes that the two programs print.
#
#   scripts/emulate_aarch64.sh
#
# Each program compares every kernel of its fast levels with the portable kernel, bit for bit. Equal
# hashes mean that the portable level, and therefore every level, gives the same results on both
# machines. Exits with 77 if a tool is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need cmake cmake
need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
need qemu-aarch64 qemu-user
if [ ${#missing[@]} -gt 0 ]; then
    echo "The aarch64 kernels were not tested: on Debian, apt-get install ${missing[*]}"
    exit 77
fi

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
compile() { # NAME CMAKE_OPTION...
    cmake -S tests/native -B "$build/$1" "${@:2}" >/dev/null
    cmake --build "$build/$1" --parallel 2 >/dev/null
}
compile here
compile aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static

echo "this machine:"
"$build/here/levels" >"$build/here.txt"
emulate() { # CPU LEVEL...
    echo "aarch64, $1:"
    qemu-aarch64 -cpu "$1" "$build/aarch64/levels" "${@:2}" >"$build/aarch64.txt"
    if ! diff "$build/here.txt" "$build/aarch64.txt"; then
        echo "The two machines compute different results." >&2
        exit 1
    fi
}
emulate neoverse-n1 neon
emulate max neon i8mm
# Heddle must not use kernels on a processor without their instructions.
refuse() { # CPU LEVEL
    if qemu-aarch64 -cpu "$1" "$build/aarch64/levels" "$2" 2>/dev/null >/dev/null; then
        echo "The $2 level runs on a $1, which lacks its instructions." >&2
        exit 1
    fi
}
refuse cortex-a72 neon
refuse neoverse-n1 i8mm
echo "$(wc -l <"$build/here.txt") results are the same on both machines and at every level."
