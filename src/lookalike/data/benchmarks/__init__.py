"""The public benchmarks, read from the files that their authors offer. Nothing is ever downloaded."""

from lookalike.data.benchmarks.inspection import Report, check
from lookalike.data.benchmarks.layout import Benchmark, Part
from lookalike.data.benchmarks.registry import describe, get, hint_below, lookup, names, read_benchmark, recognise

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
