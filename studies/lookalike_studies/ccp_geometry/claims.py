"""Measurements of a run, and the thesis's claims about them.

The claims are a table; ``framework.claims`` has the rule of the verdict. Beyond that rule:

- Two kinds of runs that are best in the first problem, which they share, test nothing.
- A covering radius alone says little: it is smallest in a disc that has contracted. It is divided by the mean distance
  between classes of the same run.
- With one seed, clear cases of COLLAPSE and DIVERSITY are "partly".
- SAMPLES is tested only where samples come to LEARNT (98 % in the thesis).
- PROPOSITION is tested only where MAP@R came TRAINED of the way from chance to 1 with every run. The bound on the
  weighted gap is a theorem: if it fails, nothing is reproduced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lookalike.report.tables import Column, Line, Table, words
from lookalike_studies.ccp_geometry.measures import (
    Gap,
    class_spread,
    inter_class_distance,
    radii,
    rank_correlation,
    representative_radius,
    spread,
)
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Course, Parts, map_at_r
from lookalike_studies.framework.claims import Claim, Comparison, JudgedClaim
from lookalike_studies.framework.seeds import format_mean, format_seed_count, mean_entry

LEARNT = 0.9  # MAP@R with samples
TRAINED = 0.5  # of the way of MAP@R from chance, 1 / classes at most, to 1; without training it is below chance
FEWEST_SETS = 3  # of anchors, for a rank correlation
EARLY = 0.9  # of the MAP@R of one problem: a first problem that ends below has not converged

# MAP@R: the thesis's gains on CUB are a point or more.
RISES = Comparison("alternating", ">", "one", "MAP@R rises", least=0.001, effect=0.01, must=True)
# The radius is about half the distance between classes on digits and birds. The effect is our choice: a tenth of it.
FALLS = Comparison(
    "radius alternating",
    "<",
    "radius one",
    "the radius falls against the distance between classes",
    least=0.01,
    effect=0.05,
)
# The distance is about 1, in the unit ball. The effect is our choice.
GROWS = Comparison(
    "distance alternating", ">", "distance one", "the distance between classes grows", least=0.01, effect=0.05
)
COLLAPSE = Claim(
    "with a single problem, the proxies of a class collapse to one point (Figure 3.2 a)",
    (Comparison("spread", "<", 0.1, "less than 10%", effect=0.0),),
    weaker=(Comparison("spread", "<", 0.5, "less than 50%", effect=0.0),),
)
ALTERNATES = Claim(
    "going on with alternating problems, the covering radius falls and MAP@R rises (Figure 3.2 b; MNIST, 97.21)",
    (RISES, FALLS),
)
DIVERSITY = Claim(
    "alternating problems have diverse proxies (Figure 3.2 b)",
    (Comparison("alternating", ">", "twice one", "twice"),),
    weaker=(Comparison("alternating", ">", "one", "that they are farther apart", effect=0.1),),
)
BEHIND_SAMPLES = Claim(  # 0.0085 behind in the thesis
    "proxies do nearly as well as samples: 97.21 MAP@R against 98.06 (MNIST, section 3.3.1)",
    (Comparison("behind", "<", 0.02, "2 points", effect=0.0),),
    weaker=(Comparison("behind", "<", 0.05, "5 points", effect=0.0),),
)
PROPOSITION = Claim(
    "the loss gap is bounded by a term that grows with the covering radius (Proposition 3.2.2)",
    (Comparison("correlation", ">", 0.0, "the gap rises with the radius", effect=0.5),),
    reproduced_from=0.5,
)
UNSEEN = Claim(
    "alternating problems improve the geometry of unseen classes: smaller radius, larger distance between classes "
    "(Figure 3.3, CUB; its numbers are not in our copy)",
    (RISES, FALLS, GROWS),
)
Courses = dict[str, list[Course]]  # by kind, one for each seed
Gaps = dict[tuple[str, str], list[list[Gap]]]  # by way of choosing anchors and kind of run: for each seed, of every set


class Measured(NamedTuple):
    """Of a run's best weights: on test pictures, on those of the held-out classes for unseen ones."""

    figure: float  # MAP@R
    radius: float  # mean over classes, of held-out pictures by proxies; NaN where proxies are of other classes
    own_radius: float  # by k = 1..n of their own
    distance: float  # between classes
    proxies_spread: float  # against the spread of the class's held-out pictures

    @property
    def relative_radius(self) -> float:
        return self.radius / self.distance

    @property
    def relative_own_radius(self) -> float:
        return self.own_radius / self.distance

    def known_values(self) -> dict[str, float]:
        """Return the fields that are not NaN, by name."""
        return {name: value for name, value in self._asdict().items() if not np.isnan(value)}


def measure(course: Course, parts: Parts) -> Measured:
    labels = parts.validation.labels
    return Measured(
        map_at_r(course.test, parts.test.labels),
        float(radii(course.validation, labels, course.proxies).mean()),
        representative_radius(course.test, parts.test.labels),
        inter_class_distance(course.test, parts.test.labels),
        spread(course.proxies) / class_spread(course.validation, labels),
    )


def measure_unseen(course: Course, parts: Parts) -> Measured:
    vectors, labels = course.validation, parts.validation.labels
    radius, distance = representative_radius(vectors, labels), inter_class_distance(vectors, labels)
    return Measured(map_at_r(vectors, labels), float("nan"), radius, distance, float("nan"))


def _are_the_same(one: list[Measured], other: list[Measured]) -> bool:
    """Whether both have the best weights of the first problem, which they share."""
    return every(one, "figure") == every(other, "figure") and every(one, "own_radius") == every(other, "own_radius")


def _with_one_seed(claim: Claim, here: str, is_clear: bool) -> JudgedClaim:
    judged = claim.not_tested(here)
    if is_clear:
        return replace(judged, verdict="partly")
    return judged


def every(runs: list[Measured], name: str) -> list[float]:
    """List one field of all runs."""
    return [float(getattr(run, name)) for run in runs]


def mean(runs: list[Measured], name: str) -> float:
    return float(np.mean(every(runs, name)))


def collapse_claim(measured: dict[str, list[Measured]]) -> JudgedClaim:
    """Judge whether the proxies of one problem collapse."""
    shares = every(measured[ONE], "proxies_spread")
    share = mean(measured[ONE], "proxies_spread")
    here = f"two proxies of a class are {share:.1%} as far apart as two pictures of it, {_runs(measured[ONE])}"
    if len(shares) == 1:
        return _with_one_seed(COLLAPSE, here, share < 0.1)
    return COLLAPSE.judge({"spread": shares}, here)


def alternating_claim(measured: dict[str, list[Measured]], what: str) -> JudgedClaim:
    """Judge MAP@R and covering radius in the disc."""
    one, after = measured[ONE], measured[ALTERNATING]
    here = f"{what}, {_runs(one)}: MAP@R {_percent(one)} with one problem, {_percent(after)} alternating; covering "
    here += f"radius {mean(one, 'radius'):.3f} and {mean(after, 'radius'):.3f}, against the distance between classes "
    here += f"{mean(one, 'relative_radius'):.3f} and {mean(after, 'relative_radius'):.3f}"
    if _are_the_same(one, after):
        return ALTERNATES.not_tested(here)
    return ALTERNATES.judge(_values(one, after, "relative_radius"), here)


def _values(one: list[Measured], after: list[Measured], radius: str) -> dict[str, list[float]]:
    return {
        "one": every(one, "figure"),
        "alternating": every(after, "figure"),
        "radius one": every(one, radius),
        "radius alternating": every(after, radius),
        "distance one": every(one, "distance"),
        "distance alternating": every(after, "distance"),
    }


def early_note(courses: Courses) -> list[str]:
    """Whether first problems ended long before a single problem was at its best."""
    first = float(np.mean([run.snapshots[0].figure for run in courses[ALTERNATING]]))
    single = float(np.mean([run.best_map_at_r for run in courses[ONE]]))
    ends = [run.snapshots[0].step for run in courses[ALTERNATING] if run.snapshots[0].following is not None]
    if not ends or first >= EARLY * single:
        return []
    return [
        f"The first alternating problem ended at step {np.mean(ends):.0f}, with a MAP@R of {100 * first:.1f}, one "
        f"problem came to {100 * single:.1f}. In the thesis it converges first: evaluate less often, with more steps."
    ]


def diversity_claim(courses: Courses, parts: Parts) -> JudgedClaim:
    """Judge how far the converged proxies of problems 2 and later are apart."""
    before, after, count = [], [], 0
    for one, other in zip(courses[ONE], courses[ALTERNATING], strict=True):
        later = _spread_shares(other, 2, parts)
        if later:
            before.append(float(np.mean(_spread_shares(one, 1, parts))))
            after.append(float(np.mean(later)))
            count += len(later)
    if not after:
        return DIVERSITY.not_tested("no run came to a second problem")
    share, single = np.mean(after), np.mean(before)
    here = f"two proxies of a class are {share:.1%} as far apart as two of its pictures at the best of problems 2 "
    here += f"and later ({count} of them), {single:.1%} with one problem, {format_seed_count(len(after))}"
    if len(after) == 1:
        return _with_one_seed(DIVERSITY, here, bool(share >= 2 * single))
    values = {"alternating": after, "one": before, "twice one": [2 * value for value in before]}
    return DIVERSITY.judge(values, here)


def _spread_shares(run: Course, first: int, parts: Parts) -> list[float]:
    """Spread of the converged proxies against that of the classes, from problem ``first`` on."""
    shares = []
    for problem in run.snapshots:
        if problem.number >= first:
            class_spread_here = class_spread(problem.plane, parts.validation.labels)
            shares.append(spread(problem.converged) / class_spread_here)
    return shares


def samples_claim(measured: dict[str, list[Measured]], what: str) -> JudgedClaim:
    """Judge how far proxies are behind samples."""
    proxies, samples = measured[ALTERNATING], measured[SAMPLES]
    behind = np.array(every(samples, "figure")) - every(proxies, "figure")
    here = f"{what}, {_runs(proxies)}: MAP@R {_percent(proxies)} with proxies, {_percent(samples)} with samples "
    here += f"({100 * behind.mean():+.2f} points)"
    if not mean(samples, "figure") >= LEARNT:
        return BEHIND_SAMPLES.not_tested(f"{here}; samples have not come to {LEARNT:.0%}: more steps are needed")
    if _are_the_same(proxies, samples) or len(behind) == 1:
        return BEHIND_SAMPLES.not_tested(here)
    return BEHIND_SAMPLES.judge({"behind": behind.tolist()}, here)


def proposition_claim(gaps: Gaps, measured: dict[str, list[Measured]], classes: int) -> JudgedClaim:
    """Judge whether the printed gap rises with the radius, within each run."""
    everything = [gap for runs in gaps.values() for sets in runs for gap in sets]
    if np.isnan(everything).any():
        return PROPOSITION.not_tested("a gap is not a number")
    radius, printed_gap, weighted_gap = np.array(everything).T
    held = int((weighted_gap <= radius + 1e-9).sum())
    within = int((printed_gap <= radius + 1e-9).sum())
    bound = f"{held} of {len(everything)} sets of anchors have a weighted gap of at most the radius, as they must, "
    bound += f"{within} the printed one"
    if held < len(everything):
        return JudgedClaim(PROPOSITION.paper, bound, "not reproduced")
    printed, weighted = ranks(gaps, "printed"), ranks(gaps, "weighted")
    if not printed:
        return PROPOSITION.not_tested(f"{bound}; too few sets for a rank correlation")
    of_seeds: list[float] = np.mean(list(printed.values()), axis=0).tolist()
    by_way = "; ".join(f"{way}, {kind} {np.mean(values):.2f}" for (way, kind), values in printed.items())
    here = f"rank correlation of printed gap and radius {format_mean(of_seeds, 2)}, {format_seed_count(len(of_seeds))} "
    here += f"({by_way}), of the weighted gap {np.mean(list(weighted.values())):.2f}; {bound}"
    enough = TRAINED + (1 - TRAINED) / classes
    least = float(np.min([every(measured[kind], "figure") for kind in (ONE, ALTERNATING)]))
    if not least >= enough:
        short = f"; a run has a MAP@R of {least:.1%}, less than {enough:.0%}: more steps are needed"
        return PROPOSITION.not_tested(here + short)
    return PROPOSITION.judge({"correlation": of_seeds}, here)


def ranks(gaps: Gaps, name: str) -> dict[tuple[str, str], list[float]]:
    """The rank correlation of radius and gap within each run, where every seed has enough sets of anchors."""
    correlations: dict[tuple[str, str], list[float]] = {}
    for way, runs in gaps.items():
        if min(map(len, runs)) < FEWEST_SETS:
            continue
        correlations[way] = []
        for sets in runs:
            column = np.array([getattr(gap, name) for gap in sets])
            radius = np.array([gap.radius for gap in sets])
            correlations[way].append(rank_correlation(radius, column))
    return correlations


def unseen_claim(held_out: dict[str, list[Measured]], test: dict[str, list[float]], what: str) -> JudgedClaim:
    """Judge MAP@R, covering radius and distance between classes that were not trained."""
    one, after = held_out[ONE], held_out[ALTERNATING]
    here = f"{what}, held-out classes, {_runs(one)}, one problem and alternating: MAP@R {_percent(one)} and "
    here += f"{_percent(after)}; covering radius {mean(one, 'own_radius'):.3f} and {mean(after, 'own_radius'):.3f}; "
    here += f"distance between classes {mean(one, 'distance'):.3f} and {mean(after, 'distance'):.3f}; the radius "
    here += f"against it {mean(one, 'relative_own_radius'):.3f} and {mean(after, 'relative_own_radius'):.3f}; MAP@R on "
    here += f"test classes {100 * np.mean(test[ONE]):.2f} and {100 * np.mean(test[ALTERNATING]):.2f}"
    if _are_the_same(one, after):
        return UNSEEN.not_tested(here)
    return UNSEEN.judge(_values(one, after, "relative_own_radius"), here)


def _percent(runs: list[Measured]) -> str:
    return format_mean([100 * run.figure for run in runs], 2)


def _runs(runs: list[Measured]) -> str:
    return format_seed_count(len(runs))


def plane_table(measured: dict[str, list[Measured]], what: str) -> Table:
    columns = ["MAP@R", "radius by proxies", "radius by their own", "between classes", "proxies' spread, %"]
    notes = [
        "mean and deviation over the seeds; MAP@R, own radius and distance on test pictures, the rest on held-out ones",
        "spread: of two proxies of a class, against two pictures of it. The thesis: 97.21, samples 98.06",
    ]
    lines = []
    for kind, runs in measured.items():
        lines.append(Line([words(kind), *_entries(runs, Measured._fields)]))
    return Table([Column("problems", "left"), *map(Column, columns)], lines, f"{what} in the unit disc", notes=notes)


def unseen_table(held_out: dict[str, list[Measured]], test: dict[str, list[float]], what: str) -> Table:
    columns = ["MAP@R", "radius by their own", "between classes", "MAP@R, test classes"]
    lines = []
    for kind, runs in held_out.items():
        on_test = mean_entry([100 * value for value in test[kind]])
        lines.append(Line([words(kind), *_entries(runs, ("figure", "own_radius", "distance")), on_test]))
    return Table([Column("problems", "left"), *map(Column, columns)], lines, f"Held-out classes of {what}")


def _entries(runs: list[Measured], names: tuple[str, ...]) -> list[Any]:
    entries = []
    for name in names:
        values = np.array(every(runs, name))
        if name in ("figure", "proxies_spread"):
            entries.append(mean_entry((100 * values).tolist(), digits=2))
        else:
            entries.append(mean_entry(values.tolist(), digits=3))
    return entries
