"""Composed queries, near-duplicates, diversity, probabilities and copies, on an index of drawn vectors."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lookalike import index
from lookalike.index.calibrating import load_calibration, score
from lookalike.index.querying import NEGATIVE, Options, compose_query, find, find_copies
from lookalike.models import Embedder, create_backbone, save_model
from lookalike.retrieval.calibration import FILE


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    save_model(Embedder(create_backbone("resnet8-half", weights="none"), 8, "average"), folder)
    return folder


def drawn(classes: int = 12, per_class: int = 8) -> tuple[list[index.Item], np.ndarray]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(classes, 8)).repeat(per_class, 0) + 0.5 * rng.normal(size=(classes * per_class, 8))
    items = [index.Item(f"i{n:03d}", "", f"class{n // per_class}", {"n": n}) for n in range(len(vectors))]
    return items, vectors.astype(np.float32)


@pytest.fixture
def idx(run: Path, tmp_path: Path) -> Iterator[index.Index]:
    with index.create(tmp_path / "i.idx", run=run) as made:
        made.add(*drawn())
        yield made


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_a_composed_query_is_rocchios() -> None:
    _, vectors = drawn()
    positives, negatives = vectors[:3], vectors[20:22]
    expected = unit(unit(positives).mean(0) - NEGATIVE * unit(negatives).mean(0))
    np.testing.assert_allclose(compose_query(positives, negatives), expected, atol=1e-6)
    np.testing.assert_allclose(compose_query(positives), unit(unit(positives).mean(0)), atol=1e-6)
    np.testing.assert_array_equal(compose_query(vectors[:1]), vectors[0])
    plain = compose_query(positives, negatives, distance="l2")
    np.testing.assert_allclose(plain, positives.mean(0) - NEGATIVE * negatives.mean(0), atol=1e-6)


def test_negative_examples_alone_and_cancelling_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one positive example"):
        compose_query(np.zeros((0, 8)), np.ones((1, 8)))
    with pytest.raises(ValueError, match="cancel out"):
        compose_query(np.stack([np.ones(8), -np.ones(8)]))


def test_plain_options_are_a_plain_search(idx: index.Index) -> None:
    query = drawn()[1][5]
    found = find(idx, query, Options(k=7, where="n>=3"))
    assert [result.hit for result in found.results] == idx.search(query[None], 7, "n>=3")[0]
    assert found.results[0].probability is None
    assert found.note.startswith("no probabilities")
    without = find(idx, query, Options(k=7, without=("i005", "i006")))
    assert not {"i005", "i006"} & {result.hit.item.id for result in without.results}
    assert len(without.results) == 7


def test_near_duplicates_are_one_result(idx: index.Index) -> None:
    query = drawn()[1][5]
    copies = [index.Item(f"copy{n}", "", "class0", {}) for n in range(3)]
    rng = np.random.default_rng(1)
    idx.add(copies, query + 0.02 * rng.normal(size=(3, 8)).astype(np.float32))
    plain = find(idx, query, Options(k=5))
    grouped = find(idx, query, Options(k=5, group=True))
    assert [result.hit.item.id for result in plain.results[:4]] != [
        result.hit.item.id for result in grouped.results[:4]
    ]
    assert grouped.results[0].hit == plain.results[0].hit
    assert {item.id for item in grouped.results[0].duplicates} == {"copy0", "copy1", "copy2"}
    assert len(grouped.results) == 5
    assert not grouped.results[1].duplicates


def test_diversity_is_maximal_marginal_relevance(idx: index.Index) -> None:
    _, vectors = drawn()
    query = vectors[5]
    candidates = idx.search(query[None], 100)[0]
    rows = unit(idx.vectors([hit.item.id for hit in candidates]).astype(np.float64))
    similarity = rows @ rows.T
    chosen = [0]
    while len(chosen) < 6:
        costs = []
        for i, hit in enumerate(candidates):
            nearest = min(1 - similarity[i, j] for j in chosen)
            costs.append(np.inf if i in chosen else 0.6 * hit.distance - 0.4 * nearest)
        chosen.append(int(np.argmin(costs)))
    found = find(idx, query, Options(k=6, diversity=0.4))
    assert [result.hit.item.id for result in found.results] == [candidates[i].item.id for i in chosen]
    assert chosen != sorted(chosen)


def test_calibrated_on_its_own_labels(idx: index.Index) -> None:
    query = drawn()[1][5]
    with pytest.raises(ValueError, match="a confidence needs probabilities; no probabilities: neither"):
        find(idx, query, Options(confidence=0.5))
    made = index.calibrate(idx)
    assert (idx.path / FILE).is_file()
    assert (made.queries, made.classes, made.same_size, made.other_size) == (96, 12, 7, 88)
    calibration = load_calibration(idx)
    found = find(idx, query, Options(k=30), calibration)
    probabilities = [result.probability for result in found.results]
    assert probabilities == sorted(probabilities, reverse=True)  # type: ignore[type-var]
    right = [result.hit.item.label == "class0" for result in found.results]
    assert right[0]
    cut = find(idx, query, Options(k=30, confidence=0.6), calibration)
    assert 0 < len(cut.results) < 30
    assert cut.results == [result for result in found.results if (result.probability or 0) >= 0.6]
    assert not found.nothing
    far = find(idx, -drawn()[1].mean(0), Options(k=5), calibration)
    assert far.nothing == (far.p_value is not None and far.p_value <= 0.05)
    composed = find(idx, query, Options(one_picture=False), calibration)
    assert composed.results[0].probability is None
    assert "one whole picture" in composed.note
    with pytest.raises(ValueError, match="one whole picture"):
        find(idx, query, Options(one_picture=False, confidence=0.5), calibration)


def test_probabilities_compare_with_the_fiftieth_neighbour_of_the_whole_index(idx: index.Index) -> None:
    index.calibrate(idx)
    calibration = load_calibration(idx)
    assert calibration is not None
    items, vectors = drawn()
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    others = np.sort(np.delete(1 - unit @ unit[5], 5))
    found = find(idx, vectors[5], Options(k=4, where="label=class1", without=(items[5].id,)), calibration)
    expected = np.interp(
        [r.hit.distance / others[49] for r in found.results], calibration.distances, calibration.probabilities
    )
    np.testing.assert_allclose([result.probability for result in found.results], expected, atol=1e-4)


def test_a_models_calibration_asks_the_collection_before_it_says_nothing(idx: index.Index) -> None:
    """A promise of other pictures does not hold here: in a looser collection it would be broken for most queries."""
    of_model = index.calibrate(idx)
    tight = replace(of_model, nearest=[1e-6] * 500)  # of pictures that lie much closer together
    tight.write(idx.home / "model")
    (idx.home / FILE).unlink()
    calibration = load_calibration(idx)
    assert calibration is not None
    assert "only a guide" in calibration.describe()
    items = idx.items()
    said = 0
    for item, vector in zip(items, idx.vectors([item.id for item in items]), strict=True):
        hits = [hit for hit in idx.search(vector[None], 3)[0] if hit.item.id != item.id]
        assert tight.p_value(hits[0].distance) < 0.01
        said += score(calibration, hits, error_rate=0.05, reference=1.0).nothing
    assert 0 < said <= 0.05 * len(items)
    assert score(calibration, [hits[0]._replace(distance=1.9)], reference=2.0).nothing
    assert not score(calibration, [hits[0]._replace(distance=1.9)], error_rate=1 / 98, reference=2.0).nothing


def test_labels_tell_how_large_classes_are(idx: index.Index) -> None:
    of_model = replace(index.calibrate(idx), same_size=70.0)
    of_model.write(idx.home / "model")
    (idx.home / FILE).unlink()
    calibration = load_calibration(idx)
    assert calibration is not None
    assert calibration.probabilities == of_model.adapted(96, 7.0).probabilities
    items = idx.items()
    ids = [item.id for item in items]
    unlabelled = [item._replace(label="") if number % 5 == 0 else item for number, item in enumerate(items)]
    idx.add(unlabelled, idx.vectors(ids))
    calibration = load_calibration(idx)
    assert calibration is not None
    assert calibration.probabilities == of_model.adapted(96).probabilities


def test_an_index_with_one_picture_says_nothing_of_nothing(idx: index.Index) -> None:
    index.calibrate(idx).write(idx.home / "model")
    (idx.home / FILE).unlink()
    idx.delete([item.id for item in idx.items()[1:]])
    calibration = load_calibration(idx)
    (hits,) = idx.search(-idx.vectors([idx.items()[0].id]), 1)
    assert not score(calibration, hits, reference=2.0).nothing


def test_something_foreign_is_nothing(idx: index.Index) -> None:
    index.calibrate(idx)
    calibration = load_calibration(idx)
    assert calibration is not None
    hit = idx.search(drawn()[1][:1], 1)[0][0]
    scores = score(calibration, [hit._replace(distance=1.9)], reference=2.0)
    assert scores.nothing
    assert scores.p_value == pytest.approx(1 / 97)
    assert not score(calibration, [hit._replace(distance=1.9)], error_rate=0.001, reference=2.0).nothing
    with pytest.raises(ValueError, match="needs the distance to neighbour 50 of the query"):
        score(calibration, [hit])


def test_without_labels_it_says_why(run: Path, tmp_path: Path) -> None:
    items, vectors = drawn()
    with index.create(tmp_path / "plain.idx", run=run) as idx:
        idx.add([item._replace(label="") for item in items], vectors)
        with pytest.raises(ValueError, match="has no labels"):
            index.calibrate(idx)
        assert load_calibration(idx) is None
        assert "calibrated on labels" in find(idx, vectors[0], Options()).note


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"confidence": float("nan")}, "confidence must be between 0 and 1"),
        ({"error_rate": 0.0}, "error_rate must be between 0 and 1"),
        ({"diversity": 1.0}, "diversity must be at least 0 and below 1"),
    ],
)
def test_options_out_of_range(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**settings)  # type: ignore[arg-type]


def test_copies_are_found_by_their_bytes(idx: index.Index, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"the same")
    (tmp_path / "b.bin").write_bytes(b"the sama")
    vector = drawn()[1][40]
    idx.add([index.file_item(tmp_path / name) for name in ("a.bin", "b.bin")], np.stack([vector, vector]))
    assert find_copies(idx, vector, b"the same") == [index.file_id(tmp_path / "a.bin")]
    assert find_copies(idx, vector, b"other") == []
