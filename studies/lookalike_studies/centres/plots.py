"""Figures of the study of class centres: spheres from two sides, the knob, the crowd, the embedding size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.report.theme import FAINT, INK, LINES, MARKERS, Style, figure, theme
from lookalike_studies.centres import sphere as sphere

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


def draw_spheres(arrangements: dict[str, Array]) -> Figure:
    """Centres (N, 3) by name; each as the half of the sphere that faces the eye, and the half behind it."""
    rows = -(-len(arrangements) // COLUMNS)
    with theme():
        drawn, axes = figure(3.6 * COLUMNS, 2.55 * rows, rows, COLUMNS)
        for panel in axes:
            panel.set_axis_off()
        for panel, (name, points) in zip(axes, arrangements.items(), strict=False):
            _two_sides(panel, points)
            found = sphere.measure(points)
            panel.set_title(f"{name}\nsmallest angle {found.least_angle:.1f}°, {found.places} places", fontsize=10)
        drawn.supxlabel(
            "left of each pair: the side that faces the eye, right: the far side, seen from behind", fontsize=10
        )
    return drawn


def _two_sides(panel: Any, points: Array) -> None:
    turned = _turned(points)
    distances = np.linalg.norm(turned[:, None] - turned, axis=-1)
    pairs = np.argwhere(np.triu(distances <= NEIGHBOURS * np.sort(distances[np.triu_indices(len(points), 1)])[0], 1))
    spread_out = distances[np.triu_indices(len(points), 1)].min() > np.radians(sphere.SAME_PLACE)
    turn = np.linspace(0, 2 * np.pi, 100)
    for offset, side in ((-1.1, 1.0), (1.1, -1.0)):  # seen from behind, left and right are exchanged
        panel.fill(offset + np.cos(turn), np.sin(turn), facecolor="#f4f4f4", edgecolor=INK, linewidth=0.8)
        for height in (-0.5, 0, 0.5):
            half = np.sqrt(1 - height**2)
            panel.plot([offset - half, offset + half], [height, height], color=FAINT, linewidth=0.6)
        for first, second in pairs if spread_out else ():
            arc = _arc(turned[first], turned[second])
            arc[side * arc[:, 2] < -1e-9] = np.nan
            panel.plot(offset + side * arc[:, 0], arc[:, 1], color="#7a7a7a", linewidth=0.9)
        for place, count in sphere.places(turned):
            if side * place[2] >= -1e-9:
                x, y = offset + side * place[0], place[1]
                panel.plot(x, y, "o", color="#0072B2", markersize=6 if count == 1 else 11, markeredgecolor=INK)
                if count > 1:
                    panel.text(x, y, str(count), color="white", ha="center", va="center", fontsize=8, weight="bold")
    panel.set(xlim=(-2.2, 2.2), ylim=(-1.1, 1.1), aspect="equal")


def _turned(points: Array) -> Array:
    """The first centre TILT degrees above the middle of the side that faces the eye (third axis), its nearest right."""
    first = points[0]
    others = np.linalg.norm(points - first, axis=1)
    others[others < np.radians(sphere.SAME_PLACE)] = np.inf
    towards = points[int(others.argmin())] if np.isfinite(others).any() else points[-1]
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


def draw_knobs(found: Measurements, settings: Centres) -> Figure:
    """Smallest angle, angle to the nearest, and mean distance, over the knob, for every number of centres."""
    knobs = sorted({-2.0, -1.0, 0.0, 1.0, *settings.knobs})
    names = [sphere.NEAREST, *map(sphere.knob_name, knobs), sphere.FARTHEST]
    labels = ["-∞\nnearest", *(f"{knob:g}" for knob in knobs), "∞\nfarthest"]
    shades = ("#1a1a1a", "#0072B2", "#D55E00", "#009E73", "#8a8a8a")
    with theme():
        drawn, axes = figure(12, 4.6, 1, 3)
        kinds = (("least_angle", "smallest angle, degrees"), ("nearest_angle", "mean angle to the nearest, degrees"))
        for panel, (field, title) in zip(axes, (*kinds, ("mean_distance", "mean distance of all pairs")), strict=True):
            for number, (count, of) in enumerate(found.items()):
                means = [np.mean([getattr(each, field) for each in of[name]]) for name in names]
                style = {"color": shades[number], "marker": MARKERS[number], "linestyle": LINES[number % len(LINES)]}
                panel.plot(means, label=f"{count} centres", **style)
                if field == "least_angle":
                    panel.axhline(sphere.BEST_KNOWN[count][0], color=shades[number], linewidth=0.7, alpha=0.6)
            panel.set(xlabel="knob of the power mean of the distances", ylabel=title)
            panel.set_xticks(range(len(names)), labels, fontsize=8)
            panel.set_ylim(0, 1.06 * panel.get_ylim()[1])
        axes[0].set_title("thin lines: the largest possible", fontsize=10)
        axes[2].legend(loc="lower left")
    return drawn


def draw_crowd(angles: dict[str, Array], settings: Centres) -> Figure:
    """The smallest angle (memories, seeds, steps + 1), by regulariser."""
    known = sphere.BEST_KNOWN.get(settings.crowd)
    top = 1.12 * (known[0] if known is not None else max(float(each.max()) for each in angles.values()))
    with theme():
        drawn, axes = figure(2 + 5.2 * len(settings.memories), 4.6, 1, len(settings.memories))
        for number, (panel, memory) in enumerate(zip(axes, settings.memories, strict=True)):
            for name, each in angles.items():
                style = STYLES[name]
                shape = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
                every = max(1, each.shape[-1] // 12)
                panel.plot(each[number].mean(0), markevery=every, label=name if number == 0 else None, **shape)
            if known is not None:
                panel.axhline(known[0], color=INK, linewidth=0.8)
                panel.text(0, known[0], " the largest possible", va="bottom", fontsize=9)
            panel.set(xlabel="steps", ylabel="smallest angle, degrees (mean over seeds)", ylim=(-1, top))
            panel.set_title(f"second beta of Adam {memory:g}")
        drawn.suptitle(f"{settings.crowd} centres that begin within {settings.crowd_degrees:g}° of a pole", fontsize=12)
        drawn.legend(loc="outside right center")
    return drawn


def draw_sizes(angles: dict[str, list[float]], settings: Centres) -> Figure:
    with theme():
        drawn, (panel,) = figure(8, 4.6)
        for name, each in angles.items():
            style = STYLES[name]
            shape: Any = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
            if name == AT_START:  # a broad band with large crosses, as others may never leave it
                shape |= {"linestyle": "-", "linewidth": 6, "alpha": 0.45, "markersize": 11, "markeredgewidth": 2}
            panel.plot(settings.sizes, each, label=name, **shape)
        panel.axhline(sphere.simplex_angle(settings.classes), color=INK, linewidth=0.8)
        most = f"the most there can be, {sphere.simplex_angle(settings.classes):.2f}°"
        panel.text(settings.sizes[0], sphere.simplex_angle(settings.classes), most, va="bottom", fontsize=9)
        panel.set_xscale("log", base=2)
        panel.set_xticks(settings.sizes, map(str, settings.sizes))
        panel.set_ylim(0, 1.1 * sphere.simplex_angle(settings.classes))
        panel.set(xlabel="embedding size, dimensions", ylabel="smallest angle, degrees")
        panel.set_title(f"{settings.classes} class centres")
        panel.legend(loc="lower right")
    return drawn
