"""The toy map: a linear programme drops pixels of the object, the entropy-smoothed problem keeps them all.

A map of 10 x 10 x 3 features shows a 5 x 5 reddish and a 5 x 5 bluish patch on green; the prototypes are pure
red and pure blue. Half of the map is object, but only a share ``keep`` (mu) = 0.2 of it is asked for. The weights

    p_j = (1/n - residual_j) / keep

come from the linear programme (P1) and from the smoothed problem (P2) over a range of sharpness (epsilon).

Reference: Figure 5.2 of Gürbüz's thesis, which gives neither its noise nor its sharpness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike._util.checks import check_count, check_range
from lookalike.pooling.reference import linear_programme
from lookalike.pooling.transport import partial_transport
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.report.theme import theme
from lookalike_studies.framework.claims import JudgedClaim, Verdict
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

SIDE, PATCH = 10, 5
RED, GREEN, BLUE = np.eye(3)
RED_LINE, BLUE_LINE = "#D55E00", "#0072B2"  # around the patches
MOST_SHARP = 1e6
AVERAGE, PROGRAMME = "average pooling", "linear programme"


class Spread(NamedTuple):
    """Where pooling weights go. A fair share is the whole weight divided evenly among the object's pixels."""

    on_object: float  # of the whole weight
    dropped: int  # object pixels with less than a millionth of a fair share
    starved: int  # object pixels with less than half of a fair share
    least: float  # of an object pixel, in fair shares
    most: float


def toy_map(seed: int = 0, noise: float = 0.07) -> tuple[Array, Mask]:
    """The features (10, 10, 3), each channel within [0, 1], and where the object is (10, 10)."""
    colours = np.tile(GREEN, (SIDE, SIDE, 1))
    colours[:PATCH, :PATCH] = RED
    colours[-PATCH:, -PATCH:] = BLUE
    off = np.abs(np.random.default_rng(seed).normal(0, noise, colours.shape)).clip(max=1)
    return np.abs(colours - off), colours[..., 1] == 0


def toy_cost(features: Array) -> Array:
    """Distances (2, n) from red and blue to the features (..., 3), after clip(u) = u / max(1, ||u||)."""
    clipped = features.reshape(-1, 3)
    clipped = clipped / np.linalg.norm(clipped, axis=-1, keepdims=True).clip(min=1)
    return np.asarray(np.linalg.norm(np.stack((RED, BLUE))[:, None] - clipped, axis=-1))


def smoothed(sharpness: float) -> str:
    return f"smoothed, sharpness {sharpness:g}"


def toy_weights(cost: Array, keep: float, sharpness: Sequence[float]) -> dict[str, Array]:
    """Pooling weights (n,) by name: of average pooling, the linear programme, and smoothed at each sharpness."""
    n = cost.shape[-1]
    programme = linear_programme(cost, keep)[1].sum(0) / keep
    if abs(programme.sum() - 1) > 1e-6:
        raise ValueError(f"keep is below what the linear programme can resolve, got {keep}; try {1 / n:g}, one pixel")
    weights = {AVERAGE: np.full(n, 1 / n), PROGRAMME: np.asarray(programme)}
    return weights | {smoothed(value): smoothed_weights(cost, keep, value) for value in sharpness}


def smoothed_weights(cost: Array, keep: float, sharpness: float) -> Array:
    return np.asarray(partial_transport(torch.from_numpy(cost), keep, sharpness).weights.numpy())


def noise_matters(keep: float, sharpness: float, chosen: float, maps: int) -> dict[float, float]:
    """How many object pixels the smoothed problem starves, by noise, as a mean over maps with other seeds."""
    starved = {}
    for noise in sorted({0.05, chosen, 0.1, 0.15}):
        drawn = [toy_map(seed, noise) for seed in range(1, maps + 1)]
        counts = [spread(smoothed_weights(toy_cost(f), keep, sharpness), mask).starved for f, mask in drawn]
        starved[noise] = float(np.mean(counts))
    return starved


def spread(weights: Array, is_object: Mask) -> Spread:
    inside = weights[is_object.ravel()]
    shares = inside * len(inside)
    starved = int((shares < 0.5 - 1e-6).sum())  # average pooling gives exactly half, and rounding must not decide
    return Spread(float(inside.sum()), int((shares < 1e-6).sum()), starved, float(shares.min()), float(shares.max()))


def verdict(programme: Spread, smooth: Spread) -> tuple[Verdict, str]:
    """Whether this is what the figure shows, and why."""
    if not programme.dropped:
        return "not tested", "the linear programme drops no object pixel; keep less than the object's true share"
    if smooth.on_object < 0.9:
        background = f"{1 - smooth.on_object:.0%} on the background"
        return "not reproduced", f"the smoothed problem puts {background}; raise the sharpness"
    if smooth.dropped:
        return "not reproduced", f"the smoothed problem drops {smooth.dropped} object pixels as well"
    if smooth.starved:
        return "partly", f"the smoothed problem drops none, but starves {smooth.starved} object pixels"
    return "reproduced", "the linear programme drops pixels of the object, the smoothed problem does not"


def explain(spreads: dict[str, Spread], pixels: int, keep: float, ladder: Sequence[float]) -> list[str]:
    """What there is to see, in words and measured numbers; ``ladder`` as in ``find``."""
    programme, flat, smooth, hard = (spreads[x] for x in (PROGRAMME, *(smoothed(ladder[i]) for i in (0, 1, -1))))
    return [
        f"{pixels} of {SIDE**2} pixels are object, reddish or bluish on green; asked to keep {keep:.0%} of the map. A "
        f"fair share: the weight divided evenly among the {pixels} object pixels; starved: less than half of it.",
        f"Average pooling spends {1 - spreads[AVERAGE].on_object:.0%} of its weight on the background. The linear "
        f"programme puts {programme.on_object:.0%} on the object and uses {pixels - programme.dropped} of its pixels. "
        f"Smoothed at sharpness {ladder[1]:g}, {smooth.on_object:.0%} is on the object, and {pixels - smooth.dropped} "
        f"of its pixels are used, each with {smooth.least:.2f} to {smooth.most:.2f} fair shares.",
        f"Sharpness leads from one to the other: at {ladder[0]:g}, {flat.on_object:.0%} is on the object and "
        f"{flat.starved} of its pixels are starved; at {ladder[-1]:g}, {hard.on_object:.0%} and {hard.starved}.",
    ]


def draw(features: Array, is_object: Mask, weights: dict[str, Array], keep: float, chosen: str) -> "Figure":
    """Above, the map, the linear programme and the ``chosen`` weights; below, from average to hard selection."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    ladder = [name for name in weights if name != PROGRAMME]
    pixels = int(is_object.sum())
    highest = 100 * max(1 / pixels, *(w.max() for w in weights.values()))
    with theme():
        figure = Figure(figsize=(12, 8.3), dpi=120, layout="constrained")
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.4, 1)).ravel()
        large, small = top.subplots(1, 3), bottom.subplots(1, len(ladder))
        bottom.suptitle("From average pooling to hard selection: the smoothed weights over sharpness\n", fontsize=14)

        large[0].imshow(features)
        large[0].set_title("feature map", fontsize=14)
        large[0].set_xlabel(f"object: {is_object.mean():.0%} of the map\nasked to keep: {keep:.0%}", fontsize=12)
        near, far = PATCH / 2 - 0.5, SIDE - PATCH / 2 - 0.5
        for x, y, text in ((near, near, "reddish"), (far, far, "bluish"), (far, near, "green"), (near, far, "green")):
            large[0].text(
                x, y, text, ha="center", va="center", fontsize=14, color="black" if text == "green" else "white"
            )

        for panel, name in zip((*large[1:], *small), (PROGRAMME, chosen, *ladder), strict=True):
            image = panel.imshow(100 * weights[name].reshape(SIDE, SIDE), cmap="Greys", vmin=0, vmax=highest)
            for corner, colour, line in ((-0.43, RED_LINE, "-"), (SIDE - PATCH - 0.43, BLUE_LINE, "--")):
                side = PATCH - 0.14
                panel.add_patch(Rectangle((corner, corner), side, side, fill=False, ec=colour, ls=line, lw=2))
            measured = spread(weights[name], is_object)
            title, size = (name, 12) if panel in large else (name.removeprefix("smoothed, "), 11)
            panel.set_title(title, fontsize=size + 1)
            text = f"on the object: {measured.on_object:.0%}\nstarved: {measured.starved} of {pixels} pixels"
            panel.set_xlabel(text, fontsize=size)
        for panel in (*large, *small):
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
            panel.spines[:].set_visible(True)
        bar = top.colorbar(image, ax=large, shrink=0.86)
        bar.set_label("weight of a pixel, % of the whole", fontsize=12)
        bar.ax.axhline(100 / pixels, color=RED_LINE, linewidth=3)
        share = f"A fair share of an object pixel is {100 / pixels:g}% (mark on the bar)"
        figure.supxlabel(f"\nOutlined: the object. {share}; starved: less than half of it.", fontsize=12)
    return figure


@dataclass(frozen=True)
class Toy:
    keep: float = setting("share of the map to keep, mu; half of it is object")
    sharpness: float = setting("epsilon of the smoothed weights")
    noise: float = setting("standard deviation of the pixels' noise")
    seed: int = setting("of the noise")
    maps: int = setting("other maps for each noise, to see how much it matters", budget=True)

    def __post_init__(self) -> None:
        check_range("keep", self.keep, 0, 1)
        check_range("sharpness", self.sharpness, 0, MOST_SHARP)
        check_range("noise", self.noise, 0, 1)
        check_count("seed", self.seed, least=0)
        check_count("maps", self.maps)
        toy_weights(toy_cost(toy_map(self.seed, self.noise)[0]), self.keep, ())  # refuses a keep that is too small


def run(settings: Toy, context: Context) -> StudyResult:
    del context  # nothing here takes long
    keep, sharpness = settings.keep, settings.sharpness
    ladder = (sharpness / 10, sharpness, sharpness * 10, sharpness * 100)
    features, is_object = toy_map(settings.seed, settings.noise)
    weights = toy_weights(toy_cost(features), keep, ladder)
    spreads = {name: spread(w, is_object) for name, w in weights.items()}
    programme, smooth = spreads[PROGRAMME], spreads[smoothed(sharpness)]
    agrees, why = verdict(programme, smooth)
    by_noise = noise_matters(keep, sharpness, settings.noise, settings.maps)
    means = ", ".join(f"{count:g} at {noise:g}" for noise, count in by_noise.items())
    pixels = int(is_object.sum())
    here = f"{why}: of {pixels} object pixels the programme drops {programme.dropped}; smoothed, each has "
    here += f"{smooth.least:.2f} to {smooth.most:.2f} fair shares"
    drawn = draw(features, is_object, weights, keep, smoothed(sharpness))
    return StudyResult(
        claims=[
            JudgedClaim(
                "the linear programme drops true pixels, the smoothed one does not (Figure 5.2, without numbers)",
                here,
                agrees,
            )
        ],
        figures={"toy": (drawn, "Where the pooling weights go")},
        tables={"spread": _table(spreads)},
        numbers={
            "true_share": float(is_object.mean()),
            "weights": {name: measured._asdict() for name, measured in spreads.items()},
            "mean_starved_by_noise": by_noise,
        },
        notes=[
            *explain(spreads, pixels, keep, ladder),
            f"The noise of the pixels is our choice, and matters. Object pixels starved when smoothed, mean over "
            f"{settings.maps} other maps for each noise: {means}.",
        ],
    )


def _table(spreads: dict[str, Spread]) -> Table:
    columns = ["on the object", "dropped", "starved", "least", "most"]
    lines = [
        Line(
            [
                words(name),
                number(100 * s.on_object, digits=1),
                number(s.dropped, digits=0),
                number(s.starved, digits=0),
                number(s.least),
                number(s.most),
            ]
        )
        for name, s in spreads.items()
    ]
    note = "on the object: percent of the weight; least and most of an object pixel, in fair shares"
    return Table([Column("weights", "left"), *map(Column, columns)], lines, notes=[note])


STUDY = Study(
    name="toy",
    title="The toy map: a linear programme drops pixels of the object, the smoothed problem keeps them all",
    about="A map of 10 x 10 pixels shows a reddish and a bluish patch on green, half of the map together. The "
    "prototypes are red and blue, and less than the object's share is to be kept. The weights come from the linear "
    "programme and from the entropy-smoothed problem, over a range of sharpness.",
    source="Figure 5.2 of Gürbüz's thesis, which gives neither its noise nor its sharpness",
    settings=Toy,
    run=run,
)
