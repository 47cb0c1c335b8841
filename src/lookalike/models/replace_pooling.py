"""Another pooling for a timm model, in one call: the model stays timm's, with its weights, classifier and methods.

    model = replace_pooling(timm.create_model("resnet50", num_classes=0), "gsp", keep=0.3)

There are two places where timm pools. Convolutional networks, and transformers that keep a map (Swin, MaxViT, ...),
have one ``SelectAdaptivePool2d``, in the model or in its head. The transformers of vision_transformer.py and eva.py
(ViT, DeiT, SigLIP, DINOv3, ...) have the hook ``attn_pool``, to which the tokens go if there is one; class and register
tokens belong to no place and are kept out of the bag. Norms stay where the model has them. Most ViTs pool the class
token and normalise all tokens before; those made to average normalise the pooled vector.

``reset_classifier`` of many models puts timm's own pooling back: call it before, not after.
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

_TOKEN_MODELS: tuple[Any, ...] = (VisionTransformer, Eva)  # their forward_head asks attn_pool
_SIDE = 7  # of an empty map: VGG's head takes no smaller one


class MapPooling(nn.Module):
    """A pooling in the place of a ``SelectAdaptivePool2d``, with the shapes and the methods that timm's heads expect.

    channels_last: maps come as (B, H, W, C).  flatten: vectors leave as (B, C), else as maps of one place.
    """

    def __init__(self, pooling: Pooling, channels_last: bool, flatten: bool) -> None:
        super().__init__()
        self.pooling = pooling
        self.channels_last = channels_last
        self.flatten = flatten
        self.pool_type = type(pooling).__name__

    def forward(self, maps: Tensor) -> Tensor:
        vectors: Tensor = self.pooling(maps.permute(0, 3, 1, 2) if self.channels_last else maps)
        if self.flatten:
            return vectors
        return vectors[:, None, None] if self.channels_last else vectors[:, :, None, None]

    def is_identity(self) -> bool:
        return False

    def feat_mult(self) -> int:
        return self.pooling.out_dim // self.pooling.dim

    def extra_repr(self) -> str:
        return f"channels_last={self.channels_last}, flatten={self.flatten}"


class TokenPooling(nn.Module):
    """A pooling in the place of ``attn_pool``, for tokens (B, prefix + N, C) of which the first belong to no place."""

    def __init__(self, pooling: Pooling, prefix: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.prefix = prefix

    def forward(self, tokens: Tensor) -> Tensor:
        return self.pooling(tokens[:, self.prefix :])

    def extra_repr(self) -> str:
        return f"prefix={self.prefix}"


def replace_pooling(model: Model, name: str, **settings: Any) -> Model:
    """Put the pooling ``name`` of ``lookalike.pooling``, with its settings, into a timm model. In place, and returned.

    It pools local features of the network's own size. One that gives vectors of another size needs a model that has
    no classifier and no norm behind its pooling. Called again, it replaces the replacement.
    """
    kind = poolings.find(name)
    if kind.sees_both:
        raise ValueError(f"{name} needs a projection of its own: use it in an Embedder, not in a timm model")
    place = _TokenPlace(model) if _takes_tokens(model) else _MapPlace(model)
    pooling = poolings.create(name, dim=place.channels, **settings)
    like = next(model.parameters())
    # A pooling computes in fp32 whatever its features are, and in fp64 for fp64.
    pooling.to(like.device, torch.float64 if like.dtype == torch.float64 else None)
    pooling.train(model.training)
    place.fill(pooling)
    return model


class _Place:
    """Where a model pools: the attribute of one of its modules."""

    def __init__(self, model: Any, owner: nn.Module, attribute: str, channels: int) -> None:
        self.model, self.owner, self.attribute = model, owner, attribute
        self.channels = channels

    def wrapped(self, pooling: Pooling) -> nn.Module:
        raise NotImplementedError

    def empty_features(self) -> Tensor:
        """What the model's ``forward_head`` takes, for one picture."""
        raise NotImplementedError

    def run_head(self) -> None:
        like = next(self.model.parameters())
        with in_eval_mode(self.model), torch.no_grad():
            self.model.forward_head(self.empty_features().to(like))

    def fill(self, pooling: Pooling) -> None:
        before = getattr(self.owner, self.attribute)
        setattr(self.owner, self.attribute, self.wrapped(pooling))
        if pooling.out_dim == self.channels:
            return
        try:
            self.run_head()
        except RuntimeError as error:
            setattr(self.owner, self.attribute, before)
            way_out = "create the model with num_classes=0" if self.model.num_classes else "use an Embedder"
            raise ValueError(
                f"{type(pooling).__name__} gives vectors of size {pooling.out_dim}, but what stands behind the pooling "
                f"of {type(self.model).__name__} takes {self.channels}: {way_out}"
            ) from error
        self.model.head_hidden_size = pooling.out_dim


class _TokenPlace(_Place):
    def __init__(self, model: Any) -> None:
        super().__init__(model, model, "attn_pool", model.num_features)
        cut_off = isinstance(model, VisionTransformer) and not model.pool_include_prefix
        self.prefix = 0 if cut_off else model.num_prefix_tokens

    def wrapped(self, pooling: Pooling) -> nn.Module:
        return TokenPooling(pooling, self.prefix)

    def empty_features(self) -> Tensor:
        return torch.zeros(1, self.model.num_prefix_tokens + _SIDE**2, self.channels)


class _MapPlace(_Place):
    def __init__(self, model: Any) -> None:
        path = _path_of_pool(model)
        owner, _, attribute = path.rpartition(".")
        super().__init__(model, model.get_submodule(owner), attribute, model.num_features)
        self.channels_last, self.flatten = _layout(model.get_submodule(path), model)
        self.channels = self._channels()

    def wrapped(self, pooling: Pooling) -> nn.Module:
        return MapPooling(pooling, self.channels_last, self.flatten)

    def empty_features(self) -> Tensor:
        empty = torch.zeros(1, self.model.num_features, _SIDE, _SIDE)
        return empty.permute(0, 2, 3, 1) if self.channels_last else empty

    def _channels(self) -> int:
        """How many channels reach the pooling: some heads have layers before it, so it is tried."""
        seen: list[int] = []

        def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen.append(inputs[0].shape[-1 if self.channels_last else 1])

        hook = getattr(self.owner, self.attribute).register_forward_pre_hook(look)
        try:
            self.run_head()
        finally:
            hook.remove()
        return seen[0]


def _takes_tokens(model: nn.Module) -> bool:
    """Whether ``attn_pool`` is asked: distilled models, say, inherit it and do not."""
    return any(isinstance(model, kind) and type(model).forward_head is kind.forward_head for kind in _TOKEN_MODELS)


def _path_of_pool(model: nn.Module) -> str:
    paths = [path for path, part in model.named_modules() if isinstance(part, (SelectAdaptivePool2d, MapPooling))]
    if len(paths) != 1 or not hasattr(model, "forward_head"):
        raise TypeError(
            "the pooling of timm models with one SelectAdaptivePool2d (ResNet, ConvNeXt, EfficientNet, Swin, ...) or "
            f"with attn_pool (VisionTransformer, Eva) can be replaced, got {type(model).__name__}"
        )
    return paths[0]


def _layout(pool: nn.Module, model: nn.Module) -> tuple[bool, bool]:
    """(channels_last, flatten) of the pooling that is there."""
    if isinstance(pool, MapPooling):
        return pool.channels_last, pool.flatten
    shape = pool(torch.zeros(1, 2, 3, 5)).shape  # tells the layouts apart
    if shape == (1, 2, 3, 5):
        raise ValueError(f"{type(model).__name__} was created not to pool: leave global_pool at its default")
    return shape[-1] % 5 == 0, len(shape) == 2
