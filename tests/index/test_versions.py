"""Another model for an index: readers see the old version or the new one, never a mixture; a kill changes nothing."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_helpers import DIM, draw, make_items, make_model

from lookalike import index
from lookalike.index.items import Item
from lookalike.index.storage import About, OutdatedIndex, fingerprint_of
from lookalike.index.verify import verify_index
from lookalike.index.versions import install, open_version, previous_version
from lookalike.inference.model import TrainedModel


def vectors_of_version(number: int) -> Any:
    def vectors(items: Sequence[Item], stamps: Sequence[str]) -> np.ndarray[Any, Any]:
        assert len(items) == len(stamps)
        return draw(10_000, seed=number)[[int(item.id[1:]) for item in items]]

    return vectors


@pytest.fixture
def path(model: TrainedModel, tmp_path: Path) -> Path:
    items = make_items(60)
    with index.create(tmp_path / "i", model) as idx:
        idx.add(items, vectors_of_version(0)(items, [""] * 60), [f"stamp {i}" for i in range(60)])
    return tmp_path / "i"


def put(path: Path, number: int, **more: Any) -> About:
    with index.open(path) as idx:
        return install(idx, make_model(number), vectors_of_version(number), report={"number": number}, **more)


def check_version(path: Path, number: int, count: int = 60) -> None:
    """Model, fingerprint, items, stamps and vectors belong together."""
    with index.open(path) as idx:
        assert idx.count() == count
        assert idx.fingerprint == fingerprint_of(make_model(number)) == fingerprint_of(idx.home / "model")
        idx.check_model(idx.trained_model("cpu"))
        items = make_items(60)
        assert idx.get([item.id for item in items]) == items
        assert idx.stamps(["i00007"]) == {"i00007": "stamp 7"}
        expected = vectors_of_version(number)(items, [""] * 60)
        assert (idx.vectors([item.id for item in items]) == expected).all()
        assert idx.search(expected[:1], 1)[0][0].item == items[0]
    assert {finding.status for finding in verify_index(path)} == {"ok"}


def test_readers_keep_the_version_that_they_opened(path: Path) -> None:
    with index.open(path) as old:
        before = old.vectors(["i00003"])
        about = put(path, 1)
        assert about.home.startswith("versions/1-")
        check_version(path, 1)
        assert (old.vectors(["i00003"]) == before).all()
        assert not old.is_current()
        with pytest.raises(OutdatedIndex, match="open it again"):
            old.delete(["i00003"])
        with pytest.raises(OutdatedIndex):
            install(old, make_model(2), vectors_of_version(2), report={})
    check_version(path, 1)


def test_two_versions_are_kept(path: Path) -> None:
    with index.open(path) as idx, pytest.raises(ValueError, match="nothing to return to"):
        previous_version(idx)
    for number in (1, 2, 3):
        put(path, number)
        check_version(path, number)
        with index.open(path) as idx:
            earlier = previous_version(idx)
            assert earlier.fingerprint == fingerprint_of(make_model(number - 1))
            with open_version(path, earlier) as old:
                assert (old.vectors(["i00005"])[0] == draw(10_000, seed=number - 1)[5]).all()
    assert len(list((path / "versions").iterdir())) == 2
    assert not (path / "model").exists()
    assert not (path / "items.sqlite").exists()


def test_changes_during_the_installation_are_taken_over(path: Path) -> None:
    def change(stage: str) -> None:
        if stage == "replacing the model":
            with index.open(path) as other:
                other.delete(["i00010"])
                other.add(make_items(1, 60), vectors_of_version(0)(make_items(1, 60), [""]), ["stamp 60"])
                other.add([Item("i00011", "/other.jpg", "renamed")], np.ones((1, DIM)), ["stamp 11"])
                other.add_folder("/more")

    put(path, 1, stage=change)
    with index.open(path) as idx:
        assert idx.count() == 60
        assert idx.get(["i00010"]) == [None]
        assert idx.about.folders == ["/more"]
        assert idx.get(["i00011"])[0] == Item("i00011", "/other.jpg", "renamed")
        expected = draw(10_000, seed=1)
        assert (idx.vectors(["i00011", "i00060"]) == expected[[11, 60]]).all()


def test_an_error_changes_nothing(path: Path) -> None:
    def fail(stage: str) -> None:
        if stage == "replacing the model":
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        put(path, 1, stage=fail)
    check_version(path, 0)
    assert not list((path / "versions").iterdir())


def kill_at(path: Path, moment: str) -> None:
    """Install version 1 in another process, which kills itself at a stage or while vectors are computed."""

    def kill(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def vectors(items: Sequence[Item], stamps: Sequence[str]) -> np.ndarray[Any, Any]:
        if moment == "vectors":
            kill()
        return vectors_of_version(1)(items, stamps)

    def work() -> None:
        write = About.write
        if moment == "before the pointer":
            About.write = kill  # type: ignore[assignment,method-assign]
        if moment == "after the pointer":

            def write_and_kill(about: About, folder: Path) -> None:
                write(about, folder)
                kill()

            About.write = write_and_kill  # type: ignore[assignment,method-assign]
        with index.open(path) as idx:
            install(idx, make_model(1), vectors, report={}, stage=lambda stage: kill() if stage == moment else None)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_at_every_stage(path: Path, tmp_path: Path) -> None:
    for moment in ["writing the vectors", "vectors", "calibrating", "before the pointer", "after the pointer"]:
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        kill_at(copy, moment)
        check_version(copy, 1 if moment == "after the pointer" else 0)
        put(copy, 2)  # no lock and no leftover is in the way
        check_version(copy, 2)
        assert len(list((copy / "versions").iterdir())) == (2 if moment == "after the pointer" else 1)
        shutil.rmtree(copy)


def test_a_home_outside_of_the_index_is_refused(path: Path) -> None:
    for home in ("../other", "/tmp", "versions/../..", "versions/1-0000000g"):
        about = About.read(path)
        about.home = home
        about.write(path)
        with pytest.raises(index.BrokenIndex, match="does not describe an index"):
            About.read(path)
        about.home = ""
        about.write(path)


@pytest.mark.slow
def test_milvus(model: TrainedModel, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="NOT TESTED: Milvus is not installed")
    path = tmp_path / "i"
    items = make_items(60)
    with index.create(path, model, str(tmp_path / "m.db")) as idx:
        idx.add(items, vectors_of_version(0)(items, [""] * 60), [f"stamp {i}" for i in range(60)])
        with index.add_model(idx, make_model(9), "other", "torch") as second:
            second.put([item.id for item in items], draw(60, seed=9))
    for number in (1, 2):
        put(path, number)
        with index.open(path) as idx:
            assert np.allclose(idx.vectors(["i00007"])[0], draw(10_000, seed=number)[7])
            assert idx.search(idx.vectors(["i00007"]), 1)[0][0].item == items[7]
            client = idx._client  # type: ignore[attr-defined]
            assert len(client.list_collections()) == 4  # two versions, each with a second model
            with idx.open_model("other") as second:
                assert second.missing() == []
                assert np.allclose(second.vectors([item.id for item in items]), draw(60, seed=9))
