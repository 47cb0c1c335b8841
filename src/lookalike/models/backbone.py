"""The Backbone: pictures (B, 3, H, W) -> a bag of local features (B, N, C), one for each place of a grid.

Class and register tokens belong to no place and are left out of the bag. The places count row by row, so that
weights (B, N) become heat maps by ``weights.unflatten(1, backbone.grid(images))``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, isqrt
from typing import Any

import torch
from timm.data.config import resolve_model_data_config
from timm.models import group_parameters
from torch import Tensor, nn

from lookalike.models.input_spec import InputSpec

_SMALL = 96  # pixels, enough for any network that takes all sizes


class Backbone(nn.Module):
    """A network up to its local features.

    name: as ``create_backbone`` takes it.  channels: C.  spec: what it expects of its pictures.
    Parameters that no local feature depends on (the norm of a removed classifier, say) do not train: distributed
    training would wait for their gradients.
    """

    def __init__(self, name: str, network: nn.Module, spec: InputSpec | None = None) -> None:
        super().__init__()
        self.name = name
        self.network = network
        self.spec: InputSpec = spec or getattr(network, "spec", None) or _timm_spec(name, network)
        self._grids: dict[tuple[int, int], tuple[int, int]] = {}
        # Convolutions like the channels last, on CPUs and GPUs: EfficientNet-lite0 trains in 0.7 of the time.
        network.to(memory_format=torch.channels_last)
        self.channels, self._prefix, self._channels_last = 0, 0, False
        self._look()

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, C)"""
        return self.maps(images).flatten(1, 2)

    def maps(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, H', W', C), the bag in its places."""
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have the shape (B, 3, H, W), got {tuple(images.shape)}")
        images = images.contiguous(memory_format=torch.channels_last)  # see __init__
        return self._arrange(self._features(images), images.shape[2], images.shape[3])

    @torch.no_grad()
    def grid(self, images: Tensor) -> tuple[int, int]:
        """How the N local features of pictures (..., H, W) of this size lie: (H', W')."""
        size = (images.shape[-2], images.shape[-1])
        if size not in self._grids:
            with in_eval_mode(self.network):
                maps = self.maps(self._empty_picture(*size))
            self._grids[size] = (maps.shape[1], maps.shape[2])
        return self._grids[size]

    def stages(self) -> list[list[str]]:
        """The names of the parameters that can train, stage by stage from the picture to the features."""
        named = dict(self.network.named_parameters())
        groups = _timm_groups(self.network)
        if groups is None:
            prefixes = getattr(self.network, "stage_prefixes", [(child,) for child, _ in self.network.named_children()])
            groups = [[name for name in named if name.startswith(prefix)] for prefix in prefixes]
        stages: list[list[str]] = []
        for group in groups:
            used = [f"network.{name}" for name in group if name not in self._unused]
            if stages and all(named[name.removeprefix("network.")].dim() < 2 for name in used):
                stages[-1] += used  # a norm alone is no stage
            elif used:
                stages.append(used)
        return stages

    def extra_repr(self) -> str:
        return f"name={self.name!r}, channels={self.channels}"

    def _empty_picture(self, height: int, width: int) -> Tensor:
        like = next(self.network.parameters())
        return torch.zeros(1, 3, height, width, device=like.device, dtype=like.dtype)

    def _features(self, images: Tensor) -> Any:
        forward = getattr(self.network, "forward_features", self.network)
        return forward(images)

    def _arrange(self, features: Tensor, height: int, width: int) -> Tensor:
        """What the network gave for pictures of that size -> (B, H', W', C)."""
        if features.dim() == 4:
            return features if self._channels_last else features.permute(0, 2, 3, 1)
        # Some transformers normalise behind the average that they expect; then each token is normalised.
        tokens = getattr(self.network, "fc_norm", nn.Identity())(features[:, self._prefix :])
        return tokens.unflatten(1, _places(tokens.shape[1], height, width))

    def _look(self) -> None:
        """One empty picture through the network: how its features come out, and which parameters they depend on."""
        size = self.spec.size
        if not getattr(self.network, "default_cfg", {}).get("fixed_input_size", False):
            size = min(size, _SMALL)  # the answer is the same and comes sooner
        with in_eval_mode(self.network), torch.enable_grad():
            features = self._features(self._empty_picture(size, size))
            self._read_layout(features)
            maps = self._arrange(features, size, size)
            parameters = dict(self.network.named_parameters())
            gradients = torch.autograd.grad(maps.sum(), list(parameters.values()), allow_unused=True)
        self._grids[size, size] = (maps.shape[1], maps.shape[2])
        self._unused = {name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None}
        for name in self._unused:
            parameters[name].requires_grad_(False)

    def _read_layout(self, features: Any) -> None:
        """Where in the network's answer the channels are, and which tokens have a place."""
        if not isinstance(features, Tensor) or features.dim() not in (3, 4):
            kind = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"{self.name} gives neither one map nor one row of tokens but {kind}: it cannot be used")
        if features.dim() == 3:
            self.channels = features.shape[2]
            self._prefix = _prefix_tokens(self.name, self.network, features.shape[1])
            return
        known = getattr(self.network, "num_features", getattr(self.network, "channels", None))
        last = str(getattr(self.network, "output_fmt", "")).endswith("NHWC")
        self._channels_last = last if features.shape[-1 if last else 1] == known else not last
        self.channels = features.shape[-1 if self._channels_last else 1]
        if self.channels != known:
            raise ValueError(f"{self.name} promises {known} channels, got {tuple(features.shape)}")


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Eval mode for a while; then every part is back in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _timm_spec(name: str, network: nn.Module) -> InputSpec:
    settings = resolve_model_data_config(network)
    _, height, width = settings["input_size"]
    if height != width:
        raise ValueError(f"{name} takes pictures of {height} x {width}; only square ones are supported")
    return InputSpec(
        size=width,
        mean=settings["mean"],
        std=settings["std"],
        interpolation="bilinear" if settings["interpolation"] == "bilinear" else "bicubic",
        resize=int(width / settings["crop_pct"]),
    )


def _timm_groups(network: nn.Module) -> list[list[str]] | None:
    """The names of the parameters by stage as timm knows them, None where it does not."""
    matcher: Callable[..., Any] | None = getattr(network, "group_matcher", None)
    if matcher is None:
        return None
    try:
        return list(group_parameters(network, matcher(coarse=True)).values())
    except AssertionError:  # timm's way of saying that a family has no such grouping
        return None


def _prefix_tokens(name: str, network: nn.Module, count: int) -> int:
    """How many tokens before the patches belong to no place, among ``count`` for a square picture."""
    prefix = getattr(network, "num_prefix_tokens", None)
    if prefix is None:  # then at most a class token, which the count gives away
        prefix = 0 if isqrt(count) ** 2 == count else 1
    if isqrt(count - prefix) ** 2 != count - prefix:
        raise ValueError(f"{name} gives {count} tokens, {prefix} before the patches: the others form no square")
    return int(prefix)


def _places(count: int, height: int, width: int) -> tuple[int, int]:
    """The grid of ``count`` places in the shape of the picture."""
    scale = (count / (height * width)) ** 0.5
    for rows in (round(height * scale), int(height * scale), ceil(height * scale)):
        if rows and count % rows == 0 and abs(count // rows - width * scale) < 1:
            return rows, count // rows
    raise ValueError(f"{count} tokens form no grid in pictures of {height} x {width}")
