"""From marks to a new model in the index, and back."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from improve_helpers import mark
from PIL import Image

from lookalike import index
from lookalike.cli import main
from lookalike.improve import improve, report, roll_back
from lookalike.improve.evidence import gather, split
from lookalike.improve.learning import Judge, pair_similarities
from lookalike.improve.report import Figures, decide, measure_marks
from lookalike.index.job_status import IMPROVE, Watched, is_running, read_status
from lookalike.index.storage import IndexInUse
from lookalike.index.verify import verify_index

FIND_LOSSES = report.find_losses


def vectors_of(path: Path) -> np.ndarray[Any, Any]:
    with index.open(path) as idx:
        return idx.vectors([item.id for item in idx.items()])


@pytest.fixture(autouse=True)
def _tolerant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of held-out marks on noise: whether the model is better is not what is tested here."""
    monkeypatch.setattr(report, "find_losses", lambda *_: [])


@pytest.mark.parametrize("pooling", ["average", "gsp"])
def test_improve_and_return(make_index: Callable[..., Path], pooling: str) -> None:
    path = make_index(pooling)
    count = mark(path)
    before = vectors_of(path)
    with index.open(path) as old:
        fingerprint = old.fingerprint
        outcome = improve(path, steps=20)
        assert outcome.installed
        assert outcome.marks == count
        assert outcome.held_out_classes == 0
        assert read_status(path, IMPROVE).state == "installed"
        assert read_status(path, IMPROVE).report == json.loads(json.dumps(outcome.to_dict()))
        assert old.search(before[:1], 1)[0][0].distance < 1e-6  # a server answers with the old version
    with index.open(path) as idx:
        assert idx.fingerprint != fingerprint
        items = idx.items()
        direct = idx.trained_model("cpu").embed([item.file for item in items])
        stored = idx.vectors([item.id for item in items])
        assert np.abs(direct - stored).max() < 2e-4  # features are cached in half precision
        assert np.abs(stored - before).max() > 1e-3
    assert {finding.status for finding in verify_index(path)} == {"ok"}
    roll_back(path)
    assert (vectors_of(path) == before).all()
    assert {finding.status for finding in verify_index(path)} == {"ok"}
    with index.open(path) as idx:
        assert idx.fingerprint == fingerprint
    roll_back(path)  # and forth
    assert (vectors_of(path) == stored).all()


def test_a_model_that_sees_whole_pictures(make_index: Callable[..., Path], class_folders: Path, tmp_path: Path) -> None:
    """Pictures have different numbers of local features; new pictures go through the whole model."""
    path = make_index("gsp", whole=True)
    wide = tmp_path / "wide"
    wide.mkdir()
    with Image.open(next((class_folders / "class0").iterdir())) as picture:
        picture.resize((90, 40)).save(wide / "a.png")
        picture.resize((40, 70)).save(wide / "b.png")
    with index.open(path) as idx:
        index.sync(idx, idx.trained_model("cpu"), wide)
    mark(path)
    before = vectors_of(path)
    assert improve(path, steps=10).installed
    with index.open(path) as idx:
        items = idx.items()
        model = idx.trained_model("cpu")
        assert model.spec.sees_whole
        stored = idx.vectors([item.id for item in items])
        assert np.abs(model.embed([item.file for item in items]) - stored).max() < 2e-4  # in half precision
        assert np.abs(stored - before).max() > 1e-3
    assert not list((tmp_path / "cache").glob("tmp*"))


def test_whole_pictures_that_are_gone_or_changed_stop_it(make_index: Callable[..., Path], tmp_path: Path) -> None:
    path = make_index("gsp", whole=True)
    more = tmp_path / "more"
    more.mkdir()
    Image.new("RGB", (50, 40), "red").save(more / "new.png")
    with index.open(path) as idx:
        index.sync(idx, idx.trained_model("cpu"), more)
    mark(path)
    Image.new("RGB", (50, 44), "blue").save(more / "new.png")
    with pytest.raises(ValueError, match=r"new\.png has changed since it was indexed"):
        improve(path, steps=10)
    (more / "new.png").unlink()
    with pytest.raises(ValueError, match=r"1 pictures are gone, the first is .*new.png"):
        improve(path, steps=10)


def test_prototypes_and_projection_are_trained(make_index: Callable[..., Path]) -> None:
    path = make_index("gsp")
    mark(path)
    with index.open(path) as idx:
        before = idx.trained_model("cpu").embedder
    improve(path, steps=10)
    with index.open(path) as idx:
        after = idx.trained_model("cpu").embedder
    changed = {name for name, value in after.state_dict().items() if not value.equal(before.state_dict()[name])}
    assert "head.projection.weight" in changed
    assert any(name.startswith("head.pooling") for name in changed)
    assert not any(name.startswith("backbone") for name in changed)


def test_labels_count_and_probabilities_stay_right(make_index: Callable[..., Path]) -> None:
    path = make_index("average", labels=True)
    mark(path)
    outcome = improve(path, steps=20)
    assert outcome.labels == 64
    assert outcome.held_out_classes == 2
    assert outcome.before.map_at_r is not None
    with index.open(path) as idx:
        calibration = index.load_calibration(idx)
        assert outcome.calibrated == (calibration is not None)
        if calibration is not None:
            assert calibration.source == "the labels of this index"
            assert index.calibrate(idx).distances == pytest.approx(calibration.distances, abs=1e-6)


def test_marks_are_learnt(make_index: Callable[..., Path]) -> None:
    """The pairs that train become easier to tell apart, slowly: all cosines of this untrained model are above 0.9."""
    path = make_index("average")
    mark(path, queries=16)
    with index.open(path) as idx:
        evidence = gather(idx)
    training = split(evidence).training
    assert len(training) > 50

    def auroc() -> float:
        with index.open(path) as idx:
            vectors = idx.vectors([item.id for item in evidence.items])
        similarities = pair_similarities(vectors, evidence.pairs[training], "cosine")
        return measure_marks(similarities, evidence.same[training])

    before = auroc()
    improve(path, steps=300)
    assert auroc() > before + 0.1


def test_too_few_marks_change_nothing(make_index: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = make_index()
    assert main(["improve", str(path)]) == 2
    assert "improve needs at least 20 marks" in capsys.readouterr().err
    assert read_status(path, IMPROVE).state == "failed"
    assert main(["improve", str(path), "--rollback"]) == 2
    assert "no earlier version" in capsys.readouterr().err


def measuring(figures: list[Figures]) -> Callable[[object], Figures]:
    """Stands for ``Judge.measure``: these figures, one after the other."""
    remaining = iter(figures)
    return lambda _: next(remaining)


START = Figures(0.80, 0.50)
WORSE_MARKS, WORSE_CLASSES = Figures(0.799, 0.60), Figures(0.90, 0.499)


def test_a_worse_model_is_refused(
    make_index: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "find_losses", FIND_LOSSES)
    monkeypatch.setattr(Judge, "measure", measuring([START, WORSE_MARKS, WORSE_CLASSES, WORSE_MARKS, WORSE_MARKS]))
    path = make_index()
    mark(path)
    before = vectors_of(path)
    assert main(["improve", str(path), "--steps", "10", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["installed"]
    assert answer["reason"].endswith("worse on what was held out, AUROC of the marks 80.00 -> 79.90 %")
    assert answer["after"] == WORSE_MARKS._asdict()
    assert (vectors_of(path) == before).all()
    assert not (path / "versions").exists()
    assert read_status(path, IMPROVE).state == "kept"


@pytest.mark.parametrize("pooling", ["average", "gsp"])
def test_as_much_of_the_change_is_kept_as_is_no_worse(
    make_index: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, pooling: str
) -> None:
    path = make_index(pooling)
    mark(path)
    with index.open(path) as idx:
        start = idx.trained_model("cpu").embedder.state_dict()
    weights = []
    for figures in ([START, START], [START, WORSE_MARKS, WORSE_CLASSES, START]):
        monkeypatch.setattr(report, "find_losses", FIND_LOSSES)
        monkeypatch.setattr(Judge, "measure", measuring(figures))
        outcome = improve(path, steps=10)
        assert outcome.installed
        with index.open(path) as idx:
            weights.append(idx.trained_model("cpu").embedder.state_dict())
        roll_back(path)
    assert outcome.share == 0.5
    assert "kept 50 % of the change: more of it was worse on what was held out" in outcome.notes
    full, half = weights
    for name, value in start.items():
        if value.is_floating_point():
            assert torch.allclose(half[name], (value + full[name]) / 2, atol=1e-6), name
    assert not half["head.projection.weight"].equal(start["head.projection.weight"])


def test_no_installed_model_is_worse(make_index: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own figures, whatever is held out."""
    monkeypatch.setattr(report, "find_losses", FIND_LOSSES)
    path = make_index("average", labels=True)
    mark(path, queries=16)
    installed = []
    for seed in range(6):
        before = vectors_of(path)
        outcome = improve(path, steps=10, seed=seed)
        installed.append(outcome.installed)
        is_worse = outcome.after.auroc < outcome.before.auroc
        is_worse |= (outcome.after.map_at_r or 0) < (outcome.before.map_at_r or 0)
        assert outcome.installed == (not is_worse)
        if outcome.installed:
            roll_back(path)
        assert (vectors_of(path) == before).all()
    assert any(installed)


def test_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_losses", FIND_LOSSES)
    assert decide(START, START) == (True, "installed the new model: it is no worse on what was held out")
    assert decide(START, Figures(0.81, 0.51))[0]
    installed, reason = decide(START, Figures(0.799, 0.9))
    assert not installed
    assert reason.endswith("worse on what was held out, AUROC of the marks 80.00 -> 79.90 %")
    installed, reason = decide(START, Figures(0.79, 0.4999))
    assert not installed
    assert reason.endswith("AUROC of the marks 80.00 -> 79.00 % and MAP@R of the classes 50.00 -> 49.99 %")
    assert decide(START._replace(map_at_r=None), Figures(0.8, None))[0]


def test_auroc_against_all_pairs() -> None:
    rng = np.random.default_rng(0)
    similarities = rng.integers(0, 8, 40) / 8  # with ties
    same = rng.random(40) < 0.4
    differences = similarities[same][:, None] - similarities[~same][None]
    expected = ((differences > 0) + (differences == 0) / 2).mean()
    assert measure_marks(similarities, same) == pytest.approx(expected)


def test_the_command(make_index: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = make_index()
    mark(path)
    assert main(["improve", str(path), "--steps", "10"]) == 0
    assert "held-out marks" in capsys.readouterr().out
    assert main(["improve", str(path), "--rollback", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"].startswith("versions/2-")
    assert main(["verify", str(path)]) == 0


def test_pictures_that_are_added_meanwhile_survive_the_way_back(
    make_index: Callable[..., Path], class_folders: Path, tmp_path: Path
) -> None:
    path = make_index()
    mark(path)
    improve(path, steps=10)
    more = tmp_path / "more"
    more.mkdir()
    (more / "new.png").write_bytes((class_folders / "class1" / "1.png").read_bytes() + b" ")
    with index.open(path) as idx:
        index.sync(idx, idx.trained_model("cpu"), more)
        idx.delete([idx.items()[0].id])
    roll_back(path)
    with index.open(path) as idx:
        assert idx.count() == 64
        (new,) = [item for item in idx.items() if item.path.endswith("new.png")]
        model = idx.trained_model("cpu")
        assert np.abs(idx.vectors([new.id]) - model.embed([new.file])).max() < 1e-6


def test_one_at_a_time(make_index: Callable[..., Path]) -> None:
    from lookalike.index.job_status import watched

    path = make_index()
    mark(path)
    with watched(path, IMPROVE):
        assert is_running(path, IMPROVE)
        assert read_status(path, IMPROVE).state == "running"
        with pytest.raises(IndexInUse, match="being improved"):
            improve(path)
    assert not is_running(path, IMPROVE)


def killed(work: Callable[[Path], object], path: Path, moment: str) -> None:
    """Do it in another process, which kills itself when a stage begins, or at "finish": after the replacement."""

    written = Watched.stage

    def stage(status: Watched, name: str, total: int = 0) -> None:
        written(status, name, total)
        if name == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        Watched.stage = stage  # type: ignore[method-assign]
        Watched.finish = lambda status, *_: stage(status, "finish")  # type: ignore[method-assign]
        work(path)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def check_after_kill(path: Path, state: str, fingerprint: str) -> None:
    """The index is whole and has this model, and the page says what has happened."""
    status = read_status(path, IMPROVE)
    assert status.state == state
    assert ("nothing has changed" in status.message) == (state == "stopped")
    assert {finding.status for finding in verify_index(path)} == {"ok"}
    with index.open(path) as idx:
        idx.check_model(idx.trained_model("cpu"))
        assert idx.count() == 64
        assert idx.fingerprint == fingerprint


TRAINING = ["reading marks and labels", "training", "computing the vectors"]
INSTALLING = ["writing the vectors", "preparing queries", "replacing the model"]


@pytest.mark.slow
def test_killed_at_every_stage(make_index: Callable[..., Path]) -> None:
    path = make_index()
    mark(path)
    before = fingerprint_of(path)
    for moment in TRAINING + INSTALLING:
        killed(lambda path: improve(path, steps=10), path, moment)
        check_after_kill(path, "stopped", before)
    killed(lambda path: improve(path, steps=10), path, "finish")
    after = fingerprint_of(path)
    assert after != before
    check_after_kill(path, "installed", after)
    assert read_status(path, IMPROVE).report["held_out_marks"] > 0
    for moment in INSTALLING:
        killed(roll_back, path, moment)
        check_after_kill(path, "stopped", after)
    killed(roll_back, path, "finish")
    check_after_kill(path, "rolled back", before)
    improve(path, steps=10)  # no lock and no leftover is in the way
    assert read_status(path, IMPROVE).state == "installed"
    assert len(list((path / "versions").iterdir())) == 2


def fingerprint_of(path: Path) -> str:
    with index.open(path) as idx:
        return idx.fingerprint
