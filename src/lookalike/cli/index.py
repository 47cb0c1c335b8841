"""``lookalike index RUN FOLDER --out INDEX``: make a folder of pictures searchable."""

import csv
import json
import os
import re
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from lookalike._util.files import require_writable
from lookalike._util.outside_text import unescape_formula
from lookalike._util.progress import Display
from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.loading import load_model
from lookalike.cli.output import print_result, unreadable_lines
from lookalike.data.files import counted
from lookalike.data.names import from_text
from lookalike.data.reading import SUFFIXES
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

DESCRIPTION = """Make a folder of pictures searchable, or update its index: add new pictures, embed changed ones again,
remove deleted ones. Every batch is saved when it is done; after an interruption the same command continues. The name of
a class folder becomes the label of its pictures. More folders can be added to the same index, with the same model."""
EXAMPLE = "lookalike index runs/mine my_pictures/ --out mine.idx"
WHOLE = re.compile(r"[-+]?[0-9]+")
DECIMAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")


@dataclass
class IndexSettings:
    """Options of ``lookalike index``."""

    run: Path = setting(REQUIRED, "folder of a run, or the name of a backbone to use its averaged features")
    folder: Path = setting(REQUIRED, "folder of pictures, at any depth")
    out: Path = setting(REQUIRED, "folder of the index; an existing index is updated")
    store: str | None = setting(
        None, "where the vectors are: faiss (default), a file x.db for embedded Milvus, or http://host:19530"
    )
    collection: str | None = setting(None, "name of the Milvus collection; null: chosen automatically")
    kind: Literal["auto", "flat", "ivf", "hnsw"] | None = setting(
        None, "flat is exact; ivf and hnsw are faster and miss some; null or auto: flat for small collections"
    )
    metadata: Path | None = setting(
        None, "CSV with a column path, relative to FOLDER, and columns to filter by; may have a column label"
    )
    follow_symlinks: bool = setting(True, "follow symbolic links in FOLDER; --no-follow-symlinks leaves them out")
    strict: bool = setting(False, "fail if a picture cannot be read, instead of leaving it out")
    batch: int = setting(64, "pictures that are saved together", least=1)
    size: int | None = setting(None, "side of the input in pixels, for a backbone given by name", least=1)
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)


def run(argv: list[str]) -> int:
    """Run ``lookalike index`` with the words after its name, and return the exit code."""
    settings, flags = parse(
        IndexSettings, argv, "index", DESCRIPTION, EXAMPLE, positional=["run", "folder"], flags=JSON
    )
    folder = settings.folder.expanduser()
    _check_folders(folder, settings.out)
    metadata = None
    if settings.metadata is not None:
        metadata = read_metadata(settings.metadata)
    with exit_on_interrupt():
        from lookalike import index

    model = load_model(settings.run, settings.size, settings.device, settings.engine)
    with StopRequest().listening() as stop, ExitStack() as stack:
        idx = stack.enter_context(_open_index(settings, model))
        ticks: list[Any] = []

        def total(count: int) -> None:
            ticks.append(stack.enter_context(Display(stop).bar(count, "indexing")))

        changes = index.sync(
            idx,
            model,
            folder,
            total=total,
            progress=lambda count: ticks[0](count),
            strict=settings.strict,
            batch=settings.batch,
            metadata=metadata,
            follow_symlinks=settings.follow_symlinks,
        )
        report: dict[str, Any] = {
            "index": str(settings.out),
            "added": changes.added,
            "updated": changes.updated,
            "removed": changes.removed,
            "unchanged": changes.unchanged,
            "unreadable": [list(problem) for problem in changes.unreadable],
            **idx.info(),
            "labels": len(idx.labels()),
        }
    if flags:
        print(json.dumps(report))
    else:
        print_result(_summarise(report, changes.notes))
    return 0


def _check_folders(folder: Path, out: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of pictures")
    if not _has_pictures(folder):
        raise UsageError(f"{folder} has no pictures; nothing was changed. Is a disk not mounted?")
    is_index = (out / "index.json").exists()
    if is_address(str(out)) and not is_index:
        address = re.sub(r"^(\w+):/+", r"\1://", str(out))
        raise UsageError(f"--out must be a folder on this machine; for vectors in Milvus add --store {address}")
    require_writable(out)
    is_empty = out.is_dir() and not any(out.iterdir())
    if out.exists() and not is_index and not is_empty:
        raise UsageError(f"{out} exists and is not an index: choose another --out")


def _has_pictures(folder: Path) -> bool:
    for _, _, names in os.walk(folder, followlinks=True):
        for name in names:
            if Path(name).suffix.lower() in SUFFIXES:
                return True
    return False


def is_address(text: str) -> bool:
    """Return whether a path is really an address of Milvus. A ``Path`` has lost one slash of the URL.

    Examples:
        >>> [is_address(text) for text in ("http:/host:19530", "https://host", "mine.db", "mine.idx", "C:/mine")]
        [True, True, True, False, False]
    """
    return re.match(r"\w{2,}:/", text) is not None or text.endswith(".db")


def _open_index(settings: IndexSettings, model: Any) -> Any:
    """Open the index if it exists and matches the options, else create it."""
    from lookalike import index

    if not (settings.out / "index.json").exists():
        source = model
        if settings.run.exists():
            source = settings.run
        store = settings.store or "faiss"
        return index.create(settings.out, source, store, settings.collection, settings.kind or "auto")
    idx = index.open(settings.out, settings.store)
    try:
        idx.check_model(model)
        if settings.store is not None and not idx.is_stored_in(settings.store):
            store = idx.about.store or "faiss"
            raise UsageError(f"{settings.out} uses {store} and cannot move to {settings.store}")
        if settings.collection is not None and settings.collection != idx.about.collection:
            raise UsageError(f"{settings.out} uses the collection {idx.about.collection}, not {settings.collection}")
        if settings.kind is not None:
            idx.set_kind(settings.kind)
    except BaseException:
        idx.close()
        raise
    return idx


def read_metadata(file: Path) -> dict[str, dict[str, Any]]:
    """Read metadata of pictures, by path, from a CSV with a column ``path``.

    Numbers, true and false are converted; empty cells are left out.

    Raises:
        UsageError: If the file cannot be read, or a row is malformed or repeated.
    """
    metadata: dict[str, dict[str, Any]] = {}
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            rows = csv.DictReader(text)
            columns = list(rows.fieldnames or ())
            if "path" not in columns:
                raise UsageError(f"{file} must have a column path, got {', '.join(columns) or 'no columns'}")
            for number, row in enumerate(rows, start=2):
                if None in row or None in row.values():
                    raise UsageError(f"{file}, line {number}: expected {len(columns)} columns")
                name = from_text(unescape_formula(row.pop("path")))
                if name in metadata:
                    raise UsageError(f"{file}, line {number}: {name} is repeated")
                metadata[name] = {key: _parse_cell(key, cell) for key, cell in row.items() if cell != ""}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file} cannot be read as a CSV: {error}") from None
    return metadata


def _parse_cell(key: str, cell: str) -> Any:
    if key == "label":
        return unescape_formula(cell)
    if cell.lower() in ("true", "false"):
        return cell.lower() == "true"
    if WHOLE.fullmatch(cell) and len(cell) < 19:  # longer ones, such as serial numbers, stay text
        return int(cell)
    if DECIMAL.fullmatch(cell) and abs(float(cell)) < inf:
        return float(cell)
    return unescape_formula(cell)


def _summarise(report: dict[str, Any], notes: tuple[str, ...]) -> str:
    lines = [
        f"added {report['added']:,}, updated {report['updated']:,}, removed {report['removed']:,}, "
        f"unchanged {report['unchanged']:,}"
    ]
    lines += unreadable_lines(report["unreadable"])
    lines += notes
    contents = f"{counted(report['count'], 'picture')} with {counted(report['labels'], 'label')}"
    if report["backend"] != "faiss":
        contents += f", in Milvus at {report['store']}"
    lines.append(f"{report['index']} has {contents}")
    if report["recall@10"] is None:
        lines.append("search is exact")
    else:
        recall = f"{100 * report['recall@10']:.1f} % of the ten nearest"
        lines.append(f"search by {report['kind']} finds {recall}, measured on pictures of the index")
    return "\n".join([*lines, f"next: lookalike search {shlex.quote(report['index'])} picture.jpg"])
