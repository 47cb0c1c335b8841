"""Public data sets, read from the files that their authors offer. Nothing is ever downloaded."""

from lookalike.data.datasets.inspection import Report, check
from lookalike.data.datasets.layout import DatasetSpec, SplitSize
from lookalike.data.datasets.registry import (
    describe,
    get,
    hint_below,
    lookup,
    names,
    read_dataset,
    recall_ranks,
    recognise,
)

__all__ = [
    "DatasetSpec",
    "Report",
    "SplitSize",
    "check",
    "describe",
    "get",
    "hint_below",
    "lookup",
    "names",
    "read_dataset",
    "recall_ranks",
    "recognise",
]
