"""The cache of a study: parts are computed once, and again only if their settings, data or version change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lookalike_studies.framework import context as contexts
from lookalike_studies.framework.context import Context
from lookalike_studies.toy import study as toy

from lookalike._util.progress import Display
from lookalike._util.signals import Stopped, StopRequest
from lookalike.cli import main


def counting(out: Path, **settings: Any) -> tuple[Context, list[str]]:
    return Context(out, Display(StopRequest(), quiet=True), None, settings, "code"), []


def test_a_part_is_computed_once(tmp_path: Path) -> None:
    context, done = counting(tmp_path, steps=3, seeds=(0,))

    def compute() -> dict[str, Any]:
        done.append("once")
        return {"figures": np.arange(3.0), "name": "GSP"}

    for _ in range(2):
        found = context.cached("GSP 0", compute)
        assert found["figures"].tolist() == [0, 1, 2]
        assert found["name"] == "GSP"
        assert set(found) == {"figures", "name"}
    assert done == ["once"]
    context.cached("GSP 1", compute)
    assert len(done) == 2


def test_one_more_seed_leaves_the_others_alone_and_other_steps_do_not(tmp_path: Path) -> None:
    done: list[int] = []
    for settings in ({"steps": 3, "seeds": (0,)}, {"steps": 3, "seeds": (0, 1)}, {"steps": 4, "seeds": (0,)}):
        context, _ = counting(tmp_path, **settings)
        for seed in settings["seeds"]:  # type: ignore[attr-defined]
            context.cached(f"GSP {seed}", lambda seed=seed: done.append(seed) or {"seed": seed}, ignore=("seeds",))  # type: ignore[misc]
    assert done == [0, 1, 0]


def test_time_of_earlier_runs_counts(tmp_path: Path) -> None:
    context, _ = counting(tmp_path)
    context.cached("a", dict)
    assert context.earlier_seconds == 0
    again, _ = counting(tmp_path)
    again.cached("a", dict)
    assert again.earlier_seconds > 0


def test_parts_with_another_version_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def compute() -> dict[str, Any]:
        calls.append("once")
        return {}

    def run() -> None:
        display = Display(StopRequest(), quiet=True)
        settings = toy.STUDY.load_settings("miniature")
        contexts.create_context(toy.STUDY.name, settings, tmp_path / "out", display).cached("a", compute)

    run()
    run()
    assert len(calls) == 1
    monkeypatch.setattr(contexts, "PARTS_VERSION", contexts.PARTS_VERSION + 1)
    run()
    assert len(calls) == 2


def test_a_stopped_study_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any) -> Any:
        raise Stopped(2)

    monkeypatch.setattr("lookalike_studies.get_study", lambda _: toy.STUDY)
    monkeypatch.setattr(type(toy.STUDY), "run", property(lambda _: stop), raising=False)
    assert main(["study", "toy", "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.endswith("stopped; the same command continues after the last finished part\n")


def test_other_files_under_the_same_name_make_other_parts(tmp_path: Path) -> None:
    folder = tmp_path / "some pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"1")
    data = f"collage({folder}, seed=3), mnist:{folder}"
    first = contexts.fingerprint(data)
    assert contexts.fingerprint(data) == first
    assert contexts.fingerprint(str(folder)) != contexts.fingerprint("glyphs") == contexts.fingerprint("")
    (folder / "a.png").write_bytes(b"22")
    assert contexts.fingerprint(data) != first
