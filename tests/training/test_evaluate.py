"""Vectors and metrics: shares of processes, and who is compared with whom."""

import numpy as np
import pytest
import torch

from lookalike.data.pictures import Pictures
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.evaluate import as_lines, measure
from lookalike.training.features import join_shares, share


def table(labels: list[int], roles: list[str] | None = None) -> Pictures:
    count = len(labels)
    return Pictures(
        name="numbers",
        names=tuple(map(str, range(count))),
        labels=np.array(labels, np.int64),
        classes=tuple(f"class {label}" for label in range(max(labels) + 1)),
        reader=None,  # type: ignore[arg-type]  # no pixels here
        origins=np.arange(count),
        roles=None if roles is None else np.array(roles, np.str_),
    )


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [5, 6, 7, 11])
def test_shares_cover_all_and_join_again(world: int, count: int) -> None:
    vectors = torch.randn(count, 4)
    most = -(-count // world)
    gathered = torch.full((world, most, 4), torch.nan)
    for rank in range(world):
        mine = share(count, rank, world)
        gathered[rank, : len(mine)] = vectors[mine]
    assert sorted(i for rank in range(world) for i in share(count, rank, world)) == list(range(count))
    assert torch.equal(join_shares(gathered, count), vectors)


def test_without_roles_each_is_compared_with_all_others() -> None:
    vectors = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    labels = [0, 0, 1, 1, 1, 2, 2, 2, 2]
    expected = retrieval_metrics(vectors, labels, ks=(1, 3))
    assert measure(vectors, table(labels), ks=(1, 3)) == expected
    assert measure(vectors.numpy(), table(labels, roles=9 * [""]), ks=(1, 3)) == expected
    assert expected != measure(vectors, table(labels), ks=(1, 3), distance="l2")


def test_roles_by_hand() -> None:
    # On a line. The query at 0.0 (class 0) is in the gallery, too, where it is never its own neighbour.
    vectors = np.array([[0.0], [1.0], [2.0], [10.0], [0.1]], np.float32)
    pictures = table([0, 1, 0, 1, 0], ["both", "gallery", "gallery", "query", ""])
    figures = measure(vectors, pictures, distance="l2", ks=(1, 2))
    # Query 0: 1.0 is wrong, 2.0 right. Query 10.0 (class 1): 2.0 is wrong, 1.0 right. Picture 4 takes no part.
    assert figures == {"P@1": 0.0, "P@R": 0.0, "MAP@R": 0.0, "R@1": 0.0, "R@2": 1.0, "queries": 2, "left_out": 0}


@pytest.mark.parametrize(("roles", "missing"), [(["query", "query"], "gallery"), (["gallery", ""], "query")])
def test_roles_that_leave_nothing_to_measure(roles: list[str], missing: str) -> None:
    with pytest.raises(ValueError, match=f"^numbers has roles but no picture with the role '{missing}'$"):
        measure(np.zeros((2, 1), np.float32), table([0, 0], roles))


def test_lines_for_people() -> None:
    assert list(as_lines({"P@1": 0.12345, "MAP@R": 1.0, "queries": 12345})) == [
        "P@1         12.35",
        "MAP@R      100.00",
        "queries    12,345",
    ]
