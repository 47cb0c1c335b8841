"""retrieval_metrics against plain loops over every pair, and the cases where others go wrong."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from torch.nn.functional import normalize

import lookalike
from lookalike.retrieval import retrieval_metrics, search


def plain_loops(queries, query_labels, references, reference_labels, query_ids, reference_ids, distance, ks):  # type: ignore[no-untyped-def]
    """The definitions, one query and one reference at a time."""

    def far(a, b):  # type: ignore[no-untyped-def]
        if distance == "l2":
            return float(np.linalg.norm(a - b))
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        return 1 - float(a @ b) / lengths if lengths > 0 else 1.0

    totals: dict[str, list[float]] = {name: [] for name in ("P@1", "P@R", "MAP@R", *(f"R@{k}" for k in ks))}
    left_out = 0
    for vector, label, own in zip(queries, query_labels, query_ids, strict=True):
        ranked = sorted(
            (round(far(vector, other), 9), index)
            for index, other in enumerate(references)
            if own is None or reference_ids[index] != own
        )
        hits = [reference_labels[index] == label for _, index in ranked]
        total = sum(hits)
        if total == 0:
            left_out += 1
            continue
        totals["P@1"].append(hits[0])
        totals["P@R"].append(sum(hits[:total]) / total)
        totals["MAP@R"].append(sum(sum(hits[: j + 1]) / (j + 1) for j in range(total) if hits[j]) / total)
        for k in ks:
            totals[f"R@{k}"].append(any(hits[:k]))
    figures = {name: float(np.mean(values)) if values else 0.0 for name, values in totals.items()}
    return {**figures, "queries": len(queries) - left_out, "left_out": left_out}


@given(
    st.integers(0, 2**31),
    st.integers(2, 25),
    st.integers(1, 25),
    st.integers(1, 6),
    st.sampled_from(["cosine", "l2"]),
    st.sampled_from(["leave one out", "gallery", "some in both"]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_against_plain_loops(
    seed: int, n: int, r: int, classes: int, distance: str, mode: str, duplicates: bool
) -> None:
    # Parallel vectors of different lengths tie only up to rounding: no order to hold the cosine to.
    assume(distance == "l2" or not duplicates)
    generator = np.random.default_rng(seed)
    # Few integer values: duplicates, ties and zero vectors in plenty, all exact in floating point.
    draw = (
        (lambda rows: generator.integers(-2, 3, (rows, 2)))
        if duplicates
        else (lambda rows: generator.normal(size=(rows, 3)))
    )
    queries, query_labels = draw(n).astype(np.float64), generator.integers(0, classes, n)
    ks = (1, 2, 5, 100)
    options = {"distance": distance, "ks": ks}
    if mode == "leave one out":
        arguments = (queries, query_labels)
        everything = (queries, query_labels, queries, query_labels, range(n), range(n))
    else:
        references, reference_labels = draw(r).astype(np.float64), generator.integers(0, classes, r)
        arguments = (queries, query_labels, references, reference_labels)
        query_ids, reference_ids = [None] * n, [None] * r
        if mode == "some in both":
            query_ids, reference_ids = (
                generator.integers(0, n + r, n).tolist(),
                generator.integers(0, n + r, r).tolist(),
            )
            options |= {"query_ids": query_ids, "reference_ids": reference_ids}
        everything = (*arguments, query_ids, reference_ids)
    expected = plain_loops(*everything, distance, ks)
    if expected["queries"] == 0:
        with pytest.raises(ValueError, match="nothing to measure"):
            retrieval_metrics(*arguments, **options)
    else:
        assert retrieval_metrics(*arguments, **options) == pytest.approx(expected, abs=1e-12)


def test_a_case_worked_out_by_hand() -> None:
    line = torch.tensor([[0.0], [1.0], [3.0], [3.5], [9.0]])
    figures = retrieval_metrics(line, ["a", "b", "a", "a", "b"], distance="l2", ks=(1, 2, 3))
    # 0: 1b 3a 3.5a -> R=2: hits 0 1;  3: 3.5a 1b 0a -> hits 1 0;  3.5: 3a 1b -> 1 0;  1: 0a -> 0;  9: 3.5a -> 0
    assert figures["P@1"] == pytest.approx(2 / 5)
    assert figures["P@R"] == pytest.approx((0.5 + 0.5 + 0.5 + 0 + 0) / 5)
    assert figures["MAP@R"] == pytest.approx((0.25 + 0.5 + 0.5 + 0 + 0) / 5)
    assert figures["R@2"] == pytest.approx(3 / 5)
    assert figures["R@3"] == pytest.approx(4 / 5)  # 9: the third is 1, a b
    assert (figures["queries"], figures["left_out"]) == (5, 0)


def test_queries_are_excluded_by_id_not_by_rank() -> None:
    """Two equal pictures of different classes: dropping rank 0 would drop the wrong one."""
    same = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    figures = retrieval_metrics(same, [0, 1, 1, 0])
    assert figures["P@1"] == 0.0
    assert retrieval_metrics(same, [0, 0, 1, 1])["P@1"] == 1.0


def test_blocks_dtypes_and_kinds_of_labels_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    vectors, labels = torch.randn(50, 8), torch.randint(6, (50,))
    expected = retrieval_metrics(vectors, labels)
    names = [f"class {label}" for label in labels.tolist()]
    assert retrieval_metrics(vectors.numpy(), names) == expected
    assert retrieval_metrics(vectors.tolist(), labels.tolist()) == expected
    assert retrieval_metrics(vectors.double(), labels.to(torch.int16)) == pytest.approx(expected)
    monkeypatch.setattr(search, "ROW_SCORES", 120)
    assert retrieval_metrics(vectors, labels) == pytest.approx(expected)
    assert lookalike.retrieval_metrics is retrieval_metrics


@pytest.mark.parametrize("gallery", [False, True])
def test_equals_pytorch_metric_learning_where_there_are_no_duplicates(gallery: bool) -> None:
    torch.manual_seed(0)
    labels = torch.randint(40, (1500,))
    vectors = normalize(torch.randn(40, 16)[labels] + 1.5 * torch.randn(1500, 16))
    theirs = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        knn_func=CustomKNN(CosineSimilarity()),
        device=torch.device("cpu"),
    )
    data = (vectors[:500], labels[:500], vectors[500:], labels[500:]) if gallery else (vectors, labels)
    expected, got = theirs.get_accuracy(*data), retrieval_metrics(*data)
    assert got["P@1"] == pytest.approx(expected["precision_at_1"], abs=1e-6)
    assert got["P@R"] == pytest.approx(expected["r_precision"], abs=1e-6)
    assert got["MAP@R"] == pytest.approx(expected["mean_average_precision_at_r"], abs=1e-6)


VECTORS, LABELS = np.eye(4), [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((VECTORS[0], LABELS), {}, ValueError, r"queries must have the shape .* got \(4,\)"),
        ((VECTORS, LABELS[:3]), {}, ValueError, r"query_labels must have the shape \(4,\), got \(3,\)"),
        ((VECTORS * np.nan, LABELS), {}, ValueError, "finite"),
        ((VECTORS, [0, 1, 2, 3]), {}, ValueError, "nothing to measure in 4 queries"),
        ((VECTORS, LABELS), {"distance": "dot"}, ValueError, "'cosine' or 'l2', got 'dot'"),
        ((VECTORS, LABELS), {"ks": (0,)}, ValueError, "ks must be at least 1, got 0"),
        ((VECTORS, LABELS, None, LABELS), {}, ValueError, "need references, got none"),
        ((VECTORS, LABELS, VECTORS[:, :2], LABELS), {}, ValueError, "one size"),
        ((VECTORS, LABELS, VECTORS, LABELS), {"query_ids": LABELS}, ValueError, "must be given together"),
        ((VECTORS, LABELS, VECTORS, ["a", "a", "b", "b"]), {}, TypeError, "of one kind"),
    ],
)
def test_bad_input_is_refused(arguments: tuple, options: dict, error: type[Exception], message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(error, match=message):
        retrieval_metrics(*arguments, **options)
