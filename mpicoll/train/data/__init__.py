"""Data sets, and which samples each rank sees in each step."""

from mpicoll.train.data.datasets import (
    DATASETS,
    FASHION_MNIST,
    Array,
    Dataset,
    Inputs,
    from_arrays,
    is_path,
    load,
    load_digits,
    load_fashion_mnist,
    load_file,
    load_mnist5k,
    read_idx,
    read_inputs,
    stratified_split,
)

__all__ = [
    "DATASETS",
    "FASHION_MNIST",
    "Array",
    "Dataset",
    "Inputs",
    "from_arrays",
    "is_path",
    "load",
    "load_digits",
    "load_fashion_mnist",
    "load_file",
    "load_mnist5k",
    "read_idx",
    "read_inputs",
    "stratified_split",
]
