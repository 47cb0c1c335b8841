"""Optimizer with parameter groups, learning rate schedule, and the exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import cos, pi
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RAdam

from lookalike.models import parameter_groups
from lookalike.objectives import LIBC, ZeroShot
from lookalike.training.settings import Settings

# The evaluations after a lower rate that do not count, as torch's ReduceLROnPlateau counts them.
PLATEAU_FACTOR, PLATEAU_COOLDOWN = 0.5, 2


def create_optimizer(model: nn.Module, objective: nn.Module, settings: Settings) -> Optimizer:
    """Create the optimizer of a run, with a learning rate for each kind of parameter.

    Proxies have their own rate because their papers use up to 100 times that of the model. No paper does so for the
    label embeddings of the zero-shot loss, which have a rate of their own, too.

    Args:
        model: Embedder or head.
        objective: Loss; its parameters form the groups "loss", "labels" and "libc".
        settings: Resolved settings: ``lr`` and ``proxy_lr`` are set.

    Returns:
        An optimizer with named groups. Groups of the backbone have ``waits=True``, see ``LRSchedule``.
    """
    assert settings.lr is not None
    assert settings.proxy_lr is not None
    groups = parameter_groups(
        model,
        settings.lr,
        backbone_lr=settings.backbone_lr or 1.0,
        pooling_lr=settings.pooling_lr or 1.0,
        scalar_lr=settings.scalar_lr,
        weight_decay=settings.weight_decay,
        decay_all=settings.decay_all,
    )
    for group in groups:
        group["waits"] = group["name"].startswith("backbone")
    label_embeddings = [module.label_embeddings for module in objective.modules() if isinstance(module, ZeroShot)]
    libc_groups = []
    for module in objective.modules():
        if isinstance(module, LIBC):  # part of the network during training: rate and decay of the model
            libc_groups += parameter_groups(
                module, settings.lr, weight_decay=settings.weight_decay, decay_all=settings.decay_all
            )
    for group in libc_groups:
        group["name"] = group["name"].replace("head", "libc")
        group["waits"] = False
    grouped = set(map(id, label_embeddings))
    for group in libc_groups:
        grouped.update(map(id, group["params"]))
    proxies = []
    for parameter in objective.parameters():
        if id(parameter) not in grouped and parameter.requires_grad:
            proxies.append(parameter)
    groups += libc_groups
    decay = settings.weight_decay if settings.decay_all else 0.0
    for name, parameters, multiple in (
        ("loss", proxies, settings.proxy_lr),
        ("labels", label_embeddings, settings.label_lr),
    ):
        if parameters:
            rate = settings.lr * multiple
            groups.append({"name": name, "params": parameters, "lr": rate, "weight_decay": decay, "waits": False})
    if settings.optimiser == "sgd":
        return SGD(groups, lr=settings.lr, momentum=settings.betas[0])
    if settings.optimiser == "radam":
        # As its authors' code, which LIBC is trained with: weight decay apart from the gradient.
        return RAdam(groups, lr=settings.lr, betas=settings.betas, decoupled_weight_decay=True)
    if settings.optimiser == "adamw":
        return AdamW(groups, lr=settings.lr, betas=settings.betas)
    return Adam(groups, lr=settings.lr, betas=settings.betas)


class LRSchedule:
    """Learning rate over a run: constant, cosine, or halved on a plateau, with a warm-up of the backbone.

    The rate of a group is its initial ``lr`` times a factor. During the warm-up, groups with ``waits=True`` have rate 0
    and no gradients.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedule: Literal["constant", "cosine", "plateau"],
        steps: int,
        warm_up: int = 0,
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        min_lr: float = 0.0,
    ) -> None:
        self.optimizer, self.schedule, self.steps, self.warm_up = optimizer, schedule, steps, warm_up
        self.patience, self.min_delta, self.min_lr = patience, min_delta, min_lr
        self.base = [group["lr"] for group in optimizer.param_groups]
        self.factor = 1.0  # of the plateau
        self.scale = 1.0  # of the restarts
        self.best = float("-inf")
        self.waited = 0
        self.cooling = 0

    def set_for(self, step: int) -> None:
        """Set the rates for step number ``step``, counted from 0."""
        factor = self.factor
        if self.schedule == "cosine":
            factor = 0.5 * (1 + cos(pi * min(step / self.steps, 1)))
        factor *= self.scale
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            if group.get("waits") and step < self.warm_up:
                group["lr"] = 0.0
            else:
                group["lr"] = base * factor
                if self.factor < 1:  # lowered by the plateau
                    group["lr"] = max(group["lr"], min(base, self.min_lr))

    def drop_waiting(self, step: int) -> None:
        """Drop the gradients of groups that wait. They count neither for clipping nor for the optimizer's averages."""
        if step >= self.warm_up:
            return
        for group in self.optimizer.param_groups:
            if group.get("waits"):
                for parameter in group["params"]:
                    parameter.grad = None

    def report(self, metric: float) -> None:
        """Take note of an evaluation. With the plateau schedule, too many without improvement lower the rate."""
        if self.schedule != "plateau":
            return
        improved = metric > self.best + self.min_delta
        if improved or self.cooling:
            self.waited = 0
        else:
            self.waited += 1
        if improved:
            self.best = metric
        self.cooling = max(self.cooling - 1, 0)
        if self.waited >= self.patience:
            self.factor *= PLATEAU_FACTOR
            self.waited, self.cooling = 0, PLATEAU_COOLDOWN

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the plateau and of the restarts."""
        plateau = {"factor": self.factor, "best": self.best, "waited": self.waited, "cooling": self.cooling}
        return {**plateau, "scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.factor, self.best = state["factor"], state["best"]
        self.waited, self.cooling = state["waited"], state["cooling"]
        self.scale = state.get("scale", 1.0)  # runs of earlier versions have none


class EMA:
    """Exponential moving average of a model's trained parameters: mean <- decay * mean + (1 - decay) * weights.

    Buffers and frozen parameters are not averaged.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.mean = self._copy()

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the mean."""
        for name, parameter in self._trained():
            self.mean[name].lerp_(parameter, 1 - self.decay)

    @torch.no_grad()
    def restart(self) -> None:
        """Start again from the current weights, for instance after the prototypes were replaced."""
        for name, parameter in self._trained():
            self.mean[name].copy_(parameter)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the mean as its weights inside the ``with`` block."""
        current = self._copy()
        self._assign(self.mean)
        try:
            yield
        finally:
            self._assign(current)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean by parameter name."""
        return self.mean

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state_dict`` returned."""
        for name, tensor in self.mean.items():
            self.mean[name] = state[name].to(tensor)

    def _copy(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self._trained()}

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name, parameter

    @torch.no_grad()
    def _assign(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._trained():
            parameter.copy_(values[name])
