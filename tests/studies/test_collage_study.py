import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lookalike_studies.collage import claims as findings
from lookalike_studies.collage import study as study
from PIL import Image

from lookalike.cli import main
from lookalike.data.collage import SUPER_CLASSES
from lookalike.demo.pictures import Shots


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-100 in class folders, three noisy pictures of each class."""
    root = tmp_path_factory.mktemp("cifar100")
    chance = np.random.default_rng(0)
    for name in (name for names in SUPER_CLASSES.values() for name in names):
        for number, part in enumerate(("train", "train", "test")):
            place = root / part / name
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(chance.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(place / f"{number}.png")
    return root


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([16.0, 18.0, 17.0], "reproduced"),
        ([10.0, 10.5], "reproduced"),
        ([9.0, 9.5], "partly"),
        ([40.0, -2.0], "not tested"),  # nobody knows
        ([20.0, 13.0], "not tested"),
        ([0.6, 1.2], "not reproduced"),  # some may be there, 10 are not
        ([17.0], "not tested"),  # one seed
        ([17.0, np.nan], "not tested"),
        ([1.0, 1.1], "not reproduced"),
        ([-17.0, -17.1], "not reproduced"),
    ],
)
def test_verdict_on_gsp(gains: list[float], expected: str) -> None:
    values = {findings.GSP: gains, findings.GAP: [0.0] * len(gains)}
    assert replace(findings.GSP_CLAIM, here="").judge(values).verdict == expected


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([0.5, 0.6], "reproduced"),
        ([3.0, -1.0], "not tested"),
        ([0.1, -0.1], "not reproduced"),
        ([0.0, 0.0], "not reproduced"),
        ([-1.0, -1.1], "not reproduced"),
        ([3.0], "not tested"),
        ([3.0, np.nan], "not tested"),
    ],
)
def test_verdict_on_zero_shot(gains: list[float], expected: str) -> None:
    values = {findings.ZERO_SHOT: gains, findings.GSP: [0.0] * len(gains)}
    assert replace(findings.ZERO_SHOT_CLAIM, here="").judge(values).verdict == expected


def test_claims_subtract_the_right_way_round() -> None:
    figures = {
        findings.GAP: [20.0, 22.0],
        findings.GSP: [37.0, 38.5],
        findings.ZERO_SHOT: [36.0, 37.0],
        findings.DISTILLED: [50.0, 51.0],
    }
    gsp, zero_shot = findings.judge_claims(figures)
    assert gsp.verdict == "reproduced"
    assert "+16.8 points" in gsp.here
    assert zero_shot.verdict == "not reproduced"
    assert "-1.2 points over GSP, +15.5 over GAP" in zero_shot.here


def test_contestants_may_be_left_out() -> None:
    assert findings.judge_claims({findings.GAP: [1.0, 2.0], findings.DELF: [1.0, 2.0]}) == []
    (gsp,) = findings.judge_claims({findings.GAP: [20.0, 22.0], findings.GSP: [37.0, 38.5]})
    assert gsp.verdict == "reproduced"
    settings = study.STUDY.load_settings("full", {"contestants": [findings.DISTILLED, findings.GSP]})
    assert [contestant.name for contestant in settings.chosen] == [findings.GSP, findings.DISTILLED]
    assert settings.recipe(settings.chosen[0], 3).augment is False


def test_shown_are_of_different_classes() -> None:
    shots = Shots(np.zeros((12, 1, 1, 3), np.uint8), np.repeat(np.arange(4), 3), np.zeros(12, np.int64))
    assert shots.labels[study.choose(shots, 4)].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("source", ["/a/b", "cifar100:/a/b", "collage:/a/b"])
def test_folder_of(source: str) -> None:
    assert study.folder_of(source) == Path("/a/b")


@pytest.mark.parametrize(
    ("words", "classes", "told"),
    [
        ([], 100, "has seen most pictures of the test with their sub-classes, as the authors' has: a leak"),
        (["--set", "pretraining=training"], 60, "has not seen the sub-classes of the test"),
        (
            ["--set", "split=2/1/2, order=seeded, pictures=4/2/2, apart=true, backbone=resnet20, dim=64"],
            100,
            "but in other pictures",
        ),
    ],
)
def test_miniature(
    tmp_path: Path,
    cifar: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    classes: int,
    told: str,
) -> None:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    assert main(["study", "collage", "--miniature", "--data", str(cifar), "--out", str(out), *words]) == 0
    assert told in capsys.readouterr().out
    numbers = json.loads((out / "numbers.json").read_text())
    assert numbers["pretraining"]["classes"] == classes
    runs = {run["run"]: run for run in numbers["runs"]}
    assert list(runs) == list(study.NAMES)
    validated = "split=2/1/2" in " ".join(words)
    assert runs[findings.GAP]["in_cell"] == pytest.approx({"training": 0.25, "test": 0.25})
    assert runs[findings.GSP]["in_cell"]["test"] != pytest.approx(0.25, abs=1e-6)
    assert runs[findings.DISTILLED]["in_cell"] == runs[findings.DISTILLED]["from_cell"] == {}
    assert runs[findings.GAP]["from_cell"]["start"] == pytest.approx(0.25, abs=0.1)  # noise
    if validated:  # alike before training but for the pictures: the distilled ones are others
        start = {name: run["curve"][0][1] for name, run in runs.items()}
        assert start[findings.GAP] != start[findings.DISTILLED]
    else:
        assert all(run["curve"] == [] for run in runs.values())
    assert ("validation, best" in (out / "collage.csv").read_text()) == validated
    assert len(list((out / "parts").iterdir())) == 6
    for name in ("learning.png", "heat-maps.png", "heat-maps.svg", "collage.csv", "index.html"):
        assert (out / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "pretraining=some"], "pretraining must be training or all, got 'some'"),
        (["--set", "split=2/2"], "split must divide 5 sub-classes"),
        (["--set", "pictures=1/2/3"], "pictures must be two or three numbers from 2 on"),
        (["--set", "order=drawn"], "order must be one of seeded, listed, got 'drawn'"),
        (["--set", "contestants=[GAP, GPS]"], "contestants must be of GAP; GSP; GSP + zero-shot"),
        (["--set", "backbone=resnet21"], "no backbone is called 'resnet21'"),
        (["--set", "zero_shot=0"], "zero_shot must be in (0, 1), got 0.0"),
        (["--set", "seeds=[]"], "seeds must name at least one"),
        ([], "there is no folder nowhere"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    words = ["study", "collage", "--miniature", "--data", "nowhere", "--out", str(tmp_path / "out"), *words]
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"lookalike study: {message}")
    assert list(tmp_path.iterdir()) == []


def test_data_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "collage", "--miniature"]) == 2
    assert "needs CIFAR-100" in capsys.readouterr().err
