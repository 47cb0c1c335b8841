"""Figures of the study of class centres: spheres from two sides, the knob, the crowd, the embedding size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.report.theme import FAINT, INK, LINES, MARKERS, Style, figure, theme
from lookalike_studies.centres import sphere
from lookalike_studies.framework.plots import curve, powers_of_two

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lookalike_studies.centres.claims import Measurements
    from lookalike_studies.centres.sphere import Array
    from lookalike_studies.centres.study import Centres

COLUMNS = 4
TILT = 35.0  # degrees between the first centre and the eye, so that no pole lies on the rim
NEIGHBOURS = 1.02  # times the smallest distance: pairs that are joined by a line
AT_START = "at the start"
STYLES = {
    AT_START: Style("#8a8a8a", "x", line=":"),
    sphere.NEAREST: Style("#0072B2", "o", line="-"),
    "E_2": Style("#56B4E9", "^", line="-."),
    "E_1": Style("#009E73", "s", line="--"),
    "E_0": Style("#8C6BB1", "v", line=":"),
    "UniformFace": Style("#CC79A7", "P", line="-."),
    sphere.CROWDING: Style("#E69F00", "D", line="-"),
    sphere.MEAN: Style("#1a1a1a", "X", line="--"),
    sphere.FARTHEST_PAIRS: Style("#F0E442", "<", line="-."),
    sphere.FARTHEST: Style("#D55E00", "*", line=":"),
}
SHADES = ("#1a1a1a", "#0072B2", "#D55E00", "#009E73", "#8a8a8a")  # by number of centres
KNOB_PANELS = {
    "least_angle": "smallest angle, degrees",
    "nearest_angle": "mean angle to the nearest, degrees",
    "mean_distance": "mean distance of all pairs",
}


def draw_spheres(arrangements: dict[str, Array]) -> Figure:
    """Draw centres (N, 3) by name: the half of the sphere that faces the eye, and the half behind it."""
    rows = -(-len(arrangements) // COLUMNS)
    with theme():
        drawn, axes = figure(3.6 * COLUMNS, 2.55 * rows, rows, COLUMNS)
        for panel in axes:
            panel.set_axis_off()
        for panel, (name, points) in zip(axes, arrangements.items(), strict=False):
            _two_sides(panel, points)
            measured = sphere.measure(points)
            text = f"smallest angle {measured.least_angle:.1f}°, {measured.places} places"
            panel.set_title(f"{name}\n{text}", fontsize=10)
        drawn.supxlabel(
            "left of each pair: the side that faces the eye, right: the far side, seen from behind", fontsize=10
        )
    return drawn


def _two_sides(panel: Any, points: Array) -> None:
    turned = _turned(points)
    distances = np.linalg.norm(turned[:, None] - turned, axis=-1)
    smallest = sphere.pairwise_distances(turned).min()
    pairs = np.empty((0, 2), np.int64)
    if smallest > np.radians(sphere.SAME_PLACE):
        pairs = np.argwhere(np.triu(distances <= NEIGHBOURS * smallest, 1))
    turn = np.linspace(0, 2 * np.pi, 100)
    for offset, side in ((-1.1, 1.0), (1.1, -1.0)):  # seen from behind, left and right are exchanged
        panel.fill(offset + np.cos(turn), np.sin(turn), facecolor="#f4f4f4", edgecolor=INK, linewidth=0.8)
        for height in (-0.5, 0, 0.5):
            half = np.sqrt(1 - height**2)
            panel.plot([offset - half, offset + half], [height, height], color=FAINT, linewidth=0.6)
        for first, second in pairs:
            arc = _arc(turned[first], turned[second])
            arc[side * arc[:, 2] < -1e-9] = np.nan
            panel.plot(offset + side * arc[:, 0], arc[:, 1], color="#7a7a7a", linewidth=0.9)
        for place, count in sphere.places(turned):
            if side * place[2] >= -1e-9:
                x, y, size = offset + side * place[0], place[1], 6
                if count > 1:
                    size = 11
                    panel.text(x, y, str(count), color="white", ha="center", va="center", fontsize=8, weight="bold")
                panel.plot(x, y, "o", color="#0072B2", markersize=size, markeredgecolor=INK)
    panel.set(xlim=(-2.2, 2.2), ylim=(-1.1, 1.1), aspect="equal")


def _turned(points: Array) -> Array:
    """Turn the first centre to TILT degrees above the middle of the front (third axis), its neighbour to the right."""
    first = points[0]
    others = np.linalg.norm(points - first, axis=1)
    others[others < np.radians(sphere.SAME_PLACE)] = np.inf
    towards = points[-1]
    if np.isfinite(others).any():
        towards = points[int(others.argmin())]
    across = towards - first * (first @ towards)
    if np.linalg.norm(across) < 1e-6:  # the pole opposite: any direction will do
        across = np.eye(3)[int(np.abs(first).argmin())]
        across = across - first * (first @ across)
    across = across / np.linalg.norm(across)
    frame = np.stack((across, np.cross(first, across), first))
    tilt = np.radians(TILT)
    turn = np.array([[1, 0, 0], [0, np.cos(tilt), np.sin(tilt)], [0, -np.sin(tilt), np.cos(tilt)]])
    return np.asarray(points @ frame.T @ turn.T)


def _arc(first: Array, second: Array) -> Array:
    share = np.linspace(0, 1, 40)[:, None]
    line = (1 - share) * first + share * second
    return np.asarray(line / np.linalg.norm(line, axis=1, keepdims=True))


def draw_knobs(measured: Measurements, settings: Centres) -> Figure:
    """Draw smallest angle, angle to the nearest, and mean distance over the knob, for every number of centres."""
    knobs = sorted({-2.0, -1.0, 0.0, 1.0, *settings.knobs})
    names = [sphere.NEAREST, *map(sphere.knob_name, knobs), sphere.FARTHEST]
    labels = ["-∞\nnearest", *map("{:g}".format, knobs), "∞\nfarthest"]
    with theme():
        drawn, axes = figure(12, 4.6, 1, 3)
        for panel, (field, title) in zip(axes, KNOB_PANELS.items(), strict=True):
            for number, (count, runs) in enumerate(measured.items()):
                means = []
                for name in names:
                    means.append(np.mean([getattr(arrangement, field) for arrangement in runs[name]]))
                style = Style(SHADES[number], MARKERS[number], line=LINES[number % len(LINES)])
                panel.plot(means, label=f"{count} centres", **curve(style))
                if field == "least_angle":
                    panel.axhline(sphere.BEST_KNOWN[count][0], color=style.colour, linewidth=0.7, alpha=0.6)
            panel.set(xlabel="knob of the power mean of the distances", ylabel=title)
            panel.set_xticks(range(len(names)), labels, fontsize=8)
            panel.set_ylim(0, 1.06 * panel.get_ylim()[1])
        axes[0].set_title("thin lines: the largest possible", fontsize=10)
        axes[2].legend(loc="lower left")
    return drawn


def draw_crowd(angles: dict[str, Array], settings: Centres) -> Figure:
    """Draw the smallest angle (memories, seeds, steps + 1) of each regulariser by step, a panel for each memory."""
    best = None
    top = max(by_step.max() for by_step in angles.values())
    if settings.crowd in sphere.BEST_KNOWN:
        best = top = sphere.BEST_KNOWN[settings.crowd][0]
    with theme():
        drawn, axes = figure(2 + 5.2 * len(settings.memories), 4.6, 1, len(settings.memories))
        for number, (panel, memory) in enumerate(zip(axes, settings.memories, strict=True)):
            for name, by_step in angles.items():
                every = max(1, by_step.shape[-1] // 12)
                panel.plot(by_step[number].mean(0), markevery=every, label=name, **curve(STYLES[name]))
            if best is not None:
                panel.axhline(best, color=INK, linewidth=0.8)
                panel.text(0, best, " the largest possible", va="bottom", fontsize=9)
            panel.set(xlabel="steps", ylabel="smallest angle, degrees (mean over seeds)", ylim=(-1, 1.12 * top))
            panel.set_title(f"second beta of Adam {memory:g}")
        drawn.suptitle(f"{settings.crowd} centres that begin within {settings.crowd_degrees:g}° of a pole", fontsize=12)
        drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    return drawn


def draw_sizes(angles: dict[str, list[float]], settings: Centres) -> Figure:
    """Draw the smallest angle by embedding size."""
    most = sphere.simplex_angle(settings.classes)
    with theme():
        drawn, (panel,) = figure(8, 4.6)
        for name, by_size in angles.items():
            shape = curve(STYLES[name])
            if name == AT_START:  # a broad band with large crosses, as others may never leave it
                shape |= {"linestyle": "-", "linewidth": 6, "alpha": 0.45, "markersize": 11, "markeredgewidth": 2}
            panel.plot(settings.sizes, by_size, label=name, **shape)
        panel.axhline(most, color=INK, linewidth=0.8)
        panel.text(settings.sizes[0], most, f"the most there can be, {most:.2f}°", va="bottom", fontsize=9)
        powers_of_two(panel, settings.sizes)
        panel.set_ylim(0, 1.1 * most)
        panel.set(xlabel="embedding size, dimensions", ylabel="smallest angle, degrees")
        panel.set_title(f"{settings.classes} class centres")
        panel.legend(loc="lower right")
    return drawn
