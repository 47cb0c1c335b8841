"""Chance-constrained programming in the plane: proxies of one problem collapse, alternating ones cover the classes.

A ResNetV2-20 embeds digits (or drawn letters) in the unit disc. It is trained with a single proxy problem, with
alternating problems, and with alternating problems against samples; start and batches are the same. A second part
measures classes that were not trained: covering radius, distance between classes, and a t-SNE picture.

Reference: Gürbüz's thesis, section 3.3.1, Figures 3.2 and 3.3, Proposition 3.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike import objectives
from lookalike._util.checks import check_count
from lookalike.data.pictures import Pictures
from lookalike.models import Embedder, Head, create_backbone
from lookalike.objectives import PairObjective
from lookalike_studies.ccp_geometry import claims
from lookalike_studies.ccp_geometry.data import drawn_with_unseen_classes, features_of, sources, with_shared_classes
from lookalike_studies.ccp_geometry.measures import anchor_sets, gaps, spread
from lookalike_studies.ccp_geometry.race import (
    ALTERNATING,
    ONE,
    SAMPLES,
    Budget,
    Course,
    DataSplits,
    map_at_r,
    solve,
    train_sample,
)
from lookalike_studies.ccp_geometry.theory import Deviation, Terms, decompose, deviations
from lookalike_studies.framework.context import Context, Part, Tick
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, create_from, setting

NETWORK = "resnetv2-20"
DRAWN = "drawn letters"


@dataclass(frozen=True)
class CcpGeometry(StudySettings):
    """Settings of the study; those of the part with unseen classes begin with ``unseen_``."""

    dim: int = setting("embedding size", least=1)
    proxies: int = setting("proxies of each class", least=1)
    pool: int = setting("pictures of each class that proxies are chosen from, b")
    pull: float = setting("lambda")
    problem_patience: int = setting("evaluations without a better metric that end a problem", least=1)
    margins: tuple[float, float] = setting("positive and negative margin of the loss")
    rates: tuple[float, ...] = setting("learning rates to choose from", above=0)
    batch: int = setting("pictures per step", least=1)
    per_class: int = setting("pictures of each class in a batch", least=1)
    weight_decay: float = setting("weight decay of Adam")
    letters: int = setting("classes of the drawn set")
    train: int = setting("training pictures of each class", budget=True, least=1)
    validation: int = setting("held-out pictures of each class", budget=True, least=2)
    test: int = setting("test pictures of each class", budget=True, least=2)
    evaluate_every: int = setting("steps between evaluations", budget=True, least=1)
    steps: int = setting("steps of each run", budget=True, least=1)
    pilot_steps: int = setting("steps for each rate to choose from", budget=True, least=1)
    seeds: tuple[int, ...] = setting("seeds of the runs", budget=True)
    anchors: tuple[int, ...] = setting("anchors of each class, for the proposition", least=1)
    unseen_dim: int = setting("embedding size", least=1)
    unseen_proxies: int = setting("proxies of each class", least=1)
    unseen_pool: int = setting("pictures of each class that proxies are chosen from")
    unseen_margin: float = setting("margin of the loss", above=0)
    unseen_rate: float = setting("learning rate for photographs; letters choose from rates", above=0)
    unseen_backbone: str = setting("frozen backbone for photographs")
    unseen_size: int = setting("size of photographs, in pixels")
    unseen_letters: int = setting("classes of the drawn set", budget=True)
    unseen_each: int = setting("pictures of each letter", budget=True, least=2)
    unseen_letter_steps: int = setting("steps of each run with letters", budget=True, least=1)
    unseen_steps: int = setting("steps of each run with photographs", budget=True, least=1)
    unseen_evaluate_every: int = setting("steps between evaluations, with photographs", budget=True, least=1)
    unseen_seeds: tuple[int, ...] = setting("seeds of the runs", budget=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("pool", self.pool, least=self.proxies)
        check_count("unseen_pool", self.unseen_pool, least=self.unseen_proxies)
        if self.batch % self.per_class:
            raise ValueError(f"batch must be a multiple of per_class {self.per_class}, got {self.batch}")
        classes_of_batch = max(2, self.batch // self.per_class)
        check_count("letters", self.letters, least=classes_of_batch)
        check_count("unseen_letters", self.unseen_letters, least=-(-3 * classes_of_batch // 2))  # a third is held out

    def plane_budget(self) -> Budget:
        return create_from(Budget, self, rate=self.rates[0], patience=self.problem_patience)

    def letter_budget(self) -> Budget:
        return self.plane_budget()._replace(
            steps=self.unseen_letter_steps, proxies=self.unseen_proxies, pool=self.unseen_pool
        )

    def photograph_budget(self) -> Budget:
        return self.letter_budget()._replace(
            steps=self.unseen_steps, evaluate_every=self.unseen_evaluate_every, rate=self.unseen_rate
        )


class Race(NamedTuple):
    """Runs of several kinds with the same data, loss, start and budget."""

    name: str
    parts: DataSplits
    loss: PairObjective
    dim: int
    network: Callable[[], nn.Module]
    budget: Budget
    context: Context

    def run_some(self, runs: Sequence[tuple[str, Budget, int]]) -> list[Course]:
        """Run kinds with a budget and a seed each."""
        parts = []
        for kind, budget, seed in runs:
            train = partial(_solve, kind, self.network, self.loss, self.dim, self.parts, budget, seed)
            name = f"{self.name} {kind} {budget.rate} {budget.steps} {seed}"
            parts.append(Part(name, budget.steps, train, f"{self.name}, {kind}, seed {seed}"))
        ignore = ("seeds", "unseen_seeds", "rates", "anchors")
        return [Course.of(values) for values in self.context.train_all(parts, ignore=ignore)]

    def run_all(self, kinds: Sequence[str], rate: float, seeds: Sequence[int]) -> claims.Courses:
        budget = self.budget._replace(rate=rate)
        results = iter(self.run_some([(kind, budget, seed) for kind in kinds for seed in seeds]))
        return {kind: [next(results) for _ in seeds] for kind in kinds}

    def choose_rate(self, rates: Sequence[float], steps: int, seed: int) -> float:
        """Choose the rate whose single problem has the best MAP@R on held-out pictures after ``steps``."""
        if len(rates) == 1:
            return rates[0]
        runs = [(ONE, self.budget._replace(rate=rate, steps=steps), seed) for rate in rates]
        courses = self.run_some(runs)
        best = {rate: course.best_map_at_r for rate, course in zip(rates, courses, strict=True)}
        by_rate = ", ".join(f"{rate:g}: {100 * value:.1f}" for rate, value in best.items())
        self.context.display.say(f"{self.name}, MAP@R on held-out pictures after {steps} steps by rate: {by_rate}")
        return max(best, key=lambda rate: best[rate])


def _solve(
    kind: str,
    network: Callable[[], nn.Module],
    loss: PairObjective,
    dim: int,
    parts: DataSplits,
    budget: Budget,
    seed: int,
    tick: Tick,
) -> dict[str, Any]:
    torch.manual_seed(seed)
    return solve(kind, network(), loss, dim, parts, budget, seed, tick).arrays()


class Plane(NamedTuple):
    """Runs in the disc, with classes that training and test share."""

    source: str
    class_names: list[str]
    parts: DataSplits
    rate: float
    courses: claims.Courses
    measured: dict[str, list[claims.Measured]]
    gaps: claims.Gaps
    deviations: list[list[Deviation]]  # Proposition 3.2.1, for each seed
    terms: list[Terms]  # of (3.2.8), for each seed


class Unseen(NamedTuple):
    """Runs that are measured on classes that were not trained."""

    source: str
    parts: DataSplits
    rate: float
    courses: claims.Courses
    measured: dict[str, list[claims.Measured]]  # on held-out classes
    test: dict[str, list[float]]  # MAP@R on test classes


def run(settings: CcpGeometry, context: Context) -> StudyResult:
    shared, photographs = sources(context.data)
    plane = _run_plane(shared, settings, context)
    unseen = _run_unseen(photographs, settings, context)
    return StudyResult(
        claims=[
            claims.collapse_claim(plane.measured),
            claims.alternating_claim(plane.measured, plane.source),
            claims.diversity_claim(plane.courses, plane.parts),
            claims.samples_claim(plane.measured, plane.source),
            claims.proposition_claim(plane.gaps, plane.measured, plane.parts.classes),
            claims.anchors_claim(plane.deviations),
            claims.terms_claim(plane.terms, plane.source),
            claims.lemma_claim(plane.courses[ALTERNATING][0].layers),
            claims.unseen_claim(unseen.measured, unseen.test, unseen.source),
        ],
        figures=_figures(plane, unseen),
        tables={
            "plane": claims.plane_table(plane.measured, plane.source),
            "unseen": claims.unseen_table(unseen.measured, unseen.test, unseen.source),
        },
        numbers=_numbers(plane, unseen),
        notes=_notes(plane, unseen, settings),
    )


def _run_plane(shared: Pictures | None, settings: CcpGeometry, context: Context) -> Plane:
    parts, names = with_shared_classes(shared, settings.letters, settings.train, settings.validation, settings.test)
    positive, negative = settings.margins
    loss = objectives.create("c2", positive_margin=positive, negative_margin=negative, normalise=False)
    assert isinstance(loss, PairObjective)
    network = partial(_create_embedder, settings.dim)
    race = Race("plane", parts, loss, settings.dim, network, settings.plane_budget(), context)
    rate = race.choose_rate(settings.rates, settings.pilot_steps, settings.seeds[0])
    courses = race.run_all((ONE, ALTERNATING, SAMPLES), rate, settings.seeds)
    measured = {}
    for kind, runs in courses.items():
        measured[kind] = [claims.measure(course, parts) for course in runs]
    source = DRAWN if shared is None else shared.name
    gaps_by_way = all_gaps(courses, parts, settings)
    return Plane(source, names, parts, rate, courses, measured, gaps_by_way, *_theory(courses, parts, settings))


def _theory(
    courses: claims.Courses, parts: DataSplits, settings: CcpGeometry
) -> tuple[list[list[Deviation]], list[Terms]]:
    """Measure Proposition 3.2.1 and (3.2.8) on the alternating runs."""
    labels = parts.test.labels
    all_deviations, terms = [], []
    for seed, course in zip(settings.seeds, courses[ALTERNATING], strict=True):
        all_deviations.append(deviations(course.test, labels, settings.anchors, settings.margins, seed))
        trained = course.train, parts.train.labels[train_sample(parts)]
        terms.append(decompose(trained, (course.test, labels), course.proxies, settings.margins))
    return all_deviations, terms


def _run_unseen(photographs: Pictures | None, settings: CcpGeometry, context: Context) -> Unseen:
    dim = settings.unseen_dim
    if photographs is None:
        source, rates, budget = DRAWN, settings.rates, settings.letter_budget()
        parts = drawn_with_unseen_classes(settings.unseen_letters, settings.unseen_each)
        network: Callable[[], nn.Module] = partial(_create_embedder, dim)
    else:
        source, rates, budget = photographs.name, (settings.unseen_rate,), settings.photograph_budget()
        parts = features_of(photographs, settings.unseen_backbone, settings.unseen_size, context)
        network = partial(_create_projection, parts.train.inputs.flatten(0, 1), dim)
    loss = objectives.create("c1", margin=settings.unseen_margin, normalise=False)
    assert isinstance(loss, PairObjective)
    race = Race("unseen", parts, loss, dim, network, budget, context)
    rate = race.choose_rate(rates, settings.pilot_steps, settings.seeds[0])
    courses = race.run_all((ONE, ALTERNATING), rate, settings.unseen_seeds)
    measured, test = {}, {}
    for kind, runs in courses.items():
        measured[kind] = [claims.measure_unseen(course, parts) for course in runs]
        test[kind] = [map_at_r(course.test, parts.test.labels) for course in runs]
    return Unseen(source, parts, rate, courses, measured, test)


def _create_embedder(dim: int) -> nn.Module:
    embedder = Embedder(create_backbone(NETWORK), dim, "average", normalise="clip")
    return embedder.to(memory_format=torch.channels_last)


def _create_projection(features: Tensor, dim: int) -> nn.Module:
    head = Head(features.shape[1], dim, "average", normalise="clip")
    with torch.no_grad():
        head.start_from_pca(features, scale_to_median_norm=1.0)
    return head


def all_gaps(courses: claims.Courses, parts: DataSplits, settings: CcpGeometry) -> claims.Gaps:
    """Measure gaps with anchors among the test pictures of every run, and with the proxies of every problem."""
    gaps_by_way: claims.Gaps = {}
    for kind in (ONE, ALTERNATING):
        for seed, course in zip(settings.seeds, courses[kind], strict=True):
            sets = anchor_sets(course.test, parts.test.labels, settings.anchors, seed)
            for way, anchors in sets.items():
                gaps_of_run = gaps(course.test, parts.test.labels, anchors, settings.margins)
                gaps_by_way.setdefault((way, kind), []).append(gaps_of_run)
            gaps_of_run = []
            for problem in course.snapshots:
                gaps_of_run += gaps(problem.plane, parts.validation.labels, [problem.converged], settings.margins)
            gaps_by_way.setdefault(("proxies", kind), []).append(gaps_of_run)
    return gaps_by_way


def _figures(plane: Plane, unseen: Unseen) -> dict[str, Any]:
    from lookalike_studies.ccp_geometry.plots import draw_constraint, draw_gap, draw_plane, draw_problems, draw_unseen

    labels = plane.parts.validation.labels
    return {
        "plane": (
            draw_plane(plane.courses, labels, plane.class_names),
            f"Held-out pictures of {plane.source} in the disc when a problem was at its best; squares: its proxies, "
            "circles: those of the next problem",
        ),
        "problems": (draw_problems(plane.courses, labels), "Problem by problem"),
        "constraint": (
            draw_constraint(plane.courses),
            "The chance constraint (3.2.1) at the solution of every problem: the share of violated pairs of proxies "
            "and training pictures, and Markov's bound (3.2.2)",
        ),
        "gap": (draw_gap(plane.gaps), "The loss gap of Proposition 3.2.2 against the covering radius"),
        "unseen": (
            draw_unseen(unseen.courses, unseen.parts.validation.labels, unseen.measured),
            f"Held-out classes of {unseen.source}, by t-SNE",
        ),
    }


def _numbers(plane: Plane, unseen: Unseen) -> dict[str, Any]:
    measured, curves, problems, held_out, all_sets = {}, {}, {}, {}, {}
    for kind, runs in plane.courses.items():
        measured[kind] = [values._asdict() for values in plane.measured[kind]]
        curves[kind] = [course.curve for course in runs]
        problems[kind] = [_problem_rows(course) for course in runs]
    for kind, runs_of_kind in unseen.measured.items():
        names = ("figure", "own_radius", "distance")
        held_out[kind] = [{name: getattr(values, name) for name in names} for values in runs_of_kind]
    for (way, kind), sets_of_runs in plane.gaps.items():
        all_sets[f"{way}, {kind}"] = [[gap._asdict() for gap in sets] for sets in sets_of_runs]
    return {
        "rate": plane.rate,
        "unseen_rate": unseen.rate,
        "plane": measured,
        "unseen": held_out,
        "unseen_test": unseen.test,
        "gaps": all_sets,
        "deviations": [[deviation._asdict() for deviation in run] for run in plane.deviations],
        "terms": [terms._asdict() for terms in plane.terms],
        "curves": curves,
        "problems": problems,
    }


def _problem_rows(course: Course) -> list[tuple[Any, ...]]:
    """Number, step, MAP@R, both radii, the chance constraint and the spread of the converged proxies."""
    return [(*problem[:5], *problem.constraint, spread(problem.converged)) for problem in course.snapshots]


def _notes(plane: Plane, unseen: Unseen, settings: CcpGeometry) -> list[str]:
    chosen = f"Rate chosen on held-out pictures with one problem: {plane.rate:g} in the disc"
    if unseen.source == DRAWN:
        chosen += f", {unseen.rate:g} for unseen letters"
    notes = [f"{chosen}.", *claims.early_note(plane.courses)]
    notes.append(
        "Two faults of the text: the proof of Lemma 3.2.1 uses |sum w x|^2 <= sum w^2 x^2, which is false (a neuron "
        "that adds 8 inputs has omega 1 and a norm of 2.83), and the clip is 1-Lipschitz, not 2-Lipschitz. The "
        "lemma does not cover batch norm and shortcuts, which ResNetV2-20 has."
    )
    if plane.source == DRAWN:
        notes.append("Drawn letters stand for MNIST: --data mnist:FOLDER names the digits.")
    if unseen.source == DRAWN:
        notes.append("Drawn letters stand for CUB: --data cub:FOLDER names the birds.")
    else:
        frozen = f"{settings.unseen_backbone} is frozen and its features averaged"
        notes.append(f"{frozen}; the thesis trains a whole network.")
    return notes


STUDY = Study(
    name="ccp-geometry",
    title="Chance-constrained programming: collapsed against alternating proxies",
    about="Pictures are embedded in the unit disc by proxy problems: a single one, alternating ones, and alternating "
    "ones against samples. Shown are the disc with its proxies, how well they cover the classes, the loss gap that "
    "Proposition 3.2.2 bounds by the covering radius, and the geometry of unseen classes.",
    source="Gürbüz's thesis, sections 3.2 and 3.3.1, Figures 3.2 and 3.3, Propositions 3.2.1 and 3.2.2, Lemma 3.2.1",
    settings=CcpGeometry,
    run=run,
    data="a set with the same classes in train and test, as mnist:FOLDER, and one with unseen classes to test, as "
    "cub:FOLDER, separated by a comma; else drawn letters",
)
