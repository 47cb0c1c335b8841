"""Which marks and classes train and which are held out, and what follows from marks."""

from itertools import chain, combinations, product

import numpy as np
import pytest

from lookalike.improve.evidence import Evidence, NotEnoughMarks, Split, known_relations, require_enough, split
from lookalike.index.items import Item


def evidence(pairs: np.ndarray, same: np.ndarray, labels: np.ndarray | None = None, count: int = 200) -> Evidence:
    items = [Item(f"i{number:03d}", "") for number in range(count)]
    if labels is None:
        labels = np.full(count, -1)
    classes = [f"class {number}" for number in range(int(labels.max(initial=-1)) + 1)]
    return Evidence(items, [""] * count, [], labels, classes, pairs, same)


def stars(count: int, rays: int = 5) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(star * (rays + 1), star * (rays + 1) + ray) for star in range(count) for ray in range(1, rays + 1)]
    return np.array(pairs), np.arange(len(pairs)) % 2 == 0


def test_relations_against_repeated_deduction() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth = rng.integers(0, 3, 12)
        pairs = np.array([(a, b) for a, b in rng.integers(0, 12, (9, 2)) if a != b])
        same = truth[pairs[:, 0]] == truth[pairs[:, 1]]
        known = {(a, b): (1 if s else -1) for (a, b), s in zip(pairs.tolist(), same.tolist(), strict=True)}
        known |= {(b, a): value for (a, b), value in known.items()}
        while True:  # a = b and b ? c gives a ? c
            new = {
                (a, c): known[b, c]
                for (a, b), (b2, c) in product(known, known)
                if b == b2 and a != c and known[a, b] == 1 and (a, c) not in known
            }
            if not new:
                break
            known |= new | {(c, a): value for (a, c), value in new.items()}
        pictures, relation = known_relations(pairs, same)
        assert pictures.tolist() == sorted({end for pair in pairs.tolist() for end in pair})
        for (i, a), (j, b) in product(enumerate(pictures.tolist()), enumerate(pictures.tolist())):
            assert relation[i, j] == known.get((a, b), 0)


def implied(pairs: np.ndarray, same: np.ndarray, parts: Split) -> list[bool]:
    """Which held-out marks follow from the training ones."""
    pictures, relation = known_relations(pairs[parts.training], same[parts.training])
    place = {picture: number for number, picture in enumerate(pictures.tolist())}
    ends = pairs[parts.held_out].tolist()
    return [a in place and b in place and bool(relation[place[a], place[b]]) for a, b in ends]


def test_held_out_marks_do_not_follow_from_the_others_and_stay_the_same() -> None:
    pairs, same = stars(20)
    parts = split(evidence(pairs, same))
    assert parts.independent
    assert not any(implied(pairs, same, parts))
    assert len(parts.held_out) == 24
    assert sorted([*parts.training, *parts.held_out]) == list(range(100))
    assert len(set(pairs[parts.held_out][:, 0])) > 10  # of many pictures, which also have training marks
    order = np.random.default_rng(0).permutation(100)  # the order of the marks does not matter
    again = split(evidence(pairs[order], same[order]))
    assert set(order[again.held_out]) == set(parts.held_out)
    assert set(split(evidence(pairs, same), seed=1).held_out) != set(parts.held_out)


def test_groups_are_held_out_whole() -> None:
    """Each mark of a group that is all the same thing follows from the others: whole groups share no picture."""
    groups = [list(combinations(range(5 * number, 5 * number + 5), 2)) for number in range(12)]
    between = [[(5 * number, 5 * number + 5)] for number in range(0, 12, 2)]  # pairs of groups differ
    pairs = np.array([*chain(*groups, *between)])
    same = np.arange(len(pairs)) < 120
    parts = split(evidence(pairs, same))
    assert parts.independent
    assert not any(implied(pairs, same, parts))
    assert not set(pairs[parts.held_out].ravel()) & set(pairs[parts.training].ravel())


def test_one_group_is_divided_all_the_same() -> None:
    pairs = np.array([*combinations(range(8), 2), *((0, other) for other in range(8, 20))])
    same = np.arange(len(pairs)) < 28
    parts = split(evidence(pairs, same))
    assert not parts.independent
    assert any(implied(pairs, same, parts))
    assert len(parts.held_out) == 10


def test_marks_on_one_picture_are_divided() -> None:
    pairs = np.array([(0, other) for other in range(1, 41)])
    parts = split(evidence(pairs, np.arange(40) < 10))
    assert parts.independent
    assert (parts.held_out < 10).sum() in (2, 3)
    assert len(parts.held_out) == 10


def test_held_out_classes() -> None:
    pairs, same = stars(5)
    pairs = pairs + 200  # on pictures without a label
    labels = np.concatenate([np.repeat(np.arange(20), 10), np.full(30, -1)])
    parts = split(evidence(pairs, same, labels, count=230))
    assert parts.held_out_classes == 5
    assert len(parts.held_out_pictures) == 50
    assert (parts.training_labels[parts.held_out_pictures] == -1).all()
    assert (parts.training_labels >= 0).sum() == 150
    assert split(evidence(pairs, same, count=230)).held_out_classes == 0


def test_held_out_classes_are_measured_without_training_marks() -> None:
    """Except if most of their pictures have such marks."""
    labels = np.repeat(np.arange(20), 6)
    pairs, same = stars(20)
    for count, are_left_out in ((5, True), (20, False)):
        known = evidence(pairs[: 5 * count], same[: 5 * count], labels, count=120)
        parts = split(known)
        assert (parts.training_labels[known.pairs[parts.held_out]] == -1).all()
        of_classes = np.flatnonzero(np.isin(labels, labels[parts.held_out_pictures]))
        trained = np.intersect1d(of_classes, known.pairs[parts.training])
        assert len(of_classes) == 30
        assert len(trained) > 0
        left_out = np.setdiff1d(of_classes, parts.held_out_pictures)
        assert left_out.tolist() == (trained.tolist() if are_left_out else [])


def test_it_says_how_many_marks_are_needed() -> None:
    pairs, same = stars(5)
    require_enough(evidence(pairs, same))
    with pytest.raises(NotEnoughMarks, match="at least 20 marks, 5 of them same and 5 different; there are 3: 2 same"):
        require_enough(evidence(pairs[:3], same[:3]))
    few = evidence(pairs, np.ones(25, bool))._replace(contradictions=4, expired=2)
    with pytest.raises(NotEnoughMarks, match=r"0 different \(4 contradict each other and 2 are on pictures"):
        require_enough(few)
