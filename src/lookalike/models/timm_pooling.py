"""Replace the pooling of a timm model in one call; weights, classifier and methods stay timm's.

    model = replace_pooling(timm.create_model("resnet50", num_classes=0), "gsp", keep=0.3)

timm pools in one of two ways. Convolutional networks, and transformers that keep a map (Swin, MaxViT, ...), have one
``SelectAdaptivePool2d``, in the model or in its head. The transformers of vision_transformer.py and eva.py (ViT, DeiT,
SigLIP, DINOv3, ...) have the hook ``attn_pool``, which gets the tokens; class and register tokens are not pooled.
Norms stay where the model has them. Most ViTs normalise all tokens before the pooling; those made to average normalise
the pooled vector.

``reset_classifier`` of many models puts timm's pooling back: call it before, not after.
"""

from typing import Any, TypeVar

import torch
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from lookalike import pooling as poolings
from lookalike.models.backbone import in_eval_mode
from lookalike.pooling import Pooling

Model = TypeVar("Model", bound=nn.Module)

_TOKEN_MODELS: tuple[Any, ...] = (VisionTransformer, Eva)  # their forward_head calls attn_pool
_SIDE = 7  # of the map that probes a head: VGG's takes no smaller one


class MapPooling(nn.Module):
    """Replaces a ``SelectAdaptivePool2d``, with the shapes and methods that timm's heads expect.

    Args:
        pooling: The pooling.
        channels_last: Maps are (B, H, W, C), not (B, C, H, W).
        flatten: Vectors are (B, C), not maps of one cell.
    """

    def __init__(self, pooling: Pooling, channels_last: bool, flatten: bool) -> None:
        super().__init__()
        self.pooling = pooling
        self.channels_last = channels_last
        self.flatten = flatten
        self.pool_type = type(pooling).__name__

    def forward(self, maps: Tensor) -> Tensor:
        """Pool maps, see ``channels_last`` and ``flatten`` for the shapes."""
        if self.channels_last:
            maps = maps.permute(0, 3, 1, 2)
        vectors: Tensor = self.pooling(maps)
        if self.flatten:
            return vectors
        return vectors[:, None, None] if self.channels_last else vectors[:, :, None, None]

    def is_identity(self) -> bool:
        """Always False; timm's heads ask."""
        return False

    def feat_mult(self) -> int:
        """Factor between the size of a vector and of a local feature; timm's heads ask."""
        return self.pooling.out_dim // self.pooling.dim

    def extra_repr(self) -> str:
        """Settings in the printed form of the module."""
        return f"channels_last={self.channels_last}, flatten={self.flatten}"


class TokenPooling(nn.Module):
    """Replaces ``attn_pool``.

    Args:
        pooling: The pooling.
        prefix: Number of class and register tokens, which are not pooled.
    """

    def __init__(self, pooling: Pooling, prefix: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.prefix = prefix

    def forward(self, tokens: Tensor) -> Tensor:
        """Pool tokens (B, prefix + N, C) to vectors (B, C)."""
        return self.pooling(tokens[:, self.prefix :])

    def extra_repr(self) -> str:
        """Settings in the printed form of the module."""
        return f"prefix={self.prefix}"


def replace_pooling(model: Model, name: str, **settings: Any) -> Model:
    """Put another pooling into a timm model.

    Args:
        model: Changed in place. Its pooling may have been replaced before.
        name: Name in ``lookalike.pooling``.
        **settings: Settings of the pooling, whose ``dim`` is that of the model's features.

    Returns:
        The same model.

    Raises:
        TypeError: If the model does not pool in a known way.
        ValueError: If the pooling does not fit. A pooling whose vectors have another size than the local features
            needs a model without classifier and norm behind the pooling.
    """
    kind = poolings.find(name)
    if kind.sees_both:
        raise ValueError(f"{name} needs a projection of its own: use it in an Embedder, not in a timm model")
    slot = _TokenSlot(model) if _takes_tokens(model) else _MapSlot(model)
    pooling = poolings.create(name, dim=slot.channels, **settings)
    like = next(model.parameters())
    # A pooling computes in fp32 whatever its features are, and in fp64 for fp64.
    pooling.to(like.device, torch.float64 if like.dtype == torch.float64 else None)
    pooling.train(model.training)
    slot.fill(pooling)
    return model


class _Slot:
    """The attribute of one of a model's modules that holds its pooling."""

    def __init__(self, model: Any, owner: nn.Module, attribute: str, channels: int) -> None:
        self.model = model
        self.owner = owner
        self.attribute = attribute
        self.channels = channels

    def wrap(self, pooling: Pooling) -> nn.Module:
        raise NotImplementedError

    def zero_features(self) -> Tensor:
        """Input of the model's ``forward_head`` for one picture."""
        raise NotImplementedError

    def run_head(self) -> None:
        like = next(self.model.parameters())
        with in_eval_mode(self.model), torch.no_grad():
            self.model.forward_head(self.zero_features().to(like))

    def fill(self, pooling: Pooling) -> None:
        before = getattr(self.owner, self.attribute)
        setattr(self.owner, self.attribute, self.wrap(pooling))
        if pooling.out_dim == self.channels:
            return
        try:
            self.run_head()
        except RuntimeError as error:
            setattr(self.owner, self.attribute, before)
            advice = "use an Embedder"
            if self.model.num_classes:
                advice = "create the model with num_classes=0"
            raise ValueError(
                f"{type(pooling).__name__} gives vectors of size {pooling.out_dim}, but the layers behind the pooling "
                f"of {type(self.model).__name__} take {self.channels}: {advice}"
            ) from error
        self.model.head_hidden_size = pooling.out_dim


class _TokenSlot(_Slot):
    def __init__(self, model: Any) -> None:
        super().__init__(model, model, "attn_pool", model.num_features)
        cut_off = isinstance(model, VisionTransformer) and not model.pool_include_prefix
        self.prefix = 0 if cut_off else model.num_prefix_tokens

    def wrap(self, pooling: Pooling) -> nn.Module:
        return TokenPooling(pooling, self.prefix)

    def zero_features(self) -> Tensor:
        return torch.zeros(1, self.model.num_prefix_tokens + _SIDE**2, self.channels)


class _MapSlot(_Slot):
    def __init__(self, model: Any) -> None:
        path = _path_of_pool(model)
        owner, _, attribute = path.rpartition(".")
        super().__init__(model, model.get_submodule(owner), attribute, model.num_features)
        self.channels_last, self.flatten = _layout(model.get_submodule(path), model)
        self.channels = self._channels()

    def wrap(self, pooling: Pooling) -> nn.Module:
        return MapPooling(pooling, self.channels_last, self.flatten)

    def zero_features(self) -> Tensor:
        maps = torch.zeros(1, self.model.num_features, _SIDE, _SIDE)
        return maps.permute(0, 2, 3, 1) if self.channels_last else maps

    def _channels(self) -> int:
        """Number of channels that reach the pooling, found by a forward pass: some heads have layers before it."""
        channels: list[int] = []
        dimension = -1 if self.channels_last else 1

        def record(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            channels.append(inputs[0].shape[dimension])

        hook = getattr(self.owner, self.attribute).register_forward_pre_hook(record)
        try:
            self.run_head()
        finally:
            hook.remove()
        return channels[0]


def _takes_tokens(model: nn.Module) -> bool:
    """Whether the model calls ``attn_pool``: distilled models inherit it, but do not."""
    return any(isinstance(model, kind) and type(model).forward_head is kind.forward_head for kind in _TOKEN_MODELS)


def _path_of_pool(model: nn.Module) -> str:
    paths = []
    for path, module in model.named_modules():
        if isinstance(module, (SelectAdaptivePool2d, MapPooling)):
            paths.append(path)
    if len(paths) != 1 or not hasattr(model, "forward_head"):
        raise TypeError(
            "expected a timm model with one SelectAdaptivePool2d (ResNet, ConvNeXt, EfficientNet, Swin, ...) or with "
            f"attn_pool (VisionTransformer, Eva), got {type(model).__name__}"
        )
    return paths[0]


def _layout(pool: nn.Module, model: nn.Module) -> tuple[bool, bool]:
    """(channels_last, flatten) of the present pooling."""
    if isinstance(pool, MapPooling):
        return pool.channels_last, pool.flatten
    shape = pool(torch.zeros(1, 2, 3, 5)).shape  # tells the layouts apart
    if shape == (1, 2, 3, 5):
        raise ValueError(f"{type(model).__name__} was created without pooling: leave global_pool at its default")
    return shape[-1] % 5 == 0, len(shape) == 2
