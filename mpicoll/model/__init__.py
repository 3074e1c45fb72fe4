"""From measurements of collectives to the parameters of a cost model, its predictions and rules.

``cells`` puts the repetitions of all launches together by what was measured; ``equations`` writes
their times as sums over critical paths (:mod:`mpicoll.simulate.critical_path`), ``fit`` solves
these, ``validate`` says how good the result is; ``choose`` makes rules of it, ``export`` writes
them for MPI libraries, and ``compare`` tells whether two versions differ.
"""
