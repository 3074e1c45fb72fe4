"""Collectives between the GPUs of one node, through memory that each of them maps of the others.

The interface for :mod:`mpicoll.cuda.group` (written first; the body follows):

    peers, why = Peers.open(private, device, seconds)
        Collective over ``private`` (a communicator of ours).  ``device``: ordinal of this rank's GPU.
        ``seconds``: longest device-side wait.  (None, reason) on all ranks where any says no: another
        node, no peer access, the same GPU twice, IPC forbidden, no compiled ``_cuda``.
    peers.supports(collective, op, dtype, nbytes) -> bool
        Names as in ``mpicoll list`` (allreduce reduce bcast allgather reduce_scatter alltoall gather
        scatter scan exscan), equal blocks only; op: name as in ops.OPERATORS or None; nbytes as
        Call.nbytes.  The same on all ranks.
    peers.run(collective, send, recv, op, root, stream) -> None
        Enqueues on ``stream`` (object with .ptr, which is kept alive, or an int handle) and returns.
        send/recv: objects with .ptr (int), .nbytes, .dtype; send None: in place (MPI.IN_PLACE, or
        bcast, whose buffer is recv); recv None: on ranks that receive nothing (reduce, gather, and
        scatter has send None where not root; in place at the root of scatter: recv None).
        Raises the first error of a bounded wait; never waits for the GPU.
    peers.serve(collective, sendbuf, recvbuf, op, root) -> bool
        The compiled short way, for Blocking's methods: arguments as the caller gave them (MPI.IN_PLACE,
        cupy.ndarray, MPI.Op); False, at once and without side effects, if they have to go the long way.
        Only for plain contiguous cupy.ndarray on the current device, on CuPy's current stream.
    peers.plan(collective, send, recv, op, root) -> Plan
        Collective (at ..._init): exchanges addresses once; zero copy where the memory allows it.
        plan.start(stream); plan keeps the arrays alive; plan.close() is local.
    peers.check() raises if a device-side wait has expired or a peer has died; for Test and Wait.
    peers.failed: the error or None.
    peers.close(): local, at Free; no collective may be under way.
"""
