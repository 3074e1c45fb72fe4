"""Why one choice is faster than another: what their predicted times are made of, held together."""

from __future__ import annotations

from mpicoll.tuning.predict import CURVE, Prediction

#: Terms that are told.
MOST_TERMS = 3


def why(first: Prediction, second: Prediction) -> str:
    """Why one prediction is smaller than another, by the largest terms of the two; one sentence.

    Where one of them has no terms, the sentence says so.
    """
    unknown = [_unknown(each) for each in (first, second) if not each.parts]
    if unknown:
        return f"why {first.choice} comes before {second.choice} is not known: {unknown[0]}"
    other = dict(second.parts)
    terms = [(name, mine, other[name]) for name, mine in first.parts]
    terms.sort(key=lambda term: max(term[1:]), reverse=True)
    told = ", ".join(
        f"{name} {_us(mine)} us against {_us(theirs)}"
        for name, mine, theirs in terms[:MOST_TERMS]
        if mine or theirs
    )
    return f"{first.choice} comes before {second.choice}: {told or 'nothing takes time'}"


def _unknown(prediction: Prediction) -> str:
    if prediction.source == CURVE:
        return f"{prediction.choice} is the MPI library's, whose schedule mpicoll does not know"
    return f"{prediction.choice} has too many messages to tell what its time is made of"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}"
