"""Times as they are written: ``1.5us``, ``80ps``, or seconds without a unit."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_TIME = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(s|ms|us|ns|ps|fs)?", re.IGNORECASE | re.ASCII)
_EXPONENTS = {"s": 0, "ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15}

#: Attoseconds in a second: the unit in which times of the model are exact whole numbers.
ATTOSECONDS = 10**18


def attoseconds(text: str) -> int:
    """A time such as ``1e-6``, ``1.5us`` or ``80ps`` (seconds if no unit), in attoseconds.

    Raises:
        ValueError: if the text is no time.
    """
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise InvalidOperation
        unit = (match[2] or "s").lower()
        return int(Decimal(match[1]).scaleb(18 - _EXPONENTS[unit]).to_integral_value())
    except (InvalidOperation, OverflowError):
        raise ValueError(
            f"{text!r} is not a time; write seconds or a number with a unit, such as 1e-6, 1.5us "
            "or 80ps"
        ) from None
