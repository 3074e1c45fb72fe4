"""Lines of a profile, for tests."""

from mpicoll.profile.merged import Line, Part


def line(**more):
    """Two calls of one rank of a run of four seconds: one second, a quarter of it waiting."""
    about = {"method": "Allreduce", "collective": "allreduce", "file": "a.py", "line": 1}
    about |= {"function": "f", "communicator": "world", "ranks": 4, "size": 64, "root": -1}
    about |= {"op": "max", "type": "float64", "algorithm": "native", "inter": False, **more}
    nbytes = 64 if about["size"] < 0 else about["size"]
    return Line(**about, parts={0: Part(2, 2 * nbytes, 1.0, 0.25)}, total=4.0)
