"""The figure of the study ``toy``: the map, and where pooling weights go."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lookalike.report.theme import theme
from lookalike_studies.framework.plots import hide_ticks
from lookalike_studies.toy.weights import PATCH, PROGRAMME, SIDE, Array, Mask, measure_spread

OUTLINES = ((-0.43, "#D55E00", "-"), (SIDE - PATCH - 0.43, "#0072B2", "--"))  # corner, colour and line of each patch


def draw(features: Array, is_object: Mask, weights: dict[str, Array], keep: float, chosen: str) -> Figure:
    """Draw the map, the linear programme and the ``chosen`` weights above, and all smoothed weights below."""
    ladder = [name for name in weights if name != PROGRAMME]
    pixels = int(is_object.sum())
    highest = 100 * max(1 / pixels, *(values.max() for values in weights.values()))
    with theme():
        figure = Figure(figsize=(12, 8.3), dpi=120, layout="constrained")
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.4, 1)).ravel()
        large, small = top.subplots(1, 3), bottom.subplots(1, len(ladder))
        bottom.suptitle("From average pooling to hard selection: the smoothed weights over sharpness\n", fontsize=14)
        _draw_map(large[0], features)
        large[0].set_xlabel(f"object: {is_object.mean():.0%} of the map\nasked to keep: {keep:.0%}", fontsize=12)
        for panel, name in zip(large[1:], (PROGRAMME, chosen), strict=True):
            image = _draw_weights(panel, weights[name], is_object, highest, name, 12)
        for panel, name in zip(small, ladder, strict=True):
            _draw_weights(panel, weights[name], is_object, highest, name.removeprefix("smoothed, "), 11)
        for panel in (*large, *small):
            hide_ticks(panel)
            panel.spines[:].set_visible(True)
        bar = top.colorbar(image, ax=large, shrink=0.86)
        bar.set_label("weight of a pixel, % of the whole", fontsize=12)
        bar.ax.axhline(100 / pixels, color=OUTLINES[0][1], linewidth=3)
        share = f"A fair share of an object pixel is {100 / pixels:g}% (mark on the bar)"
        figure.supxlabel(f"\nOutlined: the object. {share}; starved: less than half of it.", fontsize=12)
    return figure


def _draw_map(panel: Any, features: Array) -> None:
    panel.imshow(features)
    panel.set_title("feature map", fontsize=14)
    near, far = PATCH / 2 - 0.5, SIDE - PATCH / 2 - 0.5
    style = {"ha": "center", "va": "center", "fontsize": 14}
    panel.text(near, near, "reddish", color="white", **style)
    panel.text(far, far, "bluish", color="white", **style)
    panel.text(far, near, "green", color="black", **style)
    panel.text(near, far, "green", color="black", **style)


def _draw_weights(panel: Any, weights: Array, is_object: Mask, highest: float, title: str, size: int) -> Any:
    image = panel.imshow(100 * weights.reshape(SIDE, SIDE), cmap="Greys", vmin=0, vmax=highest)
    side = PATCH - 0.14
    for corner, colour, line in OUTLINES:
        panel.add_patch(Rectangle((corner, corner), side, side, fill=False, ec=colour, ls=line, lw=2))
    measured = measure_spread(weights, is_object)
    panel.set_title(title, fontsize=size + 1)
    text = f"on the object: {measured.on_object:.0%}\nstarved: {measured.starved} of {is_object.sum()} pixels"
    panel.set_xlabel(text, fontsize=size)
    return image
