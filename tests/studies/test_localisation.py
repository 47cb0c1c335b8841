import json
from pathlib import Path

import numpy as np
import pytest
from lookalike_studies.localisation import claims as findings
from lookalike_studies.localisation import masks as masks_of

from lookalike.cli import main
from lookalike.data.glyphs import GlyphReader, glyphs

Shares = dict[str, float]


def test_the_letters_mask_is_where_the_letter_was_drawn() -> None:
    pictures = glyphs(train_classes=6, test_classes=6, per_class=4)
    reader = pictures.reader
    assert isinstance(reader, GlyphReader)
    for index in range(0, 48, 5):
        mask = masks_of.letter_mask(reader, index)
        cell = masks_of.cell_masks(np.array([reader.cell_of(index)]), 2, 64)[0]
        assert mask.any()
        assert not (mask & ~cell).any()
        # Ink and paper of a cell differ in lightness by at least 0.35 before clutter and noise.
        grey = reader.draw(index).mean(2) / 255
        assert abs(grey[mask].mean() - grey[cell & ~masks_of.box_of(mask[None])[0]].mean()) > 0.2


def test_box_of_by_hand() -> None:
    mask = np.zeros((2, 4, 5), dtype=bool)
    mask[0, 1, 1] = mask[0, 2, 3] = mask[1, 0, 0] = True
    box = masks_of.box_of(mask)
    expected = np.zeros((4, 5), dtype=bool)
    expected[1:3, 1:4] = True
    assert (box[0] == expected).all()
    assert box[1].sum() == 1


def test_cell_masks_row_by_row() -> None:
    masks = masks_of.cell_masks(np.array([0, 1, 2, 3]), 2, 4)
    assert (masks.sum((1, 2)) == 4).all()
    assert masks[1, 0, 3]
    assert masks[2, 3, 0]
    assert (masks.sum(0) == 1).all()


def test_spread_keeps_the_sum_and_the_place() -> None:
    weights = np.zeros((2, 16), dtype=np.float32)
    weights[0, 6] = 1  # row 1, column 2
    weights[1] = 1 / 16
    pixels = masks_of.spread(weights, 16)
    assert pixels.sum((1, 2)) == pytest.approx(1)
    assert np.unravel_index(pixels[0].argmax(), (16, 16))[0] in (5, 6)
    assert np.unravel_index(pixels[0].argmax(), (16, 16))[1] in (9, 10)
    assert pixels[1] == pytest.approx(1 / 256)


def test_average_pooling_is_chance_and_the_whole_weight_on_the_cell_is_all() -> None:
    cells = np.array([0, 1, 2, 3, 0])
    masks = {findings.CELL: masks_of.cell_masks(cells, 2, 16)}
    masks["corner"] = np.zeros_like(masks[findings.CELL])
    masks["corner"][:, :4, :4] = True
    flat = masks_of.located(np.full((5, 16), 1 / 16, dtype=np.float32), masks)
    assert flat.share == pytest.approx({findings.CELL: 0.25, "corner": 1 / 16})
    assert flat.pointing == pytest.approx({findings.CELL: 0.25, "corner": 1 / 16})
    corners = np.array([0, 3, 12, 15, 15])  # the outer place of each cell; the last one is wrong
    sharp = masks_of.located(np.eye(16, dtype=np.float32)[corners], masks)
    assert sharp.pointing[findings.CELL] == pytest.approx(0.8)
    assert sharp.share[findings.CELL] == pytest.approx(0.8, abs=1e-6)
    assert sharp.pointing["corner"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0.5, 0.6, 0.55], 0.25, True),
        ([0.5, 0.2, 0.3], 0.3, None),  # so noisy that 0.05 may be there
        ([0.26, 0.24, 0.25], 0.25, False),
        ([0.5, 0.6], [0.45, 0.55], True),  # seed by seed
        ([0.2, 0.3], [0.5, 0.6], False),
        ([0.505, 0.605], [0.5, 0.6], False),  # agreed upon, but next to nothing
        ([0.5, 0.6], 0.4, None),  # as two seeds may agree by chance
        ([0.9], 0.1, None),
        ([0.9, np.nan], 0.1, None),
    ],
)
def test_larger(one: list[float], other: list[float] | float, expected: bool | None) -> None:
    comparison = findings.larger("one", "other", "")
    assert comparison.evidence({"one": one, "other": other}).holds is expected


def test_near_needs_seeds_that_agree() -> None:
    claim = findings.DRAWN_CLAIM
    (near,) = [comparison for comparison in claim.comparisons if comparison.name == "GSP 0.39"]
    assert near.evidence({"GSP share": [0.40, 0.41]}).holds
    assert near.evidence({"GSP share": [0.50, 0.51]}).holds is False
    assert near.evidence({"GSP share": [0.30, 0.48]}).holds is None
    assert near.evidence({"GSP share": [0.39]}).holds is None


def claims_of(shares: dict[str, float], spread: float = 0.0) -> list[str]:
    """Of two seeds; ``spread``: by how much each pooling's second is off the first, now up, now down."""
    places = {
        name: [
            masks_of.Located({findings.CELL: share + luck}, {findings.CELL: share + luck})
            for luck in (-0.004, 0.003 + spread * (-1) ** number)
        ]
        for number, (name, share) in enumerate(shares.items())
    }
    return [claim.verdict for claim in findings.claims(places, {findings.CELL: 0.25}, is_drawn=True)]


def test_verdicts_both_ways() -> None:
    yes, no, learnt = "reproduced", "not reproduced", "GSP, learnt share"
    first_try = {"average pooling": 0.25, "CroW": 0.26, "DeLF": 0.3, "GSP": 0.39, learnt: 0.6, "attention": 0.63}
    assert claims_of(first_try) == [yes, yes, yes, no, yes, no, yes]
    flat = {"average pooling": 0.5, "CroW": 0.6, "DeLF": 0.6, "GSP": 0.2, learnt: 0.15, "attention": 0.1}
    assert claims_of(flat) == [no, no, no, yes, no, yes, no]
    still = {**dict.fromkeys(first_try, 0.25), "GSP": 0.25}  # average pooling is at chance by construction
    assert claims_of(still)[-1] == no
    assert set(claims_of({**first_try, **dict.fromkeys(("GSP", learnt, "CroW", "attention"), np.nan)})) == {
        "not tested"
    }


def test_two_noisy_seeds_are_neither_for_a_claim_nor_against_it() -> None:
    alike = ("average pooling", "CroW", "DeLF", "GSP", "GSP, learnt share", "attention")
    assert claims_of(dict.fromkeys(alike, 0.3), 0.0)[1:6] == ["not reproduced"] * 5
    noisy = claims_of(dict.fromkeys(alike, 0.3), 0.06)
    assert noisy[0] == noisy[2] == noisy[4] == "not tested"


def test_every_seed_has_its_own_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "localisation", "--miniature", "--set", "seeds=[0, 1]", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "2 seeds" in (tmp_path / "index.html").read_text()
    assert "alone_steps 2 (full: 1500)" in said
    assert len(list((tmp_path / "parts").iterdir())) == 2 * (1 + 7)
    first, second = (np.load(file) for file in sorted((tmp_path / "parts").glob("network-[01]-*.npz")))
    trained = [name for name in first.files if name.endswith("weight") and first[name].ndim > 1]
    assert trained
    assert not any(np.array_equal(first[name], second[name]) for name in trained)
    start = {  # before the first step: the network alone decides, as average pooling has nothing of its own
        seed: json.loads(str(np.load(next((tmp_path / "parts").glob(f"average-pooling-0-003-{seed}-*")))["json"]))
        for seed in (0, 1)
    }
    assert start[0]["curve"][0] != start[1]["curve"][0]


def test_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "localisation", "--miniature", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["chance"]["cell"] == pytest.approx(0.25)
    average = numbers["by_seed"]["average pooling"][0]
    assert average["share"]["cell"] == pytest.approx(0.25)
    assert average["pointing"]["cell"] == pytest.approx(0.25)
    assert average["share"]["ink"] == pytest.approx(numbers["chance"]["ink"], rel=1e-4)
    for name in ("localisation.png", "heat-maps.png", "heat-maps.svg", "localisation.csv", "index.html"):
        assert (tmp_path / name).stat().st_size > 0
    assert len(list((tmp_path / "parts").iterdir())) == 1 + 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "keep=0"], "keep must be"),
        (["--set", "seeds=[]"], "seeds must name at least one, got none"),
        (["--data", "somewhere"], "there is no folder, CSV or data set 'somewhere'"),
        (["--data", "glyphs(cells=1, size=32, train_classes=8, test_classes=4, per_class=4)"], "the study needs"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["study", "localisation", "--miniature", "--out", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith(f"lookalike study: {message}")
    assert list(tmp_path.iterdir()) == []
