"""Each re-ranking against its definition in plain loops over lists."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookalike import index
from lookalike.index.reranking import METHODS
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone
from lookalike.retrieval.rerank import alpha_query_expansion, augment_database, k_reciprocal

Rows = list[list[float]]
sizes = st.tuples(st.integers(2, 12), st.integers(1, 5), st.integers(0, 1000))


def draw(count: int, dim: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(unit(a), unit(b), strict=True))


def apart(a: list[float], b: list[float], distance: str) -> float:
    a, b = (unit(a), unit(b)) if distance == "cosine" else (a, b)
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def plain_expansion(query: list[float], near: Rows, alpha: float, distance: str) -> list[float]:
    base = unit(query) if distance == "cosine" else query
    total, weights = list(base), 1.0
    for neighbour in near:
        weight = max(cosine(query, neighbour), 0.0) ** alpha
        weights += weight
        for i, x in enumerate(unit(neighbour) if distance == "cosine" else neighbour):
            total[i] += weight * x
    mean = [x / weights for x in total]
    return unit(mean) if distance == "cosine" else mean


@given(sizes, st.integers(1, 6), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from(["cosine", "l2"]))
@settings(max_examples=30, deadline=None)
def test_query_expansion(shape: tuple[int, int, int], n: int, alpha: float, distance: str) -> None:
    count, dim, seed = shape
    queries, references = draw(3, dim, seed), draw(count, dim, seed + 1)
    near = np.random.default_rng(seed).integers(0, count, (3, 4))
    found = alpha_query_expansion(queries, references, near, alpha, n, distance=distance)
    for query, indices, drawn in zip(queries.tolist(), near.tolist(), found, strict=True):
        right = plain_expansion(query, [references[i].tolist() for i in indices[:n]], alpha, distance)
        np.testing.assert_allclose(drawn, right, atol=2e-5)


@given(sizes, st.integers(1, 6), st.sampled_from(["cosine", "l2"]))
@settings(max_examples=30, deadline=None)
def test_database_augmentation(shape: tuple[int, int, int], n: int, distance: str) -> None:
    rows = draw(*shape).tolist()
    found = augment_database(rows, n, 2.0, distance=distance)
    for i, row in enumerate(rows):
        others = sorted((apart(row, other, distance), j) for j, other in enumerate(rows) if j != i)
        right = plain_expansion(row, [rows[j] for _, j in others[:n]], 2.0, distance)
        np.testing.assert_allclose(found[i], right, atol=2e-4)


def test_augmentation_leaves_itself_out_among_equals() -> None:
    rows = np.array([[1.0, 0.0]] * 4 + [[0.0, 1.0]], np.float32)
    np.testing.assert_allclose(augment_database(rows, 2, 1.0)[:4], rows[:4], atol=1e-6)
    np.testing.assert_allclose(augment_database(rows[:1], 3), rows[:1])


def plain_reciprocal(rows: Rows, k1: int, k2: int, share: float, distance: str) -> Rows:
    """Of all with all, from the definition by sets."""
    count = len(rows)
    d = [[0.0 if i == j else apart(rows[i], rows[j], distance) for j in range(count)] for i in range(count)]
    d = [[x / max(row) if max(row) > 0 else 0.0 for x in row] for row in d]
    order = [sorted(range(count), key=lambda j: (j != i, d[i][j], j)) for i in range(count)]

    def mutual(i: int, k: int) -> set[int]:
        return {j for j in order[i][: k + 1] if i in order[j][: k + 1]}

    encoded: list[dict[int, float]] = []
    for i in range(count):
        own = mutual(i, k1)
        taken = set(own)
        for j in own:
            theirs = mutual(j, max(1, round(k1 / 2)))
            if len(theirs & own) > 2 / 3 * len(theirs):
                taken |= theirs
        total = sum(math.exp(-d[i][j]) for j in taken)
        encoded.append({j: math.exp(-d[i][j]) / total for j in taken})
    averaged = []
    for i in range(count):
        first = order[i][:k2]
        averaged.append([sum(encoded[j].get(c, 0.0) for j in first) / len(first) for c in range(count)])
    final = []
    for i in range(count):
        line = []
        for j in range(count):
            least = sum(min(a, b) for a, b in zip(averaged[i], averaged[j], strict=True))
            most = sum(max(a, b) for a, b in zip(averaged[i], averaged[j], strict=True))
            line.append((1 - share) * (1 - least / most) + share * d[i][j])
        final.append(line)
    return final


@given(
    st.tuples(st.integers(2, 14), st.integers(2, 4), st.integers(0, 1000)),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from(["cosine", "l2"]),
)
@settings(max_examples=40, deadline=None)
def test_k_reciprocal(shape: tuple[int, int, int], k1: int, k2: int, share: float, distance: str) -> None:
    vectors = draw(*shape)
    right = np.array(plain_reciprocal(vectors.tolist(), k1, k2, share, distance))
    among = k_reciprocal(None, vectors, k1, k2, share, distance=distance)
    assert np.isinf(np.diag(among)).all()
    np.fill_diagonal(right, np.inf)
    np.testing.assert_allclose(among, right, atol=1e-5)
    split = max(1, len(vectors) // 3)
    one_sided = k_reciprocal(vectors[:split], vectors[split:], k1, k2, share, distance=distance)
    np.testing.assert_allclose(one_sided, right[:split, split:], atol=1e-5)


@pytest.mark.parametrize("power", [-80, -43, 60])
def test_directions_do_not_depend_on_the_scale(power: int) -> None:
    vectors = np.random.default_rng(3).normal(size=(12, 5)).astype(np.float32)
    scaled = (vectors.astype(np.float64) * 2.0**power)[::-1].astype(">f8")[::-1]
    near = np.tile(np.arange(4), (12, 1))
    expected = alpha_query_expansion(vectors, vectors, near)
    np.testing.assert_array_equal(alpha_query_expansion(scaled, scaled, near), expected)
    np.testing.assert_array_equal(augment_database(scaled, 3), augment_database(vectors, 3))


def test_bad_input() -> None:
    vectors = draw(4, 3, 0)
    for bad, why in (
        (lambda: alpha_query_expansion(vectors, vectors, [[0]], 3.0), r"near must be .* \(4, n\)"),
        (lambda: alpha_query_expansion(vectors, vectors[:, :2], [[0]] * 4), "one size"),
        (lambda: alpha_query_expansion(vectors, vectors, [[0]] * 4, -1.0), "alpha must be"),
        (lambda: augment_database(vectors, 0), "n must be at least 1"),
        (lambda: augment_database(vectors * np.nan), "finite"),
        (lambda: k_reciprocal(None, vectors, 0), "k1 must be at least 1"),
        (lambda: k_reciprocal(None, vectors, lambda_=2.0), "lambda_ must be"),
        (lambda: k_reciprocal(None, vectors, distance="city"), "distance must be"),
    ):
        with pytest.raises(ValueError, match=why):
            bad()


@pytest.fixture(scope="module")
def idx(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        model = TrainedModel(Embedder(backbone, 4, "average", {}, "l2", backbone.spec.resized(32)))
    with index.create(tmp_path_factory.mktemp("rerank") / "i", model) as made:
        items = [index.Item(f"i{i:02d}", f"/{i}", "even" if i % 2 == 0 else "odd") for i in range(40)]
        made.add(items, draw(40, 4, 3))
        yield made


def test_search_reranked_uses_the_functions(idx: index.Index) -> None:
    ids = [item.id for item in idx.items()]
    vectors, query = idx.vectors(ids), draw(1, 4, 9)
    plain = idx.search(query, 40)[0]
    true = {hit.item.id: hit.distance for hit in plain}
    near = [[ids.index(hit.item.id) for hit in plain[:10]]]
    expanded = alpha_query_expansion(query, vectors, near, 3.0, 10)[0]
    orders = {
        "none": [hit.item.id for hit in plain],
        "expansion": [ids[i] for i in np.argsort(-(vectors / np.linalg.norm(vectors, axis=1)[:, None]) @ expanded)],
        "augmentation": [ids[i] for i in np.argsort(-augment_database(vectors, 10, 3.0) @ query[0])],
    }
    candidates = idx.vectors([hit.item.id for hit in plain])
    again = k_reciprocal(query, candidates, 20, 6, 0.3)[0]
    orders["reciprocal"] = [plain[i].item.id for i in np.argsort(again, kind="stable")]
    assert len({tuple(order) for order in orders.values()}) == 4
    for method in METHODS:
        (hits,) = index.search_reranked(idx, query, 7, None, method)
        assert [hit.item.id for hit in hits] == orders[method][:7], method
        assert all(abs(hit.distance - true[hit.item.id]) < 1e-12 for hit in hits)


@pytest.mark.parametrize("method", METHODS)
def test_search_reranked_leaves_the_item_out(idx: index.Index, method: str, tmp_path: Path) -> None:
    own = idx.vectors(["i04"])
    (hits,) = index.search_reranked(idx, own, 10, "label=even", method, without="i04")
    assert len(hits) == 10
    assert all(hit.item.label == "even" and hit.item.id != "i04" for hit in hits)
    # it takes no part: without it in the index the answer is the same
    items = [item for item in idx.items() if item.id != "i04"]
    with index.create(tmp_path / "i", idx.model("cpu")) as rest:
        rest.add(items, idx.vectors([item.id for item in items]))
        assert index.search_reranked(rest, own, 10, "label=even", method) == [hits]
        assert index.search_reranked(rest, own, 10, "label=nobody", method) == [[]]
    with pytest.raises(ValueError, match="must be one of none, expansion"):
        index.search_reranked(idx, own, method="twice")
