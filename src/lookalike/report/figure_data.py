"""The numbers that a figure shows, read off the figure itself, so that none of them can differ from what is seen.

Of every panel its title and labels; lines, points and outlines by their coordinates; bars by their extent; maps of
numbers by their values. Pictures are left out, and so is whatever only decorates: grids, ticks, frames.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DIGITS = 6


def read_figure(figure: "Figure") -> list[dict[str, Any]]:
    """One entry for each panel that shows numbers, in the order of the figure."""
    panels = [_panel(axes) for axes in figure.axes]
    return [panel for panel in panels if panel.keys() - {"title", "x", "y"}]


def _panel(axes: "Axes") -> dict[str, Any]:
    from matplotlib.patches import Rectangle

    words = {"title": axes.get_title(), "x": axes.get_xlabel(), "y": axes.get_ylabel()}
    found: dict[str, list[Any]] = {"lines": [], "points": [], "outlines": [], "bars": [], "maps": []}
    for line in axes.lines:
        x, y = (_listed(each) for each in line.get_data(orig=False))
        found["lines"].append(_named(line, {"x": x, "y": y}))
    for collection in axes.collections:
        offsets = np.ma.getdata(collection.get_offsets())
        values = collection.get_array()
        if values is not None and np.ndim(values) == 2:
            found["maps"].append(_named(collection, {"values": _listed(values)}))
        elif type(collection).__name__ == "PathCollection":
            more = {} if values is None or not len(values) else {"values": _listed(values)}
            found["points"].append(_named(collection, {"places": _listed(offsets), **more}))
        else:
            paths = [_listed(path.vertices) for path in collection.get_paths()]
            found["outlines"] += [_named(collection, {"places": path}) for path in paths]
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            bar = {"x": patch.get_x(), "y": patch.get_y(), "width": patch.get_width(), "height": patch.get_height()}
            found["bars"].append(_named(patch, {name: _short(each) for name, each in bar.items()}))
        else:
            vertices = patch.get_transform().transform_path(patch.get_path()).vertices
            places = axes.transData.inverted().transform(vertices)
            found["outlines"].append(_named(patch, {"places": _listed(places)}))
    for image in axes.images:
        values = image.get_array()
        if values is not None and np.ndim(values) == 2:
            found["maps"].append(_named(image, {"values": _listed(values)}))
    return {name: each for name, each in {**words, **found}.items() if each}


def _named(artist: Any, content: dict[str, Any]) -> dict[str, Any]:
    """With the label that a legend shows; matplotlib's own begin with an underscore."""
    label = str(artist.get_label())
    return content if label.startswith("_") or not label else {"label": label, **content}


def _listed(values: Any) -> Any:
    """Lists of numbers; words where an axis counts words."""
    array = np.ma.filled(np.ma.asarray(values), np.nan) if np.ma.isMaskedArray(values) else np.asarray(values)
    if array.dtype.kind not in "fiub":
        return [str(each) for each in array.ravel()]
    return _rounded(array.tolist())


def _rounded(values: Any) -> Any:
    return [_rounded(each) for each in values] if isinstance(values, list) else _short(values)


def _short(value: float) -> float:
    return value if isinstance(value, (bool, int)) else float(f"{value:.{DIGITS}g}")
