#!/bin/bash
# one-gpu.sh COMMAND...   Run a command with one GPU of the node: that of the rank's number on the node.
#
# The job has all GPUs of the node, so that ranks reach each other's memory; the rank sees one.
number=${OMPI_COMM_WORLD_LOCAL_RANK-${MPI_LOCALRANKID-${MV2_COMM_WORLD_LOCAL_RANK-${SLURM_LOCALID-}}}}
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES-}"
if [[ -z $number ]] || ((number >= ${#gpus[@]})); then
    echo "mpicoll job: rank ${number:-?} of $(hostname) has no GPU of CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}:" \
        'start as many ranks on a node as it has GPUs (--gpus-per-node)' >&2
    exit 2
fi
export CUDA_VISIBLE_DEVICES=${gpus[number]}
exec "$@"
