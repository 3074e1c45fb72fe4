# common.sh NAME   Read by the batch scripts, after the site's settings: how ranks start.
# shellcheck shell=bash disable=SC2153

say() { printf 'mpicoll job: %s\n' "$*" >&2; }
is_open_mpi() { [[ $(mpirun --version 2>&1) = *'Open MPI'* ]]; }

run=$SHARED/$1
export TMPDIR=$LOCAL
{ mkdir -p "$run" && prepare; } || exit
set -u
threads=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads MKL_NUM_THREADS=$threads
say "$SLURM_JOB_ID on $SLURM_JOB_NODELIST, started again ${SLURM_RESTART_COUNT:-0} times"

# launcher RANKS: the words that start so many ranks on each node, into the array `launch`.
launcher() {
    local each=$1 all=$((SLURM_JOB_NUM_NODES * $1))
    if [[ $LAUNCHER = srun ]]; then
        # srun does not take over the value of sbatch.
        export SRUN_CPUS_PER_TASK=$threads
        launch=(srun "--mpi=$SRUN_MPI" "--ntasks=$all" "--ntasks-per-node=$each")
        [[ $BIND = none ]] || launch+=("--cpu-bind=$BIND")
    elif is_open_mpi; then
        launch=(mpirun -n "$all" --map-by "ppr:$each:node:pe=$threads")
        [[ $BIND != none ]] || launch=(mpirun -n "$all" --map-by "ppr:$each:node" --bind-to none)
    else # MPICH and its kin
        launch=(mpirun -n "$all" -ppn "$each")
        [[ $BIND = none ]] || launch+=(-bind-to "core:$threads")
    fi
}

# sweep RANKS,... COMMAND...: one launch of a sweep, that of this task of the array. Tasks
# go through the numbers of ranks on a node, again and again, and each has a file of its own.
sweep() {
    local numbers task=${SLURM_ARRAY_TASK_ID:?is missing: submit a sweep with --array}
    IFS=, read -ra numbers <<<"$1"
    shift
    local each=${numbers[task % ${#numbers[@]}]} number=$((task / ${#numbers[@]}))
    launcher "$each"
    "${launch[@]}" "$@" --launch-id "$number" --resume \
        -J "$run/nodes$SLURM_JOB_NUM_NODES-ranks$each-launch$number.jsonl"
}
