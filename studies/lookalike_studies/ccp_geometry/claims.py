"""What is measured of a run, and what the thesis claims against it.

Verdicts; "one" is the single problem, and ``claims`` says when a difference over seeds counts. With one seed nothing is
tested, but for clear cases of the first and third claim, which are "partly"; nor where two kinds of runs are at their
best in the first problem, which they share; nor where the seeds differ so much that what is claimed may be there or
not. A covering radius alone says little: of a disc that has contracted, or was never trained, it is smallest. So
wherever it is said to fall, what is judged is the radius divided by the mean distance between classes of the same run.

    collapse     the proxies of one are spread over surely less than a tenth of what pictures of a class are:
                 "reproduced", less than half: "partly", surely more: "not reproduced"
    alternating  MAP@R rises and the covering radius by proxies falls against the distance between classes, both by what
                 counts: "reproduced"; one of both: "partly", but never where MAP@R falls
    diversity    converged proxies of alternating problems, against the class's spread, have surely more than twice what
                 those of one have: "reproduced", more: "partly", surely not by a tenth of that spread: "not reproduced"
    samples      MAP@R with proxies is surely no more than 2 points behind that with samples: "reproduced", 5: "partly",
                 surely more: "not reproduced". Tested only where samples come to 90 % (98 in the thesis)
    proposition  the printed gap rises with the radius: the rank correlation within a run, averaged over the ways of
                 choosing anchors, is surely above 0 over the seeds, and 0.5 on average: "reproduced", less: "partly".
                 Tested only where MAP@R came halfway from chance to 1 with every run: anchors by chance have it of any
                 vectors. The part of the bound that can be asserted is a theorem: it is told, and where it fails
                 nothing is reproduced
    unseen       of MAP@R (rises), covering radius (falls against the distance between classes) and that distance
                 (grows) on held-out classes, all by what counts: "reproduced", some: "partly", but never where MAP@R
                 falls

"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lookalike.report.seeds import count_in_words, entry, in_words
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
from lookalike_studies.framework.claims import Evidence, JudgedClaim, Verdict, compare, judge

LEAST_FIGURE = 0.001  # smaller differences of MAP@R are none
LEAST_RADIUS = 0.01  # of the distance between classes
LEAST_DISTANCE = 0.01
CLAIMED_FIGURE = 0.01  # the thesis's gains on CUB are a point of MAP@R or more
CLAIMED_RADIUS = 0.05  # ours: a tenth of what it is on digits and birds, about half the distance between classes
CLAIMED_DISTANCE = 0.05  # ours: where it is about 1, in the unit ball
FALLS = "the radius falls against the distance between classes"
COLLAPSED, GATHERED = 0.1, 0.5  # shares of the class's spread
NEARLY, ROUGHLY = 0.02, 0.05  # MAP@R behind samples; 0.0085 in the thesis
LEARNT = 0.9  # MAP@R with samples
TRAINED = 0.5  # of the way of MAP@R from chance, 1 / classes at most, to 1; without training it is below chance
RISING = 0.5  # rank correlation
FEWEST_SETS = 3  # of anchors, for a rank correlation
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


def by_class_and_number(proxies: Any, parts: Parts) -> Any:
    """(classes * k, D) -> (classes, k, D)"""
    return proxies.reshape(parts.classes, -1, proxies.shape[-1])


def measure(course: Course, parts: Parts) -> Measured:
    proxies, labels = by_class_and_number(course.proxies, parts), parts.validation.labels
    return Measured(
        map_at_r(course.test, parts.test.labels),
        float(radii(course.validation, labels, proxies).mean()),
        representative_radius(course.test, parts.test.labels),
        inter_class_distance(course.test, parts.test.labels),
        spread(proxies) / class_spread(course.validation, labels),
    )


def measure_unseen(course: Course, parts: Parts) -> Measured:
    vectors, labels = course.validation, parts.validation.labels
    radius, distance = representative_radius(vectors, labels), inter_class_distance(vectors, labels)
    return Measured(map_at_r(vectors, labels), float("nan"), radius, distance, float("nan"))


def _are_the_same(one: list[Measured], other: list[Measured]) -> bool:
    """Whether both have the best weights of the first problem, which they share."""
    return all(a.figure == b.figure and a.own_radius == b.own_radius for a, b in zip(one, other, strict=True))


def _graded(paper: str, here: str, seeds: int, is_clear: bool, much: Evidence, some: Evidence) -> JudgedClaim:
    """A claim of degree: surely as much, or surely some; of one seed, whether it is a clear case."""
    verdict: Verdict = "not tested"
    if seeds == 1:
        verdict = "partly" if is_clear else verdict
    elif much.holds or some.holds:
        verdict = "reproduced" if much.holds else "partly"
    elif some.holds is False:
        verdict = "not reproduced"
    elif some.is_measured:
        here += f"; too coarse to tell {some.name}"
    return JudgedClaim(paper, here, verdict)


def every(runs: list[Measured], name: str) -> list[float]:
    return [float(getattr(each, name)) for each in runs]


def mean(runs: list[Measured], name: str) -> float:
    return float(np.mean(every(runs, name)))


def collapse_claim(measured: dict[str, list[Measured]]) -> JudgedClaim:
    shares = np.array(every(measured[ONE], "proxies_spread"))
    much, some = (
        compare(f"less than {most:.0%}", (-shares).tolist(), -most, effect=0.0) for most in (COLLAPSED, GATHERED)
    )
    here = f"two proxies of a class are {shares.mean():.1%} as far apart as two pictures of it, {_runs(measured[ONE])}"
    paper = "with a single problem, the proxies of a class collapse to one point (Figure 3.2 a)"
    return _graded(paper, here, len(shares), bool(shares.mean() < COLLAPSED), much, some)


def alternating_claim(measured: dict[str, list[Measured]], what: str) -> JudgedClaim:
    one, after = measured[ONE], measured[ALTERNATING]
    here = f"{what}, {_runs(one)}: MAP@R {_percent(one)} with one problem, {_percent(after)} alternating; covering "
    here += f"radius {mean(one, 'radius'):.3f} and {mean(after, 'radius'):.3f}, against the distance between classes "
    here += f"{mean(one, 'relative_radius'):.3f} and {mean(after, 'relative_radius'):.3f}"
    paper = "going on with alternating problems, the covering radius falls and MAP@R rises (Figure 3.2 b; MNIST, 97.21)"
    if _are_the_same(one, after):
        return JudgedClaim(paper, here, "not tested")
    return judge(paper, here, [_rises(one, after), _falls(one, after, "relative_radius")])


def _rises(one: list[Measured], after: list[Measured]) -> Evidence:
    figures = every(after, "figure"), every(one, "figure")
    return compare("MAP@R rises", *figures, LEAST_FIGURE, must=True, effect=CLAIMED_FIGURE)


def _falls(one: list[Measured], after: list[Measured], name: str) -> Evidence:
    """name: of a radius that is divided by the distance between classes."""
    return compare(FALLS, every(one, name), every(after, name), LEAST_RADIUS, effect=CLAIMED_RADIUS)


def early_note(courses: Courses) -> list[str]:
    """Whether first problems ended long before a single problem was at its best."""
    first = float(np.mean([run.snapshots[0].figure for run in courses[ALTERNATING]]))
    single = float(np.mean([max(figure for _, figure in run.curve) for run in courses[ONE]]))
    ends = [run.snapshots[0].step for run in courses[ALTERNATING] if run.snapshots[0].following is not None]
    if not ends or first >= 0.9 * single:
        return []
    return [
        f"The first alternating problem ended at step {np.mean(ends):.0f}, with a MAP@R of {100 * first:.1f}, one "
        f"problem came to {100 * single:.1f}. In the thesis it converges first: evaluate less often, with more steps."
    ]


def diversity_claim(courses: Courses, parts: Parts) -> JudgedClaim:
    labels = parts.validation.labels

    def shares(run: Course, first: int) -> list[float]:
        return [
            spread(by_class_and_number(each.converged, parts)) / class_spread(each.plane, labels)
            for each in run.snapshots
            if each.number >= first
        ]

    paper = "alternating problems have diverse proxies (Figure 3.2 b)"
    both = [(shares(one, 1), shares(other, 2)) for one, other in zip(courses[ONE], courses[ALTERNATING], strict=True)]
    both = [(before, after) for before, after in both if after]
    if not both:
        return JudgedClaim(paper, "no run came to a second problem", "not tested")
    before, after = (np.array([np.mean(of) for of in kind]) for kind in zip(*both, strict=True))
    much = compare("twice", (after - 2 * before).tolist(), 0.0)
    some = compare("that they are farther apart", (after - before).tolist(), 0.0, effect=COLLAPSED)
    count = sum(len(later) for _, later in both)
    here = (
        f"two proxies of a class are {after.mean():.1%} as far apart as two of its pictures at the best of problems 2 "
    )
    here += f"and later ({count} of them), {before.mean():.1%} with one problem, {count_in_words(len(both))}"
    return _graded(paper, here, len(both), bool(after.mean() >= 2 * before.mean()), much, some)


def samples_claim(measured: dict[str, list[Measured]], what: str) -> JudgedClaim:
    proxies, samples = measured[ALTERNATING], measured[SAMPLES]
    behind = np.array(every(samples, "figure")) - every(proxies, "figure")
    here = f"{what}, {_runs(proxies)}: MAP@R {_percent(proxies)} with proxies, {_percent(samples)} with samples "
    here += f"({100 * behind.mean():+.2f} points)"
    paper = "proxies do nearly as well as samples: 97.21 MAP@R against 98.06 (MNIST, section 3.3.1)"
    if not mean(samples, "figure") >= LEARNT:
        return JudgedClaim(paper, f"{here}; samples have not come to {LEARNT:.0%}: more steps are needed", "not tested")
    if _are_the_same(proxies, samples):
        return JudgedClaim(paper, here, "not tested")
    much, some = (
        compare(f"{100 * most:g} points", (-behind).tolist(), -most, effect=0.0) for most in (NEARLY, ROUGHLY)
    )
    return _graded(paper, here, len(behind), False, much, some)


def proposition_claim(gaps: Gaps, measured: dict[str, list[Measured]], classes: int) -> JudgedClaim:
    everything = [each for runs in gaps.values() for sets in runs for each in sets]
    paper = "the loss gap is bounded by a term that grows with the covering radius (Proposition 3.2.2)"
    if np.isnan(everything).any():
        return JudgedClaim(paper, "a gap is not a number", "not tested")
    held = sum(each.weighted <= each.radius + 1e-9 for each in everything)
    within = sum(each.printed <= each.radius + 1e-9 for each in everything)
    bound = f"{held} of {len(everything)} sets of anchors have a weighted gap of at most the radius, as they must, "
    bound += f"{within} the printed one"
    if held < len(everything):
        return JudgedClaim(paper, bound, "not reproduced")
    printed, weighted = ranks(gaps, "printed"), ranks(gaps, "weighted")
    if not printed:
        return JudgedClaim(paper, f"{bound}; too few sets for a rank correlation", "not tested")
    of_seeds: list[float] = np.mean(list(printed.values()), axis=0).tolist()
    own = "; ".join(f"{way}, {kind} {np.mean(values):.2f}" for (way, kind), values in printed.items())
    here = f"rank correlation of printed gap and radius {in_words(of_seeds, 2)}, {count_in_words(len(of_seeds))} ({own}"
    here += f"), of the weighted gap {np.mean(list(weighted.values())):.2f}; {bound}"
    enough = TRAINED + (1 - TRAINED) / classes
    least = float(np.min([every(measured[kind], "figure") for kind in (ONE, ALTERNATING)]))
    if not least >= enough:
        short = f"; a run has a MAP@R of {least:.1%}, less than {enough:.0%}: more steps are needed"
        return JudgedClaim(paper, here + short, "not tested")
    rises = compare("the gap rises with the radius", of_seeds, 0.0, effect=RISING)
    claim = judge(paper, here, [rises])
    return replace(claim, verdict="partly") if rises.holds and rises.difference < RISING else claim


def ranks(gaps: Gaps, name: str) -> dict[tuple[str, str], list[float]]:
    """The rank correlation of radius and gap within each run, where every seed has enough sets of anchors."""
    return {
        way: [rank_correlation([each.radius for each in sets], [getattr(each, name) for each in sets]) for sets in runs]
        for way, runs in gaps.items()
        if min(map(len, runs)) >= FEWEST_SETS
    }


def unseen_claim(held_out: dict[str, list[Measured]], test: dict[str, list[float]], what: str) -> JudgedClaim:
    one, after = held_out[ONE], held_out[ALTERNATING]
    here = f"{what}, held-out classes, {_runs(one)}, one problem and alternating: MAP@R {_percent(one)} and "
    here += f"{_percent(after)}; covering radius {mean(one, 'own_radius'):.3f} and {mean(after, 'own_radius'):.3f}; "
    here += f"distance between classes {mean(one, 'distance'):.3f} and {mean(after, 'distance'):.3f}; the radius "
    here += f"against it {mean(one, 'relative_own_radius'):.3f} and {mean(after, 'relative_own_radius'):.3f}; MAP@R on "
    here += f"test classes {100 * np.mean(test[ONE]):.2f} and {100 * np.mean(test[ALTERNATING]):.2f}"
    paper = (
        "alternating problems improve the geometry of unseen classes: smaller radius, larger distance between classes"
    )
    paper += " (Figure 3.3, CUB; its numbers are not in our copy)"
    if _are_the_same(one, after):
        return JudgedClaim(paper, here, "not tested")
    distances = every(after, "distance"), every(one, "distance")
    parts = [
        _rises(one, after),
        _falls(one, after, "relative_own_radius"),
        compare("the distance between classes grows", *distances, LEAST_DISTANCE, effect=CLAIMED_DISTANCE),
    ]
    return judge(paper, here, parts)


def _percent(runs: list[Measured]) -> str:
    return in_words([100 * each.figure for each in runs], 2)


def _runs(runs: list[Measured]) -> str:
    return count_in_words(len(runs))


def plane_table(measured: dict[str, list[Measured]], what: str) -> Table:
    columns = ["MAP@R", "radius by proxies", "radius by their own", "between classes", "proxies' spread, %"]
    note = (
        "mean and deviation over the seeds; MAP@R, own radius and distance on test pictures, the rest on held-out ones"
    )
    return Table(
        [Column("problems", "left"), *map(Column, columns)],
        [Line([words(kind), *_entries(runs, Measured._fields)]) for kind, runs in measured.items()],
        f"{what} in the unit disc",
        notes=[note, "spread: of two proxies of a class, against two pictures of it. The thesis: 97.21, samples 98.06"],
    )


def unseen_table(held_out: dict[str, list[Measured]], test: dict[str, list[float]], what: str) -> Table:
    columns = ["MAP@R", "radius by their own", "between classes", "MAP@R, test classes"]
    names = ("figure", "own_radius", "distance")
    lines = []
    for kind, runs in held_out.items():
        last = [100 * each for each in test[kind]]
        lines.append(Line([words(kind), *_entries(runs, names), entry(last)]))
    return Table([Column("problems", "left"), *map(Column, columns)], lines, f"Held-out classes of {what}")


def _entries(runs: list[Measured], names: tuple[str, ...]) -> list[Any]:
    found = []
    for name in names:
        scale = 100 if name in ("figure", "proxies_spread") else 1
        values = [scale * getattr(each, name) for each in runs]
        found.append(entry(values, digits=2 if scale == 100 else 3))
    return found
