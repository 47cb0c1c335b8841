"""Plots of a run: metrics and loss by step, the chance constraint of CCP by problem, reliability of the calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lookalike._util.files import replacing
from lookalike.report.theme import FAINT, INK, as_bytes, figure, theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (4.6, 3.1)  # inches; fits a phone
METRICS = {"MAP@R": ("#0072B2", "o"), "P@1": ("#D55E00", "s")}  # colour and marker
CONSTRAINT = {"violation": ("violated pairs", "#0072B2", "o"), "epsilon": ("epsilon, worst proxy", "#D55E00", "s")}
Rows = list[dict[str, str]]


def plot_metrics(rows: Rows, backbone: dict[str, float], best_step: int) -> Figure | None:
    """Draw the learning curve.

    Args:
        rows: Of metrics.csv.
        backbone: Metrics of the backbone alone, drawn as lines; may be empty.
        best_step: Marked by a vertical line.

    Returns:
        The figure; None if nothing was measured.
    """
    points = {name: read_column(rows, name) for name in METRICS}
    if not any(steps for steps, _ in points.values()):
        return None
    with theme():
        drawn, (panel,) = figure(*SIZE)
        for name, (colour, marker) in METRICS.items():
            steps, values = points[name]
            panel.plot(steps, [100 * value for value in values], color=colour, marker=marker, markersize=4, label=name)
            if name in backbone:
                panel.axhline(100 * backbone[name], color=colour, linestyle=":", label=f"{name}, backbone alone")
        panel.axvline(best_step, color=FAINT, linewidth=1)
        panel.set(xlabel="training steps", ylabel="on held-out pictures, %")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
    return drawn


def plot_loss(rows: Rows) -> Figure | None:
    """Draw the loss; None if it was not logged."""
    steps, values = read_column(rows, "loss")
    if not steps:
        return None
    with theme():
        drawn, (panel,) = figure(*SIZE)
        panel.plot(steps, values, color=INK, marker="." if len(steps) == 1 else "")
        panel.set(xlabel="training steps", ylabel="loss on training batches")
        panel.xaxis.get_major_locator().set_params(integer=True)
    return drawn


def plot_constraint(problems: list[dict[str, float]]) -> Figure | None:
    """Draw the chance constraint at the solution of every problem of CCP, with its Markov bounds.

    Args:
        problems: Of figures.json.

    Returns:
        The figure; None if nothing was measured.
    """
    measured = [row for row in problems if "violation" in row]
    if not measured:
        return None
    numbers = [row["problem"] for row in measured]
    with theme():
        drawn, (panel,) = figure(*SIZE)
        for name, (label, colour, marker) in CONSTRAINT.items():
            for key, line, what in ((name, "-", label), (f"{name} bound", ":", f"{label}: Markov bound")):
                percent = [100 * row[key] for row in measured]
                panel.plot(numbers, percent, line, color=colour, marker=marker, markersize=4, label=what)
        panel.set(xlabel="problem", ylabel="% of the pairs")
        panel.set_ylim(bottom=0)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
    return drawn


def read_column(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a column, where it has one."""
    steps, values = [], []
    for row in rows:
        if row.get(name):
            steps.append(int(row["step"]))
            values.append(float(row[name]))
    return steps, values


def write_reliability(path: Path, rows: list[list[float]], error: float) -> None:
    """Draw a reliability plot into a file.

    Args:
        path: File to write; its suffix chooses PNG or SVG.
        rows: As for ``draw_reliability``.
        error: The calibration error, for the title.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ValueError(f"a plot is a .png or .svg, got {path.name}")
    content = as_bytes(draw_reliability(rows, error), kind)
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


def draw_reliability(rows: list[list[float]], error: float) -> Figure:
    """Draw a reliability plot.

    Args:
        rows: (predicted, observed, share of the pairs), as ``lookalike.retrieval.calibration.reliability`` gives them.
        error: The calibration error, for the title.
    """
    with theme():
        drawn, (panel,) = figure(4.5, 4.2)
        predicted = [100 * row[0] for row in rows]
        observed = [100 * row[1] for row in rows]
        panel.plot([0, 100], [0, 100], color=FAINT, linestyle="--", label="exact")
        panel.plot(predicted, observed, color="#0072B2", marker="o", label="a tenth of the pairs each")
        panel.set(xlim=(0, 100), ylim=(0, 100), xlabel="predicted: the same, %", ylabel="observed: the same, %")
        panel.set_title(f"calibration error {100 * error:.1f} %")
        panel.legend()
    return drawn
