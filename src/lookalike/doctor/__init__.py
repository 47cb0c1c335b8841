"""Data doctor: finds duplicates, doubtful labels, outliers and other faults in labelled pictures."""

from lookalike.doctor.examine import Examination, Finding, Kind, examine
from lookalike.doctor.fixes import (
    Corrected,
    Fix,
    apply_fixes,
    read_fixes,
    suggested_fixes,
    write_corrected,
    write_findings,
)

__all__ = [
    "Corrected",
    "Examination",
    "Finding",
    "Fix",
    "Kind",
    "apply_fixes",
    "examine",
    "read_fixes",
    "suggested_fixes",
    "write_corrected",
    "write_findings",
]
