"""Chance-constrained programming in the plane: proxies of one problem collapse, alternating ones cover the classes.

Digits (or drawn letters) are embedded in the unit disc by a ResNetV2-20, by one proxy problem for ever, by alternating
ones, and by alternating ones against samples, from the same start with the same batches. A second part asks what
becomes of classes that nobody has seen: vectors by t-SNE, covering radius and distance between classes. The rules of
the verdicts stand in ``ccp_geometry_claims``.

Reference: Gürbüz's thesis, section 3.3.1, Figures 3.2 and 3.3, Proposition 3.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from lookalike import objectives
from lookalike._util.checks import check_count, check_range
from lookalike.models import Embedder, Head, create_backbone
from lookalike.objectives import PairObjective
from lookalike.report.seeds import check_seeds
from lookalike_studies.ccp_geometry.claims import (
    Courses,
    Gaps,
    alternating_claim,
    by_class_and_number,
    collapse_claim,
    diversity_claim,
    early_note,
    measure,
    measure_unseen,
    plane_table,
    proposition_claim,
    samples_claim,
    unseen_claim,
    unseen_table,
)
from lookalike_studies.ccp_geometry.data import drawn_with_unseen_classes, features_of, sources, with_shared_classes
from lookalike_studies.ccp_geometry.measures import anchor_sets, gaps, spread
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Budget, Course, Parts, map_at_r, solve
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, setting

NETWORK = "resnetv2-20"
KINDS = (ONE, ALTERNATING, SAMPLES)


@dataclass(frozen=True)
class CcpGeometry:
    dim: int = setting("of the embedding")
    proxies: int = setting("of each class")
    pool: int = setting("pictures of each class that proxies are chosen from, b")
    pull: float = setting("lambda")
    problem_patience: int = setting("evaluations without a better figure that end a problem")
    margins: tuple[float, ...] = setting("of the loss, positive and negative")
    rates: tuple[float, ...] = setting("learning rates to choose from")
    batch: int = setting("pictures per step")
    per_class: int = setting("of them of each class")
    weight_decay: float = setting("of Adam")
    letters: int = setting("classes of the drawn set")
    train: int = setting("pictures of each class", budget=True)
    validation: int = setting("pictures of each class", budget=True)
    test: int = setting("pictures of each class", budget=True)
    evaluate_every: int = setting("steps", budget=True)
    steps: int = setting("of each run", budget=True)
    pilot_steps: int = setting("for each rate", budget=True)
    seeds: tuple[int, ...] = setting("of the runs", budget=True)
    anchors: tuple[int, ...] = setting("of each class, for the proposition")
    unseen_dim: int = setting("of the embedding, where classes are unseen")
    unseen_proxies: int = setting("likewise")
    unseen_pool: int = setting("likewise")
    unseen_margin: float = setting("of the loss there")
    unseen_rate: float = setting("of photographs, where a projection is trained; letters choose from rates")
    unseen_backbone: str = setting("of photographs, frozen")
    unseen_size: int = setting("of photographs, in pixels")
    unseen_letters: int = setting("classes of the drawn set", budget=True)
    unseen_each: int = setting("pictures of each letter", budget=True)
    unseen_letter_steps: int = setting("of each run there, with letters", budget=True)
    unseen_steps: int = setting("of each run there, with photographs", budget=True)
    unseen_evaluate_every: int = setting("steps, with photographs", budget=True)
    unseen_seeds: tuple[int, ...] = setting("of the runs there", budget=True)

    def __post_init__(self) -> None:
        counts = ("dim", "proxies", "problem_patience", "batch", "per_class", "train", "evaluate_every", "steps")
        unseen = ("unseen_dim", "unseen_proxies", "unseen_steps", "unseen_letter_steps", "unseen_evaluate_every")
        for name in (*counts, "pilot_steps", *unseen):
            check_count(name, getattr(self, name))
        for name in ("validation", "test", "unseen_each"):
            check_count(name, getattr(self, name), least=2)
        if self.batch % self.per_class:
            raise ValueError(f"batch must be a multiple of per_class {self.per_class}, got {self.batch}")
        at_once = max(2, self.batch // self.per_class)
        check_count("letters", self.letters, least=at_once)  # a batch has so many classes
        check_count("unseen_letters", self.unseen_letters, least=-(-3 * at_once // 2))  # a third is held out
        if len(self.margins) != 2:
            raise ValueError(f"margins must be two numbers, positive and negative, got {self.margins}")
        for name, least in (("pool", self.proxies), ("unseen_pool", self.unseen_proxies)):
            check_count(name, getattr(self, name), least=least)
        check_seeds(self.seeds)
        check_seeds(self.unseen_seeds, "unseen_seeds")
        for name in ("rates", "anchors"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        for rate in self.rates:
            check_range("every one of rates", rate, 0, None)
        for name in ("unseen_rate", "unseen_margin"):
            check_range(name, getattr(self, name), 0, None)
        for each in self.anchors:
            check_count("every one of anchors", each)

    def plane_budget(self, rate: float, steps: int) -> Budget:
        problem = (self.proxies, self.pool, self.pull, self.problem_patience)
        return Budget(steps, self.evaluate_every, rate, *problem, self.batch, self.per_class, self.weight_decay)

    def unseen_budget(self, rate: float, steps: int) -> Budget:
        problem = (self.unseen_proxies, self.unseen_pool, self.pull, self.problem_patience)
        return Budget(steps, self.unseen_evaluate_every, rate, *problem, self.batch, self.per_class, self.weight_decay)

    def letter_budget(self, rate: float, steps: int) -> Budget:
        return self.unseen_budget(rate, steps)._replace(evaluate_every=self.evaluate_every)


def run(settings: CcpGeometry, context: Context) -> StudyResult:
    from lookalike_studies.ccp_geometry.plots import draw_gap, draw_plane, draw_problems, draw_unseen

    shared, strange = sources(context.data)
    parts, names = with_shared_classes(shared, settings.letters, settings.train, settings.validation, settings.test)
    loss = objectives.create(
        "c2", positive_margin=settings.margins[0], negative_margin=settings.margins[1], normalise=False
    )
    assert isinstance(loss, PairObjective)

    def network() -> nn.Module:
        embedder = Embedder(create_backbone(NETWORK), settings.dim, "average", normalise="clip")
        return embedder.to(memory_format=torch.channels_last)

    race = Race("plane", parts, loss, settings.dim, network, settings.plane_budget, settings, context)
    rate = race.choose_rate(settings.rates)
    courses = {kind: [race.run(kind, rate, settings.steps, seed) for seed in settings.seeds] for kind in KINDS}
    measured = {kind: [measure(course, parts) for course in runs] for kind, runs in courses.items()}
    found_gaps = all_gaps(courses, parts, settings)

    unseen_parts, unseen_race = _unseen_race(strange, settings, context)
    unseen_rate = unseen_race.choose_rate(settings.rates if strange is None else (settings.unseen_rate,))
    unseen_steps = settings.unseen_letter_steps if strange is None else settings.unseen_steps
    unseen = {
        kind: [unseen_race.run(kind, unseen_rate, unseen_steps, seed) for seed in settings.unseen_seeds]
        for kind in (ONE, ALTERNATING)
    }
    held_out = {kind: [measure_unseen(course, unseen_parts) for course in runs] for kind, runs in unseen.items()}
    what = shared.name if shared is not None else "drawn letters"
    unseen_what = strange.name if strange is not None else "drawn letters"
    test = {kind: [map_at_r(each.test, unseen_parts.test.labels) for each in runs] for kind, runs in unseen.items()}
    return StudyResult(
        claims=[
            collapse_claim(measured),
            alternating_claim(measured, what),
            diversity_claim(courses, parts),
            samples_claim(measured, what),
            proposition_claim(found_gaps, measured, parts.classes),
            unseen_claim(held_out, test, unseen_what),
        ],
        figures={
            "plane": (
                draw_plane(courses, parts.validation.labels, names, settings.proxies),
                f"Held-out pictures of {what} in the disc when a problem was at its best; squares: its proxies, "
                "circles: those of the next problem",
            ),
            "problems": (draw_problems(courses, parts.validation.labels, settings.proxies), "Problem by problem"),
            "gap": (draw_gap(found_gaps), "The loss gap of Proposition 3.2.2 against the covering radius"),
            "unseen": (
                draw_unseen(unseen, unseen_parts.validation.labels, held_out),
                f"Held-out classes of {unseen_what}, by t-SNE",
            ),
        },
        tables={
            "plane": plane_table(measured, what),
            "unseen": unseen_table(held_out, test, unseen_what),
        },
        numbers={
            "rate": rate,
            "unseen_rate": unseen_rate,
            "plane": {kind: [each._asdict() for each in runs] for kind, runs in measured.items()},
            "unseen": {
                kind: [{name: each for name, each in run._asdict().items() if each == each} for run in runs]  # no NaN
                for kind, runs in held_out.items()
            },
            "unseen_test": test,
            "gaps": {
                f"{way}, {kind}": [[each._asdict() for each in sets] for sets in runs]
                for (way, kind), runs in found_gaps.items()
            },
            "curves": {kind: [course.curve for course in runs] for kind, runs in courses.items()},
            "problems": {
                kind: [
                    [(*each[:5], spread(by_class_and_number(each.converged, parts))) for each in run.snapshots]
                    for run in runs
                ]
                for kind, runs in courses.items()
            },
        },
        notes=[
            f"Rate chosen on held-out pictures with one problem: {rate:g} in the disc"
            + (f", {unseen_rate:g} for unseen letters." if strange is None else "."),
            *early_note(courses),
            *([] if shared is not None else ["Drawn letters stand for MNIST: --data mnist:FOLDER names the digits."]),
            *([] if strange is not None else ["Drawn letters stand for CUB: --data cub:FOLDER names the birds."]),
            *(
                [f"{settings.unseen_backbone} is frozen and its features averaged; the thesis trains a whole network."]
                if strange is not None
                else []
            ),
        ],
    )


class Race(NamedTuple):
    """Runs of several kinds that have the data, the loss and the start in common."""

    name: str
    parts: Parts
    loss: PairObjective
    dim: int
    network: Callable[[], nn.Module]
    budget: Callable[[float, int], Budget]
    settings: CcpGeometry
    context: Context

    def run(self, kind: str, rate: float, steps: int, seed: int) -> Course:
        def compute() -> dict[str, Any]:
            torch.manual_seed(seed)
            model = self.network()
            with self.context.display.bar(steps, f"{self.name}, {kind}, seed {seed}", " steps") as tick:
                budget = self.budget(rate, steps)
                return solve(kind, model, self.loss, self.dim, self.parts, budget, seed, tick).arrays()

        part = f"{self.name} {kind} {rate} {steps} {seed}"
        return Course.of(self.context.cached(part, compute, ignore=("seeds", "unseen_seeds", "rates", "anchors")))

    def choose_rate(self, rates: tuple[float, ...]) -> float:
        """The one whose single problem has the best figure on what is held out, after the pilot's steps."""
        seed, steps = self.settings.seeds[0], self.settings.pilot_steps
        if len(rates) == 1:
            return rates[0]
        best = {rate: max(figure for _, figure in self.run(ONE, rate, steps, seed).curve) for rate in rates}
        told = ", ".join(f"{rate:g}: {100 * figure:.1f}" for rate, figure in best.items())
        self.context.display.say(f"{self.name}, MAP@R on what is held out after {steps} steps by rate: {told}")
        return max(best, key=lambda rate: best[rate])


def _unseen_race(strange: Any, settings: CcpGeometry, context: Context) -> tuple[Parts, Race]:
    loss = objectives.create("c1", margin=settings.unseen_margin, normalise=False)
    assert isinstance(loss, PairObjective)
    dim = settings.unseen_dim
    if strange is None:
        parts = drawn_with_unseen_classes(settings.unseen_letters, settings.unseen_each)

        def network() -> nn.Module:
            embedder = Embedder(create_backbone(NETWORK), dim, "average", normalise="clip")
            return embedder.to(memory_format=torch.channels_last)

        budget = settings.letter_budget
    else:
        parts = features_of(strange, settings.unseen_backbone, settings.unseen_size, context)

        def network() -> nn.Module:
            features = parts.train.inputs.flatten(0, 1)
            head = Head(features.shape[1], dim, "average", normalise="clip")
            with torch.no_grad():
                head.start_from_pca(features, scale_to_median_norm=1.0)
            return head

        budget = settings.unseen_budget
    return parts, Race("unseen", parts, loss, dim, network, budget, settings, context)


def all_gaps(courses: Courses, parts: Parts, settings: CcpGeometry) -> Gaps:
    """Anchors among the test pictures under the best weights of every run, and the proxies of every problem."""
    margins = (settings.margins[0], settings.margins[1])
    found: Gaps = {}
    for kind in (ONE, ALTERNATING):
        for seed, course in zip(settings.seeds, courses[kind], strict=True):
            sets = anchor_sets(course.test, parts.test.labels, settings.anchors, seed)
            of_run = {way: gaps(course.test, parts.test.labels, anchors, margins) for way, anchors in sets.items()}
            of_run["proxies"] = [
                gaps(each.plane, parts.validation.labels, [by_class_and_number(each.converged, parts)], margins)[0]
                for each in course.snapshots
            ]
            for way, own in of_run.items():
                found.setdefault((way, kind), []).append(own)
    return found


STUDY = Study(
    name="ccp-geometry",
    title="Chance-constrained programming: collapsed against alternating proxies",
    about="Pictures are embedded in the unit disc by proxy problems: one for ever, alternating ones, and alternating "
    "ones against samples. Shown are the disc with its proxies, how well they cover the classes, the loss gap that "
    "Proposition 3.2.2 bounds by the covering radius, and what becomes of classes that nobody has seen.",
    source="Gürbüz's thesis, section 3.3.1, Figures 3.2 and 3.3, Proposition 3.2.2",
    settings=CcpGeometry,
    run=run,
    data="a set with the same classes in train and test, as mnist:FOLDER, and one with unseen classes to test, as "
    "cub:FOLDER, separated by a comma; else drawn letters",
)
