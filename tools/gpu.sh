#!/bin/bash
# Builds, tests and measures on a machine with GPUs, in one call, or a part of that:
#     tools/gpu.sh [RESULTS]                      everything, with one rank a GPU
#     tools/gpu.sh build | test N [ARGS] | bench N [ARGS]
# where N is a number of ranks and ARGS are pytest's or benchmarks/gpu.py's.
#
# Whatever it starts ends: the tests and the measurement have a time each (GPU_SECONDS, default 300).
# NVLink multicast stays off, for the ranks too: where GPUs are shared out among virtual machines, a
# program that uses it can put them out of service for everyone.
set -euo pipefail
cd "$(dirname "$0")/.."
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

ranks() {
    local n=$1
    shift
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        timeout -k 5 "${GPU_SECONDS:-300}" mpirun -n "$n" --oversubscribe --bind-to none \
        -x NCCL_NVLS_ENABLE -x TORCH_SYMM_MEM_DISABLE_MULTICAST -x NVSHMEM_DISABLE_NVLS \
        -x PYTHONPATH -x PYTHONUNBUFFERED "$@"
}

build() { python3 setup.py -q build_ext --inplace -j 4; }

tests() {
    local n=$1
    shift
    ranks "$n" python3 -m pytest -q -x -p no:cacheprovider --timeout 120 --with-mpi tests/gpu "$@"
}

bench() {
    local n=$1
    shift
    ranks "$n" python3 benchmarks/gpu.py "$@"
}

case "${1-}" in
build) build ;;
test) tests "${@:2}" ;;
bench) bench "${@:2}" ;;
*)
    results=${1:-results/gpu}
    gpus=$(python3 -c 'import cupy; print(cupy.cuda.runtime.getDeviceCount())')
    mkdir -p "$results"
    build
    tests "$gpus"
    bench "$gpus" --torch --dtypes float32 float16 bfloat16 --json "$results/gpu-$gpus.jsonl"
    ;;
esac
