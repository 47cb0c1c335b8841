"""The Embedder: a backbone and a head that make vectors of pictures.

    tokens = backbone(images)                       (B, N, C), local features
    vector = normalise(pool(tokens @ projection^T)) (B, D)
    vector = normalise(pool(tokens) @ projection^T) for poolings that work on the backbone's features

The projection is a 1x1 convolution without bias, so prototypes and local features live in the space of the embedding.
Only a whitening head, which is fitted and not trained, has a bias: it subtracts the mean.
The head is a separate module: with a frozen backbone, it trains from cached tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike import pooling as poolings
from lookalike._util.checks import check_count
from lookalike.geometry import clip
from lookalike.models.backbone import Backbone, in_eval_mode
from lookalike.models.backbones import create_backbone
from lookalike.models.input_spec import InputSpec
from lookalike.models.projection import ProjectionStart, median_norm, principal_projection
from lookalike.pooling import Pooled

Normalise = Literal["l2", "clip", "none"]
View = Literal["whole", "crop"]
FORMAT = 1  # of the settings


class Explanation(NamedTuple):
    """Vectors of pictures with the weights they were pooled by.

    Attributes:
        vector: (B, D).
        weights: (B, N), rows sum to 1.
        attributes: (B, m).
        grid: (H', W') with H' * W' = N; cells count row by row.
    """

    vector: Tensor
    weights: Tensor
    attributes: Tensor
    grid: tuple[int, int]

    @property
    def heat_maps(self) -> Tensor:
        """The weights as grids (B, H', W')."""
        return self.weights.unflatten(1, self.grid)


class Head(nn.Module):
    """Local features (B, N, C) -> vectors (B, D): projection, pooling, normalisation.

    Args:
        channels: C.
        dim: D, or None for no projection (D = C).
        pooling: Name in ``lookalike.pooling``.
        pooling_settings: Its settings.
        normalise: "l2" onto the unit sphere; "clip" into the unit ball, u / max(1, ||u||); or "none".
        bias: Whether the projection has a bias.

    Attributes:
        dim: D, the size of the vectors.
    """

    def __init__(
        self,
        channels: int,
        dim: int | None = 128,
        pooling: str = "gsp",
        pooling_settings: Mapping[str, Any] | None = None,
        normalise: Normalise = "l2",
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_count("channels", channels)
        if dim is not None:
            check_count("dim", dim)
        if normalise not in get_args(Normalise):
            raise ValueError(f"normalise must be one of {', '.join(get_args(Normalise))}, got {normalise!r}")
        self.channels = channels
        self.normalise: Normalise = normalise
        settings = dict(pooling_settings or {})
        kind = poolings.find(pooling)
        self.pools_first = kind.takes_backbone(settings)
        local = channels if dim is None or self.pools_first else kind.local_dim(dim, settings)
        self.pooling = poolings.create(pooling, dim=local, **settings)
        pooled = self.pooling.out_dim
        if dim is None:
            self.projection, self.dim = None, pooled
        elif self.pools_first:
            self.projection, self.dim = nn.Linear(pooled, dim, bias=bias), dim
        elif pooled == dim:
            self.projection, self.dim = nn.Linear(channels, local, bias=bias), dim
        else:
            raise ValueError(
                f"{pooling} makes embeddings of size {pooled} of local features of size {local}, not {dim}"
            )

    @overload
    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False, raw: bool = False
    ) -> Tensor: ...
    @overload
    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, *, details: Literal[True], raw: bool = False
    ) -> Pooled: ...
    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, *, details: bool = False, raw: bool = False
    ) -> Tensor | Pooled:
        """Compute vectors from local features, in fp32 also under autocast.

        Args:
            tokens: Local features (B, N, C).
            mask: (B, N), True where a token is present.
            details: Return ``Pooled`` with weights and attributes as well.
            raw: Leave out the normalisation.

        Returns:
            Vectors (B, D), or ``Pooled``.
        """
        if tokens.shape[-1] != self.channels:
            raise ValueError(f"expected local features (..., {self.channels}), got {tuple(tokens.shape)}")
        features = _at_least_float(tokens) if self.pools_first else self.project(tokens)
        both = {"backbone": _at_least_float(tokens), "project": self.project} if self.pooling.sees_both else {}
        if details:
            pooled: Pooled = self.pooling(features, mask, details=True, **both)
            return pooled._replace(vector=self._finished(pooled.vector, raw))
        return self._finished(self.pooling(features, mask, **both), raw)

    @torch.no_grad()
    def contributions(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Split vectors into the contributions of the places.

        The projection is linear, so it applies to every place alone.

        Args:
            tokens: Local features (B, N, C).
            mask: (B, N), True where a token is present.

        Returns:
            (B, N, D). The sum over the places has the direction of the vector.

        Raises:
            ValueError: If the pooling is not a weighted sum.
        """
        weights = self(tokens, mask, details=True, raw=True).weights
        features = _at_least_float(tokens) if self.pools_first else self.project(tokens)
        values = self.pooling.values(features, mask)
        if self.pools_first:
            values = self.project(values)
        return weights.unsqueeze(-1) * values

    def project(self, features: Tensor) -> Tensor:
        """Project local or pooled features (..., C); the result is fp32 or fp64, also under autocast."""
        if self.projection is not None:
            if features.shape[-1] != self.projection.in_features:
                raise ValueError(f"expected features (..., {self.projection.in_features}), got {tuple(features.shape)}")
            if not torch.is_autocast_enabled(features.device.type):
                features = features.to(self.projection.weight.dtype)  # a cache may hold them in half precision
            features = self.projection(features)
        return _at_least_float(features)

    @property
    def distance(self) -> str:
        """The distance that goes with ``normalise``: "cosine" on the unit sphere, else "l2"."""
        return "cosine" if self.normalise == "l2" else "l2"

    @property
    def projects_channels(self) -> bool:
        """Whether the projection takes the backbone's channels, local or pooled to the same number."""
        return self.projection is not None and self.projection.in_features == self.channels

    @torch.no_grad()
    def median_norm(self, tokens: Tensor) -> float:
        """The median norm of projected local features (..., C). GSP can tell features apart from about 1 on."""
        return median_norm(self.project(tokens))

    @torch.no_grad()
    def start_from_pca(self, local: Tensor, *, scale_to_median_norm: float | None = 2.0) -> ProjectionStart:
        """Initialise the projection by ``principal_projection``, which explains the arguments.

        Raises:
            ValueError: If there is no projection, or it does not take the backbone's channels.
        """
        if self.projection is None:
            raise ValueError("there is no projection to initialise: the head was created with dim=None")
        if not self.projects_channels:
            raise ValueError("the projection of this pooling's vectors cannot start from the backbone's directions")
        start = principal_projection(local, len(self.projection.weight), scale_to_median_norm=scale_to_median_norm)
        self.projection.weight.copy_(start.weight)  # in place: an optimizer may hold this Parameter
        return start

    def extra_repr(self) -> str:
        """Settings in the printed form of the module."""
        return f"normalise={self.normalise!r}"

    def _finished(self, pooled: Tensor, raw: bool) -> Tensor:
        vectors = self.project(pooled) if self.pools_first else pooled
        return vectors if raw else self._normalised(vectors)

    def _normalised(self, vectors: Tensor) -> Tensor:
        if self.normalise == "l2":
            return normalize(vectors, dim=-1)
        return clip(vectors) if self.normalise == "clip" else vectors


class Embedder(nn.Module):
    """Pictures (B, 3, H, W), prepared as ``input_spec`` says, -> vectors (B, D).

    Args:
        backbone: From ``create_backbone``, or its name.
        dim: See ``Head``, as for the next three.
        pooling: Name of the pooling.
        pooling_settings: Its settings.
        normalise: "l2", "clip" or "none".
        input_spec: How pictures are prepared, e.g. in another size; None: as the backbone expects them.
        bias: Whether the projection has a bias.

    Examples:
        >>> embedder = Embedder("resnet20", dim=8, pooling="gsp", pooling_settings={"num_prototypes": 4})
        >>> embedder(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        backbone: Backbone | str,
        dim: int | None = 128,
        pooling: str = "gsp",
        pooling_settings: Mapping[str, Any] | None = None,
        normalise: Normalise = "l2",
        input_spec: InputSpec | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self._settings = {
            "dim": dim,
            "pooling": {"name": pooling, "settings": _plain(pooling_settings or {})},
            "normalise": normalise,
        }
        if bias:  # left out otherwise: files and fingerprints of other models stay as they are
            self._settings["bias"] = True
        self.backbone = create_backbone(backbone) if isinstance(backbone, str) else backbone
        self.head = Head(self.backbone.channels, dim, pooling, pooling_settings, normalise, bias)
        self.input_spec = input_spec or self.backbone.spec

    @overload
    def forward(self, images: Tensor, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, *, details: Literal[True]) -> Pooled: ...
    def forward(self, images: Tensor, *, details: bool = False) -> Tensor | Pooled:
        """Vectors (B, D) of images (B, 3, H, W); with ``details`` a ``Pooled`` that also has the weights (B, N)."""
        return self.head(self.backbone(images), details=details)

    @torch.no_grad()
    def explain(self, images: Tensor) -> Explanation:
        """Vectors and weights of images (B, 3, H, W), in eval mode and without gradients."""
        with in_eval_mode(self):
            return self.explain_maps(self.backbone.maps(images))

    @torch.no_grad()
    def explain_maps(self, maps: Tensor) -> Explanation:
        """Vectors and weights of local features (B, H', W', C)."""
        with in_eval_mode(self.head):
            pooled = self.head(maps.flatten(1, 2), details=True)
        return Explanation(pooled.vector, pooled.weights, pooled.attributes, (maps.shape[1], maps.shape[2]))

    def spec_seeing(self, view: View) -> InputSpec:
        """The input spec with which the whole picture or only its centre crop is seen.

        A backbone without a square grid of features sees the centre crop only.
        """
        cells = None
        if view == "whole" and isinstance(self.backbone, Backbone):
            size = self.input_spec.size
            rows, columns = self.backbone.grid(torch.zeros(1, 3, size, size))
            if rows == columns:
                cells = rows
        return replace(self.input_spec, cells=cells)

    def settings(self) -> dict[str, Any]:
        """Plain values from which ``from_settings`` builds the same Embedder."""
        backbone, spec = self.backbone.name, self.input_spec.to_dict()
        return {"format": FORMAT, "backbone": backbone, **_plain(self._settings), "input": spec}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], backbone: Backbone | None = None) -> "Embedder":
        """Build an Embedder with random weights.

        Args:
            settings: Result of ``settings()``.
            backbone: The backbone, if it has been built already.

        Raises:
            ValueError: If the format is unknown, or names are missing or unknown.
        """
        if settings.get("format") != FORMAT:
            raise ValueError(f"the settings must have the format {FORMAT}, got {settings.get('format')!r}")
        expected = {"format", "backbone", "dim", "pooling", "normalise", "input"}
        if set(settings) - {"bias"} != expected:
            missing, unknown = sorted(expected - set(settings)), sorted(set(settings) - expected - {"bias"})
            raise ValueError(f"the settings of a model do not fit: missing {missing}, unknown {unknown}")
        return cls(
            backbone or create_backbone(settings["backbone"], weights="none"),
            settings["dim"],
            settings["pooling"]["name"],
            settings["pooling"]["settings"],
            settings["normalise"],
            InputSpec.from_dict(settings["input"]),
            bias=settings.get("bias") is True,
        )


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy, of the values that JSON gives back."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(settings), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"settings must be plain values that JSON can hold, got {settings}: {error}") from error
    return copy


def _at_least_float(features: Tensor) -> Tensor:
    return features if features.dtype == torch.float64 else features.float()
