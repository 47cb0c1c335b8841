"""The Backbone: pictures (B, 3, H, W) -> a bag of local features (B, N, C), one for each cell of a grid.

Class and register tokens belong to no cell and are left out of the bag. Cells count row by row, so weights (B, N)
become heat maps by ``weights.unflatten(1, backbone.grid(images))``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, isqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lookalike.models.input_spec import InputSpec

_PROBE_SIZE = 96  # pixels, enough for any network that takes all sizes


class Backbone(nn.Module):
    """A network up to its local features.

    Parameters that no local feature depends on (e.g. the norm of a removed classifier) are frozen: distributed
    training would wait for their gradients.

    Args:
        name: As ``create_backbone`` takes it.
        network: Gives a map (B, C, H', W') or (B, H', W', C), or tokens (B, N, C).
        spec: The input it expects; None asks the network.

    Attributes:
        channels: C, the size of a local feature.
        spec: The input it expects.
    """

    def __init__(self, name: str, network: nn.Module, spec: InputSpec | None = None) -> None:
        super().__init__()
        self.name = name
        self.network = network
        self.spec: InputSpec = spec or getattr(network, "spec", None) or _timm_spec(name, network)
        self._grids: dict[tuple[int, int], tuple[int, int]] = {}
        # Convolutions are faster with channels last: EfficientNet-lite0 trains in 0.7 of the time.
        network.to(memory_format=torch.channels_last)
        self.channels = 0
        self._prefix = 0  # tokens before the patches
        self._channels_last = False
        self._probe()

    def forward(self, images: Tensor) -> Tensor:
        """Local features (B, N, C) of images (B, 3, H, W)."""
        return self.maps(images).flatten(1, 2)

    def maps(self, images: Tensor) -> Tensor:
        """Local features (B, H', W', C) of images (B, 3, H, W), as a grid."""
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have the shape (B, 3, H, W), got {tuple(images.shape)}")
        images = images.contiguous(memory_format=torch.channels_last)  # see __init__
        return self._arrange(self._features(images), images.shape[2], images.shape[3])

    @torch.no_grad()
    def grid(self, images: Tensor) -> tuple[int, int]:
        """The grid (H', W') of local features for images (..., H, W)."""
        size = (images.shape[-2], images.shape[-1])
        if size not in self._grids:
            with in_eval_mode(self.network):
                maps = self.maps(self.zero_image(*size))
            self._grids[size] = (maps.shape[1], maps.shape[2])
        return self._grids[size]

    def stages(self) -> list[list[str]]:
        """Names of the trainable parameters, one list per stage, from the input to the features."""
        parameters = dict(self.network.named_parameters())
        stages: list[list[str]] = []
        for group in _timm_groups(self.network) or self._groups_by_prefix():
            paths = []
            largest_dim = 0
            for name in group:
                if name not in self._unused:
                    paths.append(f"network.{name}")
                    largest_dim = max(largest_dim, parameters[name].dim())
            if stages and largest_dim < 2:
                stages[-1] += paths  # a norm alone is not a stage
            elif paths:
                stages.append(paths)
        return stages

    def extra_repr(self) -> str:
        """Settings in the printed form of the module."""
        return f"name={self.name!r}, channels={self.channels}"

    def _groups_by_prefix(self) -> list[list[str]]:
        """Names of the parameters by the network's ``stage_prefixes``, or else by its children."""
        prefixes = getattr(self.network, "stage_prefixes", None)
        if prefixes is None:
            prefixes = [child for child, _ in self.network.named_children()]
        names = [name for name, _ in self.network.named_parameters()]
        groups = []
        for prefix in prefixes:
            groups.append([name for name in names if name.startswith(prefix)])
        return groups

    def zero_image(self, height: int, width: int) -> Tensor:
        """One blank picture (1, 3, H, W) on the network's device."""
        like = next(self.network.parameters())
        return torch.zeros(1, 3, height, width, device=like.device, dtype=like.dtype)

    def _features(self, images: Tensor) -> Any:
        forward = getattr(self.network, "forward_features", self.network)
        return forward(images)

    def _arrange(self, features: Tensor, height: int, width: int) -> Tensor:
        """Bring the network's features for images of that size into the shape (B, H', W', C)."""
        if features.dim() == 4:
            return features if self._channels_last else features.permute(0, 2, 3, 1)
        # Some transformers normalise after averaging; here each token is normalised instead.
        tokens = getattr(self.network, "fc_norm", nn.Identity())(features[:, self._prefix :])
        return tokens.unflatten(1, _grid(tokens.shape[1], height, width))

    def _probe(self) -> None:
        """Send one image through the network to learn the layout of its features and which parameters they use."""
        size = self.spec.size
        if not getattr(self.network, "default_cfg", {}).get("fixed_input_size", False):
            size = min(size, _PROBE_SIZE)  # gives the same answer, faster
        with in_eval_mode(self.network), torch.enable_grad():
            features = self._features(self.zero_image(size, size))
            self._read_layout(features)
            maps = self._arrange(features, size, size)
            parameters = dict(self.network.named_parameters())
            gradients = torch.autograd.grad(maps.sum(), list(parameters.values()), allow_unused=True)
        self._grids[size, size] = (maps.shape[1], maps.shape[2])
        self._unused: set[str] = set()
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            if gradient is None:
                self._unused.add(name)
                parameter.requires_grad_(False)

    def _read_layout(self, features: Any) -> None:
        """Find out where the channels are, and how many tokens come before the patches."""
        if not isinstance(features, Tensor) or features.dim() not in (3, 4):
            kind: Any = type(features).__name__
            if isinstance(features, Tensor):
                kind = tuple(features.shape)
            raise ValueError(f"{self.name} gives neither one map nor one row of tokens but {kind}: it cannot be used")
        if features.dim() == 3:
            self.channels = features.shape[2]
            self._prefix = _prefix_tokens(self.name, self.network, features.shape[1])
            return
        declared = getattr(self.network, "num_features", getattr(self.network, "channels", None))
        says_last = str(getattr(self.network, "output_fmt", "")).endswith("NHWC")
        for channels_last in (says_last, not says_last):  # some networks do not declare it
            self._channels_last = channels_last
            self.channels = features.shape[-1 if channels_last else 1]
            if self.channels == declared:
                return
        raise ValueError(f"{self.name} declares {declared} channels, got features {tuple(features.shape)}")


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode; afterwards each of its modules is back in its old mode."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


def _timm_spec(name: str, network: nn.Module) -> InputSpec:
    from timm.data.config import resolve_model_data_config

    settings = resolve_model_data_config(network)
    _, height, width = settings["input_size"]
    if height != width:
        raise ValueError(f"{name} takes pictures of {height} x {width}; only square ones are supported")
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    if settings["interpolation"] == "bilinear":
        interpolation = "bilinear"
    return InputSpec(
        size=width,
        mean=settings["mean"],
        std=settings["std"],
        interpolation=interpolation,
        resize=int(width / settings["crop_pct"]),
    )


def _timm_groups(network: nn.Module) -> list[list[str]] | None:
    """Names of the parameters by timm's stages; None if timm has none for this network."""
    matcher: Callable[..., Any] | None = getattr(network, "group_matcher", None)
    if matcher is None:
        return None
    from timm.models import group_parameters

    try:
        return list(group_parameters(network, matcher(coarse=True)).values())
    except AssertionError:  # timm has no grouping for this family
        return None


def _prefix_tokens(name: str, network: nn.Module, count: int) -> int:
    """Number of tokens before the patches, of ``count`` for a square picture."""
    prefix = getattr(network, "num_prefix_tokens", None)
    if prefix is None:  # then at most a class token
        prefix = 0 if isqrt(count) ** 2 == count else 1
    if isqrt(count - prefix) ** 2 != count - prefix:
        raise ValueError(f"{name} gives {count} tokens, {prefix} before the patches: the others do not form a square")
    return int(prefix)


def _grid(count: int, height: int, width: int) -> tuple[int, int]:
    """The grid of ``count`` cells in the shape of the picture."""
    scale = (count / (height * width)) ** 0.5
    for rows in (round(height * scale), int(height * scale), ceil(height * scale)):
        if rows and count % rows == 0 and abs(count // rows - width * scale) < 1:
            return rows, count // rows
    raise ValueError(f"{count} tokens form no grid in pictures of {height} x {width}")
