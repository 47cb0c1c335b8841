"""``lookalike index RUN FOLDER --out IDX``"""

import csv
import json
import os
import re
import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lookalike._util.checks import check_count
from lookalike._util.files import require_writable
from lookalike._util.progress import Display
from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.loading import load_model
from lookalike.data.files import counted
from lookalike.data.names import from_text
from lookalike.data.reading import SUFFIXES

DESCRIPTION = """Make a folder of pictures searchable, or bring its index up to date: new pictures are added, changed
ones embedded again, vanished ones forgotten. Batches are kept as they are done, so a run that was interrupted goes on
where it stopped when it is started again. Pictures in class folders are labelled by these. Further folders can go into
the same index, but all with the model that it was made with."""
EXAMPLE = "lookalike index runs/mine my_pictures/ --out mine.idx"
SHOWN = 10


@dataclass
class IndexSettings:
    run: Path | None = setting(None, "folder of a run, or the name of a backbone to use its own averaged features")
    folder: Path | None = setting(None, "folder of pictures, at any depth")
    out: Path | None = setting(None, "folder of the index; one that is there is brought up to date")
    store: str | None = setting(
        None, "what keeps the vectors: faiss (default), a file x.db for Milvus in this process, or http://host:19530"
    )
    collection: str | None = setting(None, "its name in Milvus; null: one is made up")
    kind: Literal["auto", "flat", "ivf", "hnsw"] | None = setting(
        None, "flat compares with all, ivf and hnsw are faster and miss a few; null or auto: flat until there are many"
    )
    metadata: Path | None = setting(
        None, "a CSV with a column path, within FOLDER, and a column for each thing to filter by; label if you like"
    )
    strict: bool = setting(False, "fail if any picture cannot be read, instead of leaving it out")
    batch: int = setting(64, "pictures that are kept together")
    size: int | None = setting(None, "side of the input of a backbone given by name")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")

    def __post_init__(self) -> None:
        check_count("batch", self.batch)


def run(argv: list[str]) -> int:
    settings, flags = parse(
        IndexSettings,
        argv,
        prog="lookalike index",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["run", "folder"],
        flags=JSON,
    )
    if settings.run is None or settings.folder is None or settings.out is None:
        raise UsageError("say which model, which pictures and where to: lookalike index RUN FOLDER --out IDX")
    folder = settings.folder.expanduser()
    if not folder.is_dir():
        raise UsageError(f"{settings.folder} is not a folder of pictures")
    if not _has_pictures(folder):
        raise UsageError(f"{settings.folder} has no pictures, so nothing was changed: is a disk not mounted?")
    if is_address(str(settings.out)) and not (settings.out / "index.json").exists():
        address = re.sub(r"^(\w+):/+", r"\1://", str(settings.out))
        raise UsageError(f"--out is a folder on this machine; to keep the vectors in Milvus say --store {address}, too")
    require_writable(settings.out)
    if settings.out.exists() and not (settings.out / "index.json").exists() and not _is_empty(settings.out):
        raise UsageError(f"{settings.out} exists and is no index: choose another --out")
    metadata = None if settings.metadata is None else read_metadata(settings.metadata)
    with exit_on_interrupt():
        from lookalike import index

    model = load_model(settings.run, settings.size, settings.device)
    with StopRequest().listening() as stop, ExitStack() as open_things:
        idx = open_things.enter_context(_index(settings, model))
        ticks: list[Any] = []

        def total(count: int) -> None:
            ticks.append(open_things.enter_context(Display(stop).bar(count, "indexing")))

        changes = index.sync(
            idx,
            model,
            folder,
            total=total,
            progress=lambda count: ticks[0](count),
            strict=settings.strict,
            batch=settings.batch,
            metadata=metadata,
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
    print(json.dumps(report) if flags else _text(report, changes.notes))
    return 0


def _has_pictures(folder: Path) -> bool:
    """Stops at the first."""
    return any(
        Path(name).suffix.lower() in SUFFIXES for _, _, names in os.walk(folder, followlinks=True) for name in names
    )


def is_address(text: str) -> bool:
    """Whether it names a place for Milvus, which is no folder: a path has lost one of the slashes of a URL.

    >>> [is_address(text) for text in ("http:/host:19530", "https://host", "mine.db", "mine.idx", "C:/mine")]
    [True, True, True, False, False]
    """
    return re.match(r"\w{2,}:/", text) is not None or text.endswith(".db")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _index(settings: IndexSettings, model: Any) -> Any:
    """The index that is there, if it goes with what was asked, or a new one."""
    from lookalike import index

    assert settings.out is not None
    assert settings.run is not None
    if not (settings.out / "index.json").exists():
        source = settings.run if settings.run.exists() else model
        return index.create(
            settings.out, source, settings.store or "faiss", settings.collection, settings.kind or "auto"
        )
    idx = index.open(settings.out)
    try:
        idx.check_model(model)
        if settings.store is not None and not idx.is_kept_in(settings.store):
            raise UsageError(
                f"{settings.out} is kept in {idx.about.store or 'faiss'}: it cannot move to {settings.store}"
            )
        if settings.collection is not None and settings.collection != idx.about.collection:
            raise UsageError(f"{settings.out} is the collection {idx.about.collection}, not {settings.collection}")
        if settings.kind is not None:
            idx.set_kind(settings.kind)
    except BaseException:
        idx.close()
        raise
    return idx


def read_metadata(file: Path) -> dict[str, dict[str, Any]]:
    """By path; numbers, true and false become what they say, an empty cell is left out."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            rows = csv.DictReader(text)
            if "path" not in (rows.fieldnames or ()):
                raise UsageError(f"{file} must have a column path, got {', '.join(rows.fieldnames or ['nothing'])}")
            found: dict[str, dict[str, Any]] = {}
            for number, row in enumerate(rows, start=2):
                if None in row or None in row.values():
                    raise UsageError(f"{file}, line {number}: expected {len(rows.fieldnames or ())} columns")
                name = from_text(row.pop("path"))
                if name in found:
                    raise UsageError(f"{file}, line {number}: {name} stands there twice")
                found[name] = {key: _value(key, cell) for key, cell in row.items() if cell != ""}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file} cannot be read as a CSV: {error}") from None
    return found


def _value(key: str, cell: str) -> Any:
    if key == "label":
        return cell
    if cell.lower() in ("true", "false"):
        return cell.lower() == "true"
    for kind in (int, float):
        try:
            number = kind(cell)
        except ValueError:
            continue
        return number if abs(number) < float("inf") else cell
    return cell


def _text(report: dict[str, Any], notes: tuple[str, ...]) -> str:
    lines = [
        f"added {report['added']:,}, updated {report['updated']:,}, removed {report['removed']:,}, "
        f"unchanged {report['unchanged']:,}"
    ]
    if report["unreadable"]:
        lines.append(f"left out, {counted(len(report['unreadable']), 'picture')} that cannot be used:")
        lines += [f"  {name}: {reason}" for name, reason in report["unreadable"][:SHOWN]]
        lines += ["  ..."] if len(report["unreadable"]) > SHOWN else []
    lines += notes
    kept = "" if report["backend"] == "faiss" else f" in Milvus at {report['store']}"
    lines.append(
        f"{report['index']} holds {counted(report['count'], 'picture')} with {counted(report['labels'], 'label')}{kept}"
    )
    if report["recall@10"] is None:
        lines.append("search compares with all of them: it is exact")
    else:
        lines.append(
            f"search by {report['kind']} finds {100 * report['recall@10']:.1f} % of the ten nearest, "
            "measured on pictures of the index"
        )
    return "\n".join([*lines, f"next: lookalike search {shlex.quote(report['index'])} picture.jpg"])
