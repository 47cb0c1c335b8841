"""Improve the model of an index from marks and labels: ``lookalike improve IDX``.

    from lookalike.improve import improve, roll_back

    report = improve("birds.idx")      # trains, measures before and after, installs the model if it is no worse
    roll_back("birds.idx")

The server starts it as a process and reads ``index.job_status``, which needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookalike.improve.evidence import NotEnoughMarks
    from lookalike.improve.job import improve, roll_back
    from lookalike.improve.report import Report

__all__ = ["NotEnoughMarks", "Report", "improve", "roll_back"]

_MODULES = {"NotEnoughMarks": "evidence", "Report": "report", "improve": "job", "roll_back": "job"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"lookalike.improve.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'lookalike.improve' has no attribute {name!r}")
