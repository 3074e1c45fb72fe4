"""The facts of a run: what is kept, and above all what is not."""

import pytest

from mpicoll.base import processors
from mpicoll.bench import environment
from mpicoll.bench.environment import Host


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
            "OMPI_MCA_initial_wdir": "/home/me",
            "MPICOLL_TUNING": "/home/me/tuning.json",
        }
    )
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "0",
        "MPICOLL_TUNING": ".../tuning.json",
        "OMPI_MCA_btl": "^ofi",
        "OMP_NUM_THREADS": "2",
        "UCX_TLS": "tcp",
    }


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("/opt/mpi/lib:/home/me/lib", ".../lib:.../lib"),
        ("file:///home/me/a.json", "file:.../a.json"),
        ("key=~/a/b", "key=.../b"),
        ("../a/b", ".../b"),
        ("10.0.0.0/8,192.168.0.0/16", "10.0.0.0/8,192.168.0.0/16"),
        ("mlx5_0:1", "mlx5_0:1"),
    ],
)
def test_folders_are_nobodys_business(value, kept):
    assert environment.without_folders(value) == kept


def test_slurm_is_told_by_its_identity_only():
    assert environment.slurm({"SLURM_JOB_ID": "7", "SLURM_JWT": "s3cret"}) == {"SLURM_JOB_ID": "7"}


def test_oversubscription_is_judged_host_by_host():
    assert environment.oversubscribed([Host("a", (0, 1)), Host("a", (0, 1))]) == ()
    assert environment.oversubscribed([Host("a", (0, 1))] * 3) == ("a",)
    # Bound to one core each: enough cores only if they are different ones.
    assert environment.oversubscribed([Host("a", (0,)), Host("a", (1,))]) == ()
    assert environment.oversubscribed([Host("a", (0,)), Host("a", (0,)), Host("b", (0,))]) == ("a",)


def test_crowded_hosts_are_named_for_the_first_ranks():
    facts = {
        "hosts": {"a": {"ranks": [0, 1, 3]}, "b": {"ranks": [2]}},
        "binding": [[0, 1], [0, 1], [0], [0, 1]],
    }
    assert environment.crowded(facts, 3) == []
    assert environment.crowded(facts, 4) == [("a", 3, 2)]


def test_the_last_level_cache_is_counted_once_for_those_who_share_it(tmp_path):
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3")):
        for index, (level, size, of) in enumerate([(1, "32K", str(cpu)), (3, "8192K", shared)]):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "size").write_text(f"{size}\n")
            (folder / "shared_cpu_list").write_text(f"{of}\n")
    assert environment.last_level_cache(tmp_path) == 16 << 20
    assert environment.last_level_cache(tmp_path / "none") is None


def test_the_clock_is_described():
    clock = environment.clock()
    assert clock["name"].startswith("perf_counter")
    assert 0 < clock["resolution"] < 1e-3
    assert clock["cost"] > 0


def test_this_process_has_cores_and_a_processor():
    assert processors.cores()
    assert processors.model_name()
