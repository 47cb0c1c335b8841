"""Measurements, claims and tables of the study ``tokens``. MAP@R and overlap are in percent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lookalike.report.tables import Column, Table
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.framework.claims import Claim, Comparison, JudgedClaim
from lookalike_studies.framework.hulls import class_hulls, overlap
from lookalike_studies.framework.tables import format_seed_count, tabulate
from lookalike_studies.tokens.model import Run, Samples, Tokens, Trained, draw_samples, pool

GAP, GSP = "average", "gsp"

GAIN = Claim(
    "GSP is about 70 points of MAP@R ahead of GAP (Figure 5.4)",
    (Comparison(GSP, ">", GAP, name="GSP > GAP", effect=5.0),),
    reproduced_from=50.0,
    partly_from=5.0,
    here="{reading}: {average} with GAP (margin {margin of GAP:g}), {gsp} with GSP (margin {margin of GSP:g}): "
    "{gain:+.1f} points; {pooling}; {seeds}",
)
# Overlap: mean common area of two classes, in percent of the smaller hull.
SEPARATED, OVERLAPPING = 1.0, 5.0
HULLS = Claim(
    "class hulls overlap with GAP and are well separated with GSP (Figure 5.4)",
    (Comparison(GAP, ">", GSP, name="less overlap with GSP", least=SEPARATED, effect=OVERLAPPING),),
    here="{reading}: two hulls have {average} % of the smaller in common with GAP, {gsp} % with GSP; "
    "{pairs with GAP:.0f} % and {pairs with GSP:.0f} % of the pairs overlap at all",
)
NOTE = (
    "The authors give neither the loss and its margin nor m, keep and sharpness. The loss here is C2 on plain "
    "distances. Tokens start anywhere in the square, prototypes at tokens, by greedy k-centre. Validation and test are "
    "fresh samples of the same classes, because only trained tokens can be measured."
)
TABLE_NOTE = (
    "percent, mean and standard deviation over seeds; on class tokens: of the pooling weight; overlap: of two class "
    "hulls, as a share of the smaller, mean over pairs; pairs: those that overlap at all"
)
METRICS = {
    "validation": Column("validation", best="most"),
    "MAP@R": Column("MAP@R", best="most"),
    "on class tokens": Column("on class tokens"),
    "overlap": Column("overlap", best="least"),
    "overlapping pairs": Column("pairs"),
}


@dataclass(frozen=True)
class Outcome:
    """A trained run and its metrics, as shares."""

    pooling: str
    run: Run
    trained: Trained
    metrics: dict[str, float]


class Results:
    """Outcomes of both poolings for every margin and seed.

    Attributes:
        outcomes: All of them.
        best_margin: For each pooling, the margin with the best validation.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes
        self.margins = list(dict.fromkeys(outcome.run.margin for outcome in outcomes))
        self.best_margin: dict[str, float] = {}
        for pooling in (GAP, GSP):
            validation = [np.mean(self.percent(pooling, margin, "validation")) for margin in self.margins]
            self.best_margin[pooling] = self.margins[int(np.argmax(validation))]

    def at(self, pooling: str, margin: float) -> list[Outcome]:
        """Select the outcomes of one pooling and margin, one per seed."""
        return [one for one in self.outcomes if one.pooling == pooling and one.run.margin == margin]

    def percent(self, pooling: str, margin: float, metric: str) -> list[float]:
        """Collect a metric in percent, one value per seed."""
        return [100 * outcome.metrics[metric] for outcome in self.at(pooling, margin)]

    def by_pooling(self, margins: Mapping[str, float], metric: str) -> dict[str, list[float]]:
        """Collect a metric of both poolings in percent, each at its margin."""
        return {pooling: self.percent(pooling, margins[pooling], metric) for pooling in (GAP, GSP)}


def draw_test_samples(settings: Tokens, seed: int) -> Samples:
    """Draw samples from a random stream that neither training nor validation uses."""
    return draw_samples(settings, settings.test, np.random.default_rng((seed, 3)))


def measure(pooling: str, run: Run, trained: Trained, settings: Tokens) -> Outcome:
    """Measure the best epoch of a run on test samples."""
    samples = draw_test_samples(settings, run.seed)
    vectors, weights = pool(run, trained.tokens, trained.prototypes, samples)
    hulls = overlap(class_hulls(vectors, samples.labels))
    metrics = {
        "validation": trained.best,
        "MAP@R": retrieval_metrics(vectors, samples.labels, distance="l2")["MAP@R"],
        "on class tokens": float((weights * samples.is_class_token).sum(1).mean()),
        "overlap": hulls.share,
        "overlapping pairs": hulls.pairs,
        "overlap area": hulls.area,
    }
    return Outcome(pooling, run, trained, metrics)


def judge_claims(results: Results, published_margin: float) -> list[JudgedClaim]:
    """Judge both claims, with the margin chosen by validation and with the published one."""
    published = dict.fromkeys((GAP, GSP), published_margin)
    readings = {"margin chosen by validation": results.best_margin, "margin published": published}
    gains, hulls = [], []
    for reading, margins in readings.items():
        values: dict[str, Any] = dict(results.by_pooling(margins, "MAP@R"))
        values |= {"margin of GAP": margins[GAP], "margin of GSP": margins[GSP]}
        values["gain"] = np.subtract(values[GSP], values[GAP])
        runs = results.at(GSP, margins[GSP])
        seeds = format_seed_count(len(runs))
        gains.append(GAIN.judge(values, reading=reading, pooling=describe(runs[0].run), seeds=seeds))
        pairs = results.by_pooling(margins, "overlapping pairs")
        values = {**results.by_pooling(margins, "overlap"), "pairs with GAP": pairs[GAP], "pairs with GSP": pairs[GSP]}
        hulls.append(judge_hulls(values, reading))
    return gains + hulls


def judge_hulls(values: Mapping[str, Sequence[float]], reading: str) -> JudgedClaim:
    """Judge overlaps: "reproduced" as the claim says, "partly" if GSP at least halves the overlap."""
    judged = HULLS.judge(values, reading=reading)
    gap, gsp = float(np.mean(values[GAP])), float(np.mean(values[GSP]))
    if judged.verdict != "reproduced" or (gap >= OVERLAPPING and gsp < SEPARATED):
        return judged
    if gsp < gap / 2:
        return replace(judged, verdict="partly")
    return replace(judged, verdict="not reproduced")


def describe(run: Run) -> str:
    """Describe the pooling of a run."""
    if not run.prototypes:
        return "GAP"
    return f"m = {run.prototypes}, keep {run.keep:g}, sharpness {run.sharpness:g}"


def write_notes(results: Results, settings: Tokens) -> list[str]:
    """Write what a reader needs to know about loss, margin and budget."""
    notes = [NOTE]
    side = 2 * settings.bound * settings.share
    if settings.published_margin > side:
        notes.append(
            f"Why the margin matters: with GAP a share of {1 - settings.share:g} of every vector is background. All "
            f"classes must fit into a square of side {side:g}. That is less than the published margin, so the loss "
            "cannot be satisfied. GSP can use the whole square if it leaves out the background."
        )
    unfinished = 0
    for outcome in results.outcomes:
        best_epoch = outcome.trained.curve.index(outcome.trained.best)
        unfinished += best_epoch > settings.epochs - settings.patience
    if unfinished:
        notes.append(f"{unfinished} of {len(results.outcomes)} runs were still improving in the last epochs.")
    return notes


def margin_table(results: Results, published_margin: float) -> Table:
    """Tabulate all metrics by margin and pooling."""
    rows, groups = [], []
    for margin in results.margins:
        for pooling in (GAP, GSP):
            label = f"{margin:g}"
            if results.best_margin[pooling] == margin:
                label += " (chosen)"
            if margin == published_margin:
                label += " (published)"
            title = describe(results.at(pooling, margin)[0].run)
            if pooling == GSP:
                title = f"GSP, {title}"
            rows.append([label, title, *[results.percent(pooling, margin, metric) for metric in METRICS]])
            groups.append(f"{margin:g}")
    columns = ["margin", Column("pooling", "left"), *METRICS.values()]
    return tabulate(columns, rows, groups=groups, notes=[TABLE_NOTE])


def search_table(grid: Sequence[Run], validation: Sequence[float]) -> Table:
    """Tabulate the validation of every combination that was tried."""
    rows, groups = [], []
    for run, map_at_r in zip(grid, validation, strict=True):
        settings = [f"{value:g}" for value in (run.margin, run.prototypes, run.keep, run.sharpness)]
        rows.append([*settings, 100 * map_at_r])
        groups.append(f"{run.margin:g}")
    columns = ["margin", "m", "keep", "sharpness", Column("validation MAP@R", best="most")]
    return tabulate(columns, rows, groups=groups, title="Choosing m, keep and sharpness for each margin")
