"""Files -> labelled pictures -> batches.

``load`` gives the table of pictures (``Pictures``) of any source: a folder of class folders, a CSV, a benchmark in its
official layout, or the drawn set called glyphs.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from lookalike.data import benchmarks
from lookalike.data.files import raise_problems, verified
from lookalike.data.folder import read_folder
from lookalike.data.pictures import Pictures, Problem, Reader, UnreadablePicture
from lookalike.data.table import read_table

DRAWN = "glyphs"
TABLES = (".csv", ".tsv", ".txt")
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")


def load(
    source: str | Path,
    *,
    root: str | Path | None = None,
    strict: bool = False,
    check: bool = True,
    progress: bool = False,
) -> Pictures:
    """The pictures of ``source``.

    source: a folder of class folders; a CSV with the columns path and label; the folder of a benchmark, which is
        recognised by its files; a benchmark's name with ``root`` or as "NAME:FOLDER"; or "glyphs".
    root: the folder of a benchmark given by name, or the folder that the paths in a CSV start from.
    check: decode every file once; the unreadable ones are left out and listed in ``problems``.
    strict: raise if anything would have to be left out.
    progress: show a progress bar while checking.
    """
    if str(source) == DRAWN and root is None:
        from lookalike.data.glyphs import glyphs

        return glyphs()
    pictures = _read(source, None if root is None else Path(root).expanduser())
    if check:
        return verified(pictures, strict=strict, progress=progress)
    if strict:
        raise_problems(pictures.name, pictures.problems)
    return pictures


def _read(source: str | Path, root: Path | None) -> Pictures:
    path = Path(source).expanduser()
    name, colon, folder = str(source).partition(":")
    if path.is_file():
        return read_table(_check_table(path), root)
    if root is not None:
        return benchmarks.read_benchmark(str(source), _check_folder(root))
    if path.is_dir():
        known = benchmarks.recognise(path)
        return read_folder(path) if known is None else benchmarks.read_benchmark(known, path)
    if colon and (benchmarks.lookup(name) or Path(folder).expanduser().exists()):
        return benchmarks.read_benchmark(name, _check_folder(Path(folder).expanduser()))
    benchmark = benchmarks.lookup(str(source))
    if benchmark is not None:
        raise ValueError(
            f"{benchmark.name} needs its folder: write {benchmark.name}:FOLDER. "
            f"{benchmark.title} is offered at {benchmark.page}; nothing is downloaded"
        )
    known_names = [*benchmarks.names(), DRAWN]
    near = get_close_matches(str(source), known_names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"names that are known: {', '.join(known_names)}"
    raise ValueError(f"there is no folder, CSV or data set {str(source)!r}; {hint}")


def _check_table(path: Path) -> Path:
    if path.suffix.lower() in ARCHIVES:
        raise ValueError(f"{path} is an archive: unpack it and give the folder")
    if path.suffix.lower() not in TABLES:
        raise ValueError(f"{path} is a file; expected a folder of class folders, or a list that ends in .csv")
    return path


def _check_folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}")
    return path


__all__ = ["Pictures", "Problem", "Reader", "UnreadablePicture", "benchmarks", "load"]
