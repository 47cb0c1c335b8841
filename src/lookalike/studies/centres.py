"""Where class centres go under energies and skewed means, from pushing the nearest to pushing the farthest.

N centres on a sphere are moved by gradients of a regulariser of ``lookalike.objectives.centres`` alone: no pictures, no
other loss. ``centres_sphere`` says what is known about such points.

Verdicts, from means over the seeds; nothing is tested where Adam's steps, all in one direction, would not lead half
around the sphere:

    energies get stuck      "not reproduced" if E_0, E_1, E_2 and UniformFace all reach 95% of the largest possible
                            smallest angle, from chance and out of a crowd. Else they are at rest or it is not tested:
                            in the last quarter of the steps no such angle may grow by more than 1% of it. "Reproduced"
                            if one falls short of 80%, else "partly". Out of a crowd the best of Adam's memories counts:
                            pushes that cancel do so under any
    push the farthest       "reproduced" if every regulariser of the farthest has surely (``rules``) the smallest angle
                            that E_1 has, less a degree, "partly" if one has, or all have surely more than at the start,
                            by a degree; else "not reproduced". With one seed nothing is tested
    energies are means      of the two equalities, both, one or none, to 1e-9
    means rise              from the smallest to the largest number, on the distances of random centres
    R1 takes the farthest   "reproduced" if more than half of its push goes to the farther half of the pairs
    embedding size          it is about recall, of which this is the geometry alone: at most "partly", where from 128
                            dimensions on the smallest angle under E_1 changes by no more than 2 degrees

Reference: the text on skewed mean functions (its title is that of another paper), which says both to push the farthest
and to keep similarities small, and gives no figure of merit for centres.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch

from lookalike.checks import check_count, check_range
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.skewed_means import SkewedMean
from lookalike.studies.centres_sphere import (
    BEST_KNOWN,
    CROWDING,
    ENERGIES,
    FARTHEST,
    FARTHEST_PAIRS,
    MEAN,
    NEAREST,
    SAME_PLACE,
    Arrangement,
    Array,
    by_chance,
    crowd,
    equalities,
    least_angle,
    measure,
    pairwise_distances,
    push_on_the_farther_half,
    regularisers,
    settle,
    simplex_angle,
)
from lookalike.studies.rules import above
from lookalike.studies.study import Bench, Claim, Findings, Study, Verdict, value

SWEPT = (NEAREST, "E_1", MEAN, FARTHEST)
STUCK, SPREAD = 0.8, 0.95  # of the largest possible smallest angle
LATE, STILL = 0.75, 0.01  # from this share of the steps on, growth by more of the largest possible angle is no rest
LEAST_ANGLE = 1.0  # a degree less is no difference


@dataclass(frozen=True)
class Centres:
    counts: tuple[int, ...] = value("how many centres there are on the sphere", budget=True)
    shown: int = value("how many centres the pictures of the sphere show")
    knobs: tuple[float, ...] = value("of the power means between nearest and farthest, besides the named ones")
    sharpness: float = value("gamma of R1")
    rate: float = value("of Adam, falling to 0")
    steps: int = value("from start to rest", budget=True)
    seeds: tuple[int, ...] = value("of the starts", budget=True)
    crowd: int = value("centres that begin close together")
    crowd_degrees: float = value("how far from a pole they begin at most")
    memories: tuple[float, ...] = value("second beta of Adam, for those that begin close together")
    classes: int = value("centres in the sweep of the embedding size")
    sizes: tuple[int, ...] = value("embedding sizes of the sweep")
    size_steps: int = value("of each of them", budget=True)

    def __post_init__(self) -> None:
        for each in self.counts:
            if each not in BEST_KNOWN:
                known = ", ".join(map(str, BEST_KNOWN))
                raise ValueError(f"every one of counts must be of {known}, for which the best is known, got {each}")
        if self.shown not in self.counts:
            raise ValueError(f"shown must be one of counts {', '.join(map(str, self.counts))}, got {self.shown}")
        for name in ("steps", "size_steps"):
            check_count(name, getattr(self, name))
        for name in ("crowd", "classes"):
            check_count(name, getattr(self, name), least=3)
        for each in self.sizes:
            check_count("every one of sizes", each, least=2)
        for name in ("sharpness", "rate"):
            check_range(name, getattr(self, name), 0, None)
        check_range("crowd_degrees", self.crowd_degrees, 0, 180)
        for memory in self.memories:
            check_range("every one of memories", memory, 0, 0.9999)
        for name in ("counts", "seeds", "sizes", "memories"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        for knob in self.knobs:
            if not np.isfinite(knob):
                raise ValueError(f"every one of knobs must be finite (the ends are always there), got {knob}")


def find(settings: Centres, bench: Bench) -> Findings:
    from lookalike.studies.centres_plots import draw_crowd, draw_knobs, draw_sizes, draw_spheres

    rested: dict[int, dict[str, list[Array]]] = {}
    growth: dict[int, float] = {}
    for count in settings.counts:
        kept = bench.part(f"sphere {count}", lambda count=count: _on_sphere(settings, count, bench))  # type: ignore[misc]
        rested[count] = {name: list(kept[name]) for name in regularisers(count, settings.knobs, settings.sharpness)}
        growth[count] = float(kept["growth"])
    from_crowd = bench.part("crowd", lambda: _from_crowd(settings, bench))
    by_size = bench.part("sizes", lambda: _by_size(settings, bench))["angles"]
    found = {count: {name: [*map(measure, each)] for name, each in of.items()} for count, of in rested.items()}
    starts = {count: [measure(by_chance(count, 3, seed).numpy()) for seed in settings.seeds] for count in rested}
    crowd_rest = {name: angles[..., -1].mean(1).tolist() for name, angles in from_crowd.items()}  # by memory
    if settings.crowd in BEST_KNOWN:
        growth[settings.crowd] = max(
            growth.get(settings.crowd, -inf), *(late_growth(of) for name in ENERGIES for of in from_crowd[name])
        )
    chance = by_chance(settings.shown, 3, settings.seeds[0]).numpy()
    same, push = equalities(chance), push_on_the_farther_half(chance, settings.sharpness)
    shown = {"at the start": chance, **{name: each[0] for name, each in rested[settings.shown].items()}}
    return Findings(
        claims=[
            energies_claim(found, crowd_rest, settings, growth),
            farthest_claim(found, starts, settings),
            equalities_claim(same),
            rising_claim(pairwise_distances(chance)),
            crowding_claim(push, found),
            sizes_claim(by_size, settings),
        ],
        figures={
            "spheres": (
                draw_spheres(shown),
                f"{settings.shown} centres on the sphere, each seen from both sides; a number says how many are in "
                "one place",
            ),
            "knobs": (draw_knobs(found, settings), "From nearest to farthest: what the knob does"),
            "crowd": (
                draw_crowd(from_crowd, settings),
                "Out of a crowd: the smallest angle, step by step; left and right differ in what Adam remembers",
            ),
            "sizes": (draw_sizes(by_size, settings), "The smallest angle between class centres by embedding size"),
        },
        tables={"known": known_table(found), "arrangements": arrangements_table(found, starts)},
        numbers={
            "arrangements": {
                count: {name: [each._asdict() for each in runs] for name, runs in of.items()}
                for count, of in found.items()
            },
            "starts": {count: [each._asdict() for each in runs] for count, runs in starts.items()},
            "crowd_least_angle": crowd_rest,
            "equalities": {name: list(pair) for name, pair in same.items()},
            "r1_push_on_the_farther_half": push,
            "least_angle_by_size": by_size,
        },
        notes=[
            *memory_note(crowd_rest),
            "Centres alone are moved here; in training a loss on pictures pulls as well. No loss, pictures or recall.",
            "The text gives no value of gamma, lambda or the weight of the regulariser; they are our choice.",
        ],
    )


def _on_sphere(settings: Centres, count: int, bench: Bench) -> dict[str, Array]:
    chosen = regularisers(count, settings.knobs, settings.sharpness)
    with bench.display.bar(len(chosen) * len(settings.seeds) * settings.steps, f"{count} centres", " steps") as tick:
        runs = {
            name: [
                settle(by_chance(count, 3, seed), each, settings.steps, settings.rate, tick) for seed in settings.seeds
            ]
            for name, each in chosen.items()
        }
    growth = max(late_growth(np.stack([angles for _, angles in runs[name]])) for name in ENERGIES)
    return {**{name: np.stack([rest for rest, _ in own]) for name, own in runs.items()}, "growth": np.array(growth)}


def late_growth(angles: Array) -> float:
    """By how much the least angles (seeds, steps + 1), in the mean, still grow in the last quarter of the steps."""
    mean = angles.mean(0)
    return float(mean[-1] - mean[int(LATE * (len(mean) - 1))])


def is_too_short(steps: int, rate: float) -> bool:
    """Whether steps of a rate that falls to 0, (1 - s)^2, would not lead half around the sphere."""
    return rate * steps / 3 < np.pi


def _from_crowd(settings: Centres, bench: Bench) -> dict[str, Array]:
    """The least angles (memories, seeds, steps + 1) by regulariser."""
    chosen = regularisers(settings.crowd, settings.knobs, settings.sharpness)
    chosen = {name: chosen[name] for name in (NEAREST, *ENERGIES, CROWDING, MEAN, FARTHEST_PAIRS, FARTHEST)}
    runs = [(memory, seed) for memory in settings.memories for seed in settings.seeds]
    with bench.display.bar(len(chosen) * len(runs) * settings.steps, "out of a crowd", " steps") as tick:

        def angles(each: dict[str, Any], memory: float, seed: int) -> Array:
            start = crowd(settings.crowd, settings.crowd_degrees, seed)
            return settle(start, each, settings.steps, settings.rate, tick, memory=memory)[1]

        shape = (len(settings.memories), len(settings.seeds), settings.steps + 1)
        return {name: np.stack([angles(each, *run) for run in runs]).reshape(shape) for name, each in chosen.items()}


def _by_size(settings: Centres, bench: Bench) -> dict[str, Any]:
    chosen = regularisers(settings.classes, settings.knobs, settings.sharpness)
    angles: dict[str, list[float]] = {name: [] for name in ("at the start", *SWEPT)}
    total = len(SWEPT) * len(settings.sizes) * settings.size_steps
    with bench.display.bar(total, "embedding sizes", " steps") as tick:
        for size in settings.sizes:
            start = by_chance(settings.classes, size, settings.seeds[0])
            angles["at the start"].append(least_angle(start))
            for name in SWEPT:
                angles[name].append(float(settle(start, chosen[name], settings.size_steps, settings.rate, tick)[1][-1]))
    return {"angles": angles}


Found = dict[int, dict[str, list[Arrangement]]]


def mean_angle(runs: list[Arrangement]) -> float:
    return float(np.mean([each.least_angle for each in runs]))


def energies_claim(
    found: Found, crowd_rest: dict[str, list[float]], settings: Centres, growth: dict[int, float]
) -> Claim:
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
    return Claim(f"{paper} (section 3.1, Figure 1; no number)", here, verdict)


def memory_note(crowd_rest: dict[str, list[float]]) -> list[str]:
    """Where one memory lets an energy out of the crowd and another does not, it is the optimiser that holds it."""
    held = [name for name in ENERGIES if min(crowd_rest[name]) < 0.95 * max(crowd_rest[name])]
    if not held:
        return []
    return [
        f"Out of the crowd, {', '.join(held)} came less far with one second beta of Adam than with another: it divides "
        "by gradients that it remembers from the crowd. There it is the optimiser that is stuck, not the pushes."
    ]


def farthest_claim(found: Found, starts: dict[int, list[Arrangement]], settings: Centres) -> Claim:
    count = max(found)
    of, began, energy = found[count], mean_angle(starts[count]), mean_angle(found[count]["E_1"])
    pushing = [name for name in of if name in (FARTHEST, FARTHEST_PAIRS) or _is_above_two(name)]
    angles = {name: mean_angle(of[name]) for name in pushing}
    by_seed = {name: np.array([each.least_angle for each in of[name]]) for name in (*pushing, "E_1")}
    start = [each.least_angle for each in starts[count]]
    as_far = [above(by_seed[name].tolist(), (by_seed["E_1"] - LEAST_ANGLE).tolist()) for name in pushing]
    farther = [above(by_seed[name].tolist(), start, LEAST_ANGLE) for name in pushing]
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
    return Claim(
        "pushing the farthest pairs assigns the centres, they are less stuck (Remark 1; no number)", here, verdict
    )


def _is_above_two(name: str) -> bool:
    return name.startswith("knob ") and float(name.removeprefix("knob ")) > 2


def equalities_claim(same: dict[str, tuple[float, float]]) -> Claim:
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
    return Claim(f"{paper} (section 3.4)", here, verdict)


def rising_claim(distances: Array) -> Claim:
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
    return Claim(
        "log-exp and power means rise with the knob from the minimum to the maximum (Property 1)", here, verdict
    )


def crowding_claim(push: float, found: Found) -> Claim:
    verdict: Verdict = "not tested" if np.isnan(push) else "reproduced" if push > 0.5 else "not reproduced"
    reached = ", ".join(f"{mean_angle(of[CROWDING]):.1f} of {BEST_KNOWN[n][0]:.1f} for {n}" for n, of in found.items())
    here = (
        f"{push:.1%} of its push goes to the farther half of the pairs: it pushes the nearest, and spreads the centres "
    )
    here += f"(smallest angle in degrees, of the largest possible: {reached})"
    return Claim("the regulariser R1 considers the pairs of the farthest centres (conclusion)", here, verdict)


def sizes_claim(angles: dict[str, list[float]], settings: Centres) -> Claim:
    paper = (
        "the performance is fairly stable from 128 dimensions on, and does not degrade up to 1024 (Figure 2, recall)"
    )
    large = [angle for size, angle in zip(settings.sizes, angles["E_1"], strict=True) if size >= 128]
    if len(large) < 2 or np.isnan(large).any() or is_too_short(settings.size_steps, settings.rate):
        return Claim(paper, "too few sizes from 128 on, or too few steps", "not tested")
    steady = max(large) - min(large) <= 2
    told = ", ".join(f"{angle:.1f} at {size}" for size, angle in zip(settings.sizes, angles["E_1"], strict=True))
    here = f"recall was not measured. Smallest angle of {settings.classes} centres under E_1, in degrees: {told}; "
    here += f"{simplex_angle(settings.classes):.2f} is the most there can be, from {settings.classes - 1} dimensions on"
    return Claim(paper, here, "partly" if steady else "not reproduced")


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
        entries = [number(count, digits=0), number(angle), number(max(angles)), _spread(angles)]
        lines.append(Line([*entries, number(energy, digits=4), number(min(energies), digits=4), _spread(energies, 4)]))
    note = "angles in degrees; best and mean over the seeds; known: Tammes's and Thomson's problem"
    return Table([*map(Column, columns)], lines, "Against what is known", notes=[note])


def arrangements_table(found: Found, starts: dict[int, list[Arrangement]]) -> Table:
    titles = ["smallest angle", "to the nearest", "mean distance", "E_1", "places"]
    lines = []
    for count, of in found.items():
        for name, runs in {"at the start": starts[count], **of}.items():
            fields = [[getattr(each, field) for each in runs] for field in Arrangement._fields]
            crowded = min(fields[0]) < SAME_PLACE
            entries = [_spread(each) for each in fields[:3]]
            entries.append(words("infinite") if crowded else _spread(fields[3]))
            lines.append(Line([words(f"{count}: {name}"), *entries, _spread(fields[4], 1)], str(count)))
    note = "angles in degrees, mean and deviation over the seeds; places: more than a degree apart"
    return Table([Column("centres: pushed by", "left"), *map(Column, titles)], lines, notes=[note])


def _spread(values: list[float], digits: int = 2) -> Any:
    return number(float(np.mean(values)), float(np.std(values)) if len(values) > 1 else None, digits=digits)


STUDY = Study(
    name="centres",
    title="Class centres on a sphere: energies spread them, pushing the farthest piles them up",
    about="Centres of classes on a sphere are moved by one regulariser alone, from random starts and out of a crowd: "
    "minimum hyperspherical energies, UniformFace, R1, and power means of the distances whose knob leads from the "
    "nearest pair to the farthest. What they come to is compared with the best arrangements known.",
    source="the text on skewed mean functions, sections 3.1 to 3.4, Figures 1 and 2; it contradicts itself on whether "
    "the nearest or the farthest are to be pushed",
    settings=Centres,
    find=find,
)
