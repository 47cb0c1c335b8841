"""Generalized sum pooling (GSP), a weighted mean of local features that learns what to ignore."""

from collections.abc import Callable
from math import atanh, log
from typing import Literal, overload

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike._util.checks import check_count, check_range
from lookalike.geometry import clip, greedy_k_centre
from lookalike.pooling.autograd import precise, without_autocast
from lookalike.pooling.base import Pooled, Pooling, as_bags, as_points
from lookalike.pooling.kernel import select_and_sum
from lookalike.pooling.transport import solver_dtype
from lookalike.pooling.warmup import PrototypeInit, create_warm_up

# In fp32 the expanded square of a distance has an error of up to 4e-4 where a feature equals a prototype. Up to this
# sharpness that changes n * keep * weight by less than sharpness * 4e-4 = 2e-3 (1.1e-3 in the worst of 6,000 bags).
# Above it, the product is computed in fp64.
FP32_SHARPNESS = 5.0

KEEP_RANGE = (1e-4, 1 - 1e-4)  # of a learnable keep
SHARPNESS_RANGE = (1e-3, 1e4)  # of a learnable sharpness


class GeneralizedSumPool(Pooling):
    """Generalized sum pooling: keeps the share ``keep`` of a bag that is nearest to learnt prototypes.

        cost_ij = || clip(prototype_i) - clip(feature_j / radius) ||,     clip(u) = u / max(1, ||u||)
        weight  = weights of ``lookalike.pooling.partial_transport(cost, keep, sharpness)``
        vector  = sum_j weight_j feature_j

    Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023, where ``keep`` is mu
    and ``sharpness`` epsilon. Their settings: radius 1, 64 prototypes (CUB, Cars) or 128 (SOP, In-shop), keep 0.3,
    sharpness 5 with pair losses and 0.5 with proxy losses.

    Args:
        dim: Size D of the local features.
        num_prototypes: Number of prototypes m.
        keep: Share of the bag to keep, in (0, 1]; 1 is average pooling.
        sharpness: How hard the selection is, above 0. Towards 0 it is average pooling, towards infinity a top-k. At
            0.5, the papers' value for proxy losses, it starts as average pooling: on clustered features of length 1,
            n * weights have a standard deviation of .002 to .003.
        radius: Features longer than this are compared by direction only. For much shorter ones the cost is nearly
            linear, 1 - <prototype, feature / radius>.
        learn_keep: Make ``keep`` a parameter, bounded by KEEP_RANGE.
        learn_sharpness: Make ``sharpness`` a parameter, bounded by SHARPNESS_RANGE.
        background: The prototypes stand for the background. They take the share ``keep`` away and the weights are the
            rest, so set ``keep`` to the share of the background.
        init: "random" places the prototypes just inside the unit sphere. "k-centre", the authors' method, uses average
            pooling in the first training steps, until ``memory`` averages of bags have been collected, and then
            chooses the prototypes among them. ``init_from`` does it at once, from given features.
            "k-centre-released", as in the authors' code, chooses those far from the first averages, as many as there
            are prototypes, and never these.
        memory: Number of averages to collect for "k-centre".
        delay: Training steps to wait before collecting, for losses that need a warm-up.
        check_finite: Raise an error for NaN or infinite features.

    Raises:
        TypeError: If a count is not a whole number.
        ValueError: If a setting is out of range.

    Examples:
        >>> pool = GeneralizedSumPool(dim=128, num_prototypes=64, keep=0.3, sharpness=5.0)
        >>> pool(torch.randn(8, 128, 7, 7)).shape
        torch.Size([8, 128])
    """

    has_attributes = True
    in_unit_ball = True
    is_weighted_sum = True

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
        init: PrototypeInit = "random",
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
        self.num_prototypes = num_prototypes
        self.radius = float(radius)
        self.background = background
        self.check_finite = check_finite
        self.prototypes = nn.Parameter(torch.empty(num_prototypes, dim))
        self.warm_up = create_warm_up(init, dim, num_prototypes, memory, delay)
        self.keep_logit: nn.Parameter | None = None
        if learn_keep:
            self.keep_logit = _bounded_parameter("keep", keep, KEEP_RANGE, _logit)
        self.log_sharpness: nn.Parameter | None = None
        if learn_sharpness:
            self.log_sharpness = _bounded_parameter("sharpness", sharpness, SHARPNESS_RANGE, log)
        self._keep, self._sharpness = float(keep), float(sharpness)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw prototypes in random directions, just inside the unit sphere because clipping has no gradient on it."""
        with torch.no_grad():
            self.prototypes.copy_(0.9 * normalize(torch.randn_like(self.prototypes)))

    @property
    def keep(self) -> float | Tensor:
        """The share to keep; a scalar tensor if it is learnt."""
        if self.keep_logit is None:
            return self._keep
        return _squash(self.keep_logit, _logit(KEEP_RANGE[0]), _logit(KEEP_RANGE[1])).sigmoid()

    @property
    def sharpness(self) -> float | Tensor:
        """How hard the selection is; a scalar tensor if it is learnt."""
        if self.log_sharpness is None:
            return self._sharpness
        return _squash(self.log_sharpness, log(SHARPNESS_RANGE[0]), log(SHARPNESS_RANGE[1])).exp()

    @property
    def ready(self) -> bool:
        """False while the prototypes wait for data; until then this is average pooling."""
        return self.warm_up is None or self.warm_up.done

    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: Literal[True]) -> Pooled: ...
    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Tensor | Pooled:
        """Pool local features, in fp32 (fp64 for fp64 features), also under autocast.

        Args:
            features: Maps (B, D, H, W) or tokens (B, N, D).
            mask: (B, N) bool, True where a feature is present; None: all are present.
            details: Return ``Pooled`` instead of the vectors.

        Returns:
            Vectors (B, D) in the dtype of the features, or ``Pooled``.
        """
        bags = as_bags(features, self.dim, mask, check_finite=self.check_finite)
        with without_autocast(bags.device):
            bags = self._in_radii(precise(bags))
            if self.training and self.warm_up is not None and not self.warm_up.done:
                prototypes = self.warm_up.collect(_average(bags, mask))
                if prototypes is not None:
                    self._set_prototypes(prototypes)
            average = not self.ready or (self.keep_logit is None and self._keep == 1)
            if average and not details:
                return self._from_radii(_average(bags, mask) + self._nothing()).to(features.dtype)
            vector, weights, attributes = select_and_sum(
                bags,
                self.prototypes.to(bags.dtype),
                _solver_scalar(1.0 if average else self.keep, bags),
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
            features: Local features (K, D), tokens (B, N, D) or maps (B, D, H, W).
            mask: (B, N) bool, True where a feature is present.

        Raises:
            ValueError: If there are fewer features than prototypes, or a value is not finite.
        """
        points = as_points(features, self.dim, mask, self.num_prototypes)
        points = clip(self._in_radii(points.to(self.prototypes)))
        self._set_prototypes(points[greedy_k_centre(points, self.num_prototypes).indices])
        if self.warm_up is not None:
            self.warm_up.finish()

    def extra_repr(self) -> str:
        """Return the settings."""
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
        return features if self.radius == 1 else features / self.radius

    def _from_radii(self, vectors: Tensor) -> Tensor:
        return vectors if self.radius == 1 else vectors * self.radius

    def _nothing(self) -> Tensor:
        """Zero, but connected to every parameter: DDP expects a gradient for each, also while they have no effect."""
        return 0 * torch.stack([parameter.sum() for parameter in self.parameters()]).sum()

    def _needs_exact_distances(self) -> bool:
        return self.log_sharpness is not None or self._sharpness > FP32_SHARPNESS or _products_are_rounded()


def _products_are_rounded() -> bool:
    """Whether fp32 matrix products may be computed in TF32 or bf16."""
    if torch.compiler.is_compiling():
        return torch.backends.cuda.matmul.allow_tf32  # the only one of these flags that can be read while tracing
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # raised if the flags of the backends were set one by one
        return True


def _average(bags: Tensor, mask: Tensor | None) -> Tensor:
    """Means (B, D) of bags (B, N, D) whose absent features are zero."""
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
    """The parameter that ``_squash`` maps to ``scale(value)``."""
    if not bounds[0] < value < bounds[1]:
        raise ValueError(f"a learnable {name} must start inside ({bounds[0]}, {bounds[1]}), got {value}")
    low, high = scale(bounds[0]), scale(bounds[1])
    middle, half = (low + high) / 2, (high - low) / 2
    return nn.Parameter(torch.tensor(middle + half * atanh((scale(value) - middle) / half)))


def _squash(raw: Tensor, low: float, high: float) -> Tensor:
    """Bound a parameter softly: the identity around the middle of [low, high], flat towards its ends."""
    middle, half = (low + high) / 2, (high - low) / 2
    return middle + half * torch.tanh((raw - middle) / half)
