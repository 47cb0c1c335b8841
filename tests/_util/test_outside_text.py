"""Names and labels that would control a terminal or run in a spreadsheet."""

import csv
import inspect
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lookalike import data
from lookalike._util.outside_text import csv_line, escape_formula, printable, unescape_formula
from lookalike.cli import main
from lookalike.cli.index import read_metadata
from lookalike.report import doctor as doctor_page
from lookalike.report.tables import Column, Line, Table, words

BAD = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]
BAD += ["\u200e", "\u200f", "\u061c", "\u2028", "\u2029", "\ufeff"]


@pytest.mark.parametrize("character", BAD)
def test_control_characters_are_shown(character: str) -> None:
    shown = printable(f"a{character}b")
    assert character not in shown
    assert shown.encode().decode("unicode_escape") == f"a{character}b"
    assert (printable(character, lines=True) == character) is (character in "\n\t")


@given(st.text())
def test_other_texts_stay(text: str) -> None:
    shown = printable(text)
    assert not set(shown) & set(BAD)
    if not set(text) & {*BAD, "\u200b", "\u2060"}:
        assert shown == text


CELLS = st.text(st.sampled_from("'=+-@\t\r\na1.,\"\uff1d\uff20"))


@given(CELLS)
def test_cells_come_back(cell: str) -> None:
    escaped = escape_formula(cell)
    assert unescape_formula(escaped) == cell
    if escaped.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff20")):
        assert escaped.strip("+-.e1") == "", "only numbers begin with a sign"


@given(st.lists(st.lists(CELLS, min_size=2), min_size=1))
def test_lines_come_back_and_no_cell_begins_a_line_of_its_own(rows: list[list[str]]) -> None:
    text = "".join(map(csv_line, rows))
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert [[unescape_formula(cell) for cell in row] for row in read] == rows
    outside = "".join(text.split('"')[::2])
    assert "\r" not in outside
    assert outside.count("\n") == len(rows)


def test_pages_and_exports_quote_carriage_returns() -> None:
    assert csv_line(["a\r=1+1", "b"]) == '"a\r=1+1",b\n'
    assert r'/[",\\r\\n]/' in inspect.getsource(doctor_page)


@pytest.mark.parametrize("label", ["=cmd|' /C calc'!A0", "+1+1", "-x", "@SUM(A1)", "'=quoted", "'tis", "plain"])
def test_embedded_names_are_quoted_and_read_back(label: str, tmp_path: Path, model_of_backbone: list[str]) -> None:
    folder = tmp_path / "pictures"
    for name in (label.replace("/", "_"), "other"):
        (folder / name).mkdir(parents=True)
        for i in range(2):
            pixels = np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    out = tmp_path / "v.npy"
    assert main(["embed", *model_of_backbone, str(folder), "--out", str(out), "--device", "cpu"]) == 0
    rows = list(csv.reader(io.StringIO(out.with_suffix(".csv").read_text())))
    cells = [cell for row in rows[1:] for cell in row]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    (folder / "table.csv").write_bytes(out.with_suffix(".csv").read_bytes())
    pictures = data.load(str(folder / "table.csv"))
    assert set(pictures.classes) == {label.replace("/", "_"), "other"}
    assert len(pictures) == 4
    assert label.replace("/", "_") in {row["label"] for row in read_metadata(folder / "table.csv").values()}


def test_tables() -> None:
    table = Table([Column("=a"), Column("b")], [Line([words("@x\x1b[2J"), words("-1.5")])], notes=["\u202enote"])
    assert "\x1b" not in table.text()
    assert "\u202e" not in table.text()
    assert "\\x1b[2J" in table.text()
    assert list(csv.reader(io.StringIO(table.csv()))) == [["'=a", "b"], ["'@x\x1b[2J", "-1.5"]]


def test_commands_show_escapes_in_names(
    tmp_path: Path, model_of_backbone: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "birds"
    evil = folder / "wr\x1b[31men\u202e"
    evil.mkdir(parents=True)
    (evil / "bad\x9b2J.png").write_bytes(b"not a picture")
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(evil / "good\x07.png")
    idx = str(tmp_path / "i.idx")
    assert main(["index", *model_of_backbone, str(folder), "--out", idx, "--device", "cpu"]) == 0
    assert main(["search", idx, str(evil / "good\x07.png"), "--device", "cpu"]) == 0
    assert main(["search", idx, str(evil / "missing\x1b]0;x\x07.png")]) == 2
    assert main(["embed", *model_of_backbone, str(folder), "--out", str(tmp_path / "v.npy"), "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert not set(printed) & {*BAD} - {"\n", "\r", "\t"}
    assert "wr\\x1b[31men\\u202e" in printed
    assert "bad\\x9b2J.png" in printed


@pytest.fixture(scope="module")
def model_of_backbone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small model, as the first word of a command."""
    import torch

    from lookalike.models import Embedder, create_backbone, save_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        embedder = Embedder(backbone, 8, "average", {}, "l2", backbone.spec.resized(32))
    path = tmp_path_factory.mktemp("run")
    save_model(embedder, path)
    return [str(path)]
