"""``improve``: train, measure, decide and install. ``roll_back``: install the version before."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from lookalike._util.files import require_writable
from lookalike._util.progress import Display
from lookalike._util.signals import StopRequest
from lookalike.improve.evidence import Evidence, NotEnoughMarks, Split, gather, require_enough, split
from lookalike.improve.inputs import open_inputs
from lookalike.improve.learning import STEPS, Learnt, kept_neighbours, learn
from lookalike.improve.report import Report, decide
from lookalike.index import open as open_index
from lookalike.index.base import Index
from lookalike.index.contents import content_of_stamp, file_of
from lookalike.index.items import Item, Vectors
from lookalike.index.job_status import IMPROVE, Watched, watched
from lookalike.index.storage import MODEL, About
from lookalike.index.versions import install, open_version, previous_version
from lookalike.inference.engine_name import EngineName
from lookalike.inference.model import TrainedModel, load
from lookalike.retrieval.calibration import FILE as CALIBRATION

__all__ = ["NotEnoughMarks", "improve", "roll_back"]


def improve(
    path: str | Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    cache: Path | None = None,
    device: str | None = None,
    engine: EngineName = "auto",
    store: str | None = None,
    stop: StopRequest | None = None,
) -> Report:
    """Train the head of an index's model further on its marks and labels, and install it if it is no worse.

    A quarter of the marks and of the classes is held out. The new model is refused if it is worse on either. Otherwise
    model, vectors and calibration of the index are replaced in one moment, and the version before is kept for
    ``roll_back``.

    Args:
        path: The folder of the index.
        steps: Number of training steps.
        seed: Seed of the batches and of what is held out.
        cache: Folder of cached features; None: the user's.
        device: Where missing features are computed; None takes a GPU if there is one.
        engine: As for ``lookalike.load``.
        store: As for ``lookalike.index.open``.
        stop: Is asked between steps whether to stop; then nothing has changed.

    Returns:
        What was learnt and decided.

    Raises:
        NotEnoughMarks: If there are too few marks.
        ValueError: If the model cannot be improved, or pictures are missing.
        IndexInUse: If the index is being improved or written by another process.
    """
    path = Path(path)
    require_writable(path)
    About.read(path)
    began = time.monotonic()
    with ExitStack() as stack:
        status = stack.enter_context(watched(path, IMPROVE))
        progress = _Progress(status, stop or StopRequest(), stack)
        idx = stack.enter_context(open_index(path, store))
        progress.stage("reading marks and labels")
        evidence = gather(idx)
        require_enough(evidence)
        parts = split(evidence, seed)
        progress.stage("loading the model")
        model = idx.trained_model(device, engine)
        inputs = open_inputs(idx, model, evidence, cache, progress.bar)
        tick = progress.bar(steps, "training", " steps")
        learnt = learn(
            inputs, evidence, parts, distance=idx.distance, steps=steps, seed=seed, on_step=lambda _: tick(1)
        )
        installed, reason = decide(learnt.before, learnt.after)
        progress.stage("computing the vectors")
        vectors = inputs.vectors_of(evidence.items, evidence.stamps)
        stayed = kept_neighbours(
            inputs.start[: len(vectors)],
            vectors,
            np.unique(evidence.pairs[evidence.pairs < len(vectors)]),
            idx.distance,
        )
        report = _report(installed, reason, evidence, parts, learnt, stayed)
        if installed:
            known = _known_vectors(evidence, vectors, inputs.vectors_of)
            report.seconds = round(time.monotonic() - began, 1)
            about = install(
                idx, inputs.model(), known, report=report.to_dict(), engine=engine, store=store, stage=progress.stage
            )
            report.version = about.home
            report.calibrated = (path / about.home / CALIBRATION).is_file()
            if not report.calibrated:
                report.notes.append("results have no probabilities: too few labels in the index to fit them")
        report.seconds = round(time.monotonic() - began, 1)
        status.finish("installed" if installed else "kept", report.reason, report.to_dict())
    return report


def roll_back(
    path: str | Path,
    *,
    device: str | None = None,
    engine: EngineName = "auto",
    store: str | None = None,
    stop: StopRequest | None = None,
) -> About:
    """Return to the model before the last improvement; a second time returns to the improved one.

    Labels, marks and pictures stay as they are now. Pictures that were added since are embedded.

    Args:
        path: The folder of the index.
        device: As for ``improve``, like the others.
        engine: Likewise.
        store: Likewise.
        stop: Likewise.

    Returns:
        The new content of ``index.json``.

    Raises:
        ValueError: If there is no earlier version, or a new picture cannot be read.
        IndexInUse: If the index is being improved or written by another process.
    """
    path = Path(path)
    require_writable(path)
    About.read(path)
    with ExitStack() as stack:
        status = stack.enter_context(watched(path, IMPROVE))
        progress = _Progress(status, stop or StopRequest(), stack)
        idx = stack.enter_context(open_index(path, store))
        earlier = previous_version(idx)
        progress.stage("loading the model")
        model = load(path / earlier.home / MODEL, device, engine)
        old = stack.enter_context(open_version(path, earlier, store))
        report = {"returned_to": earlier.home, "from": idx.about.home}
        about = install(
            idx,
            model,
            _earlier_vectors(idx, old, model),
            report=report,
            engine=engine,
            store=store,
            stage=progress.stage,
        )
        status.finish("rolled back", "returned to the model before")
    return about


class _Progress:
    """Progress for the terminal and for those who watch; every step may stop the work."""

    def __init__(self, status: Watched, stop: StopRequest, stack: ExitStack) -> None:
        self._status, self._stop, self._stack = status, stop, stack

    def stage(self, name: str) -> None:
        self._stop.check()
        self._status.stage(name)

    def bar(self, total: int, name: str, unit: str = " pictures") -> Callable[[int], None]:
        self._stop.check()
        self._status.stage(name, total)
        tick = self._stack.enter_context(Display(self._stop).bar(total, name, unit))

        def advance(count: int) -> None:
            self._status.advance(count)
            tick(count)

        return advance


def _report(installed: bool, reason: str, evidence: Evidence, parts: Split, learnt: Learnt, stayed: float) -> Report:
    notes = []
    if evidence.contradictions:
        notes.append(f"left out {evidence.contradictions:,} marks that contradict each other")
    if evidence.expired:
        notes.append(f"left out {evidence.expired:,} marks on pictures that are gone")
    if not parts.independent:
        notes.append("the held-out marks follow from the others: mark more pictures for figures to trust")
    if not installed:
        notes.append("smaller steps towards the new model are worse, too")
    elif learnt.share < 1:
        notes.append(f"kept {100 * learnt.share:.0f} % of the change: more of it was worse on what was held out")
    return Report(
        installed=installed,
        reason=reason,
        marks=len(evidence.same),
        held_out_marks=len(parts.held_out),
        labels=int((evidence.labels >= 0).sum()),
        held_out_classes=parts.held_out_classes,
        before=learnt.before,
        after=learnt.after,
        share=learnt.share,
        kept_neighbours=stayed,
        steps=learnt.steps,
        seconds=0.0,
        notes=notes,
    )


def _known_vectors(evidence: Evidence, vectors: Vectors, compute: Any) -> Any:
    """Vectors of unchanged items from ``vectors``; ``compute`` takes the others."""
    row_of = {}
    for row, (item, stamp) in enumerate(zip(evidence.items, evidence.stamps, strict=True)):
        row_of[item.id, content_of_stamp(stamp)] = row

    def known(items: Sequence[Item], stamps: Sequence[str]) -> Vectors:
        rows = [row_of.get((item.id, content_of_stamp(stamp)), -1) for item, stamp in zip(items, stamps, strict=True)]
        result = vectors[rows]
        new = [number for number, row in enumerate(rows) if row < 0]
        if new:
            result[new] = compute([items[number] for number in new], [stamps[number] for number in new])
        return result

    return known


def _earlier_vectors(idx: Index, old: Index, model: TrainedModel) -> Any:
    """Vectors of the earlier version for unchanged pictures; ``model`` embeds the others."""
    stamps_then = old.stamps([item.id for item in old.items()])

    def earlier(items: Sequence[Item], stamps: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(items), model.dim), np.float32)
        unchanged: list[int] = []
        new: list[int] = []
        for number, (item, stamp) in enumerate(zip(items, stamps, strict=True)):
            is_unchanged = item.id in stamps_then and content_of_stamp(stamps_then[item.id]) == content_of_stamp(stamp)
            (unchanged if is_unchanged else new).append(number)
        if unchanged:
            vectors[unchanged] = old.vectors([items[number].id for number in unchanged])
        if new:
            files = [file_of(idx, items[number]) for number in new]
            gone = [file for file in files if not file.is_file()]
            if gone:
                raise ValueError(
                    f"{gone[0]} was added since and is gone: lookalike index {idx.path} --prune removes it"
                )
            vectors[new] = model.embed(files)
        return vectors

    return earlier
