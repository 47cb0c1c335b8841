"""Losses on marked pairs against plain loops."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from lookalike.objectives import Composed, KeptSimilarities, Labelled, MarkedPairs, create

VECTORS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
PICTURES = torch.tensor([4, 9, 2, 30, 11, 0, 5])  # positions of the batch in the training set
KNOWN = torch.tensor([30, 4, 11, 99, 2])  # not sorted; 99 is not in the batch
LABELS = torch.tensor([-1, 3, -1, 3, 8, -1, 8])


def relation() -> torch.Tensor:
    table = torch.zeros(5, 5, dtype=torch.int8)
    for i, j, value in ((0, 1, 1), (0, 2, -1), (1, 2, -1), (2, 4, 1), (3, 4, 1)):
        table[i, j] = table[j, i] = value
    return table


def test_contrastive_on_marked_pairs() -> None:
    loss = MarkedPairs(create("c2", positive_margin=0.1, negative_margin=1.2), KNOWN, relation())
    vectors = normalize(VECTORS).tolist()
    pulled, pushed = [], []
    table = relation().tolist()
    for a, first in enumerate(PICTURES.tolist()):
        for b, second in enumerate(PICTURES.tolist()):
            if first not in KNOWN.tolist() or second not in KNOWN.tolist():
                continue
            value = table[KNOWN.tolist().index(first)][KNOWN.tolist().index(second)]
            distance = math.dist(vectors[a], vectors[b])
            if value == 1 and distance > 0.1:
                pulled.append(distance - 0.1)
            if value == -1 and distance < 1.2:
                pushed.append(1.2 - distance)
    expected = sum(pulled) / len(pulled) + (sum(pushed) / len(pushed) if pushed else 0)
    assert float(loss(VECTORS, LABELS, None, PICTURES).value) == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_marked_pictures_has_no_loss() -> None:
    loss = MarkedPairs(create("ms"), KNOWN, relation())
    vectors = VECTORS.clone().requires_grad_()
    value = Composed({"marks": (1.0, loss), "kept": (1.0, KeptSimilarities(torch.eye(100, 5), KNOWN))})(
        vectors, LABELS, None, torch.tensor([50, 51, 52, 53, 54, 55, 56])
    )
    value.value.backward()
    assert float(value.parts["marks"]) == 0
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


def test_only_labelled_pictures_count() -> None:
    chosen = LABELS >= 0
    expected = create("ms")(VECTORS[chosen], LABELS[chosen]).value
    assert torch.equal(Labelled(create("ms"))(VECTORS, LABELS).value, expected)


def test_kept_similarities() -> None:
    start = torch.randn(100, 3, generator=torch.Generator().manual_seed(1))
    loss = KeptSimilarities(start, KNOWN)
    free = [row for row, picture in enumerate(PICTURES.tolist()) if picture not in KNOWN.tolist()]
    changes = []
    for a in free:
        for b in free:
            now = torch.cosine_similarity(VECTORS[a], VECTORS[b], dim=0)
            then = torch.cosine_similarity(start[PICTURES[a]], start[PICTURES[b]], dim=0)
            changes.append(float(now - then) ** 2)
    assert float(loss(VECTORS, LABELS, None, PICTURES).value) == pytest.approx(sum(changes) / len(changes), rel=1e-5)
    assert float(loss(start[PICTURES], LABELS, None, PICTURES).value) < 1e-12


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="relation must be int8"):
        MarkedPairs(create("ms"), KNOWN, relation().long())
    for loss in (MarkedPairs(create("ms"), KNOWN, relation()), KeptSimilarities(torch.eye(100, 5), KNOWN)):
        with pytest.raises(ValueError, match="positions of the pictures"):
            loss(VECTORS, LABELS)
