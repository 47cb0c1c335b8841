"""An exponential mean of the weights over the steps: mean <- decay * mean + (1 - decay) * weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MeanWeights:
    """The mean of a model's trained parameters; buffers and frozen ones are the model's own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.mean = {name: parameter.detach().clone() for name, parameter in self._trained()}

    @torch.no_grad()
    def update(self) -> None:
        for name, parameter in self._trained():
            self.mean[name].lerp_(parameter, 1 - self.decay)

    @torch.no_grad()
    def restart(self) -> None:
        """From the weights as they are, for instance after the prototypes were chosen anew."""
        for name, parameter in self._trained():
            self.mean[name].copy_(parameter)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the mean as its weights in here."""
        live = {name: parameter.detach().clone() for name, parameter in self._trained()}
        self._put(self.mean)
        try:
            yield
        finally:
            self._put(live)

    def state_dict(self) -> dict[str, Tensor]:
        return self.mean

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.mean = {name: state[name].to(tensor) for name, tensor in self.mean.items()}

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._trained():
            parameter.copy_(values[name])
