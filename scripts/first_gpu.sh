#!/usr/bin/env bash
# What a GPU shows first: its rates, equal bits, tests, speed.
#
#   scripts/first_gpu.sh RESULTS [PART ...]
#
# Parts, in the order of the default: install rates bits tests sanitizer products attention steps
# bench. Each has at most 10 minutes. A part that has ended well is not run again: to repeat it,
# remove its log from the folder RESULTS. RESULTS/summary.txt has the ends of all logs.
#
# A machine without a network needs the wheels of packages that it lacks. There is a part for a
# machine with a network that fetches them, for CPython 3.12: `scripts/first_gpu.sh RESULTS wheels`.
# Take the folder along.
set -uo pipefail
cd "$(dirname "$0")/.."
results=${1:?the folder of the results}
shift
mkdir -p "$results"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/src:$PWD/tests:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
models=${TMPDIR:-/dev/shm}

run_wheels() {
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$results/wheels" \
        fastapi starlette uvicorn pydantic==2.14.4 pydantic_core==2.50.5 annotated-types \
        annotated-doc typing-inspection typing_extensions platformdirs llguidance msgspec httpx2 \
        httpcore2 truststore huggingface_hub opentelemetry-api anyio h11 typer gguf hypothesis
}

run_install() {
    python3 -c 'import heddle._native, heddle.cli' 2>/dev/null && return
    if [ -d "$results/wheels" ]; then
        python3 -m pip install --quiet --no-index --no-deps "$results"/wheels/*.whl || return
    fi
    python3 -m pip install --quiet --no-build-isolation --no-deps .
}

run_rates() { nvidia-smi && python3 benchmarks/gpu_kernels.py rates; }
run_bits() { python3 benchmarks/gpu_kernels.py bits; }
run_products() { python3 benchmarks/gpu_kernels.py products; }
run_attention() { python3 benchmarks/gpu_kernels.py attention; }

# Kernels of all types take minutes to compile. The tests' plugins may be missing, and their settings
# with them.
run_tests() {
    local folder=tests/extensions/torch/kernels
    python3 -m pytest -q -rf -n 14 --maxfail 20 -o addopts= -o filterwarnings=default \
        -p no:cacheprovider -m "not torch_slow" -k "not IQ and not TQ" \
        $folder/test_triton_attention.py $folder/test_triton_matmul.py \
        $folder/test_triton_elementwise.py $folder/test_triton_routing.py \
        $folder/test_triton_graphs.py $folder/test_triton_executor.py
}

run_sanitizer() {
    local test=tests/extensions/torch/kernels/test_triton_
    compute-sanitizer --launch-timeout 0 --error-exitcode 9 --target-processes all \
        python3 -m pytest -q -o addopts= -o filterwarnings=default -p no:cacheprovider \
        "${test}attention.py::test_attention_is_near_the_one_on_tensors[window]" \
        "${test}matmul.py::test_products_are_near_those_of_float64[Q4_K]"
}

run_steps() {
    python3 benchmarks/write_dense.py "$models/four.gguf" --layers 4 &&
        python3 benchmarks/gpu_steps.py "$models/four.gguf" --depths 0,1024,16000 --profile &&
        python3 benchmarks/gpu_steps.py "$models/four.gguf" --no-graphs
}

run_bench() {
    python3 benchmarks/write_dense.py "$models/dense.gguf" &&
        python3 benchmarks/gpu_steps.py "$models/dense.gguf" &&
        python3 -m heddle bench "$models/dense.gguf" --device cuda --streams 1,8,64 --slots 64 --rounds 1
}

export -f $(declare -F | sed -n 's/^declare -f \(run_.*\)/\1/p')
export results models
for part in ${*:-install rates bits tests sanitizer products attention steps bench}; do
    log="$results/$part.log"
    grep -qs '^ended well' "$log" && continue
    began=$SECONDS
    if timeout --signal=INT --kill-after=10 600 bash -c "run_$part" >"$log" 2>&1; then
        echo "ended well in $((SECONDS - began)) s" >>"$log"
    else
        echo "failed with $? after $((SECONDS - began)) s" >>"$log"
    fi
    { echo "== $part"; tail -60 "$log"; } >>"$results/summary.txt"
    echo "$part: $(tail -1 "$log")"
done
