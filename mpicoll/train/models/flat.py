"""Named arrays as views of one vector, so that one all-reduce or one update serves them all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import DTypeLike

from mpicoll.base.arrays import Array, library_of, put

Parameters = Mapping[str, Array]


class Flat:
    """Named arrays laid out one after the other in one vector.

    Args:
        arrays: The arrays; their values are copied.
        dtype: Type of the vector, None for that of the arrays.
        out: The vector to lay them out in, None for a new one; of the right length and type.

    Attributes:
        vector: Shape (elements,), all values.
        views: Name and view of each array.
        spans: Name and (start, end) of each array in `vector`.

    Raises:
        TypeError: The arrays are not all of one floating type.
        ValueError: There are none, and no vector.
    """

    def __init__(
        self,
        arrays: Parameters,
        dtype: DTypeLike | None = None,
        out: Array | None = None,
    ) -> None:
        if not arrays and out is None:
            raise ValueError("the model has no parameters: return at least one array")
        dtypes = {name: array.dtype for name, array in arrays.items()}
        first = next(iter(dtypes.values()), None)
        for name, other in dtypes.items():
            if other != first or other.kind != "f":
                raise TypeError(
                    f"parameter {name} is {other}, the first is {first}: "
                    "give all parameters the same floating type"
                )
        length = sum(array.size for array in arrays.values())
        if out is None:
            library = library_of(next(iter(arrays.values())))
            out = library.zeros(length, first if dtype is None else dtype)
        self.vector: Array = out
        self.views: dict[str, Array] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        start = 0
        for name, array in arrays.items():
            self.spans[name] = start, start + array.size
            self.views[name] = self.vector[start : start + array.size].reshape(array.shape)
            start += array.size
        self.assign(arrays)

    def assign(self, arrays: Parameters) -> None:
        """Copy values of arrays with the same names and shapes.

        Raises:
            ValueError: Names or shapes differ.
        """
        require_names(arrays, self.views)
        for name, array in arrays.items():
            put(self.view(name, array), array)

    def view(self, name: str, array: Array) -> Array:
        """The view that an array of this name belongs into.

        Raises:
            ValueError: There is none of this name, or its shape is another.
        """
        if name not in self.views:
            raise ValueError(
                f"array {name} is of no parameter: parameters are {', '.join(self.views)}"
            )
        view = self.views[name]
        if array.shape != view.shape:
            raise ValueError(
                f"array {name} has shape {array.shape}, its parameter {view.shape}: "
                "return gradients in the shapes of the parameters"
            )
        return view


def require_names(arrays: Collection[str], parameters: Collection[str]) -> None:
    """Check that there is one array for each parameter.

    Raises:
        ValueError: Names are missing or too many.
    """
    if set(arrays) != set(parameters):
        raise ValueError(
            f"arrays are {', '.join(arrays)}, parameters are {', '.join(parameters)}: "
            "return one gradient for each parameter"
        )


def described(arrays: Mapping[str, Any], what: str = "parameter") -> dict[str, str]:
    """What has to be the same of arrays, or of their forms, on all ranks, by what it is of."""
    return {
        f"{what} {name}": f"{array.dtype} of shape {array.shape}" for name, array in arrays.items()
    }
