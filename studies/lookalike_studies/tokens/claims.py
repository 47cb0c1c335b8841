"""What the study ``tokens`` measures, and what it says about the authors' claims.

Verdicts, over seeds as ``claims`` says; with one nothing is tested. On the gain, in points of MAP@R on fresh samples:
"reproduced" from 50 on, "partly" from 5 on, if it is surely above 0; else "not reproduced", if it is surely less than
5. On the hulls, by the mean common area of two classes as a share of the smaller hull, which must be surely less with
generalized sum pooling than with average pooling, by at least 1 %: "reproduced" if average pooling has at least 5 % and
generalized sum pooling less than 1 %, "partly" if it has less than half of average pooling's, else "not reproduced".
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lookalike.report.seeds import entry
from lookalike.report.seeds import in_words as told_over_seeds
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.framework.claims import JudgedClaim, Verdict, is_above
from lookalike_studies.framework.hulls import class_hulls, overlap
from lookalike_studies.tokens.race import Bags, Run, Samples, Trained, pool

if TYPE_CHECKING:
    from lookalike_studies.tokens.study import Tokens

REPRODUCED_GAIN, SOME_GAIN = 50.0, 5.0  # points
OVERLAPPING, SEPARATED = 0.05, 0.01  # shares of the smaller hull
GAP, GSP = "average", "gsp"


class Results:
    """Of both poolings, with every margin and seed: what was run, what came out, what was measured."""

    def __init__(
        self,
        runs: dict[str, list[Run]],
        trained: dict[str, list[Trained]],
        margins: Sequence[float],
        bags: Bags,
        per_class: int,
    ) -> None:
        self.runs, self.trained = runs, trained
        self.measured = {
            name: [measure(run, out, bags, per_class) for run, out in zip(runs[name], trained[name], strict=True)]
            for name in runs
        }
        # The margin of each pooling, by its validation figure.
        self.best: Mapping[str, float] = {
            name: max(margins, key=lambda margin: float(np.mean(self.figures(name, margin, "validation"))))
            for name in runs
        }

    def which(self, name: str, margin: float) -> list[int]:
        return [i for i, run in enumerate(self.runs[name]) if run.margin == margin]

    def figures(self, name: str, margin: float, key: str) -> list[float]:
        """One for each seed."""
        return [self.measured[name][i][key] for i in self.which(name, margin)]

    def gains(self, margins: Mapping[str, float]) -> list[float]:
        """In points, one for each seed."""
        gap, gsp = (self.figures(name, margins[name], "MAP@R") for name in (GAP, GSP))
        return [100 * (with_gsp - plain) for with_gsp, plain in zip(gsp, gap, strict=True)]


def test_samples(bags: Bags, per_class: int, seed: int) -> Samples:
    """Fresh ones: no other stream of this seed's chance has drawn them."""
    return bags.draw(per_class, np.random.default_rng((seed, 3)))


def measure(run: Run, trained: Trained, bags: Bags, per_class: int) -> dict[str, float]:
    """On fresh samples, with the best tokens: MAP@R, the share of weight on class tokens, overlap of class hulls."""
    samples = test_samples(bags, per_class, run.seed)
    vectors, weights = pool(run, trained.tokens, trained.prototypes, samples)
    hulls = overlap(class_hulls(vectors, samples.labels))
    return {
        "validation": trained.best,
        "MAP@R": retrieval_metrics(vectors, samples.labels, distance="l2")["MAP@R"],
        "on class tokens": float((weights * samples.is_own).sum(1).mean()),
        "overlap": hulls.share,
        "overlapping pairs": hulls.pairs,
        "overlap area": hulls.area,
    }


def verdict_on_gain(gains: Sequence[float]) -> Verdict:
    """``gains`` of GSP over GAP in points, one for each seed."""
    is_sure = is_above(gains, 0.0, effect=SOME_GAIN)
    if is_sure is None:
        return "not tested"
    mean = float(np.mean(gains))
    if not is_sure or mean < SOME_GAIN:
        return "not reproduced"
    return "reproduced" if mean >= REPRODUCED_GAIN else "partly"


def verdict_on_hulls(gap: Sequence[float], gsp: Sequence[float]) -> Verdict:
    """Shares of the smaller hull that two classes have in common, one for each seed."""
    is_sure = is_above(gap, gsp, SEPARATED, effect=OVERLAPPING)
    if is_sure is None:
        return "not tested"
    with_gap, with_gsp = float(np.mean(gap)), float(np.mean(gsp))
    if is_sure and with_gap >= OVERLAPPING and with_gsp < SEPARATED:
        return "reproduced"
    return "partly" if is_sure and with_gsp < with_gap / 2 else "not reproduced"


def claims(settings: "Tokens", chosen: Mapping[float, Run], results: Results) -> list[JudgedClaim]:
    """The authors' two, each in two readings: the margin chosen for each pooling, and the published one for both."""
    found = []
    readings = {"chosen by validation": results.best, "published": dict.fromkeys((GAP, GSP), settings.published_margin)}
    for reading, margins in readings.items():
        gains = results.gains(margins)
        figures = {name: results.figures(name, margins[name], "MAP@R") for name in (GAP, GSP)}
        ends = f"{in_words(chosen[margins[GSP]])}; {len(gains)} seed{'s' if len(gains) > 1 else ''}"
        here = f"margin {reading}: {_percent(figures[GAP])} with GAP (margin {margins[GAP]:g}), "
        here += f"{_percent(figures[GSP])} with GSP (margin {margins[GSP]:g}): {np.mean(gains):+.1f} points; {ends}"
        found.append(
            JudgedClaim("GSP is about 70 points of MAP@R ahead of GAP (Figure 5.4)", here, verdict_on_gain(gains))
        )
    for reading, margins in readings.items():
        gap, gsp = (results.figures(name, margins[name], "overlap") for name in (GAP, GSP))
        pairs = [100 * float(np.mean(results.figures(name, margins[name], "overlapping pairs"))) for name in (GAP, GSP)]
        here = (
            f"margin {reading}: two hulls have {_percent(gap)} % of the smaller in common with GAP, {_percent(gsp)} % "
        )
        here += f"with GSP; of the pairs, {pairs[0]:.0f} % and {pairs[1]:.0f} % overlap at all"
        paper = "class hulls overlap with GAP and are well separated with GSP (Figure 5.4)"
        found.append(JudgedClaim(paper, here, verdict_on_hulls(gap, gsp)))
    return found


def in_words(run: Run) -> str:
    return f"m = {run.prototypes}, keep {run.keep:g}, sharpness {run.sharpness:g}"


def _percent(shares: Sequence[float]) -> str:
    return told_over_seeds([100 * each for each in shares])


def notes(settings: "Tokens", results: Results) -> list[str]:
    longest = max(len(each.curve) - 1 for some in results.trained.values() for each in some)
    running = sum(
        len(each.curve) - 1 == settings.epochs and each.curve.index(each.best) > settings.epochs - settings.patience
        for some in results.trained.values()
        for each in some
    )
    total = sum(map(len, results.trained.values()))
    said = [
        "Nothing is said of the authors' loss, of its margin, nor of m, keep and sharpness. The loss here is C2 on "
        "plain distances. Tokens start all over the square, prototypes at tokens, by greedy k-centre. Validation and "
        "test are fresh samples of the same classes: with trainable tokens there can be no others."
    ]
    side = 2 * settings.bound * settings.share
    if settings.published_margin > side:
        said.append(
            f"Why the margin matters: with GAP a share of {1 - settings.share:g} of every vector is background, so "
            f"{settings.classes} classes have a square of side {side:g} to live in, and the published margin is more: "
            "they cannot all be that far apart, and the loss goes on pushing. GSP, as far as it leaves the background "
            "out, has the whole square."
        )
    if running:
        said.append(
            f"{running} of {total} runs had still improved within the patience when the budget of "
            f"{longest} {'epoch' if longest == 1 else 'epochs'} was used up, and might have gone on to."
        )
    return said


def margin_table(settings: "Tokens", chosen: Mapping[float, Run], results: Results) -> Table:
    columns = [Column("margin", "left"), Column("pooling", "left"), Column("validation", best="most")]
    columns += [
        Column("MAP@R", best="most"),
        Column("on class tokens"),
        Column("overlap", best="least"),
        Column("pairs"),
    ]
    lines = []
    for margin in settings.margins:
        for name in (GAP, GSP):
            found = {key: results.figures(name, margin, key) for key in results.measured[name][0]}
            marks = " (chosen)" if results.best[name] == margin else ""
            marks += " (published)" if margin == settings.published_margin else ""
            title = "GAP" if name == GAP else f"GSP, {in_words(chosen[margin])}"
            keys = ("validation", "MAP@R", "on class tokens", "overlap", "overlapping pairs")
            numbers = [entry([100 * each for each in found[key]]) for key in keys]
            lines.append(Line([words(f"{margin:g}{marks}"), words(title), *numbers], group=f"{margin:g}"))
    note = f"percent, mean and deviation over {len(settings.seeds)} seeds; on class tokens: of the pooling weight; "
    note += "overlap: of two class hulls, as a share of the smaller, mean over pairs; pairs: those that overlap at all"
    return Table(columns, lines, notes=[note])


def search_table(grid: Sequence[Run], tried: Sequence[float]) -> Table:
    columns = [
        Column("margin", "left"),
        Column("m"),
        Column("keep"),
        Column("sharpness"),
        Column("validation MAP@R", best="most"),
    ]
    lines = [
        Line(
            [
                words(f"{run.margin:g}"),
                *(words(f"{each:g}") for each in (run.prototypes, run.keep, run.sharpness)),
                number(100 * figure),
            ],
            group=f"{run.margin:g}",
        )
        for run, figure in zip(grid, tried, strict=True)
    ]
    return Table(columns, lines, title="Choosing m, keep and sharpness for each margin")
