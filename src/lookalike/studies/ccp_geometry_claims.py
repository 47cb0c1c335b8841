"""What is measured of a run, and what the thesis claims against it.

Verdicts, from means over the seeds; "one" is the single problem. Where two runs are compared, a single seed is never
more than "partly", and if both are at their best in the first problem, which they share, it is "not tested":

    collapse     the proxies of one are spread over less than a tenth of what pictures of a class are: "reproduced",
                 less than half: "partly"
    alternating  MAP@R is higher in every seed and the covering radius by proxies smaller in the mean: "reproduced";
                 one of both in the mean: "partly"
    diversity    converged proxies of alternating problems, against the class's spread, have at least twice what those
                 of one have: "reproduced", more: "partly"
    samples      MAP@R with proxies is within 2 points of that with samples: "reproduced", within 5: "partly"
    proposition  the part of the bound that can be asserted holds for every set of anchors, and the printed gap rises
                 with the radius, rank correlation at least 0.5: "reproduced"; one of both: "partly"
    unseen       of MAP@R (up), covering radius (down) and distance between classes (up) on held-out classes, all:
                 "reproduced", some: "partly"

"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.studies.ccp_geometry_measures import (
    Gap,
    class_spread,
    inter_class_distance,
    radii,
    rank_correlation,
    representative_radius,
    spread,
)
from lookalike.studies.ccp_geometry_race import ALTERNATING, ONE, SAMPLES, Course, Parts, map_at_r
from lookalike.studies.study import Claim, Verdict

Courses = dict[str, list[Course]]  # by kind, one for each seed


class Measured(NamedTuple):
    """Of a run's best weights: on test pictures, on those of the held-out classes for unseen ones."""

    figure: float  # MAP@R
    radius: float  # mean over classes, of held-out pictures by proxies; NaN where proxies are of other classes
    own_radius: float  # by k = 1..n of their own
    distance: float  # between classes
    proxies_spread: float  # against the spread of the class's held-out pictures


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


def _modest(verdict: Verdict, one: list[Measured], other: list[Measured]) -> Verdict:
    if all(a.figure == b.figure and a.own_radius == b.own_radius for a, b in zip(one, other, strict=True)):
        return "not tested"  # both have the best weights of the first problem, which they share
    return "partly" if verdict == "reproduced" and len(one) < 2 else verdict


def mean(runs: list[Measured], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in runs]))


def collapse_claim(measured: dict[str, list[Measured]]) -> Claim:
    share = mean(measured[ONE], "proxies_spread")
    verdict: Verdict = "reproduced" if share < 0.1 else "partly" if share < 0.5 else "not reproduced"
    here = f"two proxies of a class are {share:.1%} as far apart as two pictures of it"
    return Claim("with a single problem, the proxies of a class collapse to one point (Figure 3.2 a)", here, verdict)


def alternating_claim(measured: dict[str, list[Measured]], what: str) -> Claim:
    one, alternating = measured[ONE], measured[ALTERNATING]
    better = [after.figure > before.figure for before, after in zip(one, alternating, strict=True)]
    smaller = mean(alternating, "radius") < mean(one, "radius")
    verdict: Verdict = "not reproduced"
    if smaller and all(better):
        verdict = "reproduced"
    elif smaller or mean(alternating, "figure") > mean(one, "figure"):
        verdict = "partly"
    here = f"{what}, {_runs(one)}: MAP@R {_percent(one)} with one problem, {_percent(alternating)} alternating; "
    here += f"covering radius {mean(one, 'radius'):.3f} and {mean(alternating, 'radius'):.3f}"
    paper = "going on with alternating problems, the covering radius falls and MAP@R rises (Figure 3.2 b; MNIST, 97.21)"
    return Claim(paper, here, _modest(verdict, one, alternating))


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


def diversity_claim(courses: Courses, parts: Parts) -> Claim:
    labels = parts.validation.labels

    def shares(runs: list[Course], first: int) -> list[float]:
        return [
            spread(by_class_and_number(each.converged, parts)) / class_spread(each.plane, labels)
            for run in runs
            for each in run.snapshots
            if each.number >= first
        ]

    paper = "alternating problems have diverse proxies (Figure 3.2 b)"
    later = shares(courses[ALTERNATING], 2)
    if not later:
        return Claim(paper, "no run came to a second problem", "not tested")
    before, after = float(np.mean(shares(courses[ONE], 1))), float(np.mean(later))
    verdict: Verdict = "reproduced" if after >= 2 * before else "partly" if after > before else "not reproduced"
    here = f"two proxies of a class are {after:.1%} as far apart as two of its pictures at the best of problems 2 and "
    here += f"later ({len(later)} of them), {before:.1%} with one problem"
    return Claim(paper, here, verdict)


def samples_claim(measured: dict[str, list[Measured]], what: str) -> Claim:
    proxies, samples = measured[ALTERNATING], measured[SAMPLES]
    lead = 100 * (mean(samples, "figure") - mean(proxies, "figure"))
    verdict: Verdict = "reproduced" if abs(lead) <= 2 else "partly" if abs(lead) <= 5 else "not reproduced"
    here = f"{what}: MAP@R {_percent(proxies)} with proxies, {_percent(samples)} with samples ({lead:+.2f} points)"
    paper = "proxies do nearly as well as samples: 97.21 MAP@R against 98.06 (MNIST, section 3.3.1)"
    return Claim(paper, here, _modest(verdict, proxies, samples))


def proposition_claim(gaps: dict[str, list[Gap]]) -> Claim:
    everything = [each for sets in gaps.values() for each in sets]
    held = sum(each.weighted <= each.radius + 1e-9 for each in everything)
    within = sum(each.printed <= each.radius + 1e-9 for each in everything)
    rank = rank_correlation([each.radius for each in everything], [each.printed for each in everything])
    weighted = rank_correlation([each.radius for each in everything], [each.weighted for each in everything])
    right = (held == len(everything)) + (rank >= 0.5)
    verdict: Verdict = ("not reproduced", "partly", "reproduced")[right]
    own = ", ".join(
        f"{name} {rank_correlation([each.radius for each in sets], [each.printed for each in sets]):.2f}"
        for name, sets in gaps.items()
    )
    here = (
        f"{held} of {len(everything)} sets of anchors have a weighted gap of at most the radius, {within} the printed "
    )
    here += f"one; rank correlation of printed gap and radius {rank:.2f} ({own}), of the weighted gap {weighted:.2f}"
    return Claim(
        "the loss gap is bounded by a term that grows with the covering radius (Proposition 3.2.2)", here, verdict
    )


def unseen_claim(held_out: dict[str, list[Measured]], test: dict[str, list[float]], what: str) -> Claim:
    one, after = held_out[ONE], held_out[ALTERNATING]
    right = [
        mean(after, "figure") > mean(one, "figure"),
        mean(after, "own_radius") < mean(one, "own_radius"),
        mean(after, "distance") > mean(one, "distance"),
    ]
    verdict: Verdict = "reproduced" if all(right) else "partly" if any(right) else "not reproduced"
    here = f"{what}, held-out classes, {_runs(one)}, one problem and alternating: MAP@R {_percent(one)} and "
    here += f"{_percent(after)}; covering radius {mean(one, 'own_radius'):.3f} and {mean(after, 'own_radius'):.3f}; "
    here += f"distance between classes {mean(one, 'distance'):.3f} and {mean(after, 'distance'):.3f}; MAP@R on test "
    here += f"classes {100 * np.mean(test[ONE]):.2f} and {100 * np.mean(test[ALTERNATING]):.2f}"
    paper = (
        "alternating problems improve the geometry of unseen classes: smaller radius, larger distance between classes"
    )
    return Claim(f"{paper} (Figure 3.3, CUB; its numbers are not in our copy)", here, _modest(verdict, one, after))


def _percent(runs: list[Measured]) -> str:
    figures = [100 * each.figure for each in runs]
    return f"{np.mean(figures):.2f}" + (f" ± {np.std(figures):.2f}" if len(figures) > 1 else "")


def _runs(runs: list[Measured]) -> str:
    return f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"


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
        lines.append(Line([words(kind), *_entries(runs, names), number(float(np.mean(last)), _deviation(last))]))
    return Table([Column("problems", "left"), *map(Column, columns)], lines, f"Held-out classes of {what}")


def _entries(runs: list[Measured], names: tuple[str, ...]) -> list[Any]:
    found = []
    for name in names:
        scale = 100 if name in ("figure", "proxies_spread") else 1
        values = [scale * getattr(each, name) for each in runs]
        found.append(number(float(np.mean(values)), _deviation(values), digits=2 if scale == 100 else 3))
    return found


def _deviation(values: list[float]) -> float | None:
    return float(np.std(values)) if len(values) > 1 else None
