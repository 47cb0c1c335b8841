"""How well does ``lookalike doctor`` find faults that were put in? Precision and recall, and what fixing them gains.

    python perf/doctor.py DATA [--flipped 0.05] [--duplicated 0.03] [--seed 0] [--model efficientnet_lite0]

Labels of a share of the pictures are flipped to another class (uniformly), and copies of others are added: smaller, of
lower quality, or mirrored, one third each. The findings are compared with what was put in. Faults that the data had
before count as false alarms. MAP@R of the same vectors is measured with the faults, after the suggested fixes, and
without the faults.
"""

import argparse
import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lookalike import data
from lookalike.cli.loading import embed_pictures, load_model
from lookalike.data.pictures import Pictures, Reader
from lookalike.doctor import Examination, apply_fixes, examine, suggested_fixes
from lookalike.doctor.fixes import measure_effect

SMALLER = 0.6  # of each side
QUALITY = 40


class WithCopies:
    """The pictures of a reader, followed by altered copies of some of them."""

    def __init__(self, reader: Reader, count: int, copied: list[int]) -> None:
        self.reader, self.count, self.copied = reader, count, copied

    def __call__(self, index: int) -> Image.Image:
        if index < self.count:
            return self.reader(index)
        number = index - self.count
        return _alter(self.reader(self.copied[number]), number % 3)

    def key(self, index: int) -> str:
        if index < self.count:
            return self.reader.key(index)
        return f"copy {self.reader.key(self.copied[index - self.count])} {index % 3}"


def inject(pictures: Pictures, flipped: float, duplicated: float, seed: int) -> tuple[Pictures, set[int], set[int]]:
    """Return the pictures with faults, the positions of flipped labels and those of copies."""
    rng = np.random.default_rng(seed)
    count = len(pictures)
    wrong = rng.choice(count, round(flipped * count), replace=False)
    copied = rng.choice(count, round(duplicated * count), replace=False)
    labels = pictures.labels.copy()
    labels[wrong] = (labels[wrong] + rng.integers(1, len(pictures.classes), len(wrong))) % len(pictures.classes)
    everything = replace(
        pictures,
        names=(*pictures.names, *(f"copy of {pictures.names[i]}" for i in copied)),
        labels=np.concatenate([labels, labels[copied]]),
        reader=WithCopies(pictures.reader, int(pictures.origins.max()) + 1, pictures.origins[copied].tolist()),
        origins=np.concatenate([pictures.origins, int(pictures.origins.max()) + 1 + np.arange(len(copied))]),
        splits=None,
        roles=None,
        root=None,
    )
    return everything, set(wrong.tolist()), set(range(count, count + len(copied)))


def _alter(image: Image.Image, how: int) -> Image.Image:
    if how == 0:
        return image.resize((max(1, int(SMALLER * image.width)), max(1, int(SMALLER * image.height))))
    if how == 1:
        file = BytesIO()
        image.save(file, "JPEG", quality=QUALITY)
        return Image.open(file).convert("RGB")
    return ImageOps.mirror(image)


def score(found: set[int], true: set[int]) -> dict[str, float]:
    """Precision and recall in percent."""
    right = len(found & true)
    return {
        "put in": len(true),
        "found": len(found),
        "precision": round(100 * right / max(1, len(found)), 1),
        "recall": round(100 * right / max(1, len(true)), 1),
    }


def effect(examination: Examination, vectors: NDArray[np.floating], original: Pictures) -> dict[str, float]:
    """MAP@R in percent with the faults, after the suggested fixes, and without the faults."""
    damaged = examination.pictures
    labels = [damaged.classes[label] for label in damaged.labels]
    corrected = apply_fixes(damaged, suggested_fixes(examination))
    fixed = measure_effect(vectors, labels, corrected.positions, corrected.labels)
    originals = np.arange(len(original))
    without = measure_effect(vectors, labels, originals, [original.classes[label] for label in original.labels])
    assert fixed is not None
    assert without is not None
    values = {"with faults": fixed["before"], "fixed": fixed["after"], "without faults": without["after"]}
    return {name: round(100 * value, 2) for name, value in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Precision and recall of lookalike doctor on faults put in")
    parser.add_argument("data")
    parser.add_argument("--flipped", type=float, default=0.05)
    parser.add_argument("--duplicated", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=Path("efficientnet_lite0"))
    parser.add_argument("--per-class", type=int, help="at most so many pictures of each class")
    parser.add_argument("--cache", help="folder of cached features; default: the user's")
    arguments = parser.parse_args()
    pictures = data.load(arguments.data, check=False)
    if arguments.per_class:
        rng = np.random.default_rng(0)
        rows = [
            rng.permutation(np.flatnonzero(pictures.labels == c))[: arguments.per_class]
            for c in range(len(pictures.classes))
        ]
        pictures = pictures.take(np.sort(np.concatenate(rows)))
    damaged, wrong, copies = inject(pictures, arguments.flipped, arguments.duplicated, arguments.seed)
    model = load_model(arguments.model, "auto", None, None, "auto")
    vectors = embed_pictures(model, damaged, 0, cache=arguments.cache)
    examination = examine(damaged, vectors)
    findings = examination.findings
    result: dict[str, Any] = {"pictures": len(damaged), "classes": len(damaged.classes)}
    copied = {f.picture for f in findings if f.kind in ("near duplicate", "exact duplicate")}
    result["duplicates"] = score(copied, copies)
    # A copy has the label of its original, which is judged alone.
    doubtful = {f.picture: f.score for f in findings if f.kind == "doubtful label"}
    result["doubtful labels"] = score(set(doubtful), wrong)
    for least in (0.5, 0.9):
        sure = {i for i, probability in doubtful.items() if probability >= least}
        result[f"... with {100 * least:.0f} % and more"] = score(sure, wrong)
    result["MAP@R"] = effect(examination, vectors, pictures)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
