"""A second model for the same collection: ``index.add_model(idx, run)``, then ``idx.open_model(name)``.

Its tables come first (in Milvus its collection), then its folder, complete or not at all, then its vectors, batch by
batch. Whatever is interrupted, the same call continues.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lookalike._util.checks import check_count
from lookalike._util.suggestions import did_you_mean
from lookalike.data.object_storage import is_url
from lookalike.data.pictures import Problem, UnreadablePicture
from lookalike.index.base import Index, SecondIndex
from lookalike.index.folder import BATCH, ChangedPicture, is_unchanged
from lookalike.index.items import ID, Item
from lookalike.index.storage import SECOND, UPLOADS, About, fingerprint_of, make_folder
from lookalike.inference.engine_name import EngineName


def model_name(run: str) -> str:
    """Return the name of a model by default: the last part of its run.

    Examples:
        >>> model_name("/runs/birds/"), model_name("efficientnet_lite0, whitening head")
        ('birds', 'efficientnet_lite0-whitening-head')
    """
    last = run.replace("\\", "/").rstrip("/").rpartition("/")[2]
    words = "".join(letter if ID.fullmatch(letter) else " " for letter in last).split()
    return "-".join(words)[:64].strip(".") or "model"


def add_model(idx: Index, run: Any, name: str | None = None, engine: EngineName = "auto") -> SecondIndex:
    """Add a second model to an index. Its vectors are still missing, see ``fill``.

    Args:
        idx: The index.
        run: Folder of a run, or a loaded model.
        name: Name of the model; None: the last part of the run.
        engine: As for ``index.create``.

    Returns:
        The collection with this model.

    Raises:
        ValueError: If the index has this model already under another name, or the name is used.
    """
    from lookalike.inference.model import TrainedModel, load

    if isinstance(idx, SecondIndex):
        raise ValueError(f"{idx.path} is a second model: add models to the index {idx.owner.path}")
    model = run if isinstance(run, TrainedModel) else load(run, "cpu")
    name = name or model_name(model.source)
    if not ID.fullmatch(name) or name.startswith(".") or ":" in name:
        raise ValueError(f"the name of a model must be letters, digits or any of ._- , got {name!r}")
    fingerprint = fingerprint_of(model)
    if fingerprint == idx.fingerprint:
        raise ValueError(f"{model.source} is the model that {idx.path} was made with")
    folder = idx.home / SECOND / name
    for other in idx.second_models():
        is_same = About.read(idx.home / SECOND / other).fingerprint == fingerprint
        if is_same and other != name:
            raise ValueError(f"{idx.path} has this model already, as {other}")
        if other == name and not is_same:
            raise ValueError(f"{idx.path} has another model with the name {name}: choose another --name")
    if name == model_name(idx.about.run):
        raise ValueError(f"the first model of {idx.path} has the name {name}: choose another --name")
    about = About(
        distance=model.distance,
        dim=model.dim,
        fingerprint=fingerprint,
        run=model.source,
        backend=idx.about.backend,
        kind=idx.about.kind,
        store=idx.about.store,
        store_settings=idx.about.store_settings,
    )
    with idx.writing():
        idx.make_room(about)
        if name not in idx.second_models():
            make_folder(folder, run, lambda _: about)
    second = idx.open_model(name)
    second.convert_model(engine)
    return second


def fill(
    second: SecondIndex,
    model: Any,
    *,
    progress: Callable[[int], None] = lambda _: None,
    total: Callable[[int], None] = lambda _: None,
    batch: int = BATCH,
) -> list[Problem]:
    """Compute the vectors that are missing for a second model.

    Args:
        second: The collection with this model.
        model: The loaded model. Its ``cache`` is used for files.
        progress: Called after every batch with its number of pictures. It may raise to stop; another call continues.
        total: Called once with the number of pictures, if there are any.
        batch: Pictures per commit.

    Returns:
        The pictures that have no vector, and why: their files are gone, unreadable, or changed since they were indexed.
    """
    check_count("batch", batch)
    second.check_model(model)
    second.drop_orphans()
    missing = second.missing()
    problems: list[Problem] = []
    if not missing:
        return problems
    total(len(missing))
    with second.writing():
        for start in range(0, len(missing), batch):
            ids = missing[start : start + batch]
            items = [item for item in second.owner.get(ids) if item is not None]
            _embed(second, model, items, problems)
            progress(len(ids))
        second.save()
    return problems


def find_model(idx: Index, name: str | None) -> Index:
    """Return the index itself for None or the name of its first model, else the collection with a second model.

    Raises:
        ValueError: If there is no such model; the message names the closest one.
    """
    first = model_name(idx.about.run)
    if name is None or name == first:
        return idx
    names = [first, *idx.second_models()]
    if name not in names:
        raise ValueError(f"{idx.path} has no model {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}")
    return idx.open_model(name)


def _embed(second: SecondIndex, model: Any, items: list[Item], problems: list[Problem]) -> None:
    stamps = second.owner.stamps([item.id for item in items])
    files: dict[str, Path] = {}
    for item in items:
        if is_url(item.path):
            problems.append(Problem(item.path, "is in object storage: a second model reads files of this machine"))
            continue
        file = item.file if item.path else second.owner.path / UPLOADS / f"{item.id}.jpg"
        try:
            if not is_unchanged(file, stamps.get(item.id, "")):
                raise ChangedPicture(str(file), "changed since it was indexed")
            files[item.id] = file
        except UnreadablePicture as error:
            problems.append(Problem(str(file), error.reason))
        except OSError as error:
            problems.append(Problem(str(file), error.strerror or str(error)))
    while files:
        try:
            vectors = model.embed(list(files.values()))
        except UnreadablePicture as failure:
            unreadable = [item_id for item_id, file in files.items() if str(file) == failure.name]
            if not unreadable:
                raise
            problems.append(Problem(failure.name, failure.reason))
            for item_id in unreadable:
                del files[item_id]
            continue
        second.put(list(files), vectors)
        return
