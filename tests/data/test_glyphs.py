"""Drawn glyphs: seeded, disjoint, distinct, and with the letter where the reader says it is."""

import pickle
from collections import Counter
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lookalike.data import glyphs as module
from lookalike.data.glyphs import GlyphReader, alphabet, glyphs
from lookalike.data.pictures import Pictures

# ruff: noqa: RUF001 - letters that look like others are what this is about
LOOK_ALIKE = [
    "AΑАᗅ",
    "cCсСϲᑕ",
    "oOоОοΟօ",
    "sSѕЅ",
    "xXхХ",
    "zZ",
    "vVᴠ",
    "wW",
    "bd",
    "pqрᑫ",
    "BВΒ",
    "HНΗ",
    "ΠП",
    "ΓГ",
    "шШ",
    "тТT",
]


def reader_of(pictures: Pictures) -> GlyphReader:
    assert isinstance(pictures.reader, GlyphReader)
    return pictures.reader


def pixels(pictures: Pictures, index: int) -> NDArray[np.uint8]:
    return np.asarray(pictures.image(index))


def drawn(character: str, angle: float = 0, side: int = 32) -> NDArray[np.float32]:
    """The character in DejaVu Sans, filling a square (side, side), by another way than the module's."""
    file = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    large = Image.new("L", (256, 256))
    ImageDraw.Draw(large).text((128, 128), character, fill=255, anchor="mm", font=ImageFont.truetype(str(file), 96))
    large = large.rotate(angle, Image.Resampling.BICUBIC)
    box = large.getbbox()
    assert box is not None, f"nothing to see of U+{ord(character):04X}"
    small = large.crop(box)
    small.thumbnail((side, side))
    square = Image.new("L", (side, side))
    square.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    return np.asarray(square, dtype=np.float32) / 255


def test_the_table() -> None:
    pictures = glyphs(per_class=3)
    assert (len(pictures), len(pictures.classes), pictures.name) == (612 * 3, 612, "glyphs")
    train, test = pictures.split("train"), pictures.split("test")
    assert (len(train.classes), len(test.classes)) == (412, 200)
    assert not set(train.classes) & set(test.classes)
    assert set(train.counts().tolist()) == set(test.counts().tolist()) == {3}
    assert len(set(pictures.names)) == len(pictures)
    assert pictures.names[3 * 7 + 2] == f"glyphs/{pictures.classes[7]}/0002"
    assert pictures.classes[7] == f"U+{ord(reader_of(pictures).letters[7]):04X}"
    image = test.image(5)
    assert (image.mode, image.size) == ("RGB", (64, 64))
    assert np.array_equal(np.asarray(image), pixels(pictures, 412 * 3 + 5))


def test_a_picture_depends_on_seed_settings_and_index_alone() -> None:
    pictures = glyphs(seed=3, per_class=4)
    first = pixels(pictures, 9)
    pixels(pictures, 10)
    assert np.array_equal(pixels(glyphs(seed=3, per_class=4), 9), first)
    copy = pickle.loads(pickle.dumps(pictures.reader))
    assert np.array_equal(np.asarray(copy(9)), first)
    assert np.array_equal(pixels(glyphs(seed=3, per_class=40), 81), first), "more pictures must leave the old alone"
    assert not np.array_equal(pixels(glyphs(seed=4, per_class=4), 9), first)
    assert not np.array_equal(pixels(pictures, 8), first)


def test_keys_name_the_content() -> None:
    pictures = glyphs(per_class=4)
    keys = [pictures.key(index) for index in range(len(pictures))]
    assert len(set(keys)) == len(keys)
    for settings in ({"seed": 1}, {"size": 96}, {"cells": 1}, {"train_classes": 2}):
        assert glyphs(**{"per_class": 4, **settings}).key(9) != keys[9]  # type: ignore[arg-type]
    assert glyphs(per_class=40).key(81) == keys[9]


def test_letters_and_symbols_come_as_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = glyphs(per_class=2)
    reader = reader_of(pictures)
    assert len(reader.symbols[0]) > 120
    assert len(reader.symbols[1]) > 80
    assert not set(reader.symbols[0]) & set(reader.symbols[1])
    assert not set(reader.letters) & {symbol for symbols in reader.symbols for symbol in symbols}
    shown: list[str] = []
    draw = module._turned

    def spy(character: str, *rest: float) -> Image.Image:
        shown.append(character)
        return draw(character, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_turned", spy)
    for index in (*range(0, 60), *range(900, 960)):
        shown.clear()
        pictures.image(index)
        others = [one for cell, one in enumerate(shown) if cell != reader.cell_of(index)]
        assert shown[reader.cell_of(index)] == reader.letters[index // 2]
        assert len(others) == 3
        assert set(others) <= set(reader.symbols[index // 2 >= 412])


def test_the_stored_alphabet_is_that_of_the_fonts() -> None:
    assert module.choose_alphabet() == alphabet()


def test_no_two_characters_look_alike() -> None:
    """Overlap of the inked areas, over small shifts and mirrored."""
    letters, symbols = alphabet()
    characters = letters + symbols
    for alike in LOOK_ALIKE:
        assert sum(letter in letters for letter in alike) <= 1, alike
    area = np.stack([np.pad(drawn(one, side=22) > 0.4, 1) for one in characters]).astype(np.float32)
    flat = area.reshape(len(area), -1)
    sizes = flat.sum(1)
    for mirrored in (False, True):
        other = area[..., ::-1] if mirrored else area
        for shift in ((0, 0), (0, 1), (1, 0), (1, 1)):
            common = np.roll(other, shift, (1, 2)).reshape(len(area), -1) @ flat.T
            overlap = common / (sizes + sizes[:, None] - common)
            np.fill_diagonal(overlap, 0)
            first, second = np.unravel_index(overlap.argmax(), overlap.shape)
            assert overlap.max() < 0.93, f"{characters[first]} {characters[second]}"
            assert overlap[: len(letters)].max() < 0.9, "letters among themselves and against symbols"


def test_the_true_cell_shows_the_letter() -> None:
    pictures = glyphs(per_class=2)
    reader = reader_of(pictures)
    found = 0
    indices = range(0, len(pictures), 17)
    for index in indices:
        grey = np.asarray(pictures.image(index).convert("L"), dtype=np.float32)
        letter = reader.letters[index // 2]
        templates = np.stack([drawn(letter, angle, 24) for angle in (-14, 0, 14)]).reshape(3, -1)
        templates -= templates.mean(1, keepdims=True)
        templates /= np.linalg.norm(templates, axis=1, keepdims=True)
        likeness = []
        for cell in range(4):
            top, left = 32 * (cell // 2), 32 * (cell % 2)
            tile = grey[top : top + 32, left : left + 32]
            ink = np.abs(tile - np.median(tile)) > 45
            rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
            if len(rows) == 0:
                likeness.append(0.0)
                continue
            cut = Image.fromarray(ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
            zoom = 24 / max(cut.size)
            cut = cut.convert("L").resize((max(1, round(cut.width * zoom)), max(1, round(cut.height * zoom))))
            square = Image.new("L", (24, 24))
            square.paste(cut, ((24 - cut.width) // 2, (24 - cut.height) // 2))
            shape = np.asarray(square, dtype=np.float32).reshape(-1)
            likeness.append(float((templates @ (shape - shape.mean())).max() / (shape.std() + 1e-6)))
        found += int(np.argmax(likeness)) == reader.cell_of(index)
    assert found > 0.7 * len(indices)


def test_cells_are_equally_likely_and_looks_vary() -> None:
    pictures = glyphs(per_class=10)
    reader = reader_of(pictures)
    cells = Counter(reader.cell_of(index) for index in range(2000))
    assert all(430 < cells[cell] < 570 for cell in range(4))
    tiles = np.stack([pixels(pictures, index) for index in range(0, 1000, 5)]) / 255
    tiles = tiles.reshape(-1, 2, 32, 2, 32, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 32 * 32, 3)
    means, spreads = tiles.mean(1), tiles.std(1).mean(1)
    assert (means.std(0) > 0.12).all(), "colours"
    assert (means.max(0) > 0.8).all()
    assert (means.min(0) < 0.2).all()
    assert spreads.min() > 0.03, "no cell is empty"
    assert spreads.max() > 0.25
    assert spreads.std() > 0.03


@pytest.mark.parametrize(("size", "cells"), [(32, 1), (64, 4), (96, 3)])
def test_other_layouts(size: int, cells: int) -> None:
    pictures = glyphs(size=size, cells=cells, per_class=1, train_classes=5, test_classes=0)
    assert pictures.image(4).size == (size, size)
    assert {reader_of(pictures).cell_of(index) for index in range(5)} <= set(range(cells**2))
    assert set(pictures.splits.tolist()) == {"train"}  # type: ignore[union-attr]


def test_every_character_has_fonts_and_they_show_it() -> None:
    letters, symbols = alphabet()
    counts = [len(module._fonts_of(one)) for one in letters]
    assert min(counts) >= 2
    assert np.mean(counts) > 5
    for character in letters[::20] + symbols[::20]:
        for font in module._fonts_of(character):
            assert max(module._stamp(character, font, 40).size) == 40
            assert np.asarray(module._stamp(character, font, 40)).max() > 200


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"^size must be a multiple of cells 3, got 64$"):
        glyphs(cells=3)
    with pytest.raises(ValueError, match=r"^size must be at least 32, got 16$"):
        glyphs(size=16)
    with pytest.raises(ValueError, match=r"letters that differ enough, got 5200 classes$"):
        glyphs(train_classes=5000)
    with pytest.raises(ValueError, match=r"^per_class must be at least 1, got 0$"):
        glyphs(per_class=0)
    with pytest.raises(IndexError, match=r"^index must lie in 0..611, got 612$"):
        glyphs(per_class=1).reader(612)
