"""Parts of a study are computed once, and again only where something that they depend on is another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lookalike_studies.framework import study as studies
from lookalike_studies.framework.study import Bench
from lookalike_studies.toy import study as toy

from lookalike._util.progress import Display
from lookalike._util.signals import Stopped, StopRequest
from lookalike.cli import main


def counting(out: Path, **settings: Any) -> tuple[Bench, list[str]]:
    return Bench(out, Display(StopRequest(), quiet=True), None, settings, "code"), []


def test_a_part_is_computed_once(tmp_path: Path) -> None:
    bench, done = counting(tmp_path, steps=3, seeds=(0,))

    def compute() -> dict[str, Any]:
        done.append("once")
        return {"figures": np.arange(3.0), "name": "GSP"}

    for _ in range(2):
        found = bench.part("GSP 0", compute)
        assert found["figures"].tolist() == [0, 1, 2]
        assert found["name"] == "GSP"
        assert set(found) == {"figures", "name"}
    assert done == ["once"]
    bench.part("GSP 1", compute)
    assert len(done) == 2


def test_one_more_seed_leaves_the_others_alone_and_other_steps_do_not(tmp_path: Path) -> None:
    done: list[int] = []
    for settings in ({"steps": 3, "seeds": (0,)}, {"steps": 3, "seeds": (0, 1)}, {"steps": 4, "seeds": (0,)}):
        bench, _ = counting(tmp_path, **settings)
        for seed in settings["seeds"]:  # type: ignore[attr-defined]
            bench.part(f"GSP {seed}", lambda seed=seed: done.append(seed) or {"seed": seed}, whatever=("seeds",))  # type: ignore[misc]
    assert done == [0, 1, 0]


def test_time_of_earlier_runs_counts(tmp_path: Path) -> None:
    bench, _ = counting(tmp_path)
    bench.part("a", dict)
    assert bench.earlier == 0
    again, _ = counting(tmp_path)
    again.part("a", dict)
    assert again.earlier > 0


def test_parts_with_another_version_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def compute() -> dict[str, Any]:
        calls.append("once")
        return {}

    def run() -> None:
        display = Display(StopRequest(), quiet=True)
        studies.bench(toy.STUDY, toy.STUDY.chosen("miniature"), tmp_path / "out", display).part("a", compute)

    run()
    run()
    assert len(calls) == 1
    monkeypatch.setattr(studies, "PARTS_VERSION", studies.PARTS_VERSION + 1)
    run()
    assert len(calls) == 2


def test_who_stops_a_study_hears_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(*_: Any) -> Any:
        raise Stopped(2)

    monkeypatch.setattr("lookalike_studies.find", lambda _: toy.STUDY)
    monkeypatch.setattr(type(toy.STUDY), "find", property(lambda _: find), raising=False)
    assert main(["study", "toy", "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.endswith("stopped; the same command goes on after what is done\n")


def test_other_files_under_the_same_name_make_other_parts(tmp_path: Path) -> None:
    folder = tmp_path / "some pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"1")
    data = f"collage({folder}, seed=3), mnist:{folder}"
    first = studies.fingerprint(data)
    assert studies.fingerprint(data) == first
    assert studies.fingerprint(str(folder)) != studies.fingerprint("glyphs") == studies.fingerprint("")
    (folder / "a.png").write_bytes(b"22")
    assert studies.fingerprint(data) != first
