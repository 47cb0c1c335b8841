"""The claim of Figure 5.2 and its verdict, a description of the weights, and their table."""

from collections.abc import Sequence

from lookalike.report.tables import Table
from lookalike_studies.framework.claims import Verdict
from lookalike_studies.framework.tables import tabulate
from lookalike_studies.toy.weights import AVERAGE, PROGRAMME, SIDE, Spread, smoothed

PAPER = "the linear programme drops true pixels, the smoothed one does not (Figure 5.2, without numbers)"
LEAST_ON_OBJECT = 0.9  # share of the smoothed weight


def judge(programme: Spread, smooth: Spread) -> tuple[Verdict, str]:
    """Judge the claim; return the verdict and its reason."""
    if not programme.dropped:
        return "not tested", "the linear programme drops no object pixel; keep less than the object's true share"
    if smooth.on_object < LEAST_ON_OBJECT:
        background = f"{1 - smooth.on_object:.0%} on the background"
        return "not reproduced", f"the smoothed problem puts {background}; raise the sharpness"
    if smooth.dropped:
        return "not reproduced", f"the smoothed problem drops {smooth.dropped} object pixels as well"
    if smooth.starved:
        return "partly", f"the smoothed problem drops none, but starves {smooth.starved} object pixels"
    return "reproduced", "the linear programme drops pixels of the object, the smoothed problem does not"


def describe(spreads: dict[str, Spread], pixels: int, keep: float, ladder: Sequence[float]) -> list[str]:
    """Describe the map with its object pixels, the weights, and the ladder of sharpness: low, chosen, higher ones."""
    average, programme = spreads[AVERAGE], spreads[PROGRAMME]
    flat, smooth, hard = (spreads[smoothed(sharpness)] for sharpness in (ladder[0], ladder[1], ladder[-1]))
    return [
        f"{pixels} of {SIDE**2} pixels are object, reddish or bluish on green; asked to keep {keep:.0%} of the map. A "
        f"fair share: the weight divided evenly among the {pixels} object pixels; starved: less than half of it.",
        f"Average pooling spends {1 - average.on_object:.0%} of its weight on the background. The linear "
        f"programme puts {programme.on_object:.0%} on the object and uses {pixels - programme.dropped} of its pixels. "
        f"Smoothed at sharpness {ladder[1]:g}, {smooth.on_object:.0%} is on the object, and {pixels - smooth.dropped} "
        f"of its pixels are used, each with {smooth.least:.2f} to {smooth.most:.2f} fair shares.",
        f"Sharpness leads from one to the other: at {ladder[0]:g}, {flat.on_object:.0%} is on the object and "
        f"{flat.starved} of its pixels are starved; at {ladder[-1]:g}, {hard.on_object:.0%} and {hard.starved}.",
    ]


def spread_table(spreads: dict[str, Spread]) -> Table:
    """Create the table of all weights."""
    columns = ("weights", "on the object", "dropped", "starved", "least", "most")
    rows = []
    for name, spread in spreads.items():
        rows.append([name, 100 * spread.on_object, *spread[1:]])
    note = "on the object: percent of the weight; least and most of an object pixel, in fair shares"
    return tabulate(columns, rows, digits=(1, 0, 0, 2, 2), notes=[note])
