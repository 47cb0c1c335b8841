"""Where class centres go under energies and skewed means, from pushing the nearest to pushing the farthest.

N centres on a sphere are moved by gradients of a regulariser of ``lookalike.objectives.centres`` alone: no pictures, no
other loss. ``centres_sphere`` says what is known about such points.

Reference: the text on skewed mean functions (its title is that of another paper), which says both to push the farthest
and to keep similarities small, and gives no figure of merit for centres.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from lookalike._util.settings import check_settings
from lookalike.report.seeds import check_seeds
from lookalike_studies.centres.claims import (
    arrangements_table,
    crowding_claim,
    energies_claim,
    equalities_claim,
    farthest_claim,
    known_table,
    late_growth,
    memory_note,
    rising_claim,
    sizes_claim,
)
from lookalike_studies.centres.sphere import (
    BEST_KNOWN,
    CROWDING,
    ENERGIES,
    FARTHEST,
    FARTHEST_PAIRS,
    MEAN,
    NEAREST,
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
)
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, setting

SWEPT = (NEAREST, "E_1", MEAN, FARTHEST)


@dataclass(frozen=True)
class Centres:
    """Settings of the study."""

    counts: tuple[int, ...] = setting("how many centres there are on the sphere", budget=True)
    shown: int = setting("how many centres the pictures of the sphere show")
    knobs: tuple[float, ...] = setting("of the power means between nearest and farthest, besides the named ones")
    sharpness: float = setting("gamma of R1", above=0)
    rate: float = setting("of Adam, falling to 0", above=0)
    steps: int = setting("from start to rest", budget=True, least=1)
    seeds: tuple[int, ...] = setting("of the starts", budget=True)
    crowd: int = setting("centres that begin close together", least=3)
    crowd_degrees: float = setting("how far from a pole they begin at most", above=0, up_to=180)
    memories: tuple[float, ...] = setting("second beta of Adam, out of the crowd", above=0, up_to=0.9999)
    classes: int = setting("centres in the sweep of the embedding size", least=3)
    sizes: tuple[int, ...] = setting("embedding sizes of the sweep", least=2)
    size_steps: int = setting("of each of them", budget=True, least=1)

    def __post_init__(self) -> None:
        check_settings(self)
        check_seeds(self.seeds)
        for name in ("counts", "sizes", "memories"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        for count in self.counts:
            if count not in BEST_KNOWN:
                known = ", ".join(map(str, BEST_KNOWN))
                raise ValueError(f"every one of counts must be of {known}, for which the best is known, got {count}")
        if self.shown not in self.counts:
            raise ValueError(f"shown must be one of counts {', '.join(map(str, self.counts))}, got {self.shown}")
        for knob in self.knobs:
            if not np.isfinite(knob):
                raise ValueError(f"every one of knobs must be finite (the ends are always there), got {knob}")


def run(settings: Centres, context: Context) -> StudyResult:
    from lookalike_studies.centres.plots import draw_crowd, draw_knobs, draw_sizes, draw_spheres

    rested: dict[int, dict[str, list[Array]]] = {}
    growth: dict[int, float] = {}
    for count in settings.counts:
        kept = context.cached(f"sphere {count}", lambda count=count: _on_sphere(settings, count, context))  # type: ignore[misc]
        rested[count] = {name: list(kept[name]) for name in regularisers(count, settings.knobs, settings.sharpness)}
        growth[count] = float(kept["growth"])
    from_crowd = context.cached("crowd", lambda: _from_crowd(settings, context))
    by_size = context.cached("sizes", lambda: _by_size(settings, context))["angles"]
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
    return StudyResult(
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


def _on_sphere(settings: Centres, count: int, context: Context) -> dict[str, Array]:
    chosen = regularisers(count, settings.knobs, settings.sharpness)
    with context.display.bar(len(chosen) * len(settings.seeds) * settings.steps, f"{count} centres", " steps") as tick:
        runs = {
            name: [
                settle(by_chance(count, 3, seed), each, settings.steps, settings.rate, tick) for seed in settings.seeds
            ]
            for name, each in chosen.items()
        }
    growth = max(late_growth(np.stack([angles for _, angles in runs[name]])) for name in ENERGIES)
    return {**{name: np.stack([rest for rest, _ in own]) for name, own in runs.items()}, "growth": np.array(growth)}


def _from_crowd(settings: Centres, context: Context) -> dict[str, Array]:
    """The least angles (memories, seeds, steps + 1) by regulariser."""
    chosen = regularisers(settings.crowd, settings.knobs, settings.sharpness)
    chosen = {name: chosen[name] for name in (NEAREST, *ENERGIES, CROWDING, MEAN, FARTHEST_PAIRS, FARTHEST)}
    runs = [(memory, seed) for memory in settings.memories for seed in settings.seeds]
    with context.display.bar(len(chosen) * len(runs) * settings.steps, "out of a crowd", " steps") as tick:

        def angles(each: dict[str, Any], memory: float, seed: int) -> Array:
            start = crowd(settings.crowd, settings.crowd_degrees, seed)
            return settle(start, each, settings.steps, settings.rate, tick, memory=memory)[1]

        shape = (len(settings.memories), len(settings.seeds), settings.steps + 1)
        return {name: np.stack([angles(each, *run) for run in runs]).reshape(shape) for name, each in chosen.items()}


def _by_size(settings: Centres, context: Context) -> dict[str, Any]:
    chosen = regularisers(settings.classes, settings.knobs, settings.sharpness)
    angles: dict[str, list[float]] = {name: [] for name in ("at the start", *SWEPT)}
    total = len(SWEPT) * len(settings.sizes) * settings.size_steps
    with context.display.bar(total, "embedding sizes", " steps") as tick:
        for size in settings.sizes:
            start = by_chance(settings.classes, size, settings.seeds[0])
            angles["at the start"].append(least_angle(start))
            for name in SWEPT:
                angles[name].append(float(settle(start, chosen[name], settings.size_steps, settings.rate, tick)[1][-1]))
    return {"angles": angles}


STUDY = Study(
    name="centres",
    title="Class centres on a sphere: energies spread them, pushing the farthest piles them up",
    about="Centres of classes on a sphere are moved by one regulariser alone, from random starts and out of a crowd: "
    "minimum hyperspherical energies, UniformFace, R1, and power means of the distances whose knob leads from the "
    "nearest pair to the farthest. What they come to is compared with the best arrangements known.",
    source="the text on skewed mean functions, sections 3.1 to 3.4, Figures 1 and 2; it contradicts itself on whether "
    "the nearest or the farthest are to be pushed",
    settings=Centres,
    run=run,
)
