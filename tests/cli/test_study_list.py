"""``lookalike study list`` as people see it."""

import re

import pytest
from lookalike_studies import STUDIES, get_study

from lookalike.cli import main


def test_titles_stand_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "list"]) == 0
    all_lines = capsys.readouterr().out.splitlines()
    lines = [line for line in all_lines if not line.startswith(" ")]
    assert [line.split(" ")[0] for line in lines] == list(STUDIES)
    places = {line.index(get_study(name).title) for name, line in zip(STUDIES, lines, strict=True)}
    assert len(places) == 1, places
    assert all(re.match(r"\S+ {2,}\S", line) for line in lines)
    needs = dict(zip(STUDIES, lines, strict=True))
    assert "[--data: CIFAR-100" in needs["collage"]
    assert needs["effects"].endswith("[--data, optional: data of lookalike benchmark; without it, letters are drawn]")
    (choices,) = [line for line in all_lines if line not in lines]
    assert "--set axis=NAME: " in choices
    assert "sharpness-prototypes" in choices


@pytest.mark.parametrize("name", ["toy", "list"])
def test_without_the_package_the_command_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lookalike.cli.study.find_spec", lambda _: None)
    assert main(["study", name]) == 2
    assert "the studies are a package of their own: in a checkout, pip install -e ./studies" in capsys.readouterr().err
