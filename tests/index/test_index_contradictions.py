"""Contradictory marks against all simple paths, one after the other."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest

from lookalike.index.contradictions import MarkedPair, find_contradictions


def simple_paths(pairs: list[MarkedPair], start: str, end: str, seen: tuple[str, ...] = ()) -> Iterator[list[int]]:
    """Marks of every path of pairs marked as same that visits no picture twice."""
    if start == end:
        yield []
        return
    for pair in pairs:
        if not pair.same or start not in (pair.first, pair.second):
            continue
        other = pair.second if pair.first == start else pair.first
        if other not in (*seen, start):
            for rest in simple_paths(pairs, other, end, (*seen, start)):
                yield [pair.mark, *rest]


def plain(pairs: list[MarkedPair]) -> dict[int, tuple[int, set[int]]]:
    """Mark of a pair that is different -> length of the shortest chain, and all marks of its contradiction."""
    found = {}
    for pair in pairs:
        if not pair.same:
            paths = list(simple_paths(pairs, pair.first, pair.second))
            if paths:
                found[pair.mark] = (min(map(len, paths)), {pair.mark, *(mark for path in paths for mark in path)})
    return found


def check(pairs: list[MarkedPair]) -> int:
    contradictions = find_contradictions(pairs)
    found = {c.different.mark: (len(c.chain), set(c.marks)) for c in contradictions}
    assert found == plain(pairs)
    for contradiction in contradictions:
        node = contradiction.different.first
        for pair in contradiction.chain:
            assert pair.same
            assert node in (pair.first, pair.second)
            node = pair.second if pair.first == node else pair.first
        assert node == contradiction.different.second
        assert contradiction.marks == sorted(set(contradiction.marks))
    return len(contradictions)


@pytest.mark.parametrize("density", [0.25, 0.35, 0.6])
def test_random_marks_equal_brute_force(density: float) -> None:
    rng = np.random.default_rng(int(100 * density))
    contradictory = 0
    for size in (3, 5, 7, 8) * 15:
        chosen = [pair for pair in combinations("abcdefgh"[:size], 2) if rng.random() < density]
        marks = rng.permutation(len(chosen)).tolist()
        pairs = [MarkedPair(*pair, bool(rng.random() < 0.7), mark) for pair, mark in zip(chosen, marks, strict=True)]
        contradictory += check(pairs)
    assert contradictory > 3


def test_shapes_that_are_easily_wrong() -> None:
    def pairs(same: str, different: str) -> list[MarkedPair]:
        drawn = [(*edge, True) for edge in same.split()] + [(*edge, False) for edge in different.split()]
        return [MarkedPair(*edge, number) for number, edge in enumerate(drawn)]

    assert check(pairs("ab bc", "ac")) == 1
    assert check(pairs("ab bc", "ad bd")) == 0
    assert check(pairs("ab cd", "ac")) == 0  # not connected
    assert check(pairs("ab bc cd de ef", "bd ae")) == 2  # a chain
    assert check(pairs("ab bc ac cd de ce ef fg eg", "ag ad bf")) == 3  # triangles that share a corner
    assert check(pairs("ab ac ad ae be", "bc de")) == 2  # a star with a triangle
    (found,) = find_contradictions(pairs("ab bc cd be", "ac"))
    assert found.marks == [0, 1, 4]  # the marks on d and e stay


def test_a_long_chain_needs_no_recursion() -> None:
    names = [f"{i:05d}" for i in range(5000)]
    chain = [MarkedPair(a, b, True, i) for i, (a, b) in enumerate(pairwise(names))]
    (found,) = find_contradictions([*chain, MarkedPair(names[0], names[-1], False, 9999)])
    assert len(found.chain) == 4999
