"""``lookalike embed RUN DATA --out FILE``: write the vectors of pictures to a file."""

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookalike import data
from lookalike._util.files import replacing
from lookalike._util.outside_text import escape_formula
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.loading import embed_pictures
from lookalike.cli.output import print_result, require_new_file
from lookalike.data.files import table_of_files, verified
from lookalike.data.folder import list_pictures
from lookalike.data.names import as_text
from lookalike.data.pictures import Pictures
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

DESCRIPTION = """Write the vectors of pictures to a file. DATA is any folder of pictures, or anything that lookalike
train accepts. x.npy contains the vectors, and x.csv next to it the path and label of each row. x.parquet contains
everything in one file. In paths and labels, bytes that are not UTF-8 are written like \\xE9 and a backslash is doubled;
lookalike.data.names.from_text reverses this."""
EXAMPLE = "lookalike embed runs/mine new_pictures/ --out vectors.parquet"


@dataclass
class EmbedSettings:
    """Options of ``lookalike embed``."""

    run: Path = setting(REQUIRED, "folder of a run")
    data: str = setting(REQUIRED, "any folder of pictures, a CSV, a data set as name:folder, or glyphs")
    out: Path = setting(REQUIRED, "file to write, .npy or .parquet")
    overwrite: bool = setting(False, "replace --out if it exists")
    strict: bool = setting(False, "fail if a picture cannot be read, instead of leaving it out")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores", least=0)
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)


def run(argv: list[str]) -> int:
    """Run ``lookalike embed`` with the words after its name, and return the exit code."""
    settings, flags = parse(EmbedSettings, argv, "embed", DESCRIPTION, EXAMPLE, positional=["run", "data"], flags=JSON)
    outputs = _check_outputs(settings.out, settings.overwrite)
    with exit_on_interrupt():
        from lookalike.inference.model import load

    model = load(settings.run, settings.device, settings.engine)
    pictures = _load_pictures(settings.data, settings.strict)
    vectors = embed_pictures(model, pictures, settings.workers)
    _write(outputs, vectors, pictures)
    report: dict[str, Any] = {
        "out": [str(path) for path in outputs],
        "pictures": len(pictures),
        "dim": int(vectors.shape[1]),
        "unreadable": [list(problem) for problem in pictures.problems],
    }
    if flags:
        print(json.dumps(report))
        return 0
    print_result(f"wrote {len(pictures):,} vectors of size {vectors.shape[1]} to {' and '.join(report['out'])}")
    for name, reason in report["unreadable"]:
        print_result(f"left out: {name}: {reason}")
    for note in pictures.notes:
        print_result(note)
    return 0


def _check_outputs(out: Path, overwrite: bool) -> list[Path]:
    if out.suffix not in (".npy", ".parquet"):
        raise UsageError(f"--out must end in .npy or .parquet, got {out.name}")
    outputs = [out]
    if out.suffix == ".npy":
        outputs.append(out.with_suffix(".csv"))
    for path in outputs:
        require_new_file(path, "--out", overwrite)
    return outputs


def _load_pictures(source: str, strict: bool) -> Pictures:
    """Load as for training; if some pictures of a folder have no class, list them all with the class they have."""
    folder = Path(source).expanduser()
    labelled = 0
    try:
        pictures = data.load(source, check=False, fewest_classes=1)
        labelled = len(pictures)
    except ValueError:
        if not folder.is_dir() or data.datasets.recognise(folder) is not None:
            raise
    if folder.is_dir() and data.datasets.recognise(folder) is None:
        listing = list_pictures(folder)
        names = listing.pictures
        if not names:
            raise ValueError(f"{folder} has no pictures")
        if labelled < len(names):
            labels = [name.rpartition("/")[0].partition("/")[0] for name in names]
            table = table_of_files(f"folder {folder.name}", folder, names, labels)
            pictures = replace(table, problems=tuple(listing.unreadable), notes=listing.notes())
    return verified(pictures, strict=strict, progress=True)


def _write(outputs: list[Path], vectors: np.ndarray[Any, Any], pictures: Pictures) -> None:
    classes = [as_text(name) for name in pictures.classes]
    columns = {
        "path": [as_text(name) for name in pictures.names],
        "label": [classes[label] for label in pictures.labels],
    }
    if pictures.splits is not None:
        columns["split"] = pictures.splits.tolist()
    if pictures.roles is not None:
        columns["role"] = pictures.roles.tolist()
    if outputs[0].suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        numbers = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        with replacing(outputs[0]) as unfinished:
            pq.write_table(pa.table({**columns, "vector": numbers}), unfinished)
        return
    with replacing(outputs[0]) as unfinished, unfinished.open("wb") as file:
        np.save(file, vectors)
    with replacing(outputs[1]) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text)
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(map(escape_formula, row))
