"""Processes that mark, killed at any moment: no acknowledged mark is lost, and no group is stored in part."""

import random
from pathlib import Path
from typing import Any

import pytest
from test_killed_writer import killed_while

from lookalike.index.marks import Marks

ROUNDS = 10
GROUP = 4


def content(number: int) -> str:
    return f"{number:032x}"


@pytest.mark.slow
def test_killed_while_marking_beside_another_writer(tmp_path: Path) -> None:
    """One process is killed in each round, while this one goes on marking and undoing."""
    chance = random.Random(0)
    own: list[int] = []
    acknowledged: list[tuple[int, int]] = []  # what the killed ones were told: number of the mark, its first picture
    for round_ in range(ROUNDS):

        def work(sender: Any, round_: int = round_) -> None:
            stored = Marks(tmp_path)
            sender.send("begun")
            for step in range(10_000):
                first = 1000 * (10_000 * (round_ + 1) + step)
                if step % 2:
                    number = stored.add(content(first), content(first + 1), "same", by="killed")
                else:
                    number = stored.add_group([content(first + i) for i in range(GROUP)], "same", by="killed")
                sender.send((number, first))

        acknowledged += killed_while(work, chance.uniform(0, 0.15), least=3)
        with Marks(tmp_path) as stored:
            own.append(stored.add(content(1), content(2 + round_), "same", by="other"))
            assert stored.undo(own[-1]) == 1
    with Marks(tmp_path) as stored:
        finding = stored.check()
        assert finding is not None
        assert finding.status == "ok"
        by_number = {mark.number: mark for mark in stored.history()}
    assert len(acknowledged) > 2 * ROUNDS
    for number, first in acknowledged:
        assert by_number[number].query.content == content(first)
    assert all(by_number[number].undone_time is not None for number in own)
    sizes: dict[int, int] = {}
    for mark in by_number.values():
        sizes[mark.batch] = sizes.get(mark.batch, 0) + 1
    assert set(sizes.values()) == {1, GROUP * (GROUP - 1) // 2}


@pytest.mark.slow
def test_killed_while_keeping_pictures(tmp_path: Path) -> None:
    def work(sender: Any) -> None:
        stored = Marks(tmp_path)
        sender.send("begun")
        for number in range(10_000):
            stored.keep(content(number), b"%d" % number * 50_000)
            sender.send(number)

    for after in (0.01, 0.05, 0.1):
        for number in killed_while(work, after):
            kept = Marks(tmp_path).picture(content(number))
            assert kept is not None
        for file in (tmp_path / "marked").glob("[0-9a-f]*.jpg"):
            assert file.read_bytes() == b"%d" % int(file.stem, 16) * 50_000  # whole or not there
