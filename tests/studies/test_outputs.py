"""Files of a study: strict JSON, and a page that shows every value in full."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lookalike_studies import get_study
from lookalike_studies.framework.outputs import as_json, differences_in_words, render_page, write_outputs
from lookalike_studies.framework.study import StudyResult

RUN: dict[str, Any] = {"command": "lookalike study toy", "miniature": False}


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_has_no_nan_however_deep() -> None:
    values = {"a": [float("nan"), (1, np.float64("nan"))], "b": np.array([[1.0, np.nan]]), "c": {0.5: -np.inf}}
    assert strict(as_json(values)) == {"a": [None, [1, None]], "b": [[1.0, None]], "c": {"0.5": "-inf"}}
    assert strict(as_json({"path": Path("x"), "yes": np.True_, "n": np.int64(3)})) == {"path": "x", "yes": True, "n": 3}


def test_numbers_are_json_and_name_the_differences_of_protocols(tmp_path: Path) -> None:
    study = get_study("toy")
    result = StudyResult(
        numbers={"margin": float("nan")}, protocol_differences={"keep (protocol quick)": {"lr": (1e-5, "auto")}}
    )
    write_outputs(study, study.load_settings("quick"), result, tmp_path, RUN)
    numbers = strict((tmp_path / "numbers.json").read_text())
    assert numbers["margin"] is None
    assert numbers["behind"] == {"keep (protocol quick)": {"lr": {"paper": 1e-5, "here": "auto"}}}
    assert differences_in_words(result) == ["Not as in the papers: keep (protocol quick): lr auto (paper: 1e-05)"]
    assert "auto instead of 1e-05" in (tmp_path / "index.html").read_text()


def test_the_page_shows_values_whole() -> None:
    study = get_study("effects")
    names = "size=128; lr=0.001; batch_size=64; per_class=8; weight_decay=0.0005; schedule=cosine; ema=0.99"
    settings = replace(study.load_settings("full"), set=names)
    assert render_page(study, settings, StudyResult(), RUN, {}).count(names) == 2  # as what differs, and among all
