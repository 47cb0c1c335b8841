"""``lookalike embed RUN FOLDER --out vectors.npy``"""

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookalike import data
from lookalike._util.files import replacing, require_writable
from lookalike._util.progress import Display
from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.data.files import table_of_files, verified
from lookalike.data.folder import list_pictures
from lookalike.data.names import as_text
from lookalike.data.pictures import Pictures

DESCRIPTION = """Write the vectors of pictures to a file. DATA is any folder of pictures, or whatever train takes.
x.npy holds the vectors and x.csv beside it the path and label of each row; x.parquet holds all in one file. In paths
and labels a byte that is not UTF-8 is written as \\xE9 is, and a backslash as two (lookalike.data.names.from_text)."""
EXAMPLE = "lookalike embed runs/mine new_pictures/ --out vectors.parquet"


@dataclass
class EmbedSettings:
    run: Path | None = setting(None, "folder of a run")
    data: str | None = setting(None, "any folder of pictures, a CSV, a benchmark's folder or name:folder, or glyphs")
    out: Path | None = setting(None, "file to write, .npy or .parquet")
    overwrite: bool = setting(False, "replace --out if it exists")
    strict: bool = setting(False, "fail if any picture cannot be read, instead of leaving it out")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")


def run(argv: list[str]) -> int:
    settings, flags = parse(
        EmbedSettings,
        argv,
        prog="lookalike embed",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["run", "data"],
        flags=JSON,
    )
    if settings.run is None or settings.data is None or settings.out is None:
        raise UsageError("say which model, which pictures and where to: lookalike embed RUN DATA --out FILE")
    outputs = _outputs(settings.out, settings.overwrite)
    with exit_on_interrupt():
        from lookalike.inference.model import load

    model = load(settings.run, settings.device)
    pictures = _read(settings.data, settings.strict)
    with StopRequest().listening() as stop, Display(stop).bar(len(pictures), "embedding") as tick:
        vectors = model.embed_table(pictures, workers=settings.workers, tick=tick)
    _write(outputs, vectors, pictures)
    report: dict[str, Any] = {
        "out": [str(path) for path in outputs],
        "pictures": len(pictures),
        "dim": int(vectors.shape[1]),
        "unreadable": [list(problem) for problem in pictures.problems],
    }
    if flags:
        print(json.dumps(report))
    else:
        print(f"{len(pictures):,} vectors of size {vectors.shape[1]} are in {' and '.join(report['out'])}")
        for name, reason in report["unreadable"]:
            print(f"left out: {name}: {reason}")
        for note in pictures.notes:
            print(note)
    return 0


def _outputs(out: Path, overwrite: bool) -> list[Path]:
    if out.suffix not in (".npy", ".parquet"):
        raise UsageError(f"--out must end in .npy or .parquet, got {out.name}")
    outputs = [out, out.with_suffix(".csv")] if out.suffix == ".npy" else [out]
    for path in outputs:
        require_writable(path)
        if path.is_dir():
            raise UsageError(f"{path} is a folder: --out names a file")
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists: choose another --out, or --overwrite")
    return outputs


def _read(source: str, strict: bool) -> Pictures:
    """As for training where all pictures have a class; else all pictures of the folder, with what class they have."""
    folder = Path(source).expanduser()
    try:
        pictures = data.load(source, check=False, fewest_classes=1)
        known = len(pictures)
    except ValueError:
        if not folder.is_dir() or data.benchmarks.recognise(folder) is not None:
            raise
        known = 0
    if folder.is_dir() and data.benchmarks.recognise(folder) is None:
        listing = list_pictures(folder)
        names = listing.pictures
        if not names:
            raise ValueError(f"{folder} has no pictures")
        if known < len(names):
            labels = [name.split("/")[0] if "/" in name else "" for name in names]
            table = table_of_files(f"folder {folder.name}", folder, names, labels)
            pictures = replace(table, problems=tuple(listing.unreadable), notes=listing.notes())
    return verified(pictures, strict=strict, progress=True)


def _write(outputs: list[Path], vectors: np.ndarray[Any, Any], pictures: Pictures) -> None:
    classes = [as_text(name) for name in pictures.classes]
    columns = {
        "path": [as_text(name) for name in pictures.names],
        "label": [classes[label] for label in pictures.labels],
    }
    for name, values in (("split", pictures.splits), ("role", pictures.roles)):
        columns |= {} if values is None else {name: values.tolist()}
    if outputs[0].suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        with replacing(outputs[0]) as unfinished:
            pq.write_table(pa.table({**columns, "vector": numbers}), unfinished)
        return
    with replacing(outputs[0]) as unfinished, unfinished.open("wb") as file:
        np.save(file, vectors)
    with (
        replacing(outputs[1]) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8") as text,
    ):
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
