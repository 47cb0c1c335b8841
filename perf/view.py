"""What a model finds if it sees the centre of a picture, or the whole picture.

    python perf/view.py runs/mine FOLDER [--pictures 20]

FOLDER has class folders; 20 pictures of each class are drawn. Every picture is searched among the others:

    as they are      the pictures themselves
    wide             of these, queries with sides of 3:2 or more
    3:1              the picture in a random third of a plain one
    busy 3:1         likewise, with pictures of two other classes beside it

The views: the centre crop; squares that are joined cell by cell (``--view whole``); the picture padded to one square,
whose padding the pooling masks; and the sum of the vectors of crop and squares. Figures are in percent.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import lookalike
from lookalike.data.reading import read_picture
from lookalike.inference.label_free import whitened
from lookalike.inference.model import TrainedModel, load

VIEWS = ("crop", "squares", "padded", "both")
WIDE = 1.5
TILE = 256  # pixels; side of a third of a 3:1 picture
SEED = 0
Vectors = dict[str, NDArray[np.float32]]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare the centre crop with views of the whole picture.")
    parser.add_argument("run", help="folder of a run, or whiten: a backbone with a whitening head")
    parser.add_argument("folder", type=Path, help="class folders of pictures")
    parser.add_argument("--pictures", type=int, default=20, help="pictures of each class (default 20)")
    options = parser.parse_args(argv)
    files, labels = draw(options.folder, options.pictures)
    if options.run == "whiten":
        model, whole = whitened(files, view="crop"), whitened(files, view="whole")
    else:
        model, whole = load(options.run, view="crop"), load(options.run, view="whole")
    print(f"{len(files):,} pictures of {len(np.unique(labels)):,} classes, P@1 / MAP@R")
    print(f"{'':12}" + "".join(f"{view:>14}" for view in VIEWS), flush=True)
    side = model.preprocess.decode_side
    vectors = embed(model, whole, (read_picture(file, at_least=side) for file in files))
    print_row("as they are", vectors, labels)
    sizes = [read_picture(file, at_least=1).size for file in files]
    is_wide = np.array([max(size) >= WIDE * min(size) for size in sizes])
    if is_wide.any():
        print_row("wide", vectors, labels, is_wide)
    print_row("3:1", embed(model, whole, wide_pictures(files, labels, busy=False)), labels)
    print_row("busy 3:1", embed(model, whole, wide_pictures(files, labels, busy=True)), labels)


def draw(folder: Path, count: int) -> tuple[list[Path], NDArray[np.int64]]:
    """The files of a few pictures of each class, and their labels."""
    rng = np.random.default_rng(SEED)
    files: list[Path] = []
    labels = []
    for label, class_folder in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        names = sorted(class_folder.iterdir())
        chosen = rng.permutation(len(names))[:count]
        files += [names[i] for i in chosen]
        labels += [label] * len(chosen)
    return files, np.array(labels)


def wide_pictures(files: list[Path], labels: NDArray[np.int64], *, busy: bool) -> Iterator[Image.Image]:
    """Each picture in a random third of a picture of 3:1."""
    rng = np.random.default_rng(SEED)
    for file, label in zip(files, labels, strict=True):
        picture = square(file)
        border = np.concatenate(
            [np.array(picture)[[0, -1]].reshape(-1, 3), np.array(picture)[:, [0, -1]].reshape(-1, 3)]
        )
        canvas = Image.new("RGB", (3 * TILE, TILE), tuple(border.mean(0).astype(int).tolist()))
        place = int(rng.integers(3))
        others = rng.choice(np.flatnonzero(labels != label), 2, replace=False)
        if busy:
            for third, other in zip([third for third in range(3) if third != place], others, strict=True):
                canvas.paste(square(files[other]), (third * TILE, 0))
        canvas.paste(picture, (place * TILE, 0))
        yield canvas


def square(file: Path) -> Image.Image:
    """The middle of a picture, ``TILE`` pixels wide and high."""
    picture = read_picture(file, at_least=TILE)
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side)).resize((TILE, TILE), Image.Resampling.BICUBIC)


def embed(model: TrainedModel, whole: TrainedModel, pictures: Iterator[Image.Image]) -> Vectors:
    """Vectors (n, D) of pictures for every view, by a model that sees the crop and one that sees the whole picture."""
    vectors: dict[str, list[NDArray[np.float32]]] = {view: [] for view in VIEWS}
    for picture in pictures:
        crop = model.embed(picture)[0]
        squares = whole.embed(picture)[0]
        vectors["crop"].append(crop)
        vectors["squares"].append(squares)
        vectors["both"].append(crop / np.linalg.norm(crop) + squares / np.linalg.norm(squares))
        vectors["padded"].append(embed_padded(model, picture))
    return {view: np.stack(rows) for view, rows in vectors.items()}


@torch.inference_mode()
def embed_padded(model: TrainedModel, picture: Image.Image) -> NDArray[np.float32]:
    """The vector (D,) of a picture whose longer side is the side of the input, without the places of the padding."""
    side = model.spec.size
    scale = side / max(picture.size)
    width, height = (max(1, round(length * scale)) for length in picture.size)
    grey = tuple(round(255 * value) for value in model.spec.mean)
    canvas = Image.new("RGB", (side, side), grey)
    corner = ((side - width) // 2, (side - height) // 2)
    canvas.paste(picture.resize((width, height), Image.Resampling.BICUBIC), corner)
    maps = model.maps(torch.from_numpy(np.array(canvas))[None])
    rows, columns = (torch.arange(cells) + 0.5 for cells in maps.shape[1:3])
    is_row = (rows * side / len(rows) - corner[1] > 0) & (rows * side / len(rows) < corner[1] + height)
    is_column = (columns * side / len(columns) - corner[0] > 0) & (columns * side / len(columns) < corner[0] + width)
    mask = (is_row[:, None] & is_column[None]).reshape(1, -1)
    vector: NDArray[np.float32] = model.embedder.head(maps.flatten(1, 2), mask)[0].numpy()
    return vector


def print_row(name: str, vectors: Vectors, labels: NDArray[np.int64], queries: NDArray[np.bool_] | None = None) -> None:
    """Print one line of the table; ``queries`` chooses the pictures that are searched for."""
    cells = []
    everything = np.arange(len(labels))
    chosen = everything if queries is None else everything[queries]
    for view in VIEWS:
        found = lookalike.retrieval_metrics(
            vectors[view][chosen], labels[chosen], vectors[view], labels, query_ids=chosen, reference_ids=everything
        )
        cells.append(f"{100 * found['P@1']:.1f} / {100 * found['MAP@R']:.1f}")
    print(f"{name:12}" + "".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
