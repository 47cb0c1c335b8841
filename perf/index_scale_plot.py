"""Plot the results of ``index_scale.py`` over the number of vectors, both axes logarithmic.

python perf/index_scale_plot.py scale.json scale.png
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

PANELS = {
    "build, CPU seconds": ("build", lambda step: step["cpu"]),
    "memory after opening, MB": ("use", lambda step: step["resident"] / 1e6),
    "search, CPU ms": ("use", lambda step: step["search"]["cpu"]),
    "restart, CPU seconds": ("use", lambda step: step["restart_cpu"]),
    "search, 1 % by metadata, CPU ms": ("use", lambda step: step["search, metadata"]["cpu"]),
    "add 1 % and search, CPU ms per row": (
        "use",
        lambda step: 1000 * (step["add 1 %"]["cpu"] + step["first search after it"]["cpu"]) / step["add 1 %"]["rows"],
    ),
}


def plot(report: dict[str, Any], file: Path) -> None:
    """Plot what was measured of every kind."""
    kinds: dict[str, None] = {}
    for steps in report.values():
        kinds.update(dict.fromkeys(name.removeprefix("use ") for name in steps if name.startswith("use ")))
    figure, axes = plt.subplots(2, 3, figsize=(11, 6))
    for axis, (title, (step, value)) in zip(axes.flat, PANELS.items(), strict=True):
        for kind in kinds:
            points = []
            for size, steps in report.items():
                measured = steps.get(f"{step} {kind}")
                if measured is not None and "error" not in measured:
                    points.append((int(size), value(measured)))
            if points:
                axis.plot(*zip(*sorted(points), strict=True), marker="o", label=kind)
        axis.set_title(title, fontsize=10)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.supxlabel("vectors (128-D)")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
