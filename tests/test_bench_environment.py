"""The facts of a run: what is kept, and above all what is not."""

from mpicoll.bench import environment
from mpicoll.bench.environment import Place


def test_variables_that_matter_are_kept_without_secrets():
    kept = environment.variables(
        {
            "OMPI_MCA_btl": "^ofi",
            "UCX_TLS": "tcp",
            "OMP_NUM_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": "0",
            "MPICOLL_API_TOKEN": "s3cret",
            "OMPI_MCA_auth_key": "s3cret",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
            "HOME": "/home/me",
            "PMIX_SERVER_URI41": "s3cret",
        }
    )
    assert sorted(kept) == ["CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl", "OMP_NUM_THREADS", "UCX_TLS"]


def test_slurm_is_told_by_its_identity_only():
    assert environment.slurm({"SLURM_JOB_ID": "7", "SLURM_JWT": "s3cret"}) == {"SLURM_JOB_ID": "7"}


def test_oversubscription_is_judged_host_by_host():
    assert environment.oversubscribed([Place("a", (0, 1)), Place("a", (0, 1))]) == ()
    assert environment.oversubscribed([Place("a", (0, 1))] * 3) == ("a",)
    # Bound to one core each: enough cores only if they are different ones.
    assert environment.oversubscribed([Place("a", (0,)), Place("a", (1,))]) == ()
    assert environment.oversubscribed([Place("a", (0,)), Place("a", (0,)), Place("b", (0,))]) == (
        "a",
    )


def test_the_clock_is_described():
    clock = environment.clock()
    assert clock["name"].startswith("perf_counter")
    assert 0 < clock["resolution"] < 1e-3
    assert clock["cost"] > 0


def test_this_process_has_cores_and_a_processor():
    assert environment.cores()
    assert environment.processor()
