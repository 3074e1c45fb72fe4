"""Whether ranks can outlive each other in a launch."""

import pytest
from mpi4py import MPI

from mpicoll.runtime import alarm

OPEN_MPI = "Open MPI v5" in MPI.Get_library_version()


@pytest.mark.skipif(not OPEN_MPI, reason="another library")
def test_a_launch_says_whether_it_goes_on():
    assert alarm.obstacle({"OMPI_MCA_mpi_ft_enable": "1"}) == ""
    for environ in ({}, {"OMPI_MCA_mpi_ft_enable": "0"}, {"OMPI_MCA_mpi_ft_enable": "false"}):
        assert "start it by mpirun --with-ft ulfm" in alarm.obstacle(environ)


@pytest.mark.skipif(OPEN_MPI, reason="it can go on")
def test_another_library_is_named():
    assert "ends all ranks when one dies: use Open MPI 5" in alarm.obstacle({})
