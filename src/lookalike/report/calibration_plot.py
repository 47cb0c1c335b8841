"""The reliability plot of a calibration: predicted against observed shares of pairs that are the same."""

from pathlib import Path
from typing import TYPE_CHECKING

from lookalike._util.files import replacing
from lookalike.report import theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    content = theme.as_bytes(draw_reliability(rows, error), kind)
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


def draw_reliability(rows: list[list[float]], error: float) -> "Figure":
    """Draw a reliability plot.

    Args:
        rows: (predicted, observed, share of the pairs), as ``lookalike.retrieval.calibration.reliability`` gives them.
        error: The calibration error, for the title.
    """
    with theme.theme():
        drawn, (panel,) = theme.figure(4.5, 4.2)
        predicted = [100 * row[0] for row in rows]
        observed = [100 * row[1] for row in rows]
        panel.plot([0, 100], [0, 100], color=theme.FAINT, linestyle="--", label="exact")
        panel.plot(predicted, observed, color="#0072B2", marker="o", label="a tenth of the pairs each")
        panel.set(xlim=(0, 100), ylim=(0, 100), xlabel="predicted: the same, %", ylabel="observed: the same, %")
        panel.set_title(f"calibration error {100 * error:.1f} %")
        panel.legend()
    return drawn
