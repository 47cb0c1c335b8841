"""``lookalike embed RUN DATA --out FILE``: write the vectors of pictures to a file."""

import csv
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lookalike import data
from lookalike._util.files import replacing
from lookalike._util.outside_text import escape_formula
from lookalike._util.progress import Display
from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.executor import ShardOptions, require_listable, require_no_cache
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.loading import CACHE_HELP, VIEW_HELP, WEIGHTS_HELP, embed_pictures, load_model
from lookalike.cli.output import print_result, require_new_file, saying_how_to_continue, unreadable_lines
from lookalike.cli.precision import PRECISION_HELP, Precision, quantise_on_table
from lookalike.data.files import counted, table_of_files, verified
from lookalike.data.folder import list_pictures
from lookalike.data.names import as_text
from lookalike.data.pictures import Pictures
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

DESCRIPTION = """Write the vectors of pictures to a file. DATA is any folder of pictures, or anything that lookalike
train accepts. x.npy contains the vectors, and x.csv next to it the path and label of each row. x.parquet contains
everything in one file. In paths and labels, bytes that are not UTF-8 are written like \\xE9 and a backslash is doubled;
lookalike.data.names.from_text reverses this. With --executor, or if DATA is a URL such as s3://bucket/birds, the work
is divided into shards and --out is a folder of Parquet files. The same command continues after a kill."""
EXAMPLE = "lookalike embed runs/mine new_pictures/ --out vectors.parquet"


@dataclass
class EmbedSettings(ShardOptions):
    """Options of ``lookalike embed``."""

    run: Path = setting(REQUIRED, "folder of a run, or the name of a backbone to use its averaged features")
    data: str = setting(REQUIRED, "any folder of pictures, a URL, a CSV, a data set as name:folder, or glyphs")
    out: Path = setting(REQUIRED, "file to write, .npy or .parquet; with --executor a folder")
    overwrite: bool = setting(False, "replace --out if it exists, instead of continuing it")
    strict: bool = setting(False, "fail if a picture cannot be read, instead of leaving it out")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores", least=0)
    cache: str | None = setting(None, CACHE_HELP)
    view: Literal["whole", "crop"] | None = setting(None, f"{VIEW_HELP}; null: as the run says, else crop")
    weights: str = setting("auto", WEIGHTS_HELP)
    size: int | None = setting(None, "side of the input in pixels, for a backbone given by name", least=1)
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    precision: Precision = setting("fp32", PRECISION_HELP)


def run(argv: list[str]) -> int:
    """Run ``lookalike embed`` with the words after its name, and return the exit code."""
    settings, flags = parse(EmbedSettings, argv, "embed", DESCRIPTION, EXAMPLE, positional=["run", "data"], flags=JSON)
    if settings.in_shards(settings.data):
        if settings.precision == "int8":
            raise UsageError("--precision int8 cannot be combined with shards (--executor, or pictures of a URL)")
        return _embed_in_shards(settings, as_json=bool(flags))
    outputs = _check_outputs(settings.out, settings.overwrite)
    model = load_model(settings.run, settings.weights, settings.size, settings.device, settings.engine, settings.view)
    pictures = _load_pictures(settings.data, settings.strict)
    if settings.precision == "int8":
        model = quantise_on_table(model, pictures)
    vectors = embed_pictures(model, pictures, settings.workers, settings.run, settings.cache)
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


def _embed_in_shards(settings: EmbedSettings, *, as_json: bool) -> int:
    """``lookalike embed RUN DATA --out FOLDER --executor local|ray``."""
    if settings.out.suffix in (".npy", ".parquet"):
        raise UsageError(f"--executor writes a folder of Parquet files: --out must be a folder, got {settings.out}")
    require_listable(settings.data)
    require_no_cache(settings.cache)
    if settings.workers is not None:
        raise UsageError("--workers reads pictures for a single process; with --executor give --processes")
    executor = settings.create_shard_executor()
    device = settings.shard_device(settings.device)
    model = load_model(settings.run, settings.weights, settings.size, device, settings.engine, settings.view)
    with exit_on_interrupt():
        from lookalike import sharded
    started = time.monotonic()
    with saying_how_to_continue("shard"), StopRequest().listening() as stop, ExitStack() as stack:
        embedded = sharded.embed_collection(
            settings.data,
            model,
            settings.out,
            executor,
            shard_size=settings.shard_size,
            strict=settings.strict,
            overwrite=settings.overwrite,
            device=device,
            total=lambda count: stack.enter_context(Display(stop).bar(count, "embedding")),
        )
    report: dict[str, Any] = {
        "out": [str(settings.out)],
        **embedded._asdict(),
        "seconds": round(time.monotonic() - started, 2),
        "unreadable": [list(problem) for problem in embedded.unreadable],
    }
    if as_json:
        print(json.dumps(report))
        return 0
    print_result(
        f"{settings.out} has vectors of {counted(embedded.pictures, 'picture')} of size {embedded.dim} in "
        f"{counted(embedded.parts, 'part')}: {embedded.computed:,} computed, {embedded.done_before:,} done before"
    )
    for line in (*unreadable_lines(report["unreadable"]), *embedded.notes):
        print_result(line)
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
