"""Claims of the text on skewed means, and the tables of the study of centres.

Verdicts come from means over the seeds. Nothing is tested if Adam's steps could not lead half around the sphere.

    energies get stuck     judged by the smallest angle that E_0, E_1, E_2 and UniformFace reach, as a share of the
                           largest possible one, from random starts and out of a crowd (with the better of Adam's
                           memories: pushes that cancel do so under any). Below STUCK: "reproduced". From SPREAD on:
                           "not reproduced". Between: "partly". Not tested while angles below SPREAD grow by STILL
    push the farthest      "reproduced" if every regulariser of the farthest surely reaches the smallest angle of E_1,
                           less a degree; "partly" if one does, or all surely exceed the start by a degree
    energies are means     two equalities, to EQUAL
    means rise             from the smallest to the largest number, on the distances of random centres
    R1 takes the farthest  "reproduced" if more than HALF of its push goes to the farther half of the pairs
    embedding size         not tested: the claim is about recall, and this is the geometry alone
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np
import torch

from lookalike.report.tables import Column, Table
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
from lookalike_studies.framework.claims import JudgedClaim, Verdict, is_above, verdict_from_flags
from lookalike_studies.framework.tables import tabulate

if TYPE_CHECKING:
    from lookalike_studies.centres.study import Centres

STUCK, SPREAD = 0.8, 0.95  # of the largest possible smallest angle
LATE, STILL = 0.75, 0.01  # growth by more of that angle, from this share of the steps on, means that nothing rests yet
LEAST_ANGLE = 1.0  # degrees; a smaller difference does not count
EQUAL = 1e-9  # relative difference of equal numbers
HALF = 0.5
PAPER = {
    "energies": "energies push the nearest only, whose pushes cancel: centres get stuck and do not spread over the "
    "sphere (section 3.1, Figure 1; no number)",
    "farthest": "pushing the farthest pairs assigns the centres, they are less stuck (Remark 1; no number)",
    "equalities": "the energies are special cases of skewed means: minimum hyperspherical energy, and UniformFace at "
    "lambda -1 (section 3.4)",
    "rising": "log-exp and power means rise with the knob from the minimum to the maximum (Property 1)",
    "crowding": "the regulariser R1 considers the pairs of the farthest centres (conclusion)",
    "sizes": "the performance is fairly stable from 128 dimensions on, and does not degrade up to 1024 (Figure 2, "
    "recall)",
}
Measurements = dict[int, dict[str, list[Arrangement]]]  # by number of centres and regulariser, one for each seed


def late_growth(angles: Array) -> float:
    """Compute how much the mean of the least angles (seeds, steps + 1) grows in the last quarter of the steps."""
    mean = angles.mean(0)
    return float(mean[-1] - mean[int(LATE * (len(mean) - 1))])


def is_too_short(steps: int, rate: float) -> bool:
    """Return whether steps with the rate (1 - s)^2 could not lead half around the sphere."""
    return rate * steps / 3 < np.pi


def least_angles(runs: list[Arrangement]) -> list[float]:
    """List the least angles of all seeds."""
    return [run.least_angle for run in runs]


def mean_angle(runs: list[Arrangement]) -> float:
    """Compute the mean of the least angles."""
    return float(np.mean(least_angles(runs)))


def energies_claim(
    measured: Measurements, crowd_rest: dict[str, list[float]], settings: Centres, growth: dict[int, float]
) -> JudgedClaim:
    """Judge whether energies get stuck: from random starts (``measured``), and out of a crowd.

    ``crowd_rest``: by regulariser, the least angle for each of Adam's memories. ``growth``: by number of centres, the
    largest growth of angles in the last quarter of the steps.
    """
    shares = {}
    for count, runs in measured.items():
        for name in ENERGIES:
            shares[name, count] = mean_angle(runs[name]) / BEST_KNOWN[count][0]
    from_crowd = np.array([crowd_rest[name] for name in ENERGIES])  # (energies, memories)
    name, count = min(shares, key=lambda key: shares[key])
    worst = shares[name, count]
    here = f"the smallest angle reaches at least {worst:.1%} of the largest possible one from random starts "
    here += f"({name}, {count} centres)"
    if settings.crowd in BEST_KNOWN:
        best = BEST_KNOWN[settings.crowd][0]
        here += f"; {settings.crowd} centres that begin within {settings.crowd_degrees:g} degrees of a pole:"
        texts = []
        for memory, angles in zip(settings.memories, from_crowd.T, strict=True):
            reached = [f"{name} {angle / best:.1%}" for name, angle in zip(ENERGIES, angles, strict=True)]
            texts.append(f" {', '.join(reached)} where Adam's second beta is {memory:g}")
        here += ";".join(texts)
        worst = min(worst, from_crowd.max(1).min() / best)
    growing = max(angle / BEST_KNOWN[count][0] for count, angle in growth.items())
    verdict: Verdict = "partly"
    if np.isnan([*shares.values(), growing, *from_crowd.flat]).any():
        verdict = "not tested"
    elif is_too_short(settings.steps, settings.rate):
        here, verdict = f"{here}; {settings.steps} steps are too few to be stuck", "not tested"
    elif worst >= SPREAD:
        verdict = "not reproduced"
    elif growing > STILL:
        here, verdict = f"{here}; still growing, by {growing:.1%} of it in the last quarter", "not tested"
    elif worst < STUCK:
        verdict = "reproduced"
    return JudgedClaim(PAPER["energies"], here, verdict)


def memory_note(crowd_rest: dict[str, list[float]]) -> list[str]:
    """Note energies that one of Adam's memories lets out of the crowd and another does not."""
    held = [name for name in ENERGIES if min(crowd_rest[name]) < SPREAD * max(crowd_rest[name])]
    if not held:
        return []
    return [
        f"Out of the crowd, {', '.join(held)} came less far with one second beta of Adam than with another: it divides "
        "by gradients that it remembers from the crowd. There it is the optimiser that is stuck, not the pushes."
    ]


def farthest_claim(measured: Measurements, starts: dict[int, list[Arrangement]], settings: Centres) -> JudgedClaim:
    """Judge whether pushing the farthest spreads the largest number of centres as E_1 does."""
    count = max(measured)
    runs, start = measured[count], least_angles(starts[count])
    target = [angle - LEAST_ANGLE for angle in least_angles(runs["E_1"])]
    as_far, farther, texts = [], [], []
    for name, arrangements in runs.items():
        if name in (FARTHEST, FARTHEST_PAIRS) or _is_above_two(name):
            as_far.append(is_above(least_angles(arrangements), target))
            farther.append(is_above(least_angles(arrangements), start, LEAST_ANGLE))
            places = np.mean([arrangement.places for arrangement in arrangements])
            texts.append(f"{name} {mean_angle(arrangements):.1f} degrees ({places:.0f} places)")
    verdict = verdict_from_flags(as_far)
    if is_too_short(settings.steps, settings.rate) or None in (*as_far, *farther):
        verdict = "not tested"
    elif verdict == "not reproduced" and all(farther):
        verdict = "partly"
    here = f"smallest angle of {count} centres: {', '.join(texts)}; {np.mean(start):.1f} at the start, "
    here += f"{mean_angle(runs['E_1']):.1f} under E_1"
    return JudgedClaim(PAPER["farthest"], here, verdict)


def _is_above_two(name: str) -> bool:
    return name.startswith("knob ") and float(name.removeprefix("knob ")) > 2


def equalities_claim(equalities: dict[str, tuple[float, float]]) -> JudgedClaim:
    """Judge whether both sides of the equalities of ``sphere.equalities`` are the same."""
    energies, face = True, True
    for name, (left, right) in equalities.items():
        is_equal = abs(left - right) <= EQUAL * abs(right)
        if name.startswith("UniformFace"):
            face = face and is_equal
            text = f"UniformFace is {left:.4f} where (10) at lambda -1, the mean distance, is {right:.4f}"
        else:
            energies = energies and is_equal
    verdict = verdict_from_flags([energies, face])
    if np.isnan(list(equalities.values())).any():
        verdict = "not tested"
    are = "are" if energies else "are not"
    here = f"E_0, E_1 and E_2 {are} functions of the power means of knob 0, -1 and -2; {text}"
    return JudgedClaim(PAPER["equalities"], here, verdict)


def rising_claim(distances: Array) -> JudgedClaim:
    """Judge whether the means of some distances rise with the knob."""
    knobs = (-inf, *np.linspace(-50, 50, 101).tolist(), inf)
    flags = []
    for kind in ("power", "log-exp"):
        means = [float(SkewedMean(kind, knob)(torch.from_numpy(distances))) for knob in knobs]
        flags.append(bool((np.diff(means) >= -1e-12).all()))
        flags.append(bool(np.allclose([means[0], means[-1]], [distances.min(), distances.max()])))
    here = f"both rise over {len(knobs)} knobs, from {distances.min():.3f} to {distances.max():.3f}, the smallest and "
    here += "largest distance"
    if not all(flags):
        here += ", but not everywhere"
    return JudgedClaim(PAPER["rising"], here, verdict_from_flags(flags))


def crowding_claim(push: float, measured: Measurements) -> JudgedClaim:
    """Judge R1 by the share of its push on the farther half of the pairs."""
    flag = None if np.isnan(push) else push > HALF
    texts = []
    for count, runs in measured.items():
        texts.append(f"{mean_angle(runs[CROWDING]):.1f} of {BEST_KNOWN[count][0]:.1f} for {count}")
    here = f"{push:.1%} of its push goes to the farther half of the pairs: it pushes the nearest, and spreads the "
    here += f"centres (smallest angle in degrees, of the largest possible: {', '.join(texts)})"
    return JudgedClaim(PAPER["crowding"], here, verdict_from_flags([flag]))


def sizes_claim(angles: dict[str, list[float]], settings: Centres) -> JudgedClaim:
    """Report the smallest angles by embedding size; recall is not measured."""
    reached = dict(zip(settings.sizes, angles["E_1"], strict=True))
    large = [angle for size, angle in reached.items() if size >= 128]
    if len(large) < 2 or np.isnan(large).any() or is_too_short(settings.size_steps, settings.rate):
        return JudgedClaim(PAPER["sizes"], "too few sizes from 128 on, or too few steps", "not tested")
    text = ", ".join(f"{angle:.1f} at {size}" for size, angle in reached.items())
    here = f"recall was not measured. Smallest angle of {settings.classes} centres under E_1, in degrees: {text}; "
    here += f"{simplex_angle(settings.classes):.2f} is the most there can be, from {settings.classes - 1} dimensions on"
    return JudgedClaim(PAPER["sizes"], here, "not tested")


def known_table(measured: Measurements) -> Table:
    """Compare angles and energies with the best known ones."""
    columns = [Column("centres"), "largest possible", "nearest, best", "nearest, mean"]
    columns += ["least E_1 known", "E_1, best", "E_1, mean"]
    rows = []
    for count, runs in measured.items():
        angle, energy = BEST_KNOWN[count]
        angles, energies = least_angles(runs[NEAREST]), [run.energy for run in runs["E_1"]]
        rows.append([count, angle, max(angles), angles, energy, min(energies), energies])
    note = "angles in degrees; best and mean over the seeds; known: Tammes's and Thomson's problem"
    return tabulate(columns, rows, digits=(2, 2, 2, 4, 4, 4), title="Against what is known", notes=[note])


def arrangements_table(measured: Measurements, starts: dict[int, list[Arrangement]]) -> Table:
    """List all arrangements."""
    columns = ["centres: pushed by", "smallest angle", "to the nearest", "mean distance", "E_1", "places"]
    rows, groups = [], []
    for count, by_name in measured.items():
        for name, runs in {"at the start": starts[count], **by_name}.items():
            angles, nearest, distances, energies, places = zip(*runs, strict=True)
            energy = "infinite" if min(angles) < SAME_PLACE else energies
            rows.append([f"{count}: {name}", angles, nearest, distances, energy, places])
            groups.append(str(count))
    note = "angles in degrees, mean and deviation over the seeds; places: more than a degree apart"
    return tabulate(columns, rows, digits=(2, 2, 2, 2, 1), groups=groups, notes=[note])
