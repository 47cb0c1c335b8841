"""Weighted sum of named objectives; the names prefix their values in the log.

value = sum_k weight_k * value_k          parts: {name: value_k, "name/part": ...}, unweighted
"""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from lookalike.objectives.base import Loss, Objective


class Composed(Objective):
    """Weighted sum of objectives.

    Args:
        parts: Weight and objective by name. Every objective gets embeddings, labels, attributes and pictures.

    Examples:
        >>> from lookalike.objectives import create
        >>> both = Composed({"metric": (0.9, create("c2")), "centres": (0.1, create("proxy-nca++", classes=4, dim=8))})
        >>> sorted(both(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).parts)[:3]
        ['centres', 'centres/accuracy', 'metric']
    """

    def __init__(self, parts: Mapping[str, tuple[float, nn.Module]]) -> None:
        if not parts:
            raise ValueError("a composed objective needs at least one part, got none")
        for name, (weight, _) in parts.items():
            if not isfinite(weight) or weight < 0:
                raise ValueError(f"the weight of {name!r} must be finite and at least 0, got {weight}")
        super().__init__()
        self.weights = {name: float(weight) for name, (weight, _) in parts.items()}
        self.settings = self.weights
        self.objectives = nn.ModuleDict({name: objective for name, (_, objective) in parts.items()})
        self.needs_attributes = any(getattr(part, "needs_attributes", False) for part in self.objectives.values())
        self.needs_raw = any(getattr(part, "needs_raw", False) for part in self.objectives.values())

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        values = []
        parts = {}
        for name, objective in self.objectives.items():
            loss: Loss = objective(embeddings, labels, attributes, pictures)
            values.append(self.weights[name] * loss.value)
            parts[name] = loss.value.detach()
            for part, value in loss.parts.items():
                parts[f"{name}/{part}"] = value
        return Loss(torch.stack(values).sum(), parts)

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the vectors that stand for classes."""
        parameters: list[nn.Parameter] = []
        for objective in self.objectives.values():
            if isinstance(objective, Objective):
                parameters += objective.proxy_parameters()
        return parameters
