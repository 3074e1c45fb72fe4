"""Times as they are written: ``1.5us``, ``80ps``, or seconds without a unit."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation, Overflow

_TIME = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(s|ms|us|ns|ps|fs)?", re.IGNORECASE | re.ASCII)
_EXPONENTS = {"s": 0, "ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15}

#: Attoseconds in a second: the unit in which times of the model are exact whole numbers.
ATTOSECONDS = 10**18
#: Seconds that a time has at most.
_LONGEST = 10**6


def attoseconds(text: str) -> int:
    """A time such as ``1e-6``, ``1.5us`` or ``80ps`` (seconds if no unit), in attoseconds.

    Raises:
        ValueError: if the text is no time, or longer than 1e6 seconds.
    """
    match = _TIME.fullmatch(text.strip())
    try:
        if match is None:
            raise InvalidOperation
        unit = (match[2] or "s").lower()
        found = Decimal(match[1]).scaleb(18 - _EXPONENTS[unit])
    except Overflow:
        found = Decimal("Infinity")
    except InvalidOperation:
        raise ValueError(
            f"{text!r} is not a time; write seconds or a number with a unit, such as 1e-6, 1.5us "
            "or 80ps"
        ) from None
    if found > _LONGEST * ATTOSECONDS:
        raise ValueError(f"{text!r} is longer than {_LONGEST:,} seconds; write a shorter time")
    return int(found.to_integral_value())
