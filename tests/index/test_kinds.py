"""IVF and HNSW: how much they find is measured, filters still hold, and the file is only a cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_helpers import draw, make_items, plain_search

from lookalike import index
from lookalike.index import faiss_index, kinds
from lookalike.index.cache import read_cache
from lookalike.index.kinds import Kind, explain_kind, resolve_kind
from lookalike.index.structures import ExactNeighbours, Selection, Structure, sample_size
from lookalike.inference.model import TrainedModel

COUNT = 1500
APPROXIMATE = ["ivf", "hnsw", "ivf-pq"]


def build(kind: Kind, vectors: np.ndarray[Any, Any]) -> Structure:
    """From blocks of odd sizes."""
    blocks = np.split(vectors, [7, len(vectors) // 3])
    rows = np.random.default_rng(0).permutation(len(vectors))[: sample_size(kind, len(vectors))]
    return Structure.build(kind, blocks, vectors[rows], len(vectors))


def test_resolve_kind() -> None:
    sizes = (10, 199_999, 200_000, 2_000_000)
    assert [resolve_kind("auto", n) for n in sizes] == ["flat", "flat", "ivf", "ivf-pq"]
    assert len({explain_kind("auto", n) for n in sizes}) == 4
    assert {explain_kind(kind, 5000) for kind in kinds.KINDS if kind != "auto"} == {"as asked"}
    assert [resolve_kind(kind, 999) for kind in ("flat", "ivf", "hnsw")] == ["flat"] * 3
    assert [resolve_kind(kind, 1000) for kind in ("flat", "ivf", "hnsw")] == ["flat", "ivf", "hnsw"]


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_recall_against_brute_force(kind: Any) -> None:
    vectors = draw(3000, dim=32)
    structure = build(kind, vectors)
    assert structure.recall is not None
    assert structure.recall >= kinds.TARGET
    apart = np.square(vectors[:100, None] - vectors[None, :]).sum(2)
    np.fill_diagonal(apart[:, :100], np.inf)
    _, found = structure.search(vectors[:100], structure.candidates(10) if kind == "ivf-pq" else 11)
    truth = np.argsort(apart, axis=1)[:, :10]
    shares = [len(set(right) & set(got)) / 10 for right, got in zip(truth.tolist(), found.tolist(), strict=True)]
    assert abs(float(np.mean(shares)) - structure.recall) < 0.03
    if structure.has_vectors:
        _, exact = structure.search(vectors[:100], 11, exact=True)
        assert [set(row) - {i} for i, row in enumerate(exact.tolist())] == [set(row) for row in truth.tolist()]
    mask = np.zeros(len(vectors), bool)
    mask[::3] = True
    _, masked = structure.search(vectors[:10], 5, Selection.of(mask))
    assert (masked % 3 == 0).all()


def test_exact_neighbours_from_blocks() -> None:
    vectors = draw(500, dim=6)
    vectors[300:] += 5
    neighbours = ExactNeighbours(vectors[:40], 7)
    for block in np.split(vectors, [3, 4, 250, 499]):
        neighbours.add(block)
    apart = np.square(vectors[:40, None] - vectors[None, :]).sum(2)
    for row, expected in zip(neighbours.positions.tolist(), np.argsort(apart)[:, :7].tolist(), strict=True):
        assert set(row) == set(expected)


@pytest.mark.parametrize("dim", [7, 8, 12, 127, 129])
def test_any_size_can_be_compressed(dim: int) -> None:
    vectors = draw(1200, dim=dim)
    structure = build("ivf-pq", vectors)
    _, found = structure.search(vectors[:5], structure.candidates(3))
    for position, row in enumerate(found.tolist()):
        assert position in row


def test_half_precision_is_exact(model: TrainedModel, tmp_path: Path) -> None:
    """Neighbours that half precision cannot tell apart, in the right order."""
    items = make_items(COUNT)
    vectors = draw(COUNT)
    vectors[200:400] = vectors[200] + 3e-4 * draw(200, seed=3)
    queries = np.concatenate([draw(5, seed=1), vectors[200:203]])
    with index.create(tmp_path / "i", model, kind="flat-fp16") as idx:
        idx.add(items, vectors)
        assert idx.info()["kind"] == "flat-fp16"
        assert idx.info()["recall@10"] is None
        for where in (None, "label!='label 3'"):
            chosen = [i for i, item in enumerate(items) if where is None or item.label != "label 3"]
            for query, hits in zip(queries, idx.search(queries, 10, where), strict=True):
                truth = plain_search([items[i] for i in chosen], vectors[chosen], query, 10, "cosine")
                assert [round(hit.distance, 9) for hit in hits] == [distance for _, distance in truth]


def test_half_precision_needs_unit_vectors(euclidean_model: TrainedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="flat-fp16 is for models that normalise"):
        index.create(tmp_path / "i", euclidean_model, kind="flat-fp16")
    assert not (tmp_path / "i").exists()
    with index.create(tmp_path / "i", euclidean_model) as idx, pytest.raises(ValueError, match="flat-fp16 is for"):
        idx.set_kind("flat-fp16")


def test_large_exact_structures_are_stored(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_index, "CACHE_FROM", 1000)
    items, vectors = make_items(COUNT), draw(COUNT)
    with index.create(tmp_path / "i", model) as idx:
        idx.add(items[:1200], vectors[:1200])
        idx.save()
        idx.add(items[1200:], vectors[1200:])
        idx.delete(["i00003"])
        answers = idx.search(vectors[:5], 10)
    monkeypatch.setattr(Structure, "build", None)  # is not called
    with index.open(tmp_path / "i") as idx:
        assert idx.search(vectors[:5], 10) == answers


def test_filters_are_remembered_until_something_changes(model: TrainedModel, tmp_path: Path) -> None:
    items, vectors = make_items(COUNT), draw(COUNT)
    with index.create(tmp_path / "i", model) as idx:
        idx.add(items[:1400], vectors[:1400])
        for round_ in range(3):
            for label in range(7):
                hits = idx.search(vectors[:1], COUNT, f"label='label {label}'")[0]
                assert len(hits) == idx.count(f"label='label {label}'")
            if round_ == 0:
                idx.add(items[1400:], vectors[1400:])
            else:
                idx.delete([items[round_].id])


def test_less_effort_lowers_recall() -> None:
    vectors = draw(3000, dim=32)
    structure = build("ivf", vectors)
    structure.index.nprobe = 1
    truth = structure.search(vectors[:100], 11, exact=True)[1]
    assert structure._recalls(vectors[:100], truth, (11,))[0] < 0.9


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_same_hits_as_flat(model: TrainedModel, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "FEW", 300)
    items, vectors, queries = make_items(COUNT), draw(COUNT), draw(20, seed=1)
    with index.create(tmp_path / "i", model, kind=kind) as idx:
        idx.add(items[:500], vectors[:500])
        assert idx.info()["kind"] == "flat"  # so few are compared one by one
        assert idx.info()["recall@10"] is None
        idx.add(items[500:], vectors[500:])
        assert idx.info()["kind"] == kind
        assert idx.info()["recall@10"] >= kinds.TARGET
        right = 0
        for query, hits in zip(queries, idx.search(queries, 10), strict=True):
            truth = plain_search(items, vectors, query, 10, "cosine")
            right += len({each for each, _ in truth} & {hit.item.id for hit in hits})
            exact_distances = dict(plain_search(items, vectors, query, COUNT, "cosine"))
            assert [round(hit.distance, 9) for hit in hits] == [exact_distances[hit.item.id] for hit in hits]
            assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
        assert right >= 0.95 * 200
        few = [i for i, item in enumerate(items) if item.label == "label 3"]
        for query, hits in zip(queries, idx.search(queries, 10, "label='label 3'"), strict=True):
            truth = plain_search([items[i] for i in few], vectors[few], query, 10, "cosine")
            assert [hit.item.id for hit in hits] == [each for each, _ in truth]
        # more than the walk keeps candidates: all that fulfil the filter, none missing
        assert len(idx.search(queries[:1], 2000, "id>=i00100")[0]) == COUNT - 100


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_structure_file_is_a_cache(
    model: TrainedModel, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "i"
    items, vectors, queries = make_items(COUNT), draw(COUNT), draw(5, seed=1)
    with index.create(path, model, kind=kind) as idx:
        idx.add(items[:1200], vectors[:1200])
        idx.save()
        idx.delete([item.id for item in items[:40]])
        idx.add(items[1200:], vectors[1200:])
        answers = idx.search(queries, 10)
    built: list[str] = []
    original = Structure.build
    monkeypatch.setattr(Structure, "build", lambda kind, *rest: built.append(kind) or original(kind, *rest))
    with index.open(path) as idx:
        assert idx.search(queries, 10) == answers  # caught up with what came after the file
        assert idx.info()["count"] == COUNT - 40
    assert built == []
    file = path / "index.faiss"
    whole = file.read_bytes()
    for damaged in (whole[:-100], whole[:3000] + b"?" + whole[3001:], b"", b"{}" + b" " * 600, None):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        assert read_cache(file) is None
        built.clear()
        with index.open(path) as idx:
            found = idx.search(queries, 10)
        assert built == [kind]
        assert len(found[0]) == 10
        file.write_bytes(whole)
    # one that belongs to other items
    with index.create(tmp_path / "other", model, kind=kind) as idx:
        idx.add(make_items(1100), draw(1100, seed=5))
        idx.save()
        (tmp_path / "other" / "index.faiss").write_bytes(whole)
    with index.open(tmp_path / "other") as idx:
        assert idx.search(draw(1, seed=5), 1)[0][0].item.id == "i00000"


def test_kind_can_be_changed(model: TrainedModel, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx:
        idx.add(make_items(COUNT), draw(COUNT))
        assert idx.info()["kind"] == "flat"
        idx.set_kind("ivf")
        assert idx.info()["kind"] == "ivf"
        idx.save()
        assert (tmp_path / "i" / "index.faiss").exists()
    with index.open(tmp_path / "i") as idx:
        assert idx.info()["asked"] == "ivf"
        idx.set_kind("flat")
        idx.save()
        assert not (tmp_path / "i" / "index.faiss").exists()


def test_rebuild_after_many_changes(model: TrainedModel, tmp_path: Path) -> None:
    items, vectors = make_items(2500), draw(2500)
    with index.create(tmp_path / "i", model, kind="ivf") as idx:
        idx.add(items[:1100], vectors[:1100])
        idx.search(vectors[:1], 1)
        first = idx._structure
        idx.add(items[1100:1300], vectors[1100:1300])
        idx.search(vectors[:1], 1)
        assert idx._structure is first
        idx.add(items[1300:], vectors[1300:])
        assert idx.search(vectors[2400:2401], 1)[0][0].item == items[2400]
        assert idx._structure.trained_on == 2500
        idx.delete([item.id for item in items[:1000]])
        assert idx.search(vectors[2400:2401], 1)[0][0].item == items[2400]
        assert len(idx._structure) == 1500


def test_patched_faiss_search_still_works() -> None:
    """pytorch-metric-learning, for one, imports this, and it changes FAISS for everybody."""
    import faiss
    import faiss.contrib.torch_utils

    assert hasattr(faiss.IndexFlat, "search_numpy")
    vectors = draw(50, dim=8)
    even = Selection.of(np.arange(50) % 2 == 0)
    _, places = build("flat", vectors).search(vectors[:4], 3, even)
    assert places[0, 0] == 0
    assert (places % 2 == 0).all()


def test_every_flipped_bit_of_a_stored_structure_is_noticed(model: TrainedModel, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model, kind="hnsw") as idx:
        idx.add(make_items(COUNT), draw(COUNT))
        idx.save()
    file = tmp_path / "i" / "index.faiss"
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for position in [*range(512), *rng.integers(512, len(whole), 200).tolist()]:
        content = bytearray(whole)
        content[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        assert read_cache(file) is None, position
