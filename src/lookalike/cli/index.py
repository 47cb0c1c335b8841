"""``lookalike index [RUN] FOLDER --out INDEX``: make a folder of pictures searchable."""

import csv
import json
import os
import re
import shlex
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lookalike._util.files import require_writable
from lookalike._util.outside_text import unescape_formula
from lookalike._util.progress import Display
from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.executor import ShardOptions, require_listable, require_no_cache
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.loading import (
    CACHE_HELP,
    VIEW_HELP,
    WEIGHTS_HELP,
    load_model,
    name_weights_option,
    require_backbone_options,
    use_cache,
    view_of_run,
)
from lookalike.cli.output import print_result, saying_how_to_continue, unreadable_lines
from lookalike.cli.precision import PRECISION_HELP, Precision, quantise_on_files
from lookalike.data.files import counted
from lookalike.data.folder import list_pictures
from lookalike.data.names import from_text
from lookalike.data.object_storage import is_url
from lookalike.data.reading import SUFFIXES
from lookalike.inference.engine_name import ENGINE_HELP, EngineName, require_int8

if TYPE_CHECKING:
    from lookalike.executors import Executor
    from lookalike.index import Changes
    from lookalike.sharded.into_index import Indexed

DESCRIPTION = """Make a folder of pictures searchable, or update its index: add new pictures, embed changed ones again,
remove deleted ones. Without RUN no labels and no training are needed: a pretrained backbone gets a whitening head that
is fitted on the pictures; an existing index keeps its own model. Every batch is saved when it is done; after an
interruption the same command continues. The name of a class folder becomes the label of its pictures. More folders can
be added to the same index, with the same model. With --executor, or if FOLDER is a URL such as s3://bucket/birds, the
work is divided into shards."""
EXAMPLE = "lookalike index my_pictures/ --out mine.idx"
DEFAULT_BACKBONE = "efficientnet_lite0"
LONG, LONG_SHARE = 2.0, 0.1  # sides of pictures, and the share of those from which whole pictures find more
SAMPLED = 300  # pictures whose sides are looked at
MOST_CALIBRATED = 100_000  # pictures up to which labels are read in a moment
WHOLE = re.compile(r"[-+]?[0-9]+")
DECIMAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")


@dataclass
class IndexSettings(ShardOptions):
    """Options of ``lookalike index``."""

    run: Path | None = setting(None, "folder of a run, or the name of a backbone; left out: no training is needed")
    folder: Path | None = setting(None, "folder of pictures, at any depth, or a URL")
    out: Path | None = setting(None, "folder of the index (required); an existing index is updated")
    store: str | None = setting(
        None, "where the vectors are: faiss (default), a file x.db for embedded Milvus, or http://host:19530"
    )
    collection: str | None = setting(None, "name of the Milvus collection; null: chosen automatically")
    kind: Literal["auto", "flat", "flat-fp16", "ivf", "hnsw", "ivf-pq", "diskann"] | None = setting(
        None,
        "flat and flat-fp16 are exact; the others are faster and miss some; null or auto: by the number of pictures",
    )
    store_settings: dict[str, Any] = setting(
        {},
        "how Milvus builds its index, for example '{M: 16, efConstruction: 200}' for hnsw, '{nlist: 4096}' for ivf",
    )
    parquet: Path | None = setting(
        None, "with --executor: also write the vectors to a folder of Parquet files, like lookalike embed --executor"
    )
    metadata: Path | None = setting(
        None, "CSV with a column path, relative to FOLDER, and columns to filter by; may have a column label"
    )
    follow_symlinks: bool = setting(True, "follow symbolic links in FOLDER; --no-follow-symlinks leaves them out")
    prune: bool = setting(False, "with the name of an index alone: remove pictures whose files are gone")
    with_model: Path | None = setting(
        None, "likewise, short --with RUN: make the collection searchable by a second model, a run or a backbone's name"
    )
    name: str | None = setting(None, "name of the second model; null: the last part of its run")
    remove: str | None = setting(None, "likewise: remove pictures by path or file name, for example '*/private/*'")
    calibrate: bool = setting(
        True, "fit the percentages of searches to the labels, if at least 90 % of up to 100,000 pictures have one"
    )
    strict: bool = setting(False, "fail if a picture cannot be read, instead of leaving it out")
    batch: int = setting(64, "pictures that are saved together", least=1)
    whiten: bool | None = setting(
        None, "fit a whitening head on the pictures, for a backbone given by name; default: yes without RUN"
    )
    cache: str | None = setting(None, CACHE_HELP)
    view: Literal["whole", "crop"] | None = setting(
        None, f"{VIEW_HELP}; null: as the run says, else whole if a tenth of the pictures are longer than 2:1"
    )
    weights: str = setting("auto", WEIGHTS_HELP)
    size: int | None = setting(None, "side of the input in pixels, for a backbone given by name", least=1)
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    precision: Precision | None = setting(None, f"{PRECISION_HELP}; null: as the index, else fp32")


def run(argv: list[str]) -> int:
    """Run ``lookalike index`` with the words after its name, and return the exit code."""
    argv = [
        "--with-model" + word.removeprefix("--with") if word.partition("=")[0] == "--with" else word for word in argv
    ]
    settings, flags = parse(
        IndexSettings, argv, "index", DESCRIPTION, EXAMPLE, positional=["run", "folder"], flags=JSON
    )
    if settings.folder is None:  # one argument is the folder
        settings.run, settings.folder = None, settings.run
    if settings.out is None and settings.folder is not None and (settings.folder / "index.json").exists():
        return _maintain(settings, settings.folder, as_json=bool(flags))
    if settings.prune or settings.remove or settings.with_model:
        raise UsageError("--prune, --remove and --with need an index and nothing else: lookalike index IDX --prune")
    if settings.folder is None or (settings.folder / "model.safetensors").exists():
        raise UsageError("missing FOLDER (folder of pictures, at any depth)")
    if settings.out is None:
        raise UsageError("missing --out INDEX (folder of the index)")
    source = as_source(settings.folder)
    folder = Path(source)
    out = settings.out
    in_shards = settings.in_shards(source)
    executor = None
    if in_shards:
        require_listable(source)
        require_no_cache(settings.cache)
        if settings.precision == "int8":
            raise UsageError("--precision int8 cannot be combined with shards (--executor, or pictures of a URL)")
        executor = settings.create_shard_executor()
    elif settings.parquet is not None:
        raise UsageError("--parquet needs --executor; without it, lookalike embed writes x.parquet")
    if not is_url(source):
        _check_folder(folder)
    _check_index(out)
    if settings.precision == "int8":
        require_int8(settings.engine, settings.device or "cpu")
    metadata = None
    if settings.metadata is not None:
        metadata = read_metadata(settings.metadata)
    with exit_on_interrupt():
        from lookalike.index.second_models import model_name

    unit = "shard" if in_shards else "batch"
    with saying_how_to_continue(unit), StopRequest().listening() as stop, ExitStack() as stack:
        model = _load_model(settings, out, source, stop)
        if settings.precision == "int8" and not (out / "index.json").exists():
            names = list_pictures(folder, follow_symlinks=settings.follow_symlinks).pictures
            model = quantise_on_files(model, folder, names)
        idx = stack.enter_context(_open_index(settings, out, model))
        if in_shards and idx.about.precision == "int8":
            raise UsageError(f"{out} holds vectors of int8, which cannot be added to in shards")
        idx.use_precision(model)
        of_shards: dict[str, Any] = {}
        if executor is not None:
            changes, of_shards["computed"], rows = _index_in_shards(
                settings, idx, model, source, executor, metadata, stop
            )
            if settings.parquet is not None:
                of_shards["parquet"] = {"out": str(settings.parquet), "rows": rows}
        else:
            changes = _sync(settings, idx, model, folder, metadata, stop)
        without_vector = _fill_second_models(settings, idx, stop)
        if settings.calibrate:
            _calibrate(idx)
        report: dict[str, Any] = {
            "index": str(out),
            "view": "whole" if model.spec.sees_whole else "crop",
            "added": changes.added,
            "updated": changes.updated,
            "moved": changes.moved,
            "removed": changes.removed,
            "unchanged": changes.unchanged,
            "unreadable": [list(problem) for problem in changes.unreadable],
            "models": [model_name(idx.about.run), *idx.second_models()],
            "without_vector": without_vector,
            **of_shards,
            **idx.info(),
            "calibration": _source_of_calibration(idx),
            "labels": len([label for label in idx.labels() if label]),
        }
    if flags:
        print(json.dumps(report))
    else:
        print_result(_summarise(report, changes.notes))
    return 0


def _sync(
    settings: IndexSettings,
    idx: Any,
    model: Any,
    folder: Path,
    metadata: dict[str, dict[str, Any]] | None,
    stop: StopRequest,
) -> "Changes":
    """Update the index in this process."""
    from lookalike import index

    with ExitStack() as stack:
        ticks: list[Any] = []

        def total(count: int) -> None:
            ticks.append(stack.enter_context(Display(stop).bar(count, "indexing")))

        return index.sync(
            idx,
            model,
            folder,
            total=total,
            progress=lambda count: ticks[0](count),
            before_embedding=lambda count: use_cache(model, settings.run, settings.cache, count, Display(stop)),
            strict=settings.strict,
            batch=settings.batch,
            metadata=metadata,
            follow_symlinks=settings.follow_symlinks,
        )


def _index_in_shards(
    settings: IndexSettings,
    idx: Any,
    model: Any,
    source: str,
    executor: "Executor",
    metadata: dict[str, dict[str, Any]] | None,
    stop: StopRequest,
) -> "Indexed":
    """Update the index with ``--executor``."""
    from lookalike import sharded

    with ExitStack() as stack:
        return sharded.index_collection(
            idx,
            model,
            source,
            executor,
            shard_size=settings.shard_size,
            strict=settings.strict,
            metadata=metadata,
            follow_symlinks=settings.follow_symlinks,
            device=settings.shard_device(settings.device),
            parquet=settings.parquet,
            total=lambda count: stack.enter_context(Display(stop).bar(count, "indexing")),
        )


def _maintain(settings: IndexSettings, path: Path, *, as_json: bool) -> int:
    """``lookalike index IDX --prune`` and ``--remove PATTERN``."""
    if settings.with_model is not None:
        if settings.prune or settings.remove is not None:
            raise UsageError("--with goes without --prune and --remove")
        return _add_model(settings, path, settings.with_model, as_json=as_json)
    if not settings.prune and settings.remove is None:
        raise UsageError(
            f"missing --prune, --remove PATTERN or --with RUN for the index {path}, or a FOLDER and --out {path}"
        )
    with exit_on_interrupt():
        from lookalike import index

    removed: list[str] = []
    missing_folders: list[str] = []
    with index.open(path, settings.store) as idx:
        if settings.remove is not None:
            removed += index.remove(idx, settings.remove)
        if settings.prune:
            pruned = index.prune(idx)
            removed += pruned.paths
            missing_folders = pruned.missing_folders
        count = idx.count()
        report = {"index": str(path), "removed": removed, "missing_folders": missing_folders, "count": count}
    if as_json:
        print(json.dumps(report))
        return 0
    lines = [f"removed {counted(len(removed), 'picture')}; {path} has {counted(count, 'picture')}"]
    for folder in missing_folders:
        lines.append(
            f"{folder} is missing, its pictures stay: is a disk not mounted? --remove '{folder}/*' removes them"
        )
    print_result("\n".join(lines))
    return 0


def _add_model(settings: IndexSettings, path: Path, run: Path, *, as_json: bool) -> int:
    """``lookalike index IDX --with RUN``."""
    with exit_on_interrupt():
        from lookalike import index
    with (
        saying_how_to_continue("batch"),
        StopRequest().listening() as stop,
        index.open(path, settings.store) as idx,
    ):
        view = settings.view or _view_of_second_model(idx, settings.name, run) or view_of_run(run)
        model = load_model(run, settings.weights, settings.size, settings.device, settings.engine, view)
        second = index.add_model(idx, model, settings.name, settings.engine)
        missing = len(second.missing())
        problems = _fill(settings, second, model, stop, run)
        report: dict[str, Any] = {
            "index": str(path),
            "model": second.path.name,
            "run": second.about.run,
            "added": missing - len(problems),
            "without_vector": [list(problem) for problem in problems],
            "count": second.count(),
        }
        second.close()
    if as_json:
        print(json.dumps(report))
        return 0
    name = report["model"]
    lines = [f"{counted(missing - len(problems), 'vector')} of {name}: it finds {counted(report['count'], 'picture')}"]
    lines += unreadable_lines(problems)
    quoted = shlex.quote(str(path))
    lines.append(
        f"next: lookalike search {quoted} picture.jpg --model {name}, or in a browser: lookalike serve {quoted}"
    )
    print_result("\n".join(lines))
    return 0


def _fill_second_models(settings: IndexSettings, idx: Any, stop: StopRequest) -> list[list[str]]:
    """Compute what second models of an index lack after an update; returns pictures without a vector, and why."""
    problems = []
    for name in idx.second_models():
        with idx.open_model(name) as second:
            if second.missing():
                model = second.trained_model(settings.device, settings.engine)
                problems += _fill(settings, second, model, stop, None)
    return [list(problem) for problem in problems]


def _fill(settings: IndexSettings, second: Any, model: Any, stop: StopRequest, run: Path | None) -> list[Any]:
    from lookalike import index

    with ExitStack() as stack:
        ticks: list[Any] = []

        def total(count: int) -> None:
            use_cache(model, run, settings.cache, count, Display(stop))
            ticks.append(stack.enter_context(Display(stop).bar(count, f"vectors of {second.path.name}")))

        return index.fill(second, model, total=total, progress=lambda count: ticks[0](count), batch=settings.batch)


def as_source(folder: Path) -> str:
    """Return the folder or the URL that was typed; a ``Path`` has lost slashes of a URL.

    Examples:
        >>> [as_source(Path(text)) for text in ("s3://bucket/birds", "file:///birds", "birds")]
        ['s3://bucket/birds', 'file:///birds', 'birds']
    """
    match = re.match(r"([a-z][a-z0-9+.-]+):/+", str(folder))
    if match is None:
        return str(folder.expanduser())
    slashes = ":///" if match[1] in ("file", "local") else "://"
    return f"{match[1]}{slashes}{str(folder)[match.end() :]}"


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of pictures")
    if not _has_pictures(folder):
        raise UsageError(f"{folder} has no pictures; nothing was changed. Is a disk not mounted?")


def _check_index(out: Path) -> None:
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


def _load_model(settings: IndexSettings, out: Path, source: str, stop: StopRequest) -> Any:
    """Load the run, the backbone or the model of the existing index, or fit a whitening head on the pictures."""
    from lookalike import index, models

    if settings.run is None and (out / "index.json").exists():
        require_backbone_options(out, settings.weights, settings.size)
        with index.open(out, settings.store) as idx:
            return idx.trained_model(settings.device, settings.engine)  # the feature cache needs the network
    view = settings.view
    if view is None and (out / "index.json").exists():
        view = _view_of_index(out)
    elif view is None and settings.run is not None:
        view = view_of_run(settings.run)
    if view is None and not (out / "index.json").exists():
        view = _choose_view(source, settings.follow_symlinks)
    is_backbone = settings.run is None or (not settings.run.exists() and models.is_backbone(str(settings.run)))
    whiten = settings.whiten
    if whiten is None:
        whiten = settings.run is None
    if whiten and not is_backbone:
        raise UsageError(f"--whiten is for a backbone given by name; {settings.run} has its own head")
    if whiten:
        return _fit_whitening(settings, source, view or "crop", stop)
    run = settings.run or Path(DEFAULT_BACKBONE)
    return load_model(run, settings.weights, settings.size, settings.device, settings.engine, view)


def _view_of_second_model(idx: Any, name: str | None, run: Path) -> Literal["whole", "crop"] | None:
    """What a second model sees that the index has already; None if it has none of this name."""
    from lookalike.index.second_models import model_name
    from lookalike.index.storage import MODEL, SECOND

    name = name or model_name(str(run))
    if name not in idx.second_models():
        return None
    return _view_of_model(idx.home / SECOND / name / MODEL)


def _view_of_index(out: Path) -> Literal["whole", "crop"] | None:
    """What the model of an existing index sees; those of earlier versions see the centre crop."""
    from lookalike.index.storage import MODEL, About

    try:
        return _view_of_model(out / About.read(out).home / MODEL)
    except (OSError, ValueError):
        return None  # the index says what is wrong when it is opened


def _view_of_model(folder: Path) -> Literal["whole", "crop"] | None:
    from lookalike._util.untrusted import read_json

    try:
        spec = read_json(folder / "model.json")["input"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the index says what is wrong when it is opened
    return "whole" if spec.get("cells") else "crop"


def _choose_view(source: str, follow_symlinks: bool) -> Literal["whole", "crop"]:
    """Choose what an index sees: whole pictures if enough of them are so long that a crop would hide most of them."""
    from lookalike.data.reading import open_header

    if is_url(source):
        return "crop"  # looking at the pictures would be a pass over all of them
    names = list_pictures(source, follow_symlinks=follow_symlinks).pictures
    sample = names[:: max(1, len(names) // SAMPLED)]
    long = 0
    for name in sample:
        with suppress(OSError, ValueError), (Path(source) / name).open("rb") as file:
            width, height = open_header(file, name).size
            long += max(width, height) > LONG * min(width, height)
    return "whole" if long >= LONG_SHARE * max(1, len(sample)) else "crop"


def _fit_whitening(settings: IndexSettings, source: str, view: Literal["whole", "crop"], stop: StopRequest) -> Any:
    from lookalike.data.collection import list_with_sizes
    from lookalike.data.object_storage import StoredPicture
    from lookalike.inference.label_free import whitened

    pictures: list[Any]
    if is_url(source):
        pictures = [StoredPicture(source, name) for name in list_with_sizes(source).pictures.names]
    else:
        names = list_pictures(source, follow_symlinks=settings.follow_symlinks).pictures
        pictures = [Path(source) / name for name in names]
    with ExitStack() as stack:
        ticks: list[Any] = []
        try:
            return whitened(
                pictures,
                str(settings.run or DEFAULT_BACKBONE),
                weights=settings.weights,
                size=settings.size,
                device=settings.device,
                engine=settings.engine,
                view=view,
                total=lambda count: ticks.append(stack.enter_context(Display(stop).bar(count, "fitting the head"))),
                progress=lambda count: ticks[0](count),
            )
        except ValueError as error:
            raise UsageError(name_weights_option(str(error))) from None


def _open_index(settings: IndexSettings, out: Path, model: Any) -> Any:
    """Open the index if it exists and matches the options, else create it."""
    from lookalike import index

    if not (out / "index.json").exists():
        store = settings.store or "faiss"
        source: Any = model
        is_as_stored = settings.precision is None and not model.spec.sees_whole and settings.view is None
        if settings.run is not None and settings.run.exists() and is_as_stored:
            source = settings.run
        return index.create(
            out, source, store, settings.collection, settings.kind or "auto", settings.engine, settings.store_settings
        )
    idx = index.open(out, settings.store)
    try:
        idx.check_model(model)
        if settings.store is not None and not idx.is_stored_in(settings.store):
            store = idx.about.store or "faiss"
            raise UsageError(f"{out} uses {store} and cannot move to {settings.store}")
        if settings.collection is not None and settings.collection != idx.about.collection:
            raise UsageError(f"{out} uses the collection {idx.about.collection}, not {settings.collection}")
        if settings.store_settings and settings.store_settings != idx.about.store_settings:
            raise UsageError(f"{out} was built with other store settings, {idx.about.store_settings}: make a new index")
        if settings.precision is not None and settings.precision != idx.about.precision:
            raise UsageError(f"{out} holds vectors of {idx.about.precision}: make a new index for {settings.precision}")
        if settings.kind is not None:
            idx.set_kind(settings.kind)
        idx.convert_model(settings.engine)
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


def _calibrate(idx: Any) -> None:
    """Fit the percentages to the labels of an index, if nearly all pictures have one and these are enough."""
    from lookalike.index.calibrating import calibrate, class_size

    if idx.count() > MOST_CALIBRATED or class_size(idx) is None:
        return
    with suppress(ValueError):  # too few pictures, or no two with one label: those of the model stay
        calibrate(idx)


def _source_of_calibration(idx: Any) -> str | None:
    """What the percentages of a search are fitted to: "index", "model", or None if there are none."""
    from lookalike.index.storage import MODEL
    from lookalike.retrieval.calibration import FILE

    if (idx.home / FILE).is_file():
        return "index"
    return "model" if (idx.home / MODEL / FILE).is_file() else None


def _summarise(report: dict[str, Any], notes: tuple[str, ...]) -> str:
    lines = [
        f"added {report['added']:,}, updated {report['updated']:,}, removed {report['removed']:,}, "
        f"unchanged {report['unchanged']:,}"
    ]
    if report["moved"]:
        lines.append(f"moved or renamed: {report['moved']:,}, not embedded again")
    lines += unreadable_lines(report["unreadable"])
    lines += notes
    contents = f"{counted(report['count'], 'picture')} without labels"
    if report["labels"]:
        contents = f"{counted(report['count'], 'picture')} with {counted(report['labels'], 'label')}"
    if report["backend"] != "faiss":
        contents += f", in Milvus at {report['store']}"
    lines.append(f"{report['index']} has {contents}")
    if report["view"] == "crop" and report["added"] == report["count"]:
        lines.append("only the centre of every picture is seen; --view whole in a new index also sees the sides")
    elif report["view"] == "whole" and report["added"] == report["count"]:
        lines.append("whole pictures are seen; if subjects are in the middle, --view crop in a new index finds more")
    if report["recall@10"] is None:
        lines.append(f"search by {report['kind']} is exact ({report['why']})")
    else:
        recall = f"{100 * report['recall@10']:.1f} % of the ten nearest"
        lines.append(f"search by {report['kind']} finds {recall}, measured on pictures of the index ({report['why']})")
    if "parquet" in report:
        lines.append(f"{report['parquet']['out']} has their vectors in Parquet files")
    name = shlex.quote(report["index"])
    if report["calibration"] == "model" and report["labels"] > 1:
        lines.append(f"percentages come from other pictures; fit them to the labels here: lookalike calibrate {name}")
    elif report["calibration"] == "index":
        lines.append("percentages are fitted to the labels of these pictures")
    lines.append(f"next: lookalike search {name} picture.jpg, or in a browser: lookalike serve {name}")
    return "\n".join(lines)
