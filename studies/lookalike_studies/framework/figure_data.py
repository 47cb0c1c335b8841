"""Reads the numbers of a figure from the figure itself, so that they cannot differ from the picture.

A panel has its title and labels; lines, points and outlines have coordinates; bars have their extent; maps of numbers
have their values. Pictures and decorations (grids, ticks, frames) are left out.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

DIGITS = 6

Marks = dict[str, list[dict[str, Any]]]


def read_figure(figure: Figure) -> list[dict[str, Any]]:
    """Read the numbers of a figure: a dictionary for each panel that shows numbers, ready for JSON.

    Its keys are title, x, y (labels), lines, points, outlines, bars and maps, as far as the panel has them.
    """
    panels = []
    for axes in figure.axes:
        marks = _read_marks(axes)
        if not any(marks.values()):
            continue
        panel = {"title": axes.get_title(), "x": axes.get_xlabel(), "y": axes.get_ylabel(), **marks}
        panels.append({name: content for name, content in panel.items() if content})
    return panels


def _read_marks(axes: Axes) -> Marks:
    marks: Marks = {"lines": [], "points": [], "outlines": [], "bars": [], "maps": []}
    for line in axes.lines:
        x, y = line.get_data(orig=False)
        marks["lines"].append(_with_label(line, {"x": _as_list(x), "y": _as_list(y)}))
    for collection in axes.collections:
        _read_collection(collection, marks)
    for patch in axes.patches:
        _read_patch(patch, axes, marks)
    for image in axes.images:
        values = image.get_array()
        if values is not None and np.ndim(values) == 2:
            marks["maps"].append(_with_label(image, {"values": _as_list(values)}))
    return marks


def _read_collection(collection: Any, marks: Marks) -> None:
    values = collection.get_array()
    if values is not None and np.ndim(values) == 2:
        marks["maps"].append(_with_label(collection, {"values": _as_list(values)}))
    elif type(collection).__name__ == "PathCollection":
        points = {"places": _as_list(np.ma.getdata(collection.get_offsets()))}
        if values is not None and len(values):
            points["values"] = _as_list(values)
        marks["points"].append(_with_label(collection, points))
    else:
        for path in collection.get_paths():
            marks["outlines"].append(_with_label(collection, {"places": _as_list(path.vertices)}))


def _read_patch(patch: Any, axes: Axes, marks: Marks) -> None:
    if isinstance(patch, Rectangle):
        bar = {name: _round(float(getattr(patch, f"get_{name}")())) for name in ("x", "y", "width", "height")}
        marks["bars"].append(_with_label(patch, bar))
    else:
        vertices = patch.get_transform().transform_path(patch.get_path()).vertices
        coordinates = axes.transData.inverted().transform(vertices)
        marks["outlines"].append(_with_label(patch, {"places": _as_list(coordinates)}))


def _with_label(artist: Any, content: dict[str, Any]) -> dict[str, Any]:
    """Add the label that a legend shows; matplotlib's own begin with an underscore."""
    label = str(artist.get_label())
    if not label or label.startswith("_"):
        return content
    return {"label": label, **content}


def _as_list(values: Any) -> Any:
    """Nested lists of rounded numbers; texts if the axis has categories."""
    array = np.ma.filled(values, np.nan) if np.ma.isMaskedArray(values) else np.asarray(values)
    if array.dtype.kind not in "fiub":
        return list(map(str, array.ravel()))
    return _round(array.tolist())


def _round(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_round, value))
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
