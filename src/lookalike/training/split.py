"""Divide the pictures of a run: which are trained on, which are held out to choose the best weights by."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lookalike import objectives
from lookalike._util.hashing import digest
from lookalike.data.datasets.registry import DATASETS
from lookalike.data.files import counted
from lookalike.data.pictures import BrokenData, Pictures, UnreadablePicture
from lookalike.data.splits import hold_out_classes, hold_out_pictures, lacking_role, measurable_classes
from lookalike.training.settings import Settings

FEWEST_HELD_OUT = 2  # classes with a pair of pictures; with a single class every neighbour is correct
LISTED_PROBLEMS = 5


def divide(pictures: Pictures, settings: Settings) -> tuple[Pictures, Pictures | None, list[str]]:
    """Divide pictures by their own split if they have one, else by class.

    Args:
        pictures: All pictures of the source.
        settings: Has the share to hold out, its order and the seed.

    Returns:
        Training pictures, held-out pictures or None, and notes to print.

    Raises:
        ValueError: If there is too little to train on.
        BrokenData: If the source's validation split cannot be measured.
    """
    notes = [*pictures.notes, *_unreadable(pictures), *_incomplete(pictures)]
    train = pictures
    if pictures.splits is not None:
        if "train" not in pictures.splits:
            raise ValueError(f"{pictures.name} has splits but nothing to train on: no picture is marked 'train'")
        train = pictures.split("train")
    if len(train.classes) < 2:
        message = f"training needs pictures of at least two classes, {pictures.name} has {len(train.classes)}"
        if pictures.problems:
            message += f"; {len(pictures.problems):,} pictures could not be read"
        raise ValueError(message)
    train, held_out, how = _hold_out(pictures, train, settings)
    sizes = f"training on {len(train):,} pictures of {len(train.classes):,} classes"
    if held_out is not None:
        sizes += f", holding out {len(held_out):,} of {len(held_out.classes):,}"
    notes.append(f"{sizes}; {how}")
    singles = int((train.counts() == 1).sum())
    if singles == len(train.classes):
        notes.append(_note_without_pairs(train, settings.loss))
    elif singles:
        notes.append(f"training classes with a single picture, which form no pair: {singles}")
    return train, held_out, notes


def fingerprint(pictures: Pictures) -> str:
    """Return a key that changes with contents, names, labels or their order; a resumed run must find the same."""
    with ThreadPoolExecutor() as threads:
        contents = list(threads.map(lambda i: _content_key(pictures, i), range(len(pictures))))
    return digest(fingerprint_without_content(pictures), *contents)


def _content_key(pictures: Pictures, i: int) -> str:
    try:
        return pictures.key(i)
    except UnreadablePicture:  # reported where the picture is needed
        return ""


def fingerprint_without_content(pictures: Pictures) -> str:
    """Return the fingerprint of earlier versions, which covered names, labels and their order."""
    return digest("\n".join(pictures.names), "\n".join(pictures.classes), pictures.labels.tobytes())


def describe(pictures: Pictures, train: Pictures, validation: Pictures | None) -> dict[str, Any]:
    """Return the content of ``data.json``, which tells later which classes were seen."""
    held_out = None
    if validation is not None:
        held_out = {"pictures": len(validation), "classes": list(validation.classes)}
    return {
        "name": pictures.name,
        "training": {"pictures": len(train), "classes": list(train.classes)},
        "held_out": held_out,
        "left_out": [list(problem) for problem in pictures.problems],
    }


def _hold_out(pictures: Pictures, train: Pictures, settings: Settings) -> tuple[Pictures, Pictures | None, str]:
    consequence = "the last weights are kept, without any metric"
    if settings.validation == 0:
        return train, None, f"nothing is held out: {consequence}"
    if pictures.splits is not None and "validation" in pictures.splits:
        validation = pictures.split("validation")
        if measurable_classes(validation) == 0:
            fault = lacking_role(validation) or "no class has two pictures, so nothing can be measured"
            raise BrokenData(f"the validation split of {pictures.name}: {fault}")
        return train, validation, "measured on the data's own validation split"
    if round(settings.validation * len(train.classes)) >= FEWEST_HELD_OUT:
        rest, held_out = hold_out_classes(
            train, settings.validation, order=settings.validation_order, seed=settings.seed
        )
        if len(rest.classes) >= 2 and measurable_classes(held_out) >= FEWEST_HELD_OUT:
            return rest, held_out, "measured on classes that are not trained on"
    if _classes_with_pairs(train):
        for share in (settings.validation, 0.5):  # half: two of four pictures make a pair
            rest, held_out = hold_out_pictures(train, share, seed=settings.seed)
            if measurable_classes(held_out) >= FEWEST_HELD_OUT and _classes_with_pairs(rest) >= FEWEST_HELD_OUT:
                how = "too few classes to hold some out: measured on other pictures of the same classes"
                return rest, held_out, how
    return train, None, f"{lacking_role(train) or 'too few pictures to hold some out'}: {consequence}"


def _classes_with_pairs(pictures: Pictures) -> int:
    return int((pictures.counts() > 1).sum())


def _unreadable(pictures: Pictures) -> list[str]:
    problems = pictures.problems
    if not problems:
        return []
    lines = [f"left out, {counted(len(problems), 'picture')} that cannot be used:"]
    lines += [f"  {problem}" for problem in problems[:LISTED_PROBLEMS]]
    if len(problems) > LISTED_PROBLEMS:
        lines.append(f"  and {len(problems) - LISTED_PROBLEMS} more")
    return ["\n".join(lines)]


def _incomplete(pictures: Pictures) -> list[str]:
    """Warn about an incomplete data set, whose metrics cannot be compared with published ones."""
    dataset = DATASETS.get(pictures.name)
    if dataset is None or dataset.pictures == len(pictures):
        return []
    have, complete = f"{len(pictures):,}", f"{dataset.pictures:,}"
    return [f"only {have} of {complete} pictures of {pictures.name} are here: see lookalike datasets check"]


def _note_without_pairs(train: Pictures, loss: str) -> str:
    """Every class has a single picture: refuse a loss on pairs, else warn."""
    if not objectives.training_hints(loss).needs_classes:
        raise ValueError(
            f"every training class of {train.name} has a single picture and {loss} learns from pairs of a class: "
            "give more pictures, or choose a loss with proxies, as --loss proxy-anchor"
        )
    return f"every training class has a single picture: {loss} only learns to tell them apart"
