"""A measured point, and files of such."""

from mpicoll.bench.records import Point, Writer

POINT = Point(
    run="r",
    collective="allreduce",
    algorithm="ring",
    size=1024,
    count=256,
    type="float32",
    redop="sum",
    root=-1,
    ranks=4,
    batch=1,
    times=(3e-6, 1e-6, 2e-6),
    slowest=(0, 3, 1),
    first=1e-3,
    wrong=0,
    problem=None,
    stop="time",
    oversubscribed=False,
    parameters={"segments": 4},
)


def write(path, points, name="r", facts=None):
    with Writer(path) as writer:
        writer.run(name, facts or {"ranks": 4})
        for point in points:
            writer.point(point)
