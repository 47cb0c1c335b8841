"""What a search is made of: data, protocol, loss, pooling and methods, what all trials share and what is searched."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lookalike import pooling as poolings
from lookalike.data.pictures import Pictures
from lookalike.experiments.choices import Choice
from lookalike.experiments.plan import Plan, make_plan
from lookalike.experiments.protocol import Protocol
from lookalike.experiments.results import RESULTS_VERSION
from lookalike.training.settings import Settings
from lookalike.tuning.space import Space, as_overrides, describe_params, searched

# Settings without effect unless another is on.
NEEDS = {
    "ccp_": "ccp",
    "memory_start": "memory",
    "zero_shot_settings": "zero_shot",
    "label_lr": "zero_shot",
    "centres_settings": "centres",
}


@dataclass(frozen=True)
class Task:
    protocol: Protocol
    source: str  # the name of the data, as it was typed
    pictures: Pictures  # with test classes, as load_sources gives them
    loss: Choice
    pooling: Choice
    methods: tuple[Choice, ...]
    space: Space
    overrides: dict[str, Any]  # settings of lookalike train that all trials have
    points: list[dict[str, Any]] | None = None  # all that is tried; None: the sampler proposes
    sampler: str = "tpe"  # tpe, gp or random; grid and list have points
    seed: int = 0
    prune: bool = False
    variant: str = "L"

    def plan(self, params: dict[str, Any]) -> Plan:
        """The runs of a trial with these settings. Raises ValueError where there can be none."""
        more = as_overrides(params)
        loss = Choice(str(more.pop("loss")), self.loss.settings) if "loss" in more else self.loss
        pooling = Choice(str(more.pop("pooling")), self.pooling.settings) if "pooling" in more else self.pooling
        overrides = {
            name: {**self.overrides.get(name, {}), **value} if isinstance(value, dict) else value
            for name, value in {**self.overrides, **more}.items()
        }
        plan = make_plan(
            self.protocol,
            {self.source: self.pictures},
            [loss],
            [pooling],
            [self.methods],
            variant=self.variant,
            overrides=overrides,
        )
        for _, reason in plan.impossible:
            raise ValueError(reason)
        settings = plan.cells[0].settings
        if settings.devices * settings.nodes > 1:
            raise ValueError("a trial runs in one process: leave devices and nodes at 1, and use --workers")
        poolings.create(settings.pooling, settings.dim or 2, **settings.pooling_settings)  # are they right?
        return plan

    @cached_property
    def first(self) -> Settings:
        return self.plan(next(self.ends())).cells[0].settings

    @property
    def monitor(self) -> str:
        return self.first.monitor

    def ends(self) -> Iterator[dict[str, Any]]:
        """Points that have every value of a list and both ends of a range between them."""
        if self.points is not None:
            seen: set[str] = set()
            for point in self.points:
                if not seen.issuperset(new := {f"{name}={value!r}" for name, value in point.items()}):
                    seen |= new
                    yield point
            return
        base = {name: axis.values[0] for name, axis in self.space.items()}
        yield base
        for name, axis in self.space.items():
            yield from ({**base, name: value} for value in axis.values[1:])

    def check(self) -> None:
        """One clear error for what no trial, or no trial with a value of the search, could do."""
        if self.protocol.split.steered_by == "test":
            raise ValueError(
                f"the protocol {self.protocol.name} is steered by the test classes: settings that are chosen by it "
                "are fitted to them; take tuning, quick or another that holds classes out"
            )
        for point in self.ends():
            try:
                settings = self.plan(point).cells[0].settings
            except (ValueError, TypeError) as reason:
                raise type(reason)(f"no trial could have {describe_params(point)}: {reason}") from None
            for name in self.space:
                for prefix, switch in NEEDS.items():
                    if name.startswith(prefix) and not getattr(settings, switch):
                        raise ValueError(f"{name} has no effect without {switch}: see --methods and --set")

    def about(self) -> dict[str, Any]:
        """As JSON: what must be the same for trials to belong together."""
        plan = self.plan(next(self.ends()))
        return {
            "protocol": self.protocol.name,
            "repeats": self.protocol.repeats,
            "data": list(dict.fromkeys(cell.fingerprint for cell in plan.cells)),
            "loss": str(self.loss),
            "pooling": str(self.pooling),
            "methods": " + ".join(map(str, self.methods)),
            "variant": self.variant,
            "search": searched(self.space),
            "settings": {name: str(value) for name, value in sorted(self.overrides.items())},
            "runs": None if self.points is None else len(self.points),
            "sampler": self.sampler,
            "seed": self.seed,
            "monitor": self.monitor,
            "code": str(RESULTS_VERSION),
        }
