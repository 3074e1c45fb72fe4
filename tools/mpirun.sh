#!/bin/sh
# The mpirun of this environment, written by `make setup`: sets defaults, then runs
#     @MPIRUN@
#
# On a machine of one's own there are often more ranks than cores, and in a container the user is root.
# Open MPI refuses both, binds each job's first rank to the first core, and spins while it waits, which
# costs a scheduler tick (4 ms) a message when the peer needs that core. MPICH needs nothing of this and
# reads none of these variables.
#
# A variable that is set already is left as it is. Inside a batch job nothing is set: there the scheduler
# has dealt out whole cores, and binding and spinning are right. MPICOLL_SHARE_CORES=1 sets the defaults
# there too (the tests need them, with up to 8 ranks).
default() { eval "export $1=\"\${$1-$2}\""; }

batch="${SLURM_JOB_ID-}${PBS_JOBID-}${LSB_JOBID-}${FLUX_JOB_ID-}${PJM_JOBID-}${COBALT_JOBID-}${PE_HOSTFILE-}"
if [ -z "$batch" ] || [ "${MPICOLL_SHARE_CORES-0}" = 1 ]; then
    default OMPI_ALLOW_RUN_AS_ROOT 1
    default OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
    default OMPI_MCA_mpi_yield_when_idle 1
    # Open MPI 5 ...
    default PRTE_MCA_rmaps_default_mapping_policy :oversubscribe
    default PRTE_MCA_hwloc_default_binding_policy none
    # ... and 4, each of which ignores the other's.
    default OMPI_MCA_rmaps_base_oversubscribe 1
    default OMPI_MCA_hwloc_base_binding_policy none
fi
exec "@MPIRUN@" "$@"
