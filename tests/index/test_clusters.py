"""Clusters of the map against climbing cell by cell and counting one by one."""

from collections import Counter

import numpy as np
import pytest

from lookalike.index.clusters import CELLS_PER_POINT, FEWEST_CELLS, MOST_CELLS, WIDTH, assign_peaks, find_clusters


def blobs(count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.1, 0.9, (12, 2))
    kind = rng.integers(0, 12, count)
    points = (centres[kind] + rng.normal(0, 0.03, (count, 2))).clip(0, 1)
    shuffled = rng.random(count) < 0.3
    names = [f"label {label:02}" if not other else "other" for label, other in zip(kind, shuffled, strict=True)]
    names[:5] = [""] * 5
    return points, names


def climbed(points: np.ndarray) -> list[int]:
    """The peak of every point, by plain loops."""
    side = int(min(max(CELLS_PER_POINT * len(points) ** 0.5, FEWEST_CELLS), MOST_CELLS))
    cells = [(min(int(y * side), side - 1), min(int(x * side), side - 1)) for x, y in points.tolist()]
    counts = Counter(cells)
    density = {}
    reach = int(np.ceil(3 * WIDTH))
    for row in range(side):
        for column in range(side):
            density[row, column] = sum(
                count * np.exp(-0.5 * ((row - r) ** 2 + (column - c) ** 2) / WIDTH**2)
                for (r, c), count in counts.items()
                if abs(row - r) <= reach and abs(column - c) <= reach
            )
    peaks = []
    for cell in cells:
        while True:
            around = [(cell[0] + down, cell[1] + right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
            best = max((near for near in around if near in density), key=lambda near: round(density[near], 9))
            if round(density[best], 9) <= round(density[cell], 9):
                break
            cell = best
        peaks.append(cell[0] * side + cell[1])
    return peaks


@pytest.mark.parametrize(("count", "seed"), [(300, 0), (1500, 1)])
def test_peaks_and_names_equal_plain_loops(count: int, seed: int) -> None:
    points, names = blobs(count, seed)
    peaks = climbed(points)
    assert assign_peaks(points).tolist() == peaks
    expected = []
    for peak in set(peaks):
        members = [row for row in range(count) if peaks[row] == peak]
        labels = Counter(names[row] for row in members if names[row])
        if len(members) < 4 or not labels:
            continue
        most = max(labels.values())
        label = min(name for name in labels if labels[name] == most)
        expected.append((label, len(members), most / len(members)))
    found = [(cluster.label, cluster.pictures, cluster.share) for cluster in find_clusters(points, names)]
    assert len(found) > 3
    assert sorted(found) == sorted(expected)
    assert [size for _, size, _ in found] == sorted([size for _, size, _ in found], reverse=True)


def test_without_labels_or_points() -> None:
    points, _ = blobs(100, 2)
    assert find_clusters(points, [""] * 100) == []
    assert find_clusters(np.zeros((0, 2)), []) == []
    (alone,) = find_clusters(np.full((9, 2), 0.5), ["a"] * 5 + ["b"] * 4)
    assert alone == ("a", 0.5, 0.5, 9, 5 / 9)
