"""The public benchmarks, read from the files that their authors offer. Nothing is ever downloaded."""

from lookalike.data.datasets.inspection import Report, check
from lookalike.data.datasets.layout import Benchmark, Part
from lookalike.data.datasets.registry import describe, get, hint_below, lookup, names, read_benchmark, recognise

__all__ = [
    "Benchmark",
    "Part",
    "Report",
    "check",
    "describe",
    "get",
    "hint_below",
    "lookup",
    "names",
    "read_benchmark",
    "recognise",
]
