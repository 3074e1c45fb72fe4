#!/bin/bash
# Builds, tests and measures on a machine with GPUs, in one call, or a part of that:
#     tools/gpu.sh [RESULTS]           everything, into a folder; within 10 minutes on two GPUs
#     tools/gpu.sh build
#     tools/gpu.sh test N [ARGS]       the tests on N ranks; ARGS are pytest's
#     tools/gpu.sh jobs                the tests that start jobs of their own
#     tools/gpu.sh bench N [ARGS]      against NCCL; ARGS are those of benchmarks/gpu.py
#     tools/gpu.sh staged N [ARGS]     through the host, and training; of benchmarks/gpu_staged.py
# Ranks take the GPUs in turn. N may be larger than their number where the tests run.
#
# Everything is: the build (about 30 s); the tests with a rank a GPU (70 s), and, where there are fewer
# GPUs, those of memory that GPUs map with 3 and 5 ranks that share them (80 s each); those that start
# jobs (10 s); benchmarks/gpu_staged.py (60 s); and in what is left benchmarks/gpu.py (250 s for all
# collectives of float32 and the all-reduces of half precision, which come first; as much again for half
# precision of the others). What fails or is too long is said so, the next part runs, and the exit status
# is 1. All together ends after GPU_TOTAL seconds (585), a part that is called by itself after
# GPU_SECONDS (300). Results are lines of JSON, on the disk one by one, so what is interrupted has what
# it had finished.
#
# GPU_COMMIT names the commit in the results where git cannot be asked.
#
# NVLink multicast stays off, for the ranks too: where GPUs are shared out among virtual machines, a
# program that uses it can put them out of service for everyone.
set -euo pipefail
cd "$(dirname "$0")/.."
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
seconds=${GPU_SECONDS:-300}
commit=()
[[ -z ${GPU_COMMIT-} ]] || commit=(--commit "$GPU_COMMIT")

ranks() {
    local n=$1
    shift
    timeout -k 5 "$seconds" mpirun -n "$n" --oversubscribe --bind-to none \
        -x NCCL_NVLS_ENABLE -x TORCH_SYMM_MEM_DISABLE_MULTICAST -x NVSHMEM_DISABLE_NVLS \
        -x PYTHONPATH -x PYTHONUNBUFFERED "$@"
}

build() { timeout -k 5 "$seconds" python3 setup.py -q build_ext --inplace -j 4; }

tests() {
    local n=$1
    shift
    ranks "$n" python3 -m pytest -q -x -p no:cacheprovider --timeout 120 --with-mpi tests/gpu "$@"
}

# Those that start jobs of their own.
jobs_of_tests() {
    timeout -k 5 "$seconds" python3 -m pytest -q -p no:cacheprovider --timeout 120 \
        tests/gpu/test_jobs_on_gpus.py
}

bench() {
    local n=$1
    shift
    ranks "$n" python3 benchmarks/gpu.py "${commit[@]}" --seconds $((seconds > 20 ? seconds - 20 : 1)) "$@"
}

staged() {
    local n=$1
    shift
    ranks "$n" python3 benchmarks/gpu_staged.py "${commit[@]}" "$@"
}

failed=0
end=$((SECONDS + ${GPU_TOTAL:-585}))

# part LIMIT COMMAND...: one of everything, within its time and that of all.
part() {
    local began=$SECONDS status=0
    seconds=$((end - SECONDS < $1 ? end - SECONDS : $1))
    shift
    if ((seconds < 5)); then
        echo "gpu.sh: $*: no time is left"
        failed=1
        return
    fi
    "$@" || status=$?
    ((status == 0)) || failed=1
    echo "gpu.sh: $*: exit status $status after $((SECONDS - began)) s"
}

everything() {
    local results=$1 gpus n
    gpus=$(python3 -c 'import cupy; print(cupy.cuda.runtime.getDeviceCount())')
    mkdir -p "$results"
    part 120 build
    part 120 tests "$gpus"
    for n in 3 5; do
        ((n <= gpus)) || part 120 tests "$n" -k test_ipc
    done
    part 60 jobs_of_tests
    part 90 staged "$gpus" --json "$results/gpu-$gpus-staged.jsonl"
    part 600 bench "$gpus" --torch --dtypes float32 float16 bfloat16 --json "$results/gpu-$gpus.jsonl"
    return $failed
}

case "${1-}" in
build) build ;;
test) tests "${@:2}" ;;
jobs) jobs_of_tests ;;
bench) bench "${@:2}" ;;
staged) staged "${@:2}" ;;
*) everything "${1:-results/gpu}" ;;
esac
