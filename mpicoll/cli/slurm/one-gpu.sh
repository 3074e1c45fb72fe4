#!/bin/bash
# one-gpu.sh COMMAND...   Run a command where the node has a GPU for each rank of it.
#
# Each rank sees all of them: a GPU reads another one's memory only where both are visible to the process.
# mpicoll takes the one of the rank's number on the node.
number=${OMPI_COMM_WORLD_LOCAL_RANK-${MPI_LOCALRANKID-${MV2_COMM_WORLD_LOCAL_RANK-${SLURM_LOCALID-}}}}
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES-}"
if [[ -z $number ]] || ((number >= ${#gpus[@]})); then
    echo "mpicoll job: rank ${number:-?} of $(hostname) has no GPU of CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}:" \
        'start as many ranks on a node as it has GPUs (--gpus-per-node)' >&2
    exit 2
fi
# Of the parts of a GPU that is divided a process sees the first one alone.
[[ ${gpus[number]} != MIG-* ]] || export CUDA_VISIBLE_DEVICES=${gpus[number]}
exec "$@"
