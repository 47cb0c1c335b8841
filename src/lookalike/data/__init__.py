"""Files -> labelled pictures -> batches.

``load`` gives the table of pictures (``Pictures``) of any source: a folder of class folders, a CSV, a benchmark in its
official layout, the drawn set called glyphs, or the collage that is composed of CIFAR-100.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from lookalike.data import datasets as benchmarks
from lookalike.data.contradictions import find_contradictions
from lookalike.data.files import raise_problems, verified
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
    """The pictures of ``source``.

    source: a folder of class folders; a CSV with the columns path and label; the folder of a benchmark, which is
        recognised by its files; a benchmark's name with ``root`` or as "NAME:FOLDER"; or "glyphs",
        also with settings as "glyphs(cells=1, size=32)"; or "collage:FOLDER" of CIFAR-100, also with settings as
        "collage(FOLDER, split=3/2)".
    root: the folder of a benchmark given by name, or the folder that the paths in a CSV start from.
    check: decode every file once; the unreadable ones are left out and listed in ``problems``; one picture in two
        classes is noted.
    strict: raise if anything would have to be left out.
    progress: show a progress bar while checking.
    fewest_classes: raise if a folder or a CSV has fewer; one class will do where nothing is to be told apart.
    """
    if (str(source) == DRAWN or str(source).startswith(f"{DRAWN}(")) and root is None:
        from lookalike.data.glyphs import glyphs_named

        return glyphs_named(str(source))
    if _is_collage(source):
        from lookalike.data.collage import collage_named

        return collage_named(str(source) if root is None else f"{COMPOSED}:{root}", strict=strict, progress=progress)
    pictures = _read(source, None if root is None else Path(root).expanduser(), fewest_classes)
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
        return benchmarks.read_benchmark(str(source), _check_folder(root))
    if path.is_dir():
        known = benchmarks.recognise(path)
        if known is not None:
            return benchmarks.read_benchmark(known, path)
        hint = benchmarks.hint_below(path)
        if hint is not None:
            raise ValueError(hint)
        return read_folder(path, fewest_classes)
    if colon and (benchmarks.lookup(name) or Path(folder).expanduser().exists()):
        return benchmarks.read_benchmark(name, _check_folder(Path(folder).expanduser()))
    benchmark = benchmarks.lookup(str(source))
    if benchmark is not None:
        raise ValueError(
            f"{benchmark.name} needs its folder: write {benchmark.name}:FOLDER. "
            f"{benchmark.title} is offered at {benchmark.page}; nothing is downloaded"
        )
    known_names = [*benchmarks.names(), DRAWN, COMPOSED]
    near = get_close_matches(str(source), known_names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"names that are known: {', '.join(known_names)}"
    raise ValueError(f"there is no folder, CSV or data set {str(source)!r}; {hint}")


def _is_collage(source: str | Path) -> bool:
    named = str(source).startswith((f"{COMPOSED}:", f"{COMPOSED}("))
    return (named or str(source) == COMPOSED) and not Path(source).exists()


def _check_folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}")
    return path


__all__ = ["BrokenData", "Pictures", "Problem", "Reader", "UnreadablePicture", "benchmarks", "load"]
