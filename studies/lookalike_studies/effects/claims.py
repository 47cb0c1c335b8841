"""Evaluation of the claims that the file of an axis lists.

    claims:
      - paper: low mu perform alike, ...                   # what the authors say; names in braces are filled in
        here: "up to 0.4: {low}; keeping all: {all}"       # what was measured here
        means:                                             # the means to compare: arguments of ``Measured.of``
          low: {series: C2 + GSP, keep: [0, 0.4]}          # points with a value from 0 to 0.4
          all: {series: C2 + GSP, keep: 1.0}
        compare:
          - {name: the drop, left: low, relation: ">", right: all, effect: 0.5}
          - {name: low mu, left: low, relation: all alike, tolerance: 0.5}

Left and right name means, of which the mean is compared, or the "least", "most", "first" or "last" of them. Relations:
">"; "alike"; "at most", up to ``plus`` more than the right; "all alike", the means on the left among each other.
``effect`` is the difference that is claimed, ``tolerance`` the one that would matter. ``of`` repeats a claim for
several losses, whose name replaces ``$``. ``framework.claims`` has the rule of the verdict, ``measured`` the margin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from lookalike.experiments.published import published
from lookalike.objectives.presets import DATA_SETS
from lookalike_studies.effects.iterated import AUTOGRAD, CLOSED_FORM, EXACT, Cost
from lookalike_studies.effects.measured import NAN, Array, Means, Measured, short_point
from lookalike_studies.framework.claims import Evidence, JudgedClaim, compare, judge, verdict_from_flags

MORE_STEPS = (0.1, 0.35)  # share of additional steps with CCP
LEAST_MORE = 0.05  # a smaller share of steps does not count
LATE = 0.9  # of all steps: a later best step means that training was too short
MARGINAL, SUBSTANTIAL = 1.5, 2.0  # growth of the time of a step from the fewest rounds to the most
Steps = Mapping[str, Sequence[float]]  # by series, for each seed


def judge_axis(measured: Measured) -> list[JudgedClaim]:
    """Judge all claims in the file of the axis."""
    judged = []
    for row in measured.axis.claims:
        for loss in row.get("of", [""]):
            claim = json.loads(json.dumps(row).replace("$", loss))
            judged.append(_judge(claim, measured))
    return judged


def _judge(claim: Mapping[str, Any], measured: Measured) -> JudgedClaim:
    means = {}
    for name, source in claim["means"].items():
        arguments = dict(source)
        compute: Callable[..., Means] = DERIVED.get(arguments.pop("derived", ""), Measured.of)
        means[name] = compute(measured, **arguments)
    margin = measured.margin_of(max(values.count for values in means.values()))
    evidence = [_evidence(row, means, margin) for row in claim["compare"]]
    here = claim["here"].format_map(means) + measured.margin_in_words(margin)
    paper = claim["paper"]
    if "{table}" in paper:
        paper = paper.format(table=_zero_shot_table(measured.data_set))
    return judge(paper, here, evidence)


def _evidence(row: Mapping[str, Any], means: Mapping[str, Means], margin: float) -> Evidence:
    name, relation = row["name"], row["relation"]
    if relation == "all alike":
        return Evidence(name, means[row["left"]].spread(), margin, row["tolerance"])
    difference = _number(row["left"], means) - _number(row.get("right", ""), means)
    if relation == ">":
        return Evidence(name, difference, margin, effect=row["effect"])
    if relation == "alike":
        return Evidence(name, abs(difference), margin, row["tolerance"])
    return Evidence(name, difference - row["plus"], margin, row["tolerance"])


def _number(text: str, means: Mapping[str, Means]) -> float:
    if not text:
        return 0.0
    how, _, name = text.rpartition(" ")
    return means[name].reduce(how or "mean")


def _zero_shot_table(data_set: str) -> str:
    if data_set not in DATA_SETS:
        data_set = "cub"
    rows = published(table="5.3", data_set=data_set, size=128, metric="MAP@R") or ()
    return f"{data_set} 128-D: " + ", ".join(f"{row.method} {row}" for row in rows)


def _others(measured: Measured, series: str, by: str, without: float) -> Means:
    """Means by the values of a setting, without one of them."""
    means = measured.of(series, by)
    others = dict(means.values)
    others.pop(without, None)
    return Means(others, means.count)


def _leads(measured: Measured, series: str, other: str, by: str) -> Means:
    """Differences of two series, by the value of a setting."""
    ours, theirs = measured.of(series, by).values, measured.of(other, by).values
    return Means({value: ours[value] - theirs[value] for value in ours if value in theirs})


def _saturation(measured: Measured, series: str, by: str, middle: float) -> Means:
    """Gain up to a middle value, and how much the curve bends there, scaled to the error of a difference."""
    means = measured.of(series, by)
    first, last, at_middle = means.reduce("first"), means.reduce("last"), means.values.get(middle, NAN)
    return Means({"gain": at_middle - first, "bend": (2 * at_middle - first - last) / 3**0.5}, means.count)


def _ends(measured: Measured, series: str, by: str, along: str, end: str) -> Means:
    """Means at the "first" or "last" value of one setting, by the value of another."""
    values = {}
    for value in measured.of(series, by).values:
        limits = {by: value}
        values[value] = measured.of(series, along, **limits).reduce(end)
    return Means(values)


def main_effects(settings: Sequence[dict[str, Any]], metrics: Array) -> dict[str, float]:
    """Compute the main effect of each setting: the mean metric at its higher level less that at its lower.

    >>> main_effects([{"m": 16}, {"m": 128}], np.array([1.0, 3.0]))
    {'m': 2.0}
    """
    effects = {}
    for name in settings[0]:
        levels = np.array([float(run[name]) for run in settings])
        effects[name] = float(metrics[levels == levels.max()].mean() - metrics[levels == levels.min()].mean())
    return effects


def measured_effects(measured: Measured, series: str) -> Means:
    """Compute the main effects in a series; each is a difference of two means over half of the runs."""
    numbers = measured.where([series])
    settings = [short_point(measured.points[number]) for number in numbers]
    return Means(main_effects(settings, measured.means[numbers]), len(numbers) / 2)


def published_effects(loss: str) -> dict[str, float]:
    """Compute the main effects of Table 5.4 for a loss."""
    rows = published(table="5.4", loss=loss, pooling="gsp") or ()
    runs = [row for row in rows if row.settings]
    return main_effects([run.settings for run in runs], np.array([run.mean for run in runs]))


def _published_effects(measured: Measured, series: str) -> Means:
    return Means(published_effects(measured.axis.named(series).loss))


def _lead_of_effect(measured: Measured, series: str, setting: str) -> Means:
    """By how much the effect of a setting is larger than the largest of the others, whatever their signs."""
    effects = measured_effects(measured, series)
    sizes = {name: abs(effect) for name, effect in effects.values.items()}
    size = sizes.pop(setting)
    return Means({setting: size - float(np.max(list(sizes.values())))}, effects.count)


DERIVED: dict[str, Callable[..., Means]] = {
    "others": _others,
    "leads": _leads,
    "saturation": _saturation,
    "ends": _ends,
    "effects": measured_effects,
    "published effects": _published_effects,
    "lead of effect": _lead_of_effect,
}


def judge_steps(best_steps: Steps, last_steps: Steps) -> list[JudgedClaim]:
    """Judge for each loss how many more steps CCP takes to its best weights; the last steps are all that were done."""
    return [_judge_steps(loss, best_steps, last_steps) for loss in ("C2", "MS", "Triplet")]


def _judge_steps(loss: str, best_steps: Steps, last_steps: Steps) -> JudgedClaim:
    plain = np.array(best_steps.get(loss, [NAN]))
    ccp = np.array(best_steps.get(f"{loss} + CCP", [NAN]))
    paper = f"{loss}: CCP takes 10 % to 35 % more steps (Table 3.3: {_published_steps(loss.lower())})"
    if not (len(plain) and len(ccp)) or np.isnan([*plain, *ccp]).any() or not plain.all():
        return JudgedClaim(paper, "no step was better than the start", "not tested")
    extra = float(ccp.mean() / plain.mean()) - 1
    here = f"best after {plain.mean():.0f} steps plain, {ccp.mean():.0f} with CCP ({extra:+.0%})"
    plain_share = plain.mean() / np.mean(last_steps[loss])
    ccp_share = ccp.mean() / np.mean(last_steps[f"{loss} + CCP"])
    if max(plain_share, ccp_share) > LATE:
        return JudgedClaim(paper, f"{here}; the steps ended before the metrics stopped growing", "not tested")
    if len(plain) != len(ccp) or len(plain) < 2:
        return JudgedClaim(paper, f"{here}; too few seeds", "not tested")
    low, high = MORE_STEPS
    more = compare("more steps", ccp / plain, 1.0, LEAST_MORE, effect=low)
    within = Evidence("10 % to 35 %", abs(extra - (low + high) / 2), (high - low) / 2, inf)
    return judge(paper, here, [more, within])


def _published_steps(loss: str) -> str:
    texts = []
    for data_set in ("sop", "inshop"):
        rows = published(table="3.3", loss=loss, data_set=data_set, memory=False) or ()
        steps = {row.ccp: row.mean for row in rows}
        texts.append(f"{steps[True] / steps[False] - 1:+.0%} in {data_set}")
    return ", ".join(texts)


def judge_costs(costs: Sequence[Cost]) -> JudgedClaim:
    """Judge how the time of a training step grows with the rounds, for both kinds of gradients."""
    growth, texts = {}, []
    for way in (CLOSED_FORM, AUTOGRAD):
        of_way = [cost for cost in costs if cost.way == way]
        first, last = of_way[0], of_way[-1]
        growth[way] = last.milliseconds / first.milliseconds
        time = f"{first.milliseconds:.1f} to {last.milliseconds:.1f} ms"
        memory = f"{first.megabytes:.1f} to {last.megabytes:.1f} MB"
        texts.append(f"{way}, k {first.iterations} to {last.iterations}: {time}, {memory}")
    exact = next(cost for cost in costs if cost.way == EXACT)
    texts.append(f"{EXACT}, which has no k: {exact.milliseconds:.1f} ms, {exact.megabytes:.1f} MB")
    verdict = verdict_from_flags([growth[CLOSED_FORM] < MARGINAL, growth[AUTOGRAD] >= SUBSTANTIAL])
    paper = "with closed-form gradients k has a marginal effect on the computation, with autograd a substantial one"
    return JudgedClaim(f"{paper} (Figure 5.9, on a GPU)", "; ".join(texts), verdict)
