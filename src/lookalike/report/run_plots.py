"""Plots of a run: metrics on held-out pictures and the loss by step, and the chance constraint of CCP by problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.report.theme import FAINT, INK, figure, theme

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
