"""What exact retrieval figures cost: retrieval_metrics beside pytorch-metric-learning, and beside the products alone.

    python perf/metrics.py [--json FILE] [--repeats N] [--sizes CUB,SOP] [--dim D] [--tricks] [--quick]
    python perf/metrics.py --embeddings VECTORS.npy --labels LABELS.npy

Time is CPU seconds (time.process_time) on one thread, from embeddings to P@1, P@R and MAP@R; this library's R@K come
on top. pytorch-metric-learning is AccuracyCalculator as it comes, which searches with faiss, with k="max_bin_count",
the least that gives MAP@R. The floor is the product of every query with every reference, in blocks, thrown away.
Every measurement is a process of its own, in a new order in every repeat; the figure given is the median.

Memory is the most that a process held beyond what it held with the embeddings loaded and everything imported.

With --tricks, what saves work is left out, one after the other: products in bf16 that leave out references (screening),
the symmetry of leave-one-out, and the bound of the best so far, in whose place every row is selected whole by topk.

The embeddings are drawn: class centres and deviations with the falling spectrum of trained ones, normalised. With
--embeddings they are those of your model, leave-one-out.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import measuring
import numpy as np
import torch
from measuring import peak_bytes, resident_bytes, run_apart
from torch import Tensor
from torch.nn.functional import normalize

from lookalike import retrieval_metrics
from lookalike.retrieval import search

HOW = "\n\n".join((__doc__ or "").split("\n\n")[2:6])  # printed and stored beside the figures
DECAY, SPREAD = 0.5, 1.0  # the i-th direction is i^-DECAY as long; deviations are SPREAD as long as the centres
FLOOR_BLOCK = 512
AGREEMENT = 1e-5  # near ties fall either way by rounding: a few queries of 60,000


class Size(NamedTuple):
    name: str
    classes: int
    queries: int
    gallery: int  # 0: leave-one-out
    per_class: tuple[int, int]  # fewest, most
    dim: int = 512

    def __str__(self) -> str:
        against = f"against {self.gallery:,}" if self.gallery else "leave-one-out"
        return f"{self.name}: {self.queries:,} {against}, {self.classes:,} classes, {self.dim}-D"


SIZES = [
    Size("CUB", 100, 5_924, 0, (41, 60)),
    Size("SOP", 11_316, 60_502, 0, (2, 12)),
    Size("In-shop", 3_985, 14_218, 12_612, (1, 8)),
]
QUICK_SIZES = [Size("few", 6, 60, 0, (2, 20), 8), Size("gallery", 5, 30, 40, (1, 20), 8)]


class Task(NamedTuple):
    queries: Tensor
    query_labels: Tensor
    references: Tensor | None = None
    reference_labels: Tensor | None = None


def draw_task(size: Size) -> Task:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.arange(1, size.dim + 1).float() ** -DECAY
    centres = torch.randn(size.classes, size.dim, generator=generator)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = draw_labels(count, size, generator)
        deviations = torch.randn(count, size.dim, generator=generator)
        return normalize((centres[labels] + SPREAD * deviations) * lengths), labels

    return Task(*draw(size.queries), *(draw(size.gallery) if size.gallery else ()))


def draw_labels(count: int, size: Size, generator: torch.Generator) -> Tensor:
    """Ascending, as files are read; every class within its bounds."""
    fewest, most = size.per_class
    optional = torch.randperm(size.classes * (most - fewest), generator=generator)[: count - fewest * size.classes]
    return torch.cat((torch.arange(size.classes).repeat(fewest), optional % size.classes)).sort().values


def read_task(embeddings: Path, labels: Path) -> Task:
    return Task(torch.from_numpy(np.load(embeddings)).float(), torch.from_numpy(np.load(labels)))


Figures = dict[str, float] | None


def this_library(task: Task) -> Figures:
    figures = retrieval_metrics(*task)  # by the cosine, theirs by L2: the same order, the vectors being normalised
    return {name: figures[name] for name in ("P@1", "P@R", "MAP@R")}


def metric_learning(task: Task) -> Figures:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = {"P@1": "precision_at_1", "P@R": "r_precision", "MAP@R": "mean_average_precision_at_r"}
    calculator = AccuracyCalculator(include=tuple(names.values()), k="max_bin_count", device=torch.device("cpu"))
    figures = calculator.get_accuracy(*(part for part in task if part is not None))
    return {ours: figures[theirs] for ours, theirs in names.items()}


def products(task: Task) -> Figures:
    references = task.queries if task.references is None else task.references
    space = torch.empty(FLOOR_BLOCK**2)
    for rows in task.queries.split(FLOOR_BLOCK):
        for columns in references.split(FLOOR_BLOCK):
            block = space[: len(rows) * len(columns)].view(len(rows), len(columns))
            torch.mm(rows, columns.T, out=block)
    return None


def without_screening(task: Task) -> Figures:
    with patch.object(search, "screening_pays", lambda *_: False):
        return this_library(task)


def without_symmetry(task: Task) -> Figures:
    with patch.object(search, "MOST_SLOTS", 0):
        return without_screening(task)


def whole_rows(task: Task) -> Figures:
    """Products in fp32 and topk of whole rows: not exact, and without anything that saves work."""
    references = task.queries if task.references is None else task.references
    reference_labels = task.query_labels if task.reference_labels is None else task.reference_labels
    counts = torch.bincount(reference_labels, minlength=int(task.query_labels.max()) + 1)
    depth = int(counts.max()) + 1
    for rows in task.queries.split(FLOOR_BLOCK):
        reference_labels.take((rows @ references.T).topk(depth).indices)
    return None


THIS, THEIRS, FLOOR = "retrieval_metrics", "pytorch-metric-learning", "products alone"
CONTESTANTS: dict[str, Callable[[Task], Figures]] = {THIS: this_library, THEIRS: metric_learning, FLOOR: products}
TRICKS = {"no screening": without_screening, "nor symmetry": without_symmetry, "nor bounds": whole_rows}


def measure(name: str, task: Task) -> dict[str, Any]:
    """CPU seconds, megabytes and figures of one contestant, run once."""
    run = {**CONTESTANTS, **TRICKS}[name]
    few = draw_task(Size("warm-up", 5, 700, 700, (1, 200), task.queries.shape[1]))
    run(few)
    run(few._replace(references=None, reference_labels=None))
    before = resident_bytes(reset_peak=True)
    start = time.process_time()
    figures = run(task)
    seconds = time.process_time() - start
    return {"seconds": seconds, "megabytes": (peak_bytes() - before) / 1e6, "figures": figures}


def measure_apart(name: str, size: Size | tuple[Path, Path]) -> dict[str, Any]:
    """The whole life of a process."""
    torch.set_num_threads(1)
    return measure(name, draw_task(size) if isinstance(size, Size) else read_task(*size))


def compare(size: Size | tuple[Path, Path], repeats: int, apart: bool, tricks: bool = False) -> dict[str, Any]:
    """All contestants at one size, as one entry of the JSON."""
    names = [*CONTESTANTS, *(TRICKS if tricks else ())]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    shuffled = random.Random(0)
    for _ in range(repeats):
        for name in shuffled.sample(names, len(names)):
            runs[name].append(run_apart(measure_apart, name, size, apart=apart))
    seconds = {name: median(run["seconds"] for run in results) for name, results in runs.items()}
    megabytes = {name: max(run["megabytes"] for run in results) for name, results in runs.items()}
    return {
        "size": size._asdict() if isinstance(size, Size) else {"name": str(size[0])},
        "seconds": seconds,
        "all_seconds": {name: [run["seconds"] for run in results] for name, results in runs.items()},
        "megabytes": megabytes,
        "figures": runs[THIS][0]["figures"],
        "disagreement": disagreement(runs[THIS][0]["figures"], runs[THEIRS][0]["figures"]),
        "ratios": ratios_and_aims(seconds, megabytes[THIS]),
    }


def disagreement(ours: dict[str, float], theirs: dict[str, float]) -> float:
    """Two that claim the same figures are compared in time only if they have them."""
    difference = max(abs(ours[name] - theirs[name]) for name in ours)
    if not difference < AGREEMENT:
        raise RuntimeError(f"the figures differ by {difference:.1e}, {ours} and {theirs}: nothing to compare")
    return difference


def ratios_and_aims(seconds: dict[str, float], megabytes: float) -> dict[str, dict[str, Any]]:
    faster, least = seconds[THEIRS] / seconds[THIS], 1.5
    return {
        "theirs / this, time": {"measured": faster, "aim": f">= {least}", "met": faster >= least},
        "this / products alone": {"measured": seconds[THIS] / seconds[FLOOR], "aim": "reported", "met": True},
        "this, memory in GB": {"measured": megabytes / 1000, "aim": "< 1.5", "met": megabytes < 1500},
    }


def print_comparison(entry: dict[str, Any]) -> None:
    size = entry["size"]
    print(f"\n{Size(**size) if 'dim' in size else size['name']}")
    figures = ", ".join(f"{name} {value:.4f}" for name, value in entry["figures"].items())
    print(f"  {figures}; largest difference to theirs {entry['disagreement']:.0e}")
    print(f"  {'':28}{'CPU s':>9}{'x this':>9}{'memory MB':>12}")
    for name, seconds in entry["seconds"].items():
        ratio = seconds / entry["seconds"][THIS]
        print(f"  {name:28}{seconds:9.3f}{ratio:9.2f}{entry['megabytes'][name]:12.0f}")
    for name, row in entry["ratios"].items():
        verdict = "" if row["aim"] == "reported" else "met" if row["met"] else "NOT MET"
        print(f"  {name:28}{row['measured']:9.3f}  aim {row['aim']:10}{verdict}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = measuring.parser(__doc__, 5, "of every measurement")
    names = [size.name for size in SIZES]
    parser.add_argument("--sizes", default=",".join(names), help=f"some of {','.join(names)} (default all)")
    parser.add_argument("--dim", type=int, default=512, help="of the drawn embeddings (default 512)")
    parser.add_argument("--tricks", action="store_true", help="also measure what each trick gives")
    parser.add_argument("--embeddings", type=Path, metavar="FILE.npy", help="real ones (n, D) instead of drawn ones")
    parser.add_argument("--labels", type=Path, metavar="FILE.npy", help="their labels (n,), integers")
    options = measuring.parse(parser, arguments)
    if (options.embeddings is None) != (options.labels is None):
        parser.error("--embeddings and --labels come together, got only one of them")
    unknown = sorted(set(options.sizes.split(",")) - set(names))
    if unknown:
        parser.error(f"--sizes must be some of {','.join(names)}, got {','.join(unknown)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    machine = measuring.describe_machine(options.quick, numpy=np.__version__)
    chosen: list[Size | tuple[Path, Path]]
    if options.embeddings:
        chosen = [(options.embeddings, options.labels)]
    elif options.quick:
        chosen = list(QUICK_SIZES)
    else:
        chosen = [size._replace(dim=options.dim) for size in SIZES if size.name in options.sizes.split(",")]
    entries = []
    for size in chosen:
        entries.append(compare(size, options.repeats, apart=not options.quick, tricks=options.tricks))
        print_comparison(entries[-1])
    measuring.write_report(options, machine, HOW, entries)


if __name__ == "__main__":
    main()
