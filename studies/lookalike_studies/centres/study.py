"""Where class centres go under energies and skewed means, from pushing the nearest to pushing the farthest.

Gradients of one regulariser of ``lookalike.objectives.centres`` move N centres on a sphere, without pictures or
another loss. See ``sphere.py`` for the best arrangements known.

Reference: the text on skewed mean functions (its title is that of another paper), which says both to push the farthest
and to keep similarities small, and gives no figure of merit for centres.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from lookalike_studies.centres import claims, sphere
from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, setting

SWEPT = (sphere.NEAREST, "E_1", sphere.MEAN, sphere.FARTHEST)  # over embedding sizes
LEAVING = (
    sphere.NEAREST,
    *sphere.ENERGIES,
    sphere.CROWDING,
    sphere.MEAN,
    sphere.FARTHEST_PAIRS,
    sphere.FARTHEST,
)  # a crowd


@dataclass(frozen=True)
class Centres(StudySettings):
    """Settings of the study."""

    counts: tuple[int, ...] = setting("how many centres there are on the sphere", budget=True)
    shown: int = setting("how many centres the pictures of the sphere show")
    knobs: tuple[float, ...] = setting(
        "of the power means between nearest and farthest, besides the named ones", may_be_empty=True
    )
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
        super().__post_init__()
        for count in self.counts:
            if count not in sphere.BEST_KNOWN:
                options = ", ".join(map(str, sphere.BEST_KNOWN))
                raise ValueError(f"every one of counts must be of {options}, for which the best is known, got {count}")
        if self.shown not in self.counts:
            raise ValueError(f"shown must be one of counts {', '.join(map(str, self.counts))}, got {self.shown}")
        for knob in self.knobs:
            if not np.isfinite(knob):
                raise ValueError(f"every one of knobs must be finite (the ends are always there), got {knob}")


def run(settings: Centres, context: Context) -> StudyResult:
    from lookalike_studies.centres.plots import draw_crowd, draw_knobs, draw_sizes, draw_spheres

    rested: dict[int, dict[str, sphere.Array]] = {}
    measured: claims.Measurements = {}
    starts: dict[int, list[sphere.Arrangement]] = {}
    growth: dict[int, float] = {}
    *rested_parts, from_crowd, by_size = context.train_all(_parts(settings))
    by_size = by_size["angles"]
    for count, part in zip(settings.counts, rested_parts, strict=True):
        rested[count] = part
        growth[count] = float(rested[count].pop("growth"))
        measured[count] = {}
        for name in sphere.regularisers(count, settings.knobs, settings.sharpness):
            measured[count][name] = [sphere.measure(centres) for centres in rested[count][name]]
        starts[count] = [sphere.measure(sphere.by_chance(count, 3, seed).numpy()) for seed in settings.seeds]
    crowd_rest = {name: angles[..., -1].mean(1).tolist() for name, angles in from_crowd.items()}  # by memory
    if settings.crowd in sphere.BEST_KNOWN:
        growth.setdefault(settings.crowd, -inf)
        for name in sphere.ENERGIES:
            for angles in from_crowd[name]:
                growth[settings.crowd] = max(growth[settings.crowd], claims.late_growth(angles))
    random = sphere.by_chance(settings.shown, 3, settings.seeds[0]).numpy()
    drawn = {"at the start": random}
    for name in measured[settings.shown]:
        drawn[name] = rested[settings.shown][name][0]
    both_sides = sphere.equalities(random)
    push = sphere.push_on_the_farther_half(random, settings.sharpness)
    spheres_caption = f"{settings.shown} centres on the sphere, each seen from both sides; a number says how many are "
    return StudyResult(
        claims=[
            claims.energies_claim(measured, crowd_rest, settings, growth),
            claims.farthest_claim(measured, starts, settings),
            claims.equalities_claim(both_sides),
            claims.rising_claim(sphere.pairwise_distances(random)),
            claims.crowding_claim(push, measured),
            claims.sizes_claim(by_size, settings),
        ],
        figures={
            "spheres": (draw_spheres(drawn), f"{spheres_caption}in one place"),
            "knobs": (draw_knobs(measured, settings), "From nearest to farthest: what the knob does"),
            "crowd": (
                draw_crowd(from_crowd, settings),
                "Out of a crowd: the smallest angle, step by step; left and right differ in what Adam remembers",
            ),
            "sizes": (draw_sizes(by_size, settings), "The smallest angle between class centres by embedding size"),
        },
        tables={"known": claims.known_table(measured), "arrangements": claims.arrangements_table(measured, starts)},
        numbers={
            "arrangements": {count: _as_numbers(by_name) for count, by_name in measured.items()},
            "starts": _as_numbers(starts),
            "crowd_least_angle": crowd_rest,
            "equalities": both_sides,
            "r1_push_on_the_farther_half": push,
            "least_angle_by_size": by_size,
        },
        notes=[
            *claims.memory_note(crowd_rest),
            "Centres alone are moved here; in training a loss on pictures pulls as well. No loss, pictures or recall.",
            "The text gives no value of gamma, lambda or the weight of the regulariser; they are our choice.",
        ],
    )


def _parts(settings: Centres) -> list[Part]:
    """The sphere for every count of centres, the crowd, and the embedding sizes."""
    parts = []
    for count in settings.counts:
        runs = len(sphere.regularisers(count, settings.knobs, settings.sharpness)) * len(settings.seeds)
        rest = partial(_rest_on_sphere, settings, count)
        parts.append(Part(f"sphere {count}", runs * settings.steps, rest, f"{count} centres"))
    steps = len(LEAVING) * len(settings.memories) * len(settings.seeds) * settings.steps
    parts.append(Part("crowd", steps, partial(_leave_crowd, settings), "out of a crowd"))
    steps = len(SWEPT) * len(settings.sizes) * settings.size_steps
    parts.append(Part("sizes", steps, partial(_sweep_sizes, settings), "embedding sizes"))
    return parts


def _as_numbers(arrangements: Mapping[Any, list[sphere.Arrangement]]) -> dict[Any, list[dict[str, float]]]:
    numbers = {}
    for key, runs in arrangements.items():
        numbers[key] = [arrangement._asdict() for arrangement in runs]
    return numbers


def _rest_on_sphere(settings: Centres, count: int, tick: Tick) -> dict[str, sphere.Array]:
    """By regulariser, the centres (seeds, N, 3) at rest; and the largest late growth of the energies' angles."""
    rested: dict[str, sphere.Array] = {}
    growth = []
    for name, regulariser in sphere.regularisers(count, settings.knobs, settings.sharpness).items():
        centres, angles = [], []
        for seed in settings.seeds:
            end, by_step = sphere.settle(
                sphere.by_chance(count, 3, seed), regulariser, settings.steps, settings.rate, tick
            )
            centres.append(end)
            angles.append(by_step)
        rested[name] = np.stack(centres)
        if name in sphere.ENERGIES:
            growth.append(claims.late_growth(np.stack(angles)))
    return {**rested, "growth": np.array(max(growth))}


def _leave_crowd(settings: Centres, tick: Tick) -> dict[str, sphere.Array]:
    """By regulariser, the least angles (memories, seeds, steps + 1)."""
    chosen = sphere.regularisers(settings.crowd, settings.knobs, settings.sharpness)
    angles = {}
    for name in LEAVING:
        angles[name] = np.empty((len(settings.memories), len(settings.seeds), settings.steps + 1))
        for i, memory in enumerate(settings.memories):
            for j, seed in enumerate(settings.seeds):
                start = sphere.crowd(settings.crowd, settings.crowd_degrees, seed)
                _, angles[name][i, j] = sphere.settle(
                    start, chosen[name], settings.steps, settings.rate, tick, memory=memory
                )
    return angles


def _sweep_sizes(settings: Centres, tick: Tick) -> dict[str, Any]:
    """By regulariser, the least angle for each embedding size."""
    chosen = sphere.regularisers(settings.classes, settings.knobs, settings.sharpness)
    angles: dict[str, list[float]] = {name: [] for name in ("at the start", *SWEPT)}
    for size in settings.sizes:
        start = sphere.by_chance(settings.classes, size, settings.seeds[0])
        angles["at the start"].append(sphere.least_angle(start))
        for name in SWEPT:
            _, by_step = sphere.settle(start, chosen[name], settings.size_steps, settings.rate, tick)
            angles[name].append(float(by_step[-1]))
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
