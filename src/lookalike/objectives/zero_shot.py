"""Cross-batch zero-shot loss: a regression from attributes to label embeddings must hold for other classes.

The attributes z (m) of a picture are its histogram over the prototypes of the pooling. Every class has a learnt label
embedding u (D). The batch is split in two halves without common classes. Each half gives a ridge regression from
attributes to label embeddings, in rows Z (b, m) and U_b (b, D),

    (P3)   A = argmin_A ||Z A - U_b||^2 + ridge ||A||^2 = Z' (Z Z' + ridge I)^-1 U_b = (Z' Z + ridge I)^-1 Z' U_b

which predicts the label embeddings of the other half. The loss is the mean over the whole batch of

    (4.4)  -log softmax_c(scale * u_c . A' z)_y          over all classes c, whether or not they are in the batch

Reference: Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023. The paper counts c = y
twice, has no scale, and adds the means of the halves. The authors' code has scale 9.5 and the mean over the batch. The
weights 0.9 * metric loss + 0.1 * this loss belong to that code.

Nothing waits for the device: halves are masks, so all shapes are known beforehand.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lookalike._util.checks import check_count, check_range
from lookalike.objectives.base import Hints, Loss, Objective, check_labels

# A prime above every label. Multiplication by a number other than 0 modulo PRIME permutes 1..PRIME - 1.
PRIME = 2**31 - 1
MULTIPLIER = 1_350_490_027


class ZeroShot(Objective):
    """Cross-batch zero-shot loss; the formula stands at the top of this file.

    A batch with one class cannot be split. Its loss is 0 without gradients, and the log counts it as ``skipped``.

    Args:
        classes: Number of label embeddings.
        dim: Size of the label embeddings; in the papers that of the embeddings.
        ridge: Strength of the ridge.
        scale: Factor of the logits.
        printed: Add the means of the two halves, as the papers print it; use it with scale 1. Otherwise take the mean
            over the batch, as in the authors' code.

    Examples:
        >>> labels, attributes = torch.tensor([0, 0, 1, 3]), torch.rand(4, 16).softmax(1)
        >>> loss = ZeroShot(classes=4, dim=8)(torch.randn(4, 8), labels, attributes)
        >>> sorted(loss.parts)
        ['skipped', 'zero-shot accuracy']
    """

    hints = Hints(needs_classes=True)
    needs_attributes = True

    steps: Tensor  # batches seen in training
    skipped: Tensor  # those among them that could not be split

    def __init__(self, classes: int, dim: int, ridge: float = 0.05, scale: float = 9.5, printed: bool = False) -> None:
        check_count("classes", classes, 2)
        check_count("dim", dim)
        check_range("ridge", ridge, 0, None)
        check_range("scale", scale, 0, None)
        super().__init__(classes=classes, dim=dim, ridge=ridge, scale=scale, printed=printed)
        self.printed = printed
        self.classes = classes
        self.ridge = ridge
        self.scale = scale
        self.label_embeddings = nn.Parameter(torch.empty(classes, dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        nn.init.kaiming_normal_(self.label_embeddings, mode="fan_out")  # as the authors

    @property
    def skipped_share(self) -> float:
        """Share of the training batches that had only one class. Waits for the device."""
        return float(self.skipped) / max(1, int(self.steps))

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the vectors that stand for classes."""
        return [self.label_embeddings]

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del embeddings, pictures  # not used
        attributes = _check_attributes(attributes, len(labels))
        check_labels(labels, self.classes)
        label_embeddings = self.label_embeddings.to(attributes.dtype)
        first = split_by_class(labels)
        is_split = first.any()
        predicted = predict_across(attributes, label_embeddings[labels], first, self.ridge)
        logits = self.scale * predicted @ label_embeddings.T
        accuracy = (logits.detach().argmax(1) == labels).to(logits.dtype).mean()
        if self.training:
            self.steps += 1
            self.skipped += ~is_split
        losses = cross_entropy(logits, labels, reduction="none")
        value = losses.mean()
        if self.printed:
            halves = torch.stack([first, ~first])  # (2, B)
            sums = losses[None].where(halves, 0.0).sum(1)
            value = (sums / halves.sum(1).clamp(min=1)).sum()
        return Loss(
            value.where(is_split, 0.0),
            {"zero-shot accuracy": accuracy.where(is_split, 0.0), "skipped": (~is_split).to(logits.dtype)},
        )


def split_by_class(labels: Tensor) -> Tensor:
    """Split a batch in two halves without common classes.

    The pictures are sorted by class and cut between two classes, as near to the middle as possible. The order of the
    classes depends on the labels only, because every process must split the joined batch in the same way. It varies
    with the sum of the labels, so that neighbouring classes are not always in the same half.

    Args:
        labels: Classes (B,).

    Returns:
        (B,) bool, True for the first half; all False if there is only one class.
    """
    factor = (labels.sum() % (PRIME - 1) + 1) * MULTIPLIER % PRIME
    rank = (labels + 1) * factor % PRIME
    before = (rank < rank.unsqueeze(1)).sum(1)
    same_class = (rank == rank.unsqueeze(1)).sum(1)
    return 2 * before + same_class < len(labels)


def predict_across(attributes: Tensor, targets: Tensor, first: Tensor, ridge: float) -> Tensor:
    """Predict the targets of each half by the ridge regression of the other half.

    Args:
        attributes: (B, m).
        targets: (B, D).
        first: (B,) bool, True for the first half.
        ridge: Strength of the ridge.

    Returns:
        Predicted targets (B, D).
    """
    if attributes.shape[1] < len(attributes):
        return _primal(attributes, targets, first, ridge)  # two factorisations of size m
    return _dual(attributes, targets, first, ridge)  # one of size B


def _primal(attributes: Tensor, targets: Tensor, first: Tensor, ridge: float) -> Tensor:
    halves = torch.stack([first, ~first]).unsqueeze(-1)
    rows = (attributes * halves).mT  # (2, m, B), the other half's pictures zero
    regressions = _solve_ridge(rows @ attributes, rows @ targets, ridge)  # (2, m, D)
    by_first, by_second = attributes @ regressions
    return torch.where(first.unsqueeze(1), by_second, by_first)


def _dual(attributes: Tensor, targets: Tensor, first: Tensor, ridge: float) -> Tensor:
    """Solve both halves as one system.

    The products within the halves are its diagonal blocks. The products between the halves map the solution of each
    half to the other one.
    """
    products = attributes @ attributes.T
    same_half = first == first.unsqueeze(1)
    return (products * ~same_half) @ _solve_ridge(products * same_half, targets, ridge)


def _solve_ridge(gram: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Compute (gram + ridge I)^-1 targets; NaN where the matrix is not positive after rounding.

    Args:
        gram: (..., k, k).
        targets: (..., k, D).
        ridge: Strength of the ridge.
    """
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(gram + ridge * identity)  # cholesky would wait for the device
    return torch.cholesky_solve(targets, factor.masked_fill((failed != 0)[..., None, None], torch.nan))


def _check_attributes(attributes: Tensor | None, count: int) -> Tensor:
    advice = "choose a pooling with prototypes, such as gsp (with keep=1 it is the average)"
    if attributes is None:
        raise ValueError(f"the zero-shot loss must be given attributes (B, m), got none: {advice}")
    if attributes.dim() != 2 or len(attributes) != count:
        raise ValueError(f"attributes must have the shape ({count}, m), got {tuple(attributes.shape)}")
    if attributes.shape[1] == 0:
        raise ValueError(f"the zero-shot loss needs at least one attribute, but this pooling gives none: {advice}")
    return attributes
