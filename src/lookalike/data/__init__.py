"""Files -> labelled pictures -> batches.

``load`` gives the table of pictures (``Pictures``) of any source: a folder of class folders, a CSV, a public data set
in its official layout, the drawn data set glyphs, or the collage that is composed of CIFAR-100.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lookalike._util.suggestions import closest
from lookalike.data import datasets
from lookalike.data.files import find_contradictions, raise_problems, verified
from lookalike.data.folder import read_folder
from lookalike.data.pictures import BrokenData, Pictures, Problem, Reader, UnreadablePicture
from lookalike.data.table import read_table

DRAWN = "glyphs"
COMPOSED = "collage"


def load(
    source: str | Path,
    *,
    root: str | Path | None = None,
    strict: bool = False,
    check: bool = True,
    progress: bool = False,
    fewest_classes: int = 2,
) -> Pictures:
    """Read the table of pictures of any source.

    Args:
        source: A folder of class folders; a CSV with the columns path and label; the folder of a public data set
            (recognised by its files); the name of a public data set with ``root``, or "NAME:FOLDER"; "glyphs" or
            "glyphs(cells=1, size=32)"; "collage:FOLDER" of CIFAR-100 or "collage(FOLDER, split=3/2)".
        root: Folder of a data set given by name, or the folder that the paths in a CSV start from.
        strict: Raise if a picture would be left out.
        check: Decode every file once. Unreadable files are left out and listed in ``problems``; files with the same
            content in two classes are noted.
        progress: Show a progress bar while checking.
        fewest_classes: Smallest number of classes of a folder or CSV.

    Returns:
        The table of pictures.

    Raises:
        ValueError: If there is no such source, or it has too few classes.
        BrokenData: If the data are incomplete or, with ``strict``, contain unreadable pictures.
    """
    text = str(source)
    if root is None and (text == DRAWN or text.startswith(f"{DRAWN}(")):
        from lookalike.data.glyphs import parse_glyphs

        return parse_glyphs(text)
    if root is not None:
        root = Path(root).expanduser()
    if _is_collage(source):
        from lookalike.data.collage import parse_collage

        if root is not None:
            text = f"{COMPOSED}:{root}"
        return parse_collage(text, strict=strict, progress=progress)
    pictures = _read(source, root, fewest_classes)
    if check:
        pictures = verified(pictures, strict=strict, progress=progress)
        return replace(pictures, notes=(*pictures.notes, *find_contradictions(pictures)))
    if strict:
        raise_problems(pictures.name, pictures.problems)
    return pictures


def _read(source: str | Path, root: Path | None, fewest_classes: int) -> Pictures:
    path = Path(source).expanduser()
    name, colon, folder = str(source).partition(":")
    if path.is_file():
        return read_table(path, root, fewest_classes)
    if root is not None:
        return datasets.read_dataset(str(source), _check_folder(root))
    if path.is_dir():
        return _read_folder(path, fewest_classes)
    if colon and (datasets.lookup(name) or Path(folder).expanduser().exists()):
        return datasets.read_dataset(name, _check_folder(Path(folder).expanduser()))
    spec = datasets.lookup(str(source))
    if spec is not None:
        raise ValueError(
            f"{spec.name} needs its folder: write {spec.name}:FOLDER. "
            f"Download {spec.title} from {spec.page}; lookalike does not download it"
        )
    names = [*datasets.names(), DRAWN, COMPOSED]
    match = closest(str(source), names)
    if match is None:
        hint = f"names of data sets: {', '.join(names)}"
    else:
        hint = f"did you mean {match!r}?"
    raise ValueError(f"there is no folder, CSV or data set {str(source)!r}; {hint}")


def _read_folder(path: Path, fewest_classes: int) -> Pictures:
    name = datasets.recognise(path)
    if name is not None:
        return datasets.read_dataset(name, path)
    hint = datasets.hint_below(path)
    if hint is not None:
        raise ValueError(hint)
    return read_folder(path, fewest_classes)


def _is_collage(source: str | Path) -> bool:
    named = str(source).startswith((f"{COMPOSED}:", f"{COMPOSED}("))
    return (named or str(source) == COMPOSED) and not Path(source).exists()


def _check_folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}")
    return path


__all__ = ["BrokenData", "Pictures", "Problem", "Reader", "UnreadablePicture", "datasets", "load"]
