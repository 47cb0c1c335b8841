"""Suggested labels and what to label next, against slow references on a few points."""

from pathlib import Path

import numpy as np
import pytest
import torch
from index_helpers import DIM

from lookalike import index
from lookalike.geometry import greedy_k_centre
from lookalike.index import active_choice
from lookalike.index.active_choice import choose_next, entropy
from lookalike.index.contents import marked_pictures
from lookalike.index.label_suggestions import suggest_labels
from lookalike.index.marks import Marks
from lookalike.inference.model import TrainedModel
from lookalike.retrieval.calibration import Calibration


def calibration(knots: list[float], probabilities: list[float]) -> Calibration:
    return Calibration(knots, probabilities, [0.1], "test", 100, 10, 4.0, 95.0, True, 0.0)


@pytest.fixture
def filled(euclidean_model: TrainedModel, tmp_path: Path) -> index.Index:
    """40 points in the plane, half of them with labels."""
    rng = np.random.default_rng(0)
    idx = index.create(tmp_path / "i", euclidean_model)
    vectors = np.zeros((40, DIM), np.float32)
    vectors[:, :2] = rng.uniform(0, 10, (40, 2))
    idx.add([index.Item(f"i{i:02d}", f"/{i}", "" if i % 2 else f"c{i % 3}") for i in range(40)], vectors)
    return idx


def neighbours(idx: index.Index, item: index.Item, count: int = 10) -> list[tuple[float, index.Item]]:
    """Nearest first, one after the other."""
    own = idx.vectors([item.id])[0]
    found = [(float(np.linalg.norm(own - idx.vectors([o.id])[0])), o.id, o) for o in idx.items() if o.id != item.id]
    return [(distance, other) for distance, _, other in sorted(found)[:count]]


def test_suggestions_are_labels_of_neighbours(filled: index.Index) -> None:
    fitted = calibration([0.0, 10.0], [0.9, 0.1])
    for item in filled.items()[:10]:
        near = [(d, o) for d, o in neighbours(filled, item, 40) if o.label][:10]
        expected: dict[str, tuple[float, str, int]] = {}
        for distance, other in near:
            first = expected.get(other.label, (distance, other.id, 0))
            expected[other.label] = (first[0], first[1], first[2] + 1)
        found, note = suggest_labels(filled, item.id, fitted)
        assert [(s.label, s.neighbour, s.votes) for s in found] == [(k, v[1], v[2]) for k, v in expected.items()]
        np.testing.assert_allclose([s.distance for s in found], [v[0] for v in expected.values()], rtol=1e-5)
        np.testing.assert_allclose([s.probability for s in found], [0.9 - 0.08 * v[0] for v in expected.values()])
        assert "calibrated on test" in note
    plain = suggest_labels(filled, "i00")
    assert {s.probability for s in plain.suggestions} == {None}
    assert "lookalike calibrate does it" in plain.note
    with pytest.raises(KeyError):
        suggest_labels(filled, "nobody")


def test_the_queue_equals_a_plain_choice(filled: index.Index) -> None:
    """The most uncertain neighbour of each picture, then the most uncertain pictures, then k-centre."""
    fitted = calibration([0.0, 4.0], [0.99, 0.01])
    candidates = []
    for item in filled.items():
        questions = []
        for rank, (distance, other) in enumerate(neighbours(filled, item)):
            p = float(np.interp(distance, [0, 4], [0.99, 0.01]))
            bits = -p * np.log2(p) - (1 - p) * np.log2(1 - p)
            known = bool(item.label and other.label)
            questions.append((known, -bits, rank, other.id))
        known, bits, _, other_id = min(questions)
        candidates.append((known, round(bits, 9), item.id, other_id))
    chosen: list[tuple[str, str]] = []
    for _, _, one, other_id in sorted(candidates):
        used = {i for pair in chosen for i in pair}
        if not {one, other_id} & used and len(chosen) < 5 * 3:
            chosen.append((one, other_id))
    points = torch.from_numpy(filled.vectors([one for one, _ in chosen]))
    expected = [chosen[i] for i in greedy_k_centre(points, 3).indices.tolist()]
    queue = choose_next(filled, Marks(filled.path), 3, fitted)
    assert [(q.item.id, q.other.id) for q in queue.questions] == expected
    assert all(q.probability is not None and 0 < q.uncertainty <= 1 for q in queue.questions)
    assert queue.note == "chosen by P(same), calibrated on test, 100 pictures of 10 classes"


def test_without_a_calibration_margins_decide(euclidean_model: TrainedModel, tmp_path: Path) -> None:
    """A picture between two labels comes before one that is deep inside of one."""
    with index.create(tmp_path / "i", euclidean_model) as idx:
        places = {"a0": 0, "a1": 0.5, "a2": 1, "between": 5.4, "b0": 10, "b1": 10.5, "b2": 11, "inside": 11.4}
        vectors = np.zeros((len(places), DIM), np.float32)
        vectors[:, 0] = list(places.values())
        idx.add([index.Item(name, "/" + name, name[0] if len(name) == 2 else "") for name in places], vectors)
        (question,) = choose_next(idx, Marks(idx.path), 1).questions
        assert {question.item.id, question.other.id} == {"between", "a2"}
        assert question.probability is None
        expected = {"between": 1 - 0.2 / 9.0, "inside": 1 - (11.4 - 5.4 - 0.4) / (11.4 - 5.4 + 0.4)}
        found = {q.item.id: q.uncertainty for q in choose_next(idx, Marks(idx.path), 8).questions}
        for name in set(found) & set(expected):
            assert found[name] == pytest.approx(expected[name], abs=1e-5)
        assert "between" in found
        assert "no calibration" in choose_next(idx, Marks(idx.path), 8).note


def test_marked_pairs_are_not_asked_again(filled: index.Index) -> None:
    marks = Marks(filled.path)
    asked = set()
    for _ in range(30):
        questions = choose_next(filled, marks, 5).questions
        pictures = [i for q in questions for i in (q.item.id, q.other.id)]
        assert len(set(pictures)) == len(pictures)
        for question in questions:
            pair = frozenset((question.item.id, question.other.id))
            assert pair not in asked
            asked.add(pair)
            marks.add(*marked_pictures(filled, [question.item.id, question.other.id]), "skip")
    first = next(iter(questions))
    marks.undo(1)
    assert first


def test_small_indexes_and_bad_input(
    filled: index.Index, euclidean_model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with index.create(tmp_path / "small", euclidean_model) as idx:
        assert choose_next(idx, Marks(idx.path)).questions == []
        idx.add([index.Item("a", "/a"), index.Item("b", "/b")], np.eye(2, DIM))
        (question,) = choose_next(idx, Marks(idx.path)).questions
        assert {question.item.id, question.other.id} == {"a", "b"}
    with pytest.raises(ValueError, match="k must be at least 1"):
        choose_next(filled, Marks(filled.path), 0)
    with pytest.raises(ValueError, match="k must be at most 100"):
        choose_next(filled, Marks(filled.path), 101)
    monkeypatch.setattr(active_choice, "MOST_PICTURES", 10)
    questions = choose_next(filled, Marks(filled.path), 5).questions
    assert all(not question.item.label for question in questions)  # of large indexes first those without a label
    np.testing.assert_allclose(entropy(np.array([0.0, 0.5, 1.0])), [0, 1, 0], atol=1e-9)
