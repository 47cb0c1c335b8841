"""What a run decides before it starts: which pictures train and which are held out, and what the settings left open.

Every decision comes with a sentence for the log.
"""

from dataclasses import replace

from lookalike import objectives
from lookalike._util.hashing import digest
from lookalike.data import datasets as benchmarks
from lookalike.data.files import counted
from lookalike.data.pictures import BrokenData, Pictures
from lookalike.data.splits import hold_out_classes, hold_out_pictures, lacking_role, measurable_classes
from lookalike.training.settings import Settings

PROTOTYPES, MEMORY = 64, 1024  # as many as gsp has, and waits for, if nothing is said
SOON = 4  # prototypes start from data, and the backbone begins to learn, in the first quarter of a run, however short
FEWEST_HELD_OUT = 2  # classes with a pair of pictures; with one class alone every neighbour is right


def divide(pictures: Pictures, settings: Settings) -> tuple[Pictures, Pictures | None, list[str]]:
    """(training pictures, held out or None, notes). By the source's own split where it has one, else by class."""
    notes = [*pictures.notes, *_problems(pictures), *_incomplete(pictures)]
    if pictures.splits is not None and "train" not in pictures.splits:
        raise ValueError(f"{pictures.name} has splits but nothing to train on: no picture is marked 'train'")
    train = pictures.split("train") if pictures.splits is not None else pictures
    if len(train.classes) < 2:
        unread = f"; {len(pictures.problems):,} pictures could not be read" if pictures.problems else ""
        raise ValueError(
            f"training needs pictures of at least two classes, {pictures.name} has {len(train.classes)}{unread}"
        )
    train, held_out, how = _hold_out(pictures, train, settings)
    sizes = f"training on {len(train):,} pictures of {len(train.classes):,} classes"
    if held_out is not None:
        sizes += f", holding out {len(held_out):,} of {len(held_out.classes):,}"
    notes.append(f"{sizes}; {how}")
    alone = int((train.counts() == 1).sum())
    if alone == len(train.classes):
        notes.append(_without_pairs(train, settings.loss))
    elif alone:
        notes.append(f"{alone} training {'class has' if alone == 1 else 'classes have'} a single picture and no pair")
    return train, held_out, notes


def decide(
    settings: Settings,
    classes: int,
    *,
    pretrained: bool,
    has_gpu: bool,
    world_size: int = 1,
    pictures: int | None = None,
) -> tuple[Settings, list[str]]:
    """Settings with nothing left open, and what there is to say about it. ``classes`` are those to train on.

    Only the rate of a head that starts from data is decided later, by that start.
    """
    notes = []
    hints = objectives.training_hints(settings.loss, settings.preset)
    frozen = settings.freeze_backbone
    if frozen is None:
        frozen = pretrained and not has_gpu
        if frozen:
            notes.append("no GPU: the backbone stays frozen, the head is trained (--no-freeze-backbone trains all)")
    if frozen and not pretrained:
        notes.append("the backbone is frozen with random weights, which is hardly ever wanted")
    per_class = settings.per_class or min(hints.per_class, settings.batch_size)
    if hints.per_class > 1 and per_class < 2 and not (settings.memory or settings.ccp):
        raise ValueError(f"{settings.loss} compares pairs: it needs at least two pictures per class in a batch, got 1")
    batch_size, note = _fit_batch(settings.batch_size, per_class, classes, world_size)
    start = settings.start or ("pca" if pretrained and settings.dim is not None else "random")
    pooling_settings = dict(settings.pooling_settings)
    if "gsp" in settings.pooling.split("+"):
        pooling_settings.setdefault("sharpness", hints.sharpness if settings.preset else 5.0)
        if start == "random":
            pooling_settings.setdefault("init", "k-centre")
            seen = settings.steps * batch_size
            if seen < SOON * MEMORY and pooling_settings["init"] == "k-centre":  # else it would stay the average
                least = pooling_settings.get("num_prototypes", PROTOTYPES)
                pooling_settings.setdefault("memory", min(MEMORY, max(least, seen // SOON)))
            if pooling_settings["init"] == "k-centre" and seen < pooling_settings.get("memory", MEMORY):
                notes.append(
                    "too few steps for the prototypes to start from data: until the end this is average pooling"
                )
        elif pictures is not None and pictures < PROTOTYPES:
            pooling_settings.setdefault("num_prototypes", pictures)  # they are chosen among them
    if settings.views > 1 and not frozen:
        notes.append("--views is for a frozen backbone; here every picture is augmented anew each time")
    normalise = settings.normalise or ("clip" if settings.ccp else "l2")
    loss_settings = dict(settings.loss_settings)
    if normalise != "l2" and objectives.takes(settings.loss, "normalise"):
        loss_settings.setdefault("normalise", False)  # vectors of any length are compared as they are
    # Weights that know nothing need not be spared, and a short run must not wait to its end.
    spared = pretrained and not frozen
    waits = min(hints.warm_up * settings.evaluate_every, settings.steps // SOON) if spared else 0
    decided = replace(
        settings,
        freeze_backbone=frozen,
        freeze_batch_norm=pretrained if settings.freeze_batch_norm is None else settings.freeze_batch_norm,
        start=start,
        normalise=normalise,
        loss_settings=loss_settings,
        pooling_settings=pooling_settings,
        lr=settings.lr or (hints.learning_rate if settings.preset else None) or (1e-3 if start == "random" else None),
        per_class=per_class,
        batch_size=batch_size,
        proxy_lr=settings.proxy_lr or hints.rate_multiplier,
        warm_up=waits if settings.warm_up is None else settings.warm_up,
        save_every=settings.save_every or settings.evaluate_every,
    )
    return decided, [*notes, *([note] if note else [])]


def fingerprint(pictures: Pictures) -> str:
    """Changes when names, labels or their order do; a resumed run must find the same."""
    return digest("\n".join(pictures.names), "\n".join(pictures.classes), pictures.labels.tobytes())


def _incomplete(pictures: Pictures) -> list[str]:
    """A benchmark that is not all there would give figures that compare with nobody's."""
    for row in benchmarks.describe():
        if row["name"] == pictures.name and row["pictures"] != len(pictures):
            have, whole = f"{len(pictures):,}", f"{row['pictures']:,}"
            return [f"only {have} of {whole} pictures of {pictures.name} are here: see lookalike datasets check"]
    return []


def _without_pairs(train: Pictures, loss: str) -> str:
    """What to say where every class has a single picture: a loss on pairs has nothing to pull together."""
    if not objectives.training_hints(loss).needs_classes:
        raise ValueError(
            f"every training class of {train.name} has a single picture and {loss} learns from pairs of a class: "
            "give more pictures, or choose a loss with proxies, as --loss proxy-anchor"
        )
    return f"every training class has a single picture: {loss} can only tell them apart, not learn what they share"


def _hold_out(pictures: Pictures, train: Pictures, settings: Settings) -> tuple[Pictures, Pictures | None, str]:
    nothing = "the last weights are kept, and no figure tells whether they are good"
    if settings.validation == 0:
        return train, None, f"nothing is held out: {nothing}"
    if pictures.splits is not None and "validation" in pictures.splits:
        validation = pictures.split("validation")
        if measurable_classes(validation) == 0:
            fault = lacking_role(validation) or "no class has two pictures, so nothing can be measured"
            raise BrokenData(f"the validation split of {pictures.name}: {fault}")
        return train, validation, "measured on the data's own validation split"
    if round(settings.validation * len(train.classes)) >= FEWEST_HELD_OUT:
        kept, held_out = hold_out_classes(
            train, settings.validation, order=settings.validation_order, seed=settings.seed
        )
        if len(kept.classes) >= 2 and measurable_classes(held_out) >= FEWEST_HELD_OUT:
            return kept, held_out, "measured on classes that are not trained on"
    for share in (settings.validation, 0.5) if _classes_with_pairs(train) else ():  # half: two of four make a pair
        kept, held_out = hold_out_pictures(train, share, seed=settings.seed)
        if measurable_classes(held_out) >= FEWEST_HELD_OUT <= _classes_with_pairs(kept):
            return kept, held_out, "too few classes to hold some out: measured on other pictures of the same classes"
    return train, None, f"{lacking_role(train) or 'too few pictures to hold some out'}: {nothing}"


def _classes_with_pairs(pictures: Pictures) -> int:
    return int((pictures.counts() > 1).sum())


def _fit_batch(batch_size: int, per_class: int, classes: int, world_size: int) -> tuple[int, str]:
    """A batch that the classes can fill, and a note if it is not the one that was asked for."""
    if batch_size % per_class:
        raise ValueError(f"batch_size must be a multiple of per_class {per_class}, got {batch_size}")
    if batch_size // per_class <= classes:
        return batch_size, ""
    for fitting in range(classes, 0, -1):
        fitted = fitting * per_class
        if fitted % world_size == 0:
            each = f"{counted(per_class, 'picture')} of each of {fitting} classes"
            return fitted, f"{each} make batches of {fitted}, not {batch_size}"
    raise ValueError(f"{classes} classes with {per_class} pictures each cannot be shared by {world_size} processes")


def _problems(pictures: Pictures) -> list[str]:
    if not pictures.problems:
        return []
    shown = [f"  {problem}" for problem in pictures.problems[:5]]
    shown += [f"  and {len(pictures.problems) - 5} more"] if len(pictures.problems) > 5 else []
    return ["\n".join([f"left out, {counted(len(pictures.problems), 'picture')} that cannot be used:", *shown])]
