#!/usr/bin/env bash
# Builds the native core with sanitizers, and runs the tests of native code with this build.
#
#   scripts/sanitize.sh address,undefined
#   scripts/sanitize.sh thread
#   scripts/sanitize.sh short      # address,undefined over the portable kernels and a few tests
#
# CI runs `short`: it takes three minutes of processor time, mostly to compile at -O1.
#
# Exits with 77 if the compiler has no runtime for these sanitizers.
#
# The interpreter itself is not instrumented. So the script preloads the runtimes, and turns leak checks
# off: they would report the interpreter's own allocations.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?which sanitizers: address,undefined, thread or short}
options=()
# Tests of memory and address space do not run: sanitizers use shadow memory, and free memory late.
tests=(tests/executors/kernels tests/executors/test_adapters.py tests/executors/test_cpu_executor.py
    tests/sampling/test_native_sampler.py
    tests/extensions/engrams/test_native_reader.py --ignore=tests/executors/kernels/test_kv_memory.py
    --ignore=tests/executors/kernels/test_out_of_memory.py
    --deselect=tests/executors/test_cpu_executor.py::test_too_few_system_threads_are_a_config_error)
if [ "$kind" = short ]; then
    kind=address,undefined
    options=(-DHEDDLE_PORTABLE_ONLY=ON -DCMAKE_CXX_FLAGS_RELEASE=-O1)
    sampler=tests/sampling/test_native_sampler.py
    tests=(tests/executors/kernels/test_abandon.py tests/executors/kernels/test_lifetimes.py
        tests/executors/test_adapters.py tests/executors/test_cpu_executor.py
        tests/extensions/engrams/test_native_reader.py "${tests[-1]}"
        $sampler::test_picks_what_the_reference_picks
        $sampler::test_draws_cover_what_the_reference_keeps)
fi

case $kind in
    address*) runtimes="libasan.so libubsan.so" ;;
    thread) runtimes="libtsan.so" ;;
esac
preload=""
for runtime in $runtimes libstdc++.so; do
    # For a missing library, the compiler prints only its name, without a path.
    path=$(${CXX:-g++} -print-file-name="$runtime")
    if [ "${path#/}" = "$path" ]; then
        echo "sanitizers: not run, ${CXX:-g++} has no $runtime; install its sanitizer runtime"
        exit 77
    fi
    preload="$preload $path"
done

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DHEDDLE_SANITIZE="$kind" \
    -DPython_EXECUTABLE="$(command -v python)" "${options[@]}" >/dev/null
cmake --build "$build" --parallel 2 >/dev/null
export ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
"$build/tests/native/programs"
"$build/tests/native/threads"
"$build/tests/native/levels" >/dev/null
"$build/tests/native/readers"
"$build/tests/native/engrams"

mkdir "$build/package"
cp -r src/heddle "$build/package/"
rm -f "$build"/package/heddle/_native*.so
cp "$build"/_native*.so "$build/package/heddle/"

# Without this, the finder of an editable install would import the ordinary build.
PYTHONPATH=$build/package LD_PRELOAD=${preload# } \
    python - "$build" "${tests[@]}" <<'PYTHON'
import sys

build, *tests = sys.argv[1:]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
import heddle._native

assert heddle._native.__file__.startswith(build), heddle._native.__file__
import pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--hypothesis-profile=gate", *tests]))
PYTHON
