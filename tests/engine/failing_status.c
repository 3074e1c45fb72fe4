/* Put before the MPI library: MPI_Testsome says that all is well, and a status that it is not. */
#include <mpi.h>

int MPI_Testsome(int count, MPI_Request *requests, int *found, int *indices, MPI_Status *statuses)
{
    int code = PMPI_Testsome(count, requests, found, indices, statuses);
    if (code == MPI_SUCCESS && *found > 0 && statuses != MPI_STATUSES_IGNORE)
        statuses[*found - 1].MPI_ERROR = MPI_ERR_OTHER;
    return code;
}
