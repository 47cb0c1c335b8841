"""What a search consists of: data, protocol, loss, pooling, methods, shared settings and the search space."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lookalike import pooling as poolings
from lookalike.data.pictures import Pictures
from lookalike.experiments.choices import Choice
from lookalike.experiments.layers import merge
from lookalike.experiments.plan import Plan, make_plan
from lookalike.experiments.protocol import Protocol
from lookalike.experiments.results import RESULTS_VERSION
from lookalike.training.settings import Settings
from lookalike.tuning.space import Space, as_overrides, describe_params, describe_space

# Settings that have no effect unless another is on, by the beginning of their names.
NEEDS = {
    "ccp_": "ccp",
    "memory_start": "memory",
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

        Args:
            params: the settings that are tried, by name.

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
        poolings.create(settings.pooling, settings.dim or 2, **settings.pooling_settings)  # raises if they are wrong
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
