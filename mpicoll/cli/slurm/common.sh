# common.sh NAME   Read by the batch scripts, after the site's settings: how ranks start, what jobs do.
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

# outlive WORDS...: if they ask for it, the launcher goes on when a rank dies, or hangs for 5 s.
outlive() {
    [[ " $* " = *' --survive '* ]] || return 0
    if [[ $LAUNCHER = srun ]] || ! is_open_mpi; then
        say '--survive needs mpirun of Open MPI 5: set LAUNCHER=mpirun, or leave it out'
        exit 2
    fi
    launch=(mpirun --with-ft ulfm --mca mpi_ft_detector true --mca mpi_ft_detector_period 1
        --mca mpi_ft_detector_timeout 5 --mca mpi_ft_propagator_with_rbcast true "${launch[@]:1}")
}

# train RANKS COMMAND...: a training that goes on where it was, until it is finished.
train() {
    launcher "$1"
    shift
    outlive "$@"
    local status ranks='' interrupted=''
    trap 'interrupted=1; ask' USR1 TERM
    "${launch[@]}" "$@" --checkpoint "$run/checkpoints" --metrics "$run/metrics" --resume auto --json \
        >"$run/result.part" &
    ranks=$!
    while interrupted=; wait "$ranks"; status=$?; [[ $interrupted ]]; do :; done
    trap '' USR1 TERM
    if ((status == 0)) && [[ -s $run/result.part ]]; then
        mv "$run/result.part" "$run/result.json"
        rm -f "$run/lost"
        say 'finished'
        end_chain
    elif ! is_running; then
        exit 75 # cancelled, or taken back by SLURM, which queues it again by itself if it wants to
    elif ((status == 75)); then
        go_on
    elif ((status == 1 || status == 2)); then
        say "the training ended with an error: not queued again"
        end_chain
        exit "$status"
    else
        lost "$status"
    fi
}

# lost STATUS: ranks ended and no training said why, as where nodes are lost or taken away. Once more from
# the same checkpoint is enough: what ends there twice has a reason of its own.
lost() {
    local last
    last=$(find "$run/checkpoints" -maxdepth 1 -name 'step-*' -printf '%f\n' 2>/dev/null | sort | tail -n 1)
    if [[ $last = "$(cat "$run/lost" 2>/dev/null || echo never)" ]]; then
        say "the ranks were lost twice after checkpoint ${last:-none} (exit status $1): not queued again"
        rm "$run/lost"
        end_chain
        exit $(($1 ? $1 : 1))
    fi
    echo "$last" >"$run/lost"
    say "the ranks were lost (exit status $1)"
    go_on
}

# Ask the ranks for a checkpoint. Open MPI's mpirun hands on this signal; MPICH keeps it for itself, and
# srun's own steps are reached by SLURM.
ask() {
    if [[ ${launch[*]} = 'mpirun '*--map-by* ]]; then
        kill -USR1 "$ranks"
    else
        scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null
    fi
}

is_running() { [[ $(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID") = RUNNING ]]; }

# End the jobs that wait for this one by its name.
end_chain() { scancel --state=PENDING --name="$SLURM_JOB_NAME" --user="$SLURM_JOB_USER"; }

# Be queued again, or leave what is left to the next job of a chain.
go_on() {
    local restarts=${SLURM_RESTART_COUNT:-0}
    if ((restarts >= RESTARTS)); then
        say "started again $restarts times, and RESTARTS allows no more: not queued again"
        end_chain
    elif scontrol requeue "$SLURM_JOB_ID"; then
        say 'queued again'
        exit 0
    else
        say 'cannot be queued again: the next job of a chain, or the same command, goes on'
    fi
    exit 75
}
