"""What became of the centres, and what the text claims of it.

Verdicts, from means over the seeds; nothing is tested where Adam's steps, all in one direction, would not lead half
around the sphere:

    energies get stuck      "not reproduced" if E_0, E_1, E_2 and UniformFace all reach 95% of the largest possible
                            smallest angle, from chance and out of a crowd. Else they are at rest or it is not tested:
                            in the last quarter of the steps no such angle may grow by more than 1% of it. "Reproduced"
                            if one falls short of 80%, else "partly". Out of a crowd the best of Adam's memories counts:
                            pushes that cancel do so under any
    push the farthest       "reproduced" if every regulariser of the farthest has surely (``claims``) the smallest angle
                            that E_1 has, less a degree, "partly" if one has, or all have surely more than at the start,
                            by a degree; else "not reproduced". With one seed nothing is tested
    energies are means      of the two equalities, both, one or none, to 1e-9
    means rise              from the smallest to the largest number, on the distances of random centres
    R1 takes the farthest   "reproduced" if more than half of its push goes to the farther half of the pairs
    embedding size          not tested: it is about recall, of which this is the geometry alone
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.report.seeds import entry
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.skewed_means import SkewedMean
from lookalike_studies.centres.sphere import (
    BEST_KNOWN,
    CROWDING,
    ENERGIES,
    FARTHEST,
    FARTHEST_PAIRS,
    NEAREST,
    SAME_PLACE,
    Arrangement,
    Array,
    simplex_angle,
)
from lookalike_studies.framework.claims import JudgedClaim, Verdict, is_above

if TYPE_CHECKING:
    from lookalike_studies.centres.study import Centres

STUCK, SPREAD = 0.8, 0.95  # of the largest possible smallest angle
LATE, STILL = 0.75, 0.01  # from this share of the steps on, growth by more of the largest possible angle is no rest
LEAST_ANGLE = 1.0  # a degree less is no difference
Found = dict[int, dict[str, list[Arrangement]]]  # by count of centres and regulariser, one for each seed


def late_growth(angles: Array) -> float:
    """By how much the least angles (seeds, steps + 1), in the mean, still grow in the last quarter of the steps."""
    mean = angles.mean(0)
    return float(mean[-1] - mean[int(LATE * (len(mean) - 1))])


def is_too_short(steps: int, rate: float) -> bool:
    """Whether steps of a rate that falls to 0, (1 - s)^2, would not lead half around the sphere."""
    return rate * steps / 3 < np.pi


def mean_angle(runs: list[Arrangement]) -> float:
    return float(np.mean([each.least_angle for each in runs]))


def energies_claim(
    found: Found, crowd_rest: dict[str, list[float]], settings: Centres, growth: dict[int, float]
) -> JudgedClaim:
    """crowd_rest: by regulariser, the least angle for each of the memories.  growth: of angles in the last quarter of
    the steps, the largest by count of centres."""
    shares = {
        (name, count): mean_angle(of[name]) / BEST_KNOWN[count][0] for count, of in found.items() for name in ENERGIES
    }
    least = min(shares, key=lambda each: shares[each])
    here = (
        f"the smallest angle reaches at least {shares[least]:.1%} of the largest possible one from random starts "
        f"({least[0]}, {least[1]} centres)"
    )
    worst = shares[least]
    if settings.crowd in BEST_KNOWN:
        known = BEST_KNOWN[settings.crowd][0]
        here += f"; {settings.crowd} centres that begin within {settings.crowd_degrees:g} degrees of a pole:"
        for number, memory in enumerate(settings.memories):
            told = ", ".join(f"{name} {crowd_rest[name][number] / known:.1%}" for name in ENERGIES)
            here += f" {told} where Adam's second beta is {memory:g};"
        worst = min(worst, *(max(crowd_rest[name]) / known for name in ENERGIES))
    here = here.removesuffix(";")
    growing = max(of / BEST_KNOWN[count][0] for count, of in growth.items())
    verdict: Verdict = "not reproduced" if worst >= SPREAD else "reproduced" if worst < STUCK else "partly"
    if np.isnan([*shares.values(), growing, *(each for name in ENERGIES for each in crowd_rest[name])]).any():
        verdict = "not tested"
    elif is_too_short(settings.steps, settings.rate):
        here, verdict = f"{here}; {settings.steps} steps are too few to be stuck", "not tested"
    elif worst < SPREAD and growing > STILL:
        here, verdict = f"{here}; still growing, by {growing:.1%} of it in the last quarter", "not tested"
    paper = "energies push the nearest only, whose pushes cancel: centres get stuck and do not spread over the sphere"
    return JudgedClaim(f"{paper} (section 3.1, Figure 1; no number)", here, verdict)


def memory_note(crowd_rest: dict[str, list[float]]) -> list[str]:
    """Where one memory lets an energy out of the crowd and another does not, it is the optimiser that holds it."""
    held = [name for name in ENERGIES if min(crowd_rest[name]) < 0.95 * max(crowd_rest[name])]
    if not held:
        return []
    return [
        f"Out of the crowd, {', '.join(held)} came less far with one second beta of Adam than with another: it divides "
        "by gradients that it remembers from the crowd. There it is the optimiser that is stuck, not the pushes."
    ]


def farthest_claim(found: Found, starts: dict[int, list[Arrangement]], settings: Centres) -> JudgedClaim:
    count = max(found)
    of, began, energy = found[count], mean_angle(starts[count]), mean_angle(found[count]["E_1"])
    pushing = [name for name in of if name in (FARTHEST, FARTHEST_PAIRS) or _is_above_two(name)]
    angles = {name: mean_angle(of[name]) for name in pushing}
    by_seed = {name: np.array([each.least_angle for each in of[name]]) for name in (*pushing, "E_1")}
    start = [each.least_angle for each in starts[count]]
    as_far = [is_above(by_seed[name].tolist(), (by_seed["E_1"] - LEAST_ANGLE).tolist()) for name in pushing]
    farther = [is_above(by_seed[name].tolist(), start, LEAST_ANGLE) for name in pushing]
    verdict: Verdict = "not reproduced"
    if is_too_short(settings.steps, settings.rate) or None in (*as_far, *farther):
        verdict = "not tested"
    elif all(as_far):
        verdict = "reproduced"
    elif any(as_far) or all(farther):
        verdict = "partly"
    told = ", ".join(
        f"{name} {angle:.1f} degrees ({np.mean([each.places for each in of[name]]):.0f} places)"
        for name, angle in angles.items()
    )
    here = f"smallest angle of {count} centres: {told}; {began:.1f} at the start, {energy:.1f} under E_1"
    return JudgedClaim(
        "pushing the farthest pairs assigns the centres, they are less stuck (Remark 1; no number)", here, verdict
    )


def _is_above_two(name: str) -> bool:
    return name.startswith("knob ") and float(name.removeprefix("knob ")) > 2


def equalities_claim(same: dict[str, tuple[float, float]]) -> JudgedClaim:
    holds = {name: abs(left - right) <= 1e-9 * abs(right) for name, (left, right) in same.items()}
    energies = all(each for name, each in holds.items() if name.startswith("E_"))
    face = all(each for name, each in holds.items() if name.startswith("UniformFace"))
    verdict: Verdict = "reproduced" if energies and face else "partly" if energies or face else "not reproduced"
    if np.isnan([*same.values()]).any():
        verdict = "not tested"
    left, right = next(pair for name, pair in same.items() if name.startswith("UniformFace"))
    here = f"E_0, E_1 and E_2 {'are' if energies else 'are not'} functions of the power means of knob 0, -1 and -2; "
    here += f"UniformFace is {left:.4f} where (10) at lambda -1, the mean distance, is {right:.4f}"
    paper = (
        "the energies are special cases of skewed means: minimum hyperspherical energy, and UniformFace at lambda -1"
    )
    return JudgedClaim(f"{paper} (section 3.4)", here, verdict)


def rising_claim(distances: Array) -> JudgedClaim:
    knobs = (-inf, *np.linspace(-50, 50, 101).tolist(), inf)
    numbers = torch.from_numpy(distances)
    rises, ends = [], []
    for kind in ("power", "log-exp"):
        means = [float(SkewedMean(kind, knob)(numbers)) for knob in knobs]
        rises.append(bool((np.diff(means) >= -1e-12).all()))
        ends.append(bool(np.isclose(means[0], distances.min()) and np.isclose(means[-1], distances.max())))
    right = [*rises, *ends]
    verdict: Verdict = "reproduced" if all(right) else "partly" if any(right) else "not reproduced"
    here = f"both rise over {len(knobs)} knobs, from {distances.min():.3f} to {distances.max():.3f}, the smallest and "
    here += "largest distance" if all(right) else "largest distance, but not everywhere"
    return JudgedClaim(
        "log-exp and power means rise with the knob from the minimum to the maximum (Property 1)", here, verdict
    )


def crowding_claim(push: float, found: Found) -> JudgedClaim:
    verdict: Verdict = "not tested" if np.isnan(push) else "reproduced" if push > 0.5 else "not reproduced"
    reached = ", ".join(f"{mean_angle(of[CROWDING]):.1f} of {BEST_KNOWN[n][0]:.1f} for {n}" for n, of in found.items())
    here = (
        f"{push:.1%} of its push goes to the farther half of the pairs: it pushes the nearest, and spreads the centres "
    )
    here += f"(smallest angle in degrees, of the largest possible: {reached})"
    return JudgedClaim("the regulariser R1 considers the pairs of the farthest centres (conclusion)", here, verdict)


def sizes_claim(angles: dict[str, list[float]], settings: Centres) -> JudgedClaim:
    paper = (
        "the performance is fairly stable from 128 dimensions on, and does not degrade up to 1024 (Figure 2, recall)"
    )
    large = [angle for size, angle in zip(settings.sizes, angles["E_1"], strict=True) if size >= 128]
    if len(large) < 2 or np.isnan(large).any() or is_too_short(settings.size_steps, settings.rate):
        return JudgedClaim(paper, "too few sizes from 128 on, or too few steps", "not tested")
    told = ", ".join(f"{angle:.1f} at {size}" for size, angle in zip(settings.sizes, angles["E_1"], strict=True))
    here = f"recall was not measured. Smallest angle of {settings.classes} centres under E_1, in degrees: {told}; "
    here += f"{simplex_angle(settings.classes):.2f} is the most there can be, from {settings.classes - 1} dimensions on"
    return JudgedClaim(paper, here, "not tested")


def known_table(found: Found) -> Table:
    columns = [
        "centres",
        "largest possible",
        "nearest, best",
        "nearest, mean",
        "least E_1 known",
        "E_1, best",
        "E_1, mean",
    ]
    lines = []
    for count, of in found.items():
        angle, energy = BEST_KNOWN[count]
        angles, energies = [each.least_angle for each in of[NEAREST]], [each.energy for each in of["E_1"]]
        entries = [number(count, digits=0), number(angle), number(max(angles)), entry(angles)]
        lines.append(Line([*entries, number(energy, digits=4), number(min(energies), digits=4), entry(energies, 4)]))
    note = "angles in degrees; best and mean over the seeds; known: Tammes's and Thomson's problem"
    return Table([*map(Column, columns)], lines, "Against what is known", notes=[note])


def arrangements_table(found: Found, starts: dict[int, list[Arrangement]]) -> Table:
    titles = ["smallest angle", "to the nearest", "mean distance", "E_1", "places"]
    lines = []
    for count, of in found.items():
        for name, runs in {"at the start": starts[count], **of}.items():
            fields = [[getattr(each, field) for each in runs] for field in Arrangement._fields]
            crowded = min(fields[0]) < SAME_PLACE
            entries = [entry(each) for each in fields[:3]]
            entries.append(words("infinite") if crowded else entry(fields[3]))
            lines.append(Line([words(f"{count}: {name}"), *entries, entry(fields[4], 1)], str(count)))
    note = "angles in degrees, mean and deviation over the seeds; places: more than a degree apart"
    return Table([Column("centres: pushed by", "left"), *map(Column, titles)], lines, notes=[note])
