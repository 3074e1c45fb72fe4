"""The settings by which the launcher makes the eager limit as small as it can be are honoured."""

import launch
import pytest

#: Rank 0 says whether a message that nobody has asked for has left it, by the number of bytes.
SCRIPT = """
import time
for count in (0, 16, 1024):
    world.Barrier()
    if world.rank == 0:
        request = world.Isend(np.zeros(count, "u1"), 1, tag=1)
        end = time.monotonic() + limit
        while not request.Test() and time.monotonic() < end:
            time.sleep(0.001)
        print(count, "left" if not request else "waits")
        world.Send(b"", 1, tag=2)
        request.Wait()
    elif world.rank == 1:
        world.Recv(bytearray(), 0, tag=2)
        world.Recv(bytearray(count), 0, tag=1)
if world.rank == 0:
    print(MPI.get_vendor()[0])
"""


@pytest.mark.parametrize("smallest", [False, True], ids=["default", "smallest"])
def test_a_message_of_a_kibibyte_waits_at_the_smallest_eager_limit(job, smallest):
    environment = dict(launch.SMALLEST_EAGER) if smallest else {}
    limit = 0.3 if smallest else 20  # what waits does so for ever, what leaves may be slow to
    status, out, err = job(2, f"limit = {limit}\n{SCRIPT}", **environment)
    assert status == 0, err
    *lines, library = out.splitlines()
    if library not in ("Open MPI", "MPICH"):
        pytest.skip(f"no settings are known for {library}")
    assert lines[0] == "0 left"  # the empty message that ends the wait is eager
    assert lines[2] == ("1024 waits" if smallest else "1024 left")
