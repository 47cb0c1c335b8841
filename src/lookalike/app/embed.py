"""``lookalike embed RUN FOLDER --out vectors.npy``"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lookalike import data
from lookalike.app.parsing import JSON, UsageError, parse
from lookalike.data.files import table_of_files, verified
from lookalike.data.folder import list_pictures
from lookalike.data.pictures import Pictures
from lookalike.files import replacing
from lookalike.training.display import Display
from lookalike.training.settings import setting
from lookalike.training.stopping import StopRequest

DESCRIPTION = """Write the vectors of pictures to a file. DATA is any folder of pictures, or whatever train takes.
x.npy holds the vectors and x.csv beside it the path and label of each row; x.parquet holds all in one file."""
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
    from lookalike.trained import load

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
    return 0


def _outputs(out: Path, overwrite: bool) -> list[Path]:
    if out.suffix not in (".npy", ".parquet"):
        raise UsageError(f"--out must end in .npy or .parquet, got {out.name}")
    outputs = [out, out.with_suffix(".csv")] if out.suffix == ".npy" else [out]
    for path in outputs:
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists: choose another --out, or --overwrite")
    return outputs


def _read(source: str, strict: bool) -> Pictures:
    """As for training, but a folder may hold pictures in any order, without classes."""
    folder = Path(source).expanduser()
    if not folder.is_dir() or data.benchmarks.recognise(folder) is not None:
        return data.load(source, strict=strict, progress=True)
    names = list_pictures(folder).pictures
    if not names:
        raise ValueError(f"{folder} has no pictures")
    labels = [str(Path(name).parent) for name in names]
    return verified(table_of_files(f"folder {folder.name}", folder, names, labels), strict=strict, progress=True)


def _write(outputs: list[Path], vectors: np.ndarray[Any, Any], pictures: Pictures) -> None:
    labels = [pictures.classes[label] for label in pictures.labels]
    if outputs[0].suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        values = pa.array(vectors.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
        paths = [name.encode(errors="backslashreplace").decode() for name in pictures.names]  # parquet is strict UTF-8
        labels = [label.encode(errors="backslashreplace").decode() for label in labels]
        table = pa.table({"path": paths, "label": labels, "vector": column})
        with replacing(outputs[0]) as unfinished:
            pq.write_table(table, unfinished)
        return
    with replacing(outputs[0]) as unfinished, unfinished.open("wb") as file:
        np.save(file, vectors)
    with (
        replacing(outputs[1]) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8", errors="surrogateescape") as text,
    ):
        writer = csv.writer(text)
        writer.writerow(["path", "label"])
        writer.writerows(zip(pictures.names, labels, strict=True))
