# resumable.sh   Read by the batch scripts of jobs that go on where they were, after common.sh.
# shellcheck shell=bash disable=SC2153,SC2154

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
    finish "$@" --checkpoint "$run/checkpoints" --metrics "$run/metrics" --resume auto --json
}

# search RANKS COMMAND...: a search, likewise.
search() { finish "$@" --output "$run/search" --resume --json; }

# finish RANKS COMMAND...: what goes on where it was, until it is finished.
finish() {
    launcher "$1"
    shift
    outlive "$@"
    local status ranks='' interrupted=''
    trap 'interrupted=1; ask' USR1 TERM
    "${launch[@]}" "$@" >"$run/result.part" &
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
        say "it ended with an error: not queued again"
        end_chain
        exit "$status"
    else
        lost "$status"
    fi
}

# What there is to go on from: the last checkpoint; of a search how many epochs it has trained.
reached() {
    find "$run/checkpoints" -maxdepth 1 -name 'step-*' -printf 'checkpoint %f\n' 2>/dev/null | sort | tail -n 1
    [[ ! -e $run/search/trials.jsonl ]] || echo "epoch $(grep -c '"event":"epoch"' "$run/search/trials.jsonl")"
}

# lost STATUS: ranks ended and nobody said why, as where nodes are lost or taken away. Once more from
# there is enough: what ends there twice has a reason of its own.
lost() {
    local last
    last=$(reached)
    if [[ $last = "$(cat "$run/lost" 2>/dev/null || echo never)" ]]; then
        say "the ranks were lost twice after ${last:-checkpoint none} (exit status $1): not queued again"
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
