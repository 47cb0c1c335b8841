"""A backbone in two sections: the frozen stages, whose result can be stored, and the last stages, which train.

    stored = cut.frozen.maps(images)      the map that enters the last stages
    maps = cut.maps(stored)               equal to backbone.maps(images)

The cut works on any network that hands one tensor from section to section. Modules keep their place: for the second
section, the network runs with its frozen modules replaced by constants (what they give for one blank picture), and the
first modules that train get the stored map instead. The constructor compares both sections with the whole network.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.models.backbone import Backbone, in_eval_mode

TOLERANCE = 1e-4  # relative to the largest feature

Forward = Callable[..., Any]


class StageCut:
    """Cut a backbone before its last stages.

    Args:
        backbone: The network, on its device. It is not changed.
        count: Number of stages after the cut, of ``backbone.stages()``.
        size: Side of the pictures.

    Attributes:
        frozen: Module that computes the map entering the last stages.

    Raises:
        ValueError: If the network cannot be cut there.
    """

    def __init__(self, backbone: Backbone, count: int, size: int) -> None:
        self.backbone = backbone
        self._blank = backbone.zero_image(size, size)
        calls = _record_calls(backbone, self._blank)
        stages = backbone.stages()
        trained = set[str]().union(*stages[len(stages) - count :])
        entry = _find_entry(backbone, calls, trained)
        if entry == 0:
            raise ValueError(f"all stages of {backbone.name} train")
        self.frozen = FrozenStages(backbone, calls[entry])
        self._readers = _find_readers(calls, entry)
        self._constants = _find_constants(calls, entry, trained)
        self._compare_with_whole(size)

    def maps(self, stored: Tensor) -> Tensor:
        """Compute local features (B, H', W', C) from maps that ``frozen.maps`` gave."""
        if stored.dim() == 4:
            stored = stored.contiguous(memory_format=torch.channels_last)
        forwards: dict[nn.Module, Forward] = {}
        for module, result in self._constants.items():
            forwards[module] = _returning(result)
        for module in self._readers:
            forwards[module] = _reading(stored, module.forward)
        with _replaced(forwards):
            return self.backbone.maps(self._blank)

    def tokens(self, stored: Tensor) -> Tensor:
        """Compute local features (B, N, C) from maps that ``frozen.maps`` gave."""
        return self.maps(stored).flatten(1, 2)

    @torch.no_grad()
    def _compare_with_whole(self, size: int) -> None:
        images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(self._blank)
        with in_eval_mode(self.backbone):
            expected = self.backbone.maps(images)
            try:
                got = self.maps(self.frozen.maps(images))
            except (RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"{self.backbone.name} cannot be cut before {self.frozen.entry}: {error}") from error
        largest = expected.abs().max()
        if got.shape != expected.shape or not (got - expected).abs().max() <= TOLERANCE * largest:
            raise ValueError(f"{self.backbone.name} cannot be cut before {self.frozen.entry}: other paths lead past it")


class FrozenStages(nn.Module):
    """The stages before the cut: images (B, 3, H, W) -> the map that enters the module ``entry``."""

    def __init__(self, backbone: Backbone, entry: "_Call") -> None:
        super().__init__()
        self.backbone, self.entry = backbone, entry.name
        self.name = f"{backbone.name} before {entry.name}"
        self._module = [entry.module]  # in a list, so that torch does not register it a second time

    def maps(self, images: Tensor) -> Tensor:
        """Compute the map; its shape depends on the network, (B, C, H', W') for most."""
        module = self._module[0]
        reached: list[Tensor] = []

        def enter(tensor: Tensor, *args: Any, **settings: Any) -> Any:
            reached.append(tensor.clone())  # the module may change it in place
            if not torch.compiler.is_exporting():
                raise _Reached
            return original(tensor, *args, **settings)  # an exported graph leaves out what the result does not need

        original = module.forward
        with _replaced({module: enter}), suppress(_Reached):
            self.backbone.maps(images)
        return reached[0]

    def forward(self, images: Tensor) -> Tensor:
        """Compute the map, see ``maps``."""
        return self.maps(images)


class _Call:
    """One call of a module: its tensor argument and its result."""

    def __init__(self, name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.name, self.module = name, module
        self.tensor: Tensor | None = None
        if args and isinstance(args[0], Tensor):
            self.tensor = args[0]
        self.result: Any = None


class _Reached(Exception):  # noqa: N818 - names the event
    """Ends a pass through the network at the cut."""


def _record_calls(backbone: Backbone, image: Tensor) -> list[_Call]:
    """All calls of modules in the order in which they begin."""
    calls: list[_Call] = []
    running: list[_Call] = []
    names = {module: name for name, module in backbone.network.named_modules() if name}

    def begin(module: nn.Module, args: tuple[Any, ...]) -> None:
        call = _Call(names[module], module, args)
        calls.append(call)
        running.append(call)

    def end(_module: nn.Module, _args: Any, result: Any) -> None:
        running.pop().result = result

    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(begin))
        handles.append(module.register_forward_hook(end))
    try:
        with in_eval_mode(backbone), torch.no_grad():
            backbone.maps(image)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _parameters(call: _Call) -> set[str]:
    """Names of the module's parameters, as in ``backbone.stages()``."""
    return {f"network.{call.name}.{name}" for name, _ in call.module.named_parameters()}


def _find_entry(backbone: Backbone, calls: list[_Call], trained: set[str]) -> int:
    """Position of the first call of a module that trains as a whole."""
    for position, call in enumerate(calls):
        parameters = _parameters(call)
        if parameters and parameters <= trained:
            if call.tensor is None:
                raise ValueError(f"{backbone.name} cannot be cut before {call.name}: it does not take one tensor")
            return position
    raise ValueError(f"{backbone.name} has no module that trains as a whole")


def _find_readers(calls: list[_Call], entry: int) -> list[nn.Module]:
    """The modules that get the map: the entry and those beside it."""
    readers: list[_Call] = []
    for call in calls[entry:]:
        inside = any(call.name.startswith(f"{reader.name}.") for reader in readers)
        if call.tensor is calls[entry].tensor and not inside:
            readers.append(call)
    return [call.module for call in readers]


def _find_constants(calls: list[_Call], entry: int, trained: set[str]) -> dict[nn.Module, Any]:
    """The largest modules that run before the entry only, with their results."""
    later = {call.module for call in calls[entry:]}
    constants: dict[nn.Module, Any] = {}
    names: list[str] = []
    for call in calls[:entry]:
        inside = any(call.name.startswith(f"{name}.") for name in names)
        if inside or call.module in later or not trained.isdisjoint(_parameters(call)):
            continue
        constants[call.module] = call.result
        names.append(call.name)
    return constants


@contextmanager
def _replaced(forwards: dict[nn.Module, Forward]) -> Iterator[None]:
    """Give modules another ``forward`` inside the ``with`` block."""
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


def _returning(result: Any) -> Forward:
    return lambda *_args, **_settings: result


def _reading(stored: Tensor, forward: Forward) -> Forward:
    return lambda _first, *args, **settings: forward(stored, *args, **settings)
