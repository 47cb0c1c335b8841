"""The study as a whole."""

import json
from pathlib import Path

import pytest
from lookalike_studies.ccp_geometry import study as ccp_geometry
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Course
from small_ccp_race import PARTS, solve_small

from lookalike.cli import main


def test_gaps_are_of_every_seed(courses: dict[str, list[Course]]) -> None:
    settings = ccp_geometry.STUDY.load_settings("miniature", {"seeds": [0, 1]})
    both = {kind: [courses[kind][0], solve_small(kind, seed=1)[0]] for kind in (ONE, ALTERNATING)}
    gaps = ccp_geometry.all_gaps(both, PARTS, settings)
    assert set(gaps) == {(way, kind) for way in ("k-centre", "random", "proxies") for kind in (ONE, ALTERNATING)}
    for (way, kind), runs in gaps.items():
        counts = [len(run.snapshots) if way == "proxies" else 4 for run in both[kind]]  # 1, 2, 4 and 8 anchors
        assert [len(sets) for sets in runs] == counts


def test_as_it_is_typed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = ["study", "ccp-geometry", "--miniature", "--out", str(out)]
    assert main([*argv, "--set", "rates=0.003, letters=4, batch=8, per_class=2"]) == 0
    for name in ("plane", "problems", "constraint", "gap", "unseen"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (out / f"{name}.svg").read_bytes()
    numbers = json.loads((out / "numbers.json").read_text())
    assert len(numbers["claims"]) == 9
    assert numbers["rate"] == 0.003
    assert set(numbers["unseen"][ONE][0]) == {"figure", "own_radius", "distance"}
    assert set(numbers["plane"]) == {ONE, ALTERNATING, SAMPLES}
    assert "mnist" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("pool=3", "pool must be at least 4, got 3"),
        ("batch=30", "batch must be a multiple of per_class 4, got 30"),
        ("letters=7", "letters must be at least 8, got 7"),
        ("unseen_letters=9", "unseen_letters must be at least 12, got 9"),
        ("margins=[0.1]", "margins must be 2 values"),
        ("rates=[]", "rates must name at least one, got none"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, message: str) -> None:
    assert main(["study", "ccp-geometry", "--miniature", "--out", str(tmp_path / "out"), "--set", changes]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lookalike study: {message}")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
