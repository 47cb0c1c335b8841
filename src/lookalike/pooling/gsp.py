"""Generalized sum pooling: a weighted mean of local features that learns what to ignore.

Of every bag, the share ``keep`` (the paper's mu) nearest to the prototypes is kept and the rest ignored; ``sharpness``
(epsilon) sets how hard the choice is: towards 0 it is average pooling, towards infinity a top-k.

    p = weights of lookalike.pooling.transport for the cost || clip(prototype_i) - clip(feature_j / radius) ||
    vector = sum_j p_j feature_j,        clip(u) = u / max(1, ||u||)

``radius`` is 1 in the paper. Features longer than it are compared by their direction alone; where they are much shorter
the cost is nearly linear in them, ``1 - <prototype, feature / radius>``, and the layer a linear attention whose share
is exact.

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023. Their settings:
64 prototypes (CUB, Cars) or 128 (SOP, In-shop), keep 0.3, sharpness 5 with pair losses and 0.5 with proxy losses.
"""

from collections.abc import Callable
from math import atanh, log
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike._util.checks import check_count, check_range
from lookalike.geometry import clip, greedy_k_centre
from lookalike.pooling.bags import as_bags
from lookalike.pooling.base import Pooled, Pooling
from lookalike.pooling.kernel import select_and_sum, without_autocast
from lookalike.pooling.transport import solver_dtype
from lookalike.pooling.warmup import WarmUp

# An fp32 distance by the expanded square is off by up to 4e-4 where a feature equals a prototype. Up to this
# sharpness that moves n * keep * weight by less than 1e-3; above it, the product is taken in fp64.
FP32_SHARPNESS = 5.0

KEEP_RANGE = (1e-4, 1 - 1e-4)  # of a learnable keep
SHARPNESS_RANGE = (1e-3, 1e4)  # of a learnable sharpness


class GeneralizedSumPool(Pooling):
    """Pool maps (B, D, H, W) or tokens (B, N, D) into vectors (B, D).

    Args:
        dim: Channels D of the features.
        num_prototypes: Number m of prototypes.
        keep: Share of the features that is kept (mu), in (0, 1]; 1 is average pooling.
        sharpness: How hard the choice is (epsilon), above 0.
        radius: Length of features that counts as 1 when they are compared with the prototypes.
        learn_keep: Make ``keep`` a parameter, bounded by KEEP_RANGE.
        learn_sharpness: Make ``sharpness`` a parameter, bounded by SHARPNESS_RANGE.
        background: The prototypes represent the background. They remove the share ``keep``; the weights are the rest of
            each feature. Set ``keep`` to the share of the background.
        init: "random" places prototypes just inside the unit sphere. "k-centre" (the authors' way) pools by average in
            the first training steps until ``memory`` averages of bags were seen, then chooses the prototypes among
            them. ``init_from(features)`` chooses them at once from given local features.
        memory: Averages of bags to collect for "k-centre".
        delay: Training steps before collecting, for losses with a warm-up of their own.
        check_finite: Raise an error for NaN or infinite features.

    >>> pool = GeneralizedSumPool(dim=128, num_prototypes=64, keep=0.3, sharpness=5.0)
    >>> pool(torch.randn(8, 128, 7, 7)).shape
    torch.Size([8, 128])
    """

    has_attributes = True
    in_unit_ball = True

    def __init__(
        self,
        dim: int,
        num_prototypes: int = 64,
        keep: float = 0.3,
        sharpness: float = 5.0,
        *,
        radius: float = 1.0,
        learn_keep: bool = False,
        learn_sharpness: bool = False,
        background: bool = False,
        init: Literal["random", "k-centre"] = "random",
        memory: int = 1024,
        delay: int = 0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(dim)
        check_count("num_prototypes", num_prototypes)
        check_range("keep", keep, 0, 1)
        check_range("sharpness", sharpness, 0, None)
        check_range("radius", radius, 0, None)
        if background and keep == 1:
            raise ValueError("with background=True nothing is left to pool at keep = 1, got 1")
        if init not in ("random", "k-centre"):
            raise ValueError(f"init must be 'random' or 'k-centre', got {init!r}")
        self.num_prototypes = num_prototypes
        self.radius = float(radius)
        self.background = background
        self.check_finite = check_finite
        self.prototypes = nn.Parameter(torch.empty(num_prototypes, dim))
        self.warm_up: WarmUp | None = None
        if init == "k-centre":
            self.warm_up = WarmUp(dim, num_prototypes, memory, delay)
        self.keep_logit: nn.Parameter | None = None
        if learn_keep:
            self.keep_logit = _bounded_parameter("keep", keep, KEEP_RANGE, _logit)
        self.log_sharpness: nn.Parameter | None = None
        if learn_sharpness:
            self.log_sharpness = _bounded_parameter("sharpness", sharpness, SHARPNESS_RANGE, log)
        self._keep, self._sharpness = float(keep), float(sharpness)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the prototypes to random directions, just inside the unit sphere: on it, clipping has no gradient."""
        with torch.no_grad():
            self.prototypes.copy_(0.9 * normalize(torch.randn_like(self.prototypes)))

    @property
    def keep(self) -> float | Tensor:
        """Share that is kept; a scalar tensor if it is learnt."""
        if self.keep_logit is None:
            return self._keep
        return _squash(self.keep_logit, _logit(KEEP_RANGE[0]), _logit(KEEP_RANGE[1])).sigmoid()

    @property
    def sharpness(self) -> float | Tensor:
        """How hard the choice is; a scalar tensor if it is learnt."""
        if self.log_sharpness is None:
            return self._sharpness
        return _squash(self.log_sharpness, log(SHARPNESS_RANGE[0]), log(SHARPNESS_RANGE[1])).exp()

    @property
    def ready(self) -> bool:
        """False while prototypes are still to be chosen from data; until then the pooling is the average."""
        return self.warm_up is None or self.warm_up.done

    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[True]) -> Pooled: ...
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Tensor | Pooled:
        """Pool features. Computed in fp32 (fp64 for fp64 features), also under autocast; the vector is cast back.

        Args:
            features: Maps (B, D, H, W) or tokens (B, N, D).
            mask: (B, N) bool, True where a feature is present.
            details: Also return weights and attributes, differentiable.

        Returns:
            Vectors (B, D), or ``Pooled`` with ``details``.
        """
        bags = as_bags(features, self.dim, mask, check_finite=self.check_finite)
        with without_autocast(bags.device):
            if bags.dtype != torch.float64:
                bags = bags.float()
            bags = self._in_radii(bags)
            if self.training and self.warm_up is not None and not self.warm_up.done:
                observe = self.warm_up.observe
                if torch.compiler.is_compiling():
                    observe = torch.compiler.disable(observe)  # as a decorator it would import the compiler
                chosen = observe(_average(bags, mask))
                if chosen is not None:
                    self._set_prototypes(chosen)
            average = not self.ready or (self.keep_logit is None and self._keep == 1)
            if average and not details:
                return self._from_radii(_average(bags, mask) + self._nothing()).to(features.dtype)
            keep = 1.0 if average else self.keep
            vector, weights, attributes = select_and_sum(
                bags,
                self.prototypes.to(bags.dtype),
                _solver_scalar(keep, bags),
                _solver_scalar(self.sharpness, bags),
                mask,
                background=self.background and not average,
                attributes=details,
                exact=self._needs_exact_distances(),
            )
            if average:
                vector = vector + self._nothing()
            vector = self._from_radii(vector)
        vector = vector.to(features.dtype)
        if attributes is None:
            return vector
        return Pooled(vector, weights, attributes)

    @torch.no_grad()
    def init_from(self, features: Tensor, mask: Tensor | None = None) -> None:
        """Choose the prototypes among local features by greedy k-centre. Under DDP give every rank the same features.

        Args:
            features: Features (K, D), tokens (B, N, D) or maps (B, D, H, W).
            mask: (B, N) bool, True where a feature is present.

        Raises:
            ValueError: If there are fewer features than prototypes.
        """
        if features.dim() == 2:
            features = features.unsqueeze(0)
        points = as_bags(features, self.dim, mask, check_finite=True).reshape(-1, self.dim)
        if mask is not None:
            points = points[mask.reshape(-1)]
        if len(points) < self.num_prototypes:
            raise ValueError(f"{self.num_prototypes} prototypes need at least as many features, got {len(points)}")
        points = clip(self._in_radii(points.to(self.prototypes)))
        self._set_prototypes(points[greedy_k_centre(points, self.num_prototypes).indices])
        if self.warm_up is not None:
            self.warm_up.finish()

    def extra_repr(self) -> str:
        """Return the settings, for ``print(layer)``."""
        with torch.no_grad():
            text = f"dim={self.dim}, num_prototypes={self.num_prototypes}, keep={float(self.keep):.4g}"
            if self.keep_logit is not None:
                text += " (learnt)"
            text += f", sharpness={float(self.sharpness):.4g}"
        if self.log_sharpness is not None:
            text += " (learnt)"
        if self.radius != 1:
            text += f", radius={self.radius:.4g}"
        if self.background:
            text += ", background=True"
        return text

    def _set_prototypes(self, values: Tensor) -> None:
        with torch.no_grad():
            self.prototypes.copy_(values)  # in place: the optimizer holds this Parameter

    def _in_radii(self, features: Tensor) -> Tensor:
        if self.radius == 1:
            return features
        return features / self.radius

    def _from_radii(self, vectors: Tensor) -> Tensor:
        if self.radius == 1:
            return vectors
        return vectors * self.radius

    def _nothing(self) -> Tensor:
        """Zero that depends on every parameter: DDP needs a gradient for each, also while they have no effect."""
        return 0 * torch.stack([parameter.sum() for parameter in self.parameters()]).sum()

    def _needs_exact_distances(self) -> bool:
        return self.log_sharpness is not None or self._sharpness > FP32_SHARPNESS or _products_are_rounded()


def _products_are_rounded() -> bool:
    """Whether matrix products of fp32 may be taken in TF32 or bf16."""
    if torch.compiler.is_compiling():
        return torch.backends.cuda.matmul.allow_tf32  # all that can be read in a traced graph
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # raised if the switches were set one by one
        return True


def _average(bags: Tensor, mask: Tensor | None) -> Tensor:
    """Bags (B, N, D) with zeros where absent -> their means (B, D)."""
    if mask is None:
        return bags.mean(1)
    return bags.sum(1) / mask.sum(1, keepdim=True)


def _solver_scalar(value: float | Tensor, like: Tensor) -> float | Tensor:
    if isinstance(value, Tensor):
        return value.to(like.device, solver_dtype(like))
    return value


def _logit(p: float) -> float:
    return log(p / (1 - p))


def _bounded_parameter(
    name: str, value: float, bounds: tuple[float, float], scale: Callable[[float], float]
) -> nn.Parameter:
    """The parameter that ``_squash`` takes to ``scale(value)``."""
    if not bounds[0] < value < bounds[1]:
        raise ValueError(f"a learnable {name} must start inside ({bounds[0]}, {bounds[1]}), got {value}")
    low, high = scale(bounds[0]), scale(bounds[1])
    middle, half = (low + high) / 2, (high - low) / 2
    return nn.Parameter(torch.tensor(middle + half * atanh((scale(value) - middle) / half)))


def _squash(raw: Tensor, low: float, high: float) -> Tensor:
    """Bound a parameter softly: the identity around the middle of [low, high], flat towards its ends."""
    middle, half = (low + high) / 2, (high - low) / 2
    return middle + half * torch.tanh((raw - middle) / half)
