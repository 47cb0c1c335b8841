"""Measurements of a run, and the thesis's claims about them.

The claims are a table; ``framework.claims`` has the rule of the verdict. Beyond that rule:

- Two kinds of runs that are best in the first problem, which they share, test nothing.
- A covering radius alone says little: it is smallest in a disc that has contracted. It is divided by the mean distance
  between classes of the same run.
- The bound of PROPOSITION on the weighted gap is a theorem: if it fails, nothing is reproduced.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.report.tables import Table
from lookalike_studies.ccp_geometry.measures import (
    Gap,
    class_spread,
    inter_class_distance,
    radii,
    rank_correlation,
    representative_radius,
    spread,
)
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Course, DataSplits, map_at_r
from lookalike_studies.ccp_geometry.theory import Deviation, Terms, clip_ratio, slope, summing_layer
from lookalike_studies.framework.claims import Claim, Comparison, JudgedClaim, Requirement, Verdict
from lookalike_studies.framework.tables import format_seed_count, tabulate

FEWEST_SETS = 3  # of anchors, for a rank correlation
EARLY = 0.9  # of the MAP@R of one problem: a first problem that ends below has not converged

# MAP@R: the thesis's gains on CUB are a point or more.
RISES = Comparison("alternating", ">", "one", "MAP@R rises", least=0.001, effect=0.01, must=True)
# The radius is about half the distance between classes on digits and birds. The effect is our choice: a tenth of it.
FALLS = Comparison(
    "relative radius alternating",
    "<",
    "relative radius one",
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
    here="two proxies of a class are {spread:.1%} as far apart as two pictures of it, {seeds}",
    partly_with_one_seed=True,
)
ALTERNATES = Claim(
    "going on with alternating problems, the covering radius falls and MAP@R rises (Figure 3.2 b; MNIST, 97.21)",
    (RISES, FALLS),
    here="{source}, {seeds}: MAP@R {percent one:2} with one problem, {percent alternating:2} alternating; covering "
    "radius {radius one:.3f} and {radius alternating:.3f}, against the distance between classes "
    "{relative radius one:.3f} and {relative radius alternating:.3f}",
)
DIVERSITY = Claim(
    "alternating problems have diverse proxies (Figure 3.2 b)",
    (Comparison("alternating", ">", "twice one", "twice"),),
    weaker=(Comparison("alternating", ">", "one", "that they are farther apart", effect=0.1),),
    here="two proxies of a class are {alternating:.1%} as far apart as two of its pictures at the best of problems 2 "
    "and later ({problems} of them), {one:.1%} with one problem, {seeds}",
    partly_with_one_seed=True,
)
BEHIND_SAMPLES = Claim(  # 0.0085 behind in the thesis
    "proxies do nearly as well as samples: 97.21 MAP@R against 98.06 (MNIST, section 3.3.1)",
    (Comparison("behind", "<", 0.02, "2 points", effect=0.0),),
    weaker=(Comparison("behind", "<", 0.05, "5 points", effect=0.0),),
    here="{source}, {seeds}: MAP@R {percent proxies:2} with proxies, {percent samples:2} with samples "
    "({percent behind:+.2f} points)",
    requires=(Requirement("samples", 0.9, "samples have not come to 90%: more steps are needed"),),  # 98 in the thesis
)
# MAP@R of every run must have come half of the way from chance, 1 / classes at most, to 1.
PROPOSITION = Claim(
    "the loss gap is bounded by a term that grows with the covering radius (Proposition 3.2.2)",
    (Comparison("correlation", ">", 0.0, "the gap rises with the radius", effect=0.5),),
    reproduced_from=0.5,
    here="rank correlation of printed gap and radius {correlation:2}, {seeds} ({by way}), of the weighted gap "
    "{weighted:.2f}; {bound}",
    requires=(
        Requirement(
            "beyond",
            0.0,
            "a run has a MAP@R of {MAP@R:.1%}, less than {enough:.0%}: more steps are needed",
        ),
    ),
)
# The exponent: half a tenth off is nothing, 200 draws for each number of anchors.
ANCHORS = Claim(
    "with m random anchors, the loss deviates from that over all pairs by at most zeta delta + L sqrt((2 K log 2 + 2 "
    "log 1/gamma) / m) (Proposition 3.2.1)",
    (
        Comparison("within", ">", 0.9499, "a share 1 - gamma of the draws is within the bound", effect=0.0, must=True),
        Comparison("slope", "within", -0.5, "the deviation falls as 1 / sqrt(m)", tolerance=0.15),
    ),
    here="{within:.1%} of the draws are within the bound (gamma 5%), {seeds}; the mean deviation falls as m^{slope:2}; "
    "with {anchors} anchors it is {deviation:.4f}, the bound {bound:.2f}, Hoeffding's, without a cover, "
    "{hoeffding:.2f}",
    partly_with_one_seed=True,
)
TERMS = Claim(
    "the training loss L1 is small and L2 is bounded, so L3 decides how well a subset of the pairs generalises (3.2.8)",
    (
        Comparison("L3", ">", "L1", "L3 is larger than L1", effect=0.0),
        Comparison("L3", ">", "L2", "L3 is larger than L2", effect=0.0),
    ),
    here="{source}, alternating, {seeds}: expected loss {expected:.4f}, L1 {L1:.4f}, L2 {L2:.4f}, L3 {L3:.4f}; {sum}",
)
LEMMA = "the loss is sqrt(2) omega^L-Lipschitz, omega the largest sum of the weights of a neuron (Lemma 3.2.1)"
UNSEEN = Claim(
    "alternating problems improve the geometry of unseen classes: smaller radius, larger distance between classes "
    "(Figure 3.3, CUB; its numbers are not in our copy)",
    (RISES, FALLS, GROWS),
    here="{source}, held-out classes, {seeds}, one problem and alternating: MAP@R {percent one:2} and "
    "{percent alternating:2}; covering radius {radius one:.3f} and {radius alternating:.3f}; distance between classes "
    "{distance one:.3f} and {distance alternating:.3f}; the radius against it {relative radius one:.3f} and "
    "{relative radius alternating:.3f}; MAP@R on test classes {test one:.2f} and {test alternating:.2f}",
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


def measure(course: Course, parts: DataSplits) -> Measured:
    labels = parts.validation.labels
    return Measured(
        map_at_r(course.test, parts.test.labels),
        float(radii(course.validation, labels, course.proxies).mean()),
        representative_radius(course.test, parts.test.labels),
        inter_class_distance(course.test, parts.test.labels),
        spread(course.proxies) / class_spread(course.validation, labels),
    )


def measure_unseen(course: Course, parts: DataSplits) -> Measured:
    vectors, labels = course.validation, parts.validation.labels
    radius, distance = representative_radius(vectors, labels), inter_class_distance(vectors, labels)
    return Measured(map_at_r(vectors, labels), float("nan"), radius, distance, float("nan"))


def every(runs: list[Measured], name: str) -> NDArray[np.float64]:
    """Collect one field of all runs."""
    return np.array([getattr(run, name) for run in runs], dtype=np.float64)


def collapse_claim(measured: dict[str, list[Measured]]) -> JudgedClaim:
    """Judge whether the proxies of one problem collapse."""
    shares = every(measured[ONE], "proxies_spread")
    return COLLAPSE.judge({"spread": shares}, seeds=format_seed_count(len(shares)))


def alternating_claim(measured: dict[str, list[Measured]], source: str) -> JudgedClaim:
    """Judge MAP@R and covering radius in the disc."""
    return _compare_kinds(ALTERNATES, measured, "radius", {}, source)


def unseen_claim(held_out: dict[str, list[Measured]], test: dict[str, list[float]], source: str) -> JudgedClaim:
    """Judge MAP@R, covering radius and distance between classes that were not trained."""
    on_test = {"test one": 100 * np.mean(test[ONE]), "test alternating": 100 * np.mean(test[ALTERNATING])}
    return _compare_kinds(UNSEEN, held_out, "own_radius", on_test, source)


def _compare_kinds(
    claim: Claim, measured: dict[str, list[Measured]], radius: str, more: dict[str, Any], source: str
) -> JudgedClaim:
    values: dict[str, Any] = dict(more)
    for name, runs in (("one", measured[ONE]), ("alternating", measured[ALTERNATING])):
        values[name] = every(runs, "figure")
        values[f"percent {name}"] = 100 * values[name]
        values[f"radius {name}"] = every(runs, radius)
        values[f"distance {name}"] = every(runs, "distance")
        values[f"relative radius {name}"] = values[f"radius {name}"] / values[f"distance {name}"]
    texts = {"source": source, "seeds": format_seed_count(len(measured[ONE]))}
    if _are_the_same(measured[ONE], measured[ALTERNATING]):
        return claim.not_tested(claim.describe(values, **texts))
    return claim.judge(values, **texts)


def _are_the_same(one: list[Measured], other: list[Measured]) -> bool:
    """Whether both have the best weights of the first problem, which they share."""
    figures_agree = np.array_equal(every(one, "figure"), every(other, "figure"))
    return figures_agree and np.array_equal(every(one, "own_radius"), every(other, "own_radius"))


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


def diversity_claim(courses: Courses, parts: DataSplits) -> JudgedClaim:
    """Judge how far the converged proxies of problems 2 and later are apart."""
    before, after, count = [], [], 0
    for one, other in zip(courses[ONE], courses[ALTERNATING], strict=True):
        later = _spread_shares(other, 2, parts)
        if later:
            before.append(np.mean(_spread_shares(one, 1, parts)))
            after.append(np.mean(later))
            count += len(later)
    if not after:
        return DIVERSITY.not_tested("no run came to a second problem")
    values = {"alternating": np.array(after), "one": np.array(before), "twice one": 2 * np.array(before)}
    return DIVERSITY.judge(values, problems=str(count), seeds=format_seed_count(len(after)))


def _spread_shares(run: Course, first: int, parts: DataSplits) -> list[float]:
    """Spread of the converged proxies against that of the classes, from problem ``first`` on."""
    shares = []
    for problem in run.snapshots:
        if problem.number >= first:
            shares.append(spread(problem.converged) / class_spread(problem.plane, parts.validation.labels))
    return shares


def samples_claim(measured: dict[str, list[Measured]], source: str) -> JudgedClaim:
    """Judge how far proxies are behind samples."""
    proxies, samples = every(measured[ALTERNATING], "figure"), every(measured[SAMPLES], "figure")
    values = {"samples": samples, "behind": samples - proxies, "percent behind": 100 * (samples - proxies)}
    values |= {"percent proxies": 100 * proxies, "percent samples": 100 * samples}
    texts = {"source": source, "seeds": format_seed_count(len(proxies))}
    if _are_the_same(measured[ALTERNATING], measured[SAMPLES]):
        return BEHIND_SAMPLES.not_tested(BEHIND_SAMPLES.describe(values, **texts))
    return BEHIND_SAMPLES.judge(values, **texts)


def proposition_claim(gaps: Gaps, measured: dict[str, list[Measured]], classes: int) -> JudgedClaim:
    """Judge whether the printed gap rises with the radius, within each run."""
    of_runs = [np.reshape(sets, (-1, 3)) for runs in gaps.values() for sets in runs]
    radius, printed_gap, weighted_gap = np.concatenate(of_runs).T
    if np.isnan([radius, printed_gap, weighted_gap]).any():
        return PROPOSITION.not_tested("a gap is not a number")
    held = int((weighted_gap <= radius + 1e-9).sum())
    within = int((printed_gap <= radius + 1e-9).sum())
    bound = f"{held} of {len(radius)} sets of anchors have a weighted gap of at most the radius, as they must, "
    bound += f"{within} the printed one"
    if held < len(radius):
        return JudgedClaim(PROPOSITION.paper, bound, "not reproduced")
    printed, weighted = ranks(gaps, "printed"), ranks(gaps, "weighted")
    if not printed:
        return PROPOSITION.not_tested(f"{bound}; too few sets for a rank correlation")
    correlation = np.mean(list(printed.values()), axis=0)  # of each seed
    by_way = "; ".join(f"{way}, {kind} {np.mean(values):.2f}" for (way, kind), values in printed.items())
    enough = 0.5 + 0.5 / classes
    least = float(np.min([every(measured[ONE], "figure"), every(measured[ALTERNATING], "figure")]))
    values = {"correlation": correlation, "weighted": float(np.mean(list(weighted.values())))}
    values |= {"MAP@R": least, "enough": enough, "beyond": least - enough}
    seeds = format_seed_count(len(correlation))
    return PROPOSITION.judge(values, **{"seeds": seeds, "by way": by_way, "bound": bound})


def anchors_claim(measured: list[list[Deviation]]) -> JudgedClaim:
    """Judge Proposition 3.2.1; one list for each seed."""
    most = [run[-1] for run in measured]
    values = {
        "within": np.array([min(deviation.within for deviation in run) for run in measured]),
        "slope": np.array([slope(run) for run in measured]),
        "deviation": np.array([deviation.mean for deviation in most]),
        "bound": np.array([deviation.bound for deviation in most]),
        "hoeffding": np.array([deviation.hoeffding for deviation in most]),
    }
    texts = {"anchors": str(most[0].anchors), "seeds": format_seed_count(len(measured))}
    if len(measured[0]) < FEWEST_SETS:
        return ANCHORS.not_tested("too few numbers of anchors for an exponent")
    return ANCHORS.judge(values, **texts)


def terms_claim(terms: list[Terms], source: str) -> JudgedClaim:
    """Judge which term of (3.2.8) is the largest; one for each seed."""
    expected, training, sampling, subset = np.transpose(terms)
    held = int((expected <= training + sampling + subset + 1e-9).sum())
    text = f"the expected loss is at most their sum in {held} of {len(terms)} runs, as it must be"
    values = {"expected": expected, "L1": training, "L2": sampling, "L3": subset}
    return TERMS.judge(values, source=source, seeds=format_seed_count(len(terms)), sum=text)


def lemma_claim(layers: NDArray[np.float64]) -> JudgedClaim:
    """Judge Lemma 3.2.1 by a layer that contradicts its proof, and by the layers (n, 3) of a trained network."""
    counterexample = summing_layer()
    spectral, columns, rows = layers.T
    above_columns, above_rows = int((spectral > columns).sum()), int((spectral > rows).sum())
    above_both = int((spectral > np.sqrt(rows * columns) * (1 + 1e-6)).sum())
    here = (
        f"a neuron that adds 8 inputs has omega {counterexample.columns:g} in the proof (sums over the weights of an "
        f"input) and a spectral norm of {counterexample.spectral:.2f}: |sum w x|^2 <= sum w^2 x^2 is false. Of "
        f"{len(layers)} trained layers, the norm is above that omega in {above_columns}, in {above_rows} "
        f"above the omega of the text (weights of a neuron), in {above_both} above the root of their product, a true "
        f"bound. The clip stretches random pairs by {clip_ratio():.3f} at most: it is 1-Lipschitz, the text says 2"
    )
    verdict: Verdict = "reproduced"
    if counterexample.spectral > counterexample.columns or above_columns:
        verdict = "not reproduced"
    return JudgedClaim(LEMMA, here, verdict)


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


def plane_table(measured: dict[str, list[Measured]], source: str) -> Table:
    columns = ["problems", "MAP@R", "radius by proxies", "radius by their own", "between classes", "proxies' spread, %"]
    rows = []
    for kind, runs in measured.items():
        map_at_r, *distances, proxies_spread = np.transpose(runs)
        rows.append([kind, 100 * map_at_r, *distances, 100 * proxies_spread])
    notes = [
        "mean and deviation over the seeds; MAP@R, own radius and distance on test pictures, the rest on held-out ones",
        "spread: of two proxies of a class, against two pictures of it. The thesis: 97.21, samples 98.06",
    ]
    return tabulate(columns, rows, digits=(2, 3, 3, 3, 2), title=f"{source} in the unit disc", notes=notes)


def unseen_table(held_out: dict[str, list[Measured]], test: dict[str, list[float]], source: str) -> Table:
    columns = ["problems", "MAP@R", "radius by their own", "between classes", "MAP@R, test classes"]
    rows = []
    for kind, runs in held_out.items():
        distances = every(runs, "own_radius"), every(runs, "distance")
        rows.append([kind, 100 * every(runs, "figure"), *distances, 100 * np.array(test[kind])])
    return tabulate(columns, rows, digits=(2, 3, 3, 2), title=f"Held-out classes of {source}")
