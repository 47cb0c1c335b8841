"""A data set drawn on demand: letters to recognise among symbols that carry no information.

A picture is a grid of cells, by default 2 x 2. One cell, at random, shows the letter that is its class; the others show
background symbols (arrows, operators, shapes, dingbats). Font, colours, size, rotation, clutter and noise
vary. Neither the letters nor the symbols of the test split occur in the training split. It is the layout of the CIFAR
collage in Gürbüz, Şener and Alatan, "Generalized Sum Pooling for Metric Learning", ICCV 2023, without a download.

The letters are of many scripts, in the fonts that come with matplotlib. Of letters that look alike (A, Alpha and the
Cyrillic A; c and C, since sizes vary; d and b, since flips are a customary augmentation) only the first is a class.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import compress
from math import cos, radians, sin
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lookalike._util.checks import check_count
from lookalike.data.pictures import Pictures

# Upright or slanted, but no true italics: there a Cyrillic te looks like an m.
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "STIXGeneral", "STIXGeneralBol"),
)
ASCII_FONTS = ("cmr10", "cmb10", "cmss10", "cmtt10")  # beyond ASCII their character maps are not Unicode
SCRIPTS = (
    *("DIGIT", "LATIN", "GREEK", "COPTIC", "CYRILLIC", "ARMENIAN", "HEBREW", "ARABIC", "NKO", "LAO", "GEORGIAN"),
    *("CANADIAN", "TIFINAGH", "OLD ITALIC"),
)
SYMBOLS = ((0x2190, 0x23FF), (0x25A0, 0x2619), (0x2630, 0x27BF), (0x27F0, 0x27FF), (0x2900, 0x2BFF))  # arrows, shapes

ALPHABET = Path(__file__).with_name("glyphs.txt")  # letters, and in the second line symbols
COMPARED = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono")
ALIKE = 0.91  # correlation of two blurred shapes from which they count as one
SETTINGS = ("seed", "per_class", "size", "cells", "train_classes", "test_classes")
CACHED = 16_384  # pictures in the cache: 200 MB at 64 px
TRAIN_SHARE = 0.6  # of the background symbols


def glyphs(
    *,
    seed: int = 0,
    per_class: int = 20,
    size: int = 64,
    cells: int = 2,
    train_classes: int = 412,
    test_classes: int = 200,
) -> Pictures:
    """Make the table of drawn pictures, with the splits "train" and "test". Pictures are drawn when they are read.

    Args:
        seed: Seed of the pictures.
        per_class: Pictures per class. A larger number keeps the first ones.
        size: Side of a picture in pixels.
        cells: A picture has cells x cells cells; 1 shows the letter alone.
        train_classes: Number of training classes.
        test_classes: Number of test classes.

    Returns:
        The table, with a ``GlyphReader``.

    Raises:
        ValueError: If a setting is invalid or there are not enough letters.
    """
    for name, value in (("per_class", per_class), ("cells", cells), ("train_classes", train_classes)):
        check_count(name, value)
    check_count("seed", seed, least=0)
    check_count("test_classes", test_classes, least=0)
    check_count("size", size, least=16 * cells)
    if size % cells:
        raise ValueError(f"size must be a multiple of cells {cells}, got {size}")
    letters, symbols = alphabet()
    count = train_classes + test_classes
    if count > len(letters):
        raise ValueError(f"there are {len(letters)} letters that differ enough, got {count} classes")
    letters = letters[:count]
    train_symbols = round(TRAIN_SHARE * len(symbols))
    symbols_by_split = (symbols[:train_symbols], symbols[train_symbols:])
    reader = GlyphReader(seed, size, cells, per_class, letters, train_classes, symbols_by_split)
    classes = tuple(map(_code, letters))
    prefix = "glyphs"
    if (seed, size, cells) != (0, 64, 2):
        prefix += f"-{seed}-{size}-{cells}"
    names: list[str] = []
    for class_name in classes:
        names += [f"{prefix}/{class_name}/{number:04d}" for number in range(per_class)]
    return Pictures(
        name="glyphs",
        names=tuple(names),
        labels=np.repeat(np.arange(count, dtype=np.int64), per_class),
        classes=classes,
        reader=reader,
        origins=np.arange(count * per_class, dtype=np.int64),
        splits=np.repeat(np.array(["train"] * train_classes + ["test"] * test_classes), per_class),
    )


def parse_glyphs(text: str) -> Pictures:
    """Make the table that a text describes.

    Args:
        text: "glyphs", or "glyphs(cells=1, size=32)" with any settings of ``glyphs``.

    Returns:
        The table.

    Raises:
        ValueError: If the text is not of this form.
    """
    arguments = text.removeprefix("glyphs").strip().removeprefix("(").removesuffix(")")
    settings: dict[str, int] = {}
    for assignment in filter(None, map(str.strip, arguments.split(","))):
        name, _, value = map(str.strip, assignment.partition("="))
        if name not in SETTINGS or not value.isdecimal():
            raise ValueError(
                f"glyphs takes {', '.join(SETTINGS)} with whole numbers, as glyphs(cells=1), got {assignment!r}"
            )
        settings[name] = int(value)
    return glyphs(**settings)


@dataclass(frozen=True)
class GlyphReader:
    """Draws picture ``index``: number index % per_class of the letter index // per_class.

    Attributes:
        seed: Seed of the pictures.
        size: Side of a picture in pixels.
        cells: A picture has cells x cells cells.
        per_class: Pictures per class.
        letters: Letter of each class.
        train_classes: Number of training classes, the first of the letters.
        symbols: Background symbols of the training pictures and of the test pictures.
    """

    seed: int
    size: int
    cells: int
    per_class: int
    letters: tuple[str, ...]
    train_classes: int
    symbols: tuple[tuple[str, ...], tuple[str, ...]]

    def __call__(self, index: int) -> Image.Image:
        """Return picture ``index``; recent ones are cached."""
        return Image.fromarray(_drawn(self, index))

    def draw(self, index: int) -> NDArray[np.uint8]:
        """Draw picture ``index``, (size, size, 3)."""
        letter, rng, true_cell = self._begin(index)
        symbols = self.symbols[index // self.per_class >= self.train_classes]
        side = self.size // self.cells
        ink = Image.new("L", (self.size, self.size))
        for cell, (which_symbol, *variation) in enumerate(rng.random((self.cells**2, 7)).tolist()):
            character = symbols[int(which_symbol * len(symbols))]
            if cell == true_cell:
                character = letter
            row, column = divmod(cell, self.cells)
            ink.paste(_turned(character, side, *variation), (side * column, side * row))
        paper_colour, ink_colour = _colours(self.cells, rng).repeat(side, 1).repeat(side, 2)
        canvas = paper_colour + (ink_colour - paper_colour) * np.asarray(ink, dtype=np.float32)[..., None] / 255
        canvas += _clutter(self.size, self.cells, rng)[..., None]
        canvas += rng.uniform(0.01, 0.05) * rng.standard_normal(canvas.shape, dtype=np.float32)
        return (canvas.clip(0, 1) * 255).round().astype(np.uint8)

    def cell_of(self, index: int) -> int:
        """Return the cell that shows the letter, counted row by row from the top left."""
        return self._begin(index)[2]

    def key(self, index: int) -> str:
        """Return all settings that determine picture ``index``."""
        symbols = _checksum(self.symbols)
        label, number = divmod(index, self.per_class)
        letter = _code(self.letters[label])
        split = "train" if label < self.train_classes else "test"
        return f"glyphs-1 seed={self.seed} size={self.size} cells={self.cells} {split}-{symbols:08x} {letter} {number}"

    def _begin(self, index: int) -> tuple[str, np.random.Generator, int]:
        if not 0 <= index < len(self.letters) * self.per_class:
            raise IndexError(f"index must lie in 0..{len(self.letters) * self.per_class - 1}, got {index}")
        label, number = divmod(index, self.per_class)
        letter = self.letters[label]
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, ord(letter), number))))
        return letter, rng, int(rng.integers(self.cells**2))


@cache
def _checksum(symbols: tuple[tuple[str, ...], tuple[str, ...]]) -> int:
    return crc32("/".join(map("".join, symbols)).encode())


@lru_cache(maxsize=CACHED)
def _drawn(reader: GlyphReader, index: int) -> NDArray[np.uint8]:
    return reader.draw(index)


@cache
def alphabet() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return letters and symbols of which no two look alike, not even mirrored, in a fixed pseudo-random order."""
    letters, symbols = ALPHABET.read_text(encoding="utf-8").splitlines()
    return tuple(letters), tuple(symbols)


def choose_alphabet() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compute ``alphabet`` from the fonts. This takes half a second, so ALPHABET holds the result."""
    letters, symbols = [], []
    for code in sorted(_characters("DejaVuSans")):
        character = chr(code)
        name, category = unicodedata.name(character, ""), unicodedata.category(character)
        if category in ("Lu", "Ll", "Lo", "Nd") and name.startswith(SCRIPTS):
            # neither accents, hooks and ligatures, nor dots and bars
            plain = not unicodedata.decomposition(character) and " WITH " not in name and " TAIL " not in name
            if plain and np.asarray(_stamp(character, "DejaVuSans", 20)).mean() < 0.62 * 255:
                letters.append(character)
        elif category in ("Sm", "So") and any(first <= code <= last for first, last in SYMBOLS):
            symbols.append(character)
    distinct = sorted(_distinct(letters + symbols), key=lambda character: crc32(_code(character).encode()))
    distinct_letters = [character for character in distinct if character in letters]
    distinct_symbols = [character for character in distinct if character in symbols]
    return tuple(distinct_letters), tuple(distinct_symbols)


def _distinct(characters: list[str]) -> list[str]:
    """Keep each character that correlates with none kept before it, in any of the compared fonts."""
    likeness = np.full((len(characters),) * 2, -1, dtype=np.float32)
    for font in COMPARED:
        pixels = np.zeros((len(characters), 24, 24), dtype=np.float32)
        for thumbnail, character in zip(pixels, characters, strict=True):
            if ord(character) in _characters(font):
                stamp = np.asarray(_stamp(character, font, 20))
                top, left = 12 - stamp.shape[0] // 2, 12 - stamp.shape[1] // 2
                thumbnail[top : 24 - top, left : 24 - left] = stamp
        shapes = _blurred(pixels)
        for other in (pixels, pixels[..., ::-1]):
            for shift in ((0, 0), (0, 1), (0, -1), (1, 0)):
                np.maximum(likeness, _blurred(np.roll(other, shift, (1, 2))) @ shapes.T, out=likeness)
    np.maximum(likeness, likeness.T, out=likeness)
    kept = np.zeros(len(characters), dtype=bool)
    for index, row in enumerate(likeness):
        kept[index] = not (row[kept] >= ALIKE).any()
    return list(compress(characters, kept))


def _blurred(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, 24, 24) -> (n, 144), without mean and of norm 1 or, where there is nothing, 0."""
    distance = np.arange(24) + 0.5 - np.arange(1, 24, 2)[:, None]
    blur = np.exp(-(distance**2) / 3).astype(np.float32)  # (12, 24)
    shapes = (blur @ pixels @ blur.T).reshape(len(pixels), -1)
    shapes -= shapes.mean(1, keepdims=True)
    return shapes / np.maximum(np.linalg.norm(shapes, axis=1, keepdims=True), 1e-6)


def _turned(
    character: str, side: int, font: float, angle: float, lean: float, scale: float, right: float, down: float
) -> Image.Image:
    """A character somewhere in a cell (side, side), in grey, turned by up to 20 degrees; all numbers lie in [0, 1)."""
    fonts = _fonts_of(character)
    stamp = _stamp(character, fonts[int(font * len(fonts))], round(1.25 * side))
    angle, lean = radians(40 * angle - 20), 0.3 * lean - 0.15
    # where a step to the right (a, c) and a step down (b, d) on the stamp lead to in the cell
    a, b, c, d = cos(angle), lean - sin(angle), sin(angle), cos(angle)
    width, height = abs(a) * stamp.width + abs(b) * stamp.height, abs(c) * stamp.width + abs(d) * stamp.height
    zoom = side * (0.6 + 0.32 * scale) / max(width, height)
    x = side / 2 + (side - zoom * width) * 0.8 * (right - 0.5)
    y = side / 2 + (side - zoom * height) * 0.8 * (down - 0.5)
    # PIL needs the inverse: from a point in the cell to a point on the stamp
    determinant = zoom * (a * d - b * c)
    a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
    back = (a, b, stamp.width / 2 - a * x - b * y, c, d, stamp.height / 2 - c * x - d * y)
    return stamp.transform((side, side), Image.Transform.AFFINE, back, Image.Resampling.BILINEAR)


def _colours(cells: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Paper and ink of each cell (2, cells, cells, 3): any two hues, but of different lightness."""
    contrast, darker, side, *hues = rng.random((7, cells, cells, 1), dtype=np.float32)
    contrast = 0.35 + 0.35 * contrast
    darker = 0.12 + (0.76 - contrast) * darker
    swapped = side < 0.5
    lightness = np.stack((darker + contrast * swapped, darker + contrast * ~swapped))
    angle = 2 * np.pi * (np.stack(hues[:2]) + np.arange(3) / 3)
    return (lightness + (0.05 + 0.25 * np.stack(hues[2:])) * np.cos(angle)).astype(np.float32)


def _clutter(size: int, cells: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Faint shades and strokes (size, size) around 0."""
    coarse = Image.fromarray(rng.integers(0, 256, (3 * cells, 3 * cells), dtype=np.uint8))
    strokes = Image.new("L", (size, size), 128)
    draw = ImageDraw.Draw(strokes)
    for *line, grey in rng.integers(0, 256, (3 * cells, 5)).tolist():
        draw.line([value * size // 256 for value in line], fill=grey, width=1 + grey % max(1, size // 24))
    shades = coarse.resize((size, size), Image.Resampling.BICUBIC)
    both = Image.blend(shades, strokes, rng.uniform(0.3, 0.7))
    return (np.asarray(both, dtype=np.float32) - 128) * np.float32(rng.uniform(0.1, 0.4) / 255)


@cache
def _stamp(character: str, font: str, side: int) -> Image.Image:
    """The character in grey, cut out and resized so that its longer side is ``side``; even, to have a middle."""
    mask = _font(font, round(1.6 * side)).getmask(character, mode="L")
    picture = Image.frombytes("L", mask.size, bytes(mask))
    picture = picture.crop(picture.getbbox())
    scale = side / max(picture.size)
    shape = [max(2, 2 * round(scale * length / 2)) for length in picture.size]
    return picture.resize((shape[0], shape[1]), Image.Resampling.BOX)


@cache
def _fonts_of(character: str) -> tuple[str, ...]:
    fonts = tuple(font for font in FONTS if ord(character) in _characters(font))
    if character.isascii():
        fonts += ASCII_FONTS
    return fonts


@cache
def _font(name: str, pixels: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_font_file(name)), pixels, layout_engine=ImageFont.Layout.BASIC)


@cache
def _characters(font: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(_font_file(font))).get_charmap())


def _font_file(name: str) -> Path:
    try:
        import matplotlib
    except ImportError as missing:
        raise ImportError("glyphs are drawn with the fonts of matplotlib: pip install matplotlib") from missing
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
