"""What a search consists of: data, protocol, loss, pooling, methods, shared settings and the search space."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from lookalike import pooling as poolings
from lookalike.data.pictures import Pictures
from lookalike.experiments.choices import Choice, parse_choices
from lookalike.experiments.layers import merge
from lookalike.experiments.plan import (
    Plan,
    load_sources,
    loss_names,
    make_plan,
    parse_methods,
    with_seeds,
)
from lookalike.experiments.protocol import Protocol, load_protocol
from lookalike.experiments.results import RESULTS_VERSION
from lookalike.training.settings import Settings
from lookalike.tuning.plans import TuningPlan
from lookalike.tuning.space import (
    Space,
    as_overrides,
    describe_params,
    describe_space,
    grid,
    parse_space,
    space_of,
)

DEFAULT_TRIALS = 30  # for samplers without an end
MAX_GRID = 1000  # points of a grid that is searched completely without --trials

# Settings that have no effect unless another is on, by the beginning of their names.
NEEDS = {
    "ccp_": "ccp",
    "libc_": "libc",
    "memory_": "memory",
    "zero_shot_settings": "zero_shot",
    "label_lr": "zero_shot",
    "centres_settings": "centres",
}


@dataclass(frozen=True)
class Task:
    """A search.

    Attributes:
        protocol: says which runs a trial has.
        source: name of the data, as it was typed.
        pictures: with test classes, as ``load_sources`` gives them.
        loss: of all trials, unless it is searched; so are ``pooling`` and ``methods``.
        space: what is searched.
        overrides: settings of ``lookalike train`` that all trials share.
        points: all points to try; None: the sampler proposes them.
        sampler: tpe, gp or random; grid and list have ``points``.
        seed: of the sampler.
        prune: end trials early that stay below the median.
        variant: S or L.
    """

    protocol: Protocol
    source: str
    pictures: Pictures
    loss: Choice
    pooling: Choice
    methods: tuple[Choice, ...]
    space: Space
    overrides: dict[str, Any]
    points: list[dict[str, Any]] | None = None
    sampler: str = "tpe"
    seed: int = 0
    prune: bool = False
    variant: str = "L"

    def plan(self, params: dict[str, Any]) -> Plan:
        """The runs of a trial.

        Raises:
            ValueError: there can be no such run.
        """
        searched = as_overrides(params)
        loss = Choice(str(searched.pop("loss", self.loss.name)), self.loss.settings)
        pooling = Choice(str(searched.pop("pooling", self.pooling.name)), self.pooling.settings)
        plan = make_plan(
            self.protocol,
            {self.source: self.pictures},
            [loss],
            [pooling],
            [self.methods],
            variant=self.variant,
            overrides=merge(self.overrides, searched),
        )
        for _, reason in plan.impossible:
            raise ValueError(reason)
        settings = plan.cells[0].settings
        if settings.devices * settings.nodes > 1:
            raise ValueError("a trial runs in one process: leave devices and nodes at 1, and use --workers")
        return plan

    @cached_property
    def monitor(self) -> str:
        """Name of the metric that is maximised."""
        return self.first_settings.monitor

    @property
    def first_settings(self) -> Settings:
        """Settings of the first run at the first extreme point."""
        return self.plan(next(self.extreme_points())).cells[0].settings

    def extreme_points(self) -> Iterator[dict[str, Any]]:
        """Points that together have every value of a list and both ends of a range."""
        if self.points is not None:
            seen: set[str] = set()
            for point in self.points:
                values = {f"{name}={value!r}" for name, value in point.items()}
                if not values.issubset(seen):
                    seen |= values
                    yield point
            return
        first = {name: axis.values[0] for name, axis in self.space.items()}
        yield first
        for name, axis in self.space.items():
            for value in axis.values[1:]:
                yield {**first, name: value}

    def check(self) -> None:
        """Check that every value of the search can be trained.

        Raises:
            ValueError: no trial could be trained, or none with some value.
        """
        if self.protocol.split.steered_by == "test":
            raise ValueError(
                f"the protocol {self.protocol.name} is steered by the test classes, so settings chosen by it are "
                "fitted to them; use tuning, quick or another protocol that holds classes out"
            )
        if self.protocol.split.steered_by == "nothing":
            raise ValueError(
                f"the protocol {self.protocol.name} measures only the test classes, which must not choose settings; "
                "use tuning, quick or another protocol that holds classes out"
            )
        for point in self.extreme_points():
            try:
                settings = self.plan(point).cells[0].settings
            except (ValueError, TypeError) as reason:
                raise type(reason)(f"no trial could have {describe_params(point)}: {reason}") from None
            for name in self.space:
                for prefix, switch in NEEDS.items():
                    if name.startswith(prefix) and not getattr(settings, switch):
                        raise ValueError(f"{name} has no effect without {switch}: see --methods and --set")

    def description(self) -> dict[str, Any]:
        """The content of tuning.json: what must be the same for trials to belong to one study."""
        plan = self.plan(next(self.extreme_points()))
        return {
            "protocol": self.protocol.name,
            "repeats": self.protocol.repeats,
            "data": list(dict.fromkeys(cell.fingerprint for cell in plan.cells)),
            "loss": str(self.loss),
            "pooling": str(self.pooling),
            "methods": " + ".join(map(str, self.methods)),
            "variant": self.variant,
            "search": describe_space(self.space),
            "settings": {name: str(value) for name, value in sorted(self.overrides.items())},
            "runs": None if self.points is None else len(self.points),
            "sampler": self.sampler,
            "seed": self.seed,
            "monitor": self.monitor,
            "version": RESULTS_VERSION,
        }


def make_task(
    plan: TuningPlan, source: str, *, check: bool = True, seeds: int | None = None, seed: int = 0, variant: str = "L"
) -> tuple[Task, int]:
    """Make the search that a plan describes, and load its data.

    Args:
        plan: what is searched and how.
        source: the data, as for ``lookalike train``.
        check: decode every picture once.
        seeds: repeats of every trial; None: given by the protocol.
        seed: of the sampler.
        variant: S or L.

    Returns:
        The search and its number of trials.

    Raises:
        ValueError: the plan contradicts itself, or its grid has too many points.
    """
    if plan.runs:
        space = space_of(plan.runs)
    else:
        space = parse_space(plan.search)
    loss = _single(parse_choices(plan.loss, loss_names(), "loss"), "loss")
    pooling = _single(parse_choices(plan.pooling, poolings.names(), "pooling"), "pooling")
    [methods] = parse_methods(plan.methods)
    protocol = with_seeds(load_protocol(plan.protocol), seeds)
    for name in space:
        if _is_set(name, plan.set):
            raise ValueError(f"{name} is both searched and set")
    sampler, points = _choose_sampler(plan, space, seed)
    prune = plan.prune
    if prune is None:
        prune = points is None
    [pictures] = load_sources([source], check=check).values()
    task = Task(
        protocol, source, pictures, loss, pooling, methods, space, plan.set, points, sampler, seed, prune, variant
    )
    if points is None:
        return task, plan.trials or DEFAULT_TRIALS
    return task, min(plan.trials or len(points), len(points))


def _choose_sampler(plan: TuningPlan, space: Space, seed: int) -> tuple[str, list[dict[str, Any]] | None]:
    """The sampler, and the points to try in order; None for samplers that choose the points."""
    if plan.runs:
        return "list", plan.runs
    sizes = [len(axis.values) for axis in space.values() if axis.kind == "list"]
    is_finite = len(sizes) == len(space)
    size = prod(sizes)
    sampler: str = plan.sampler
    if sampler == "auto":
        sampler = "tpe"
        if is_finite and size <= (plan.trials or MAX_GRID):
            sampler = "grid"
    if sampler != "grid":
        return sampler, None
    if plan.trials is None and is_finite and size > MAX_GRID:
        raise ValueError(f"the grid has {size:,} points: choose how many of them to try with --trials")
    return sampler, grid(space, seed)


def _is_set(name: str, settings: dict[str, Any]) -> bool:
    outer, dot, inner = name.partition(".")
    return outer in settings and (not dot or inner in settings[outer])


def _single(choices: list[Choice], what: str) -> Choice:
    if len(choices) > 1:
        raise ValueError(f"name one {what}, got {', '.join(map(str, choices))}; to compare them, search {what}=[...]")
    return choices[0]
