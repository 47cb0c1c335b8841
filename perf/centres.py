"""What keeping the centres of classes apart costs, against the number of classes.

    python perf/centres.py [--json FILE] [--repeats N] [--classes 1000,690000] [--dim D] [--sample K] [--quick]

Time is CPU seconds (time.process_time) on one thread of one training step of the regulariser alone, forward and
backward, from no gradient to a whole one: the median over the steps of all repeats. Every measurement is a process
of its own. The regulariser is minimum hyperspherical energy (mhe-1).

Memory is the most that a process held in those steps beyond what it held with the centres in place and everything
imported. The gradient of the proxies is part of it, and of the time: torch makes it as large as the proxies, classes x
dim, though only the drawn rows differ from 0. That column is computed, not measured.

sampled      K proxies drawn at each step: pairs cost O(K^2), whatever the number of classes
running      K running class means drawn, and a batch of 128 of 32 classes: no gradient but the batch's
all pairs    every proxy, in tiles that the backward pass computes again: O(C^2) time, O(C) memory; to 11,318 classes
plain        sum(1 / pdist): O(C^2) time and memory; to 4,000 classes
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import measuring
import torch
from measuring import peak_bytes, resident_bytes, run_apart
from torch import Tensor
from torch.nn.functional import normalize

from lookalike.objectives.centres import SPREADS, CentreSpread
from lookalike.objectives.proxies import ProxyNCAPlusPlus

HOW = "\n\n".join((__doc__ or "").split("\n\n")[2:5])  # printed and stored beside the figures
CLASSES = [1_000, 4_000, 11_318, 100_000, 690_000]  # 11,318: Stanford Online Products; 690,000: faces
QUICK_CLASSES = [20, 60]
BATCH, BATCH_CLASSES = 128, 32
WARM_UP, STEPS = 1, 5
AGREEMENT = 1e-4  # relative, of energies that claim to be the same


class Size(NamedTuple):
    classes: int
    dim: int
    sample: int


class Contestant(NamedTuple):
    prepare: Callable[[Size], Callable[[], Tensor]]  # returns a step: the loss, with its gradients left in place
    most_classes: int | None
    gradient: bool  # of the size of the centres


def proxies_of(size: Size) -> ProxyNCAPlusPlus:
    torch.manual_seed(0)
    return ProxyNCAPlusPlus(size.classes, size.dim)


def regularise_proxies(size: Size, sample: int | None) -> Callable[[], Tensor]:
    owner = proxies_of(size)
    regulariser = CentreSpread(proxies_of=owner, sample=sample, **SPREADS["mhe-1"])
    batch, labels = torch.ones(1, size.dim), torch.zeros(1, dtype=torch.int64)

    def step() -> Tensor:
        owner.proxies.grad = None
        value = regulariser(batch, labels).value
        value.backward()
        return value.detach()

    return step


def sampled(size: Size) -> Callable[[], Tensor]:
    return regularise_proxies(size, size.sample)


def all_pairs(size: Size) -> Callable[[], Tensor]:
    return regularise_proxies(size, None)


def running(size: Size) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    regulariser = CentreSpread(size.classes, size.dim, sample=size.sample, **SPREADS["mhe-1"])
    regulariser.means.normal_()
    regulariser.counts.fill_(1)
    batch = torch.randn(BATCH, size.dim, requires_grad=True)
    labels = (torch.arange(BATCH) % BATCH_CLASSES * 7) % size.classes

    def step() -> Tensor:
        batch.grad = None
        value = regulariser(batch, labels).value
        value.backward()
        return value.detach()

    return step


def plain(size: Size) -> Callable[[], Tensor]:
    owner = proxies_of(size)

    def step() -> Tensor:
        owner.proxies.grad = None
        value = 2 * (1 / torch.pdist(normalize(owner.proxies))).sum()
        value.backward()
        return value.detach()

    return step


CONTESTANTS = {
    "sampled": Contestant(sampled, None, True),
    "running": Contestant(running, None, False),
    "all pairs": Contestant(all_pairs, 11_318, True),
    "plain": Contestant(plain, 4_000, True),
}


def measure(name: str, size: Size) -> dict[str, Any]:
    """The whole life of a process: CPU seconds of each step, megabytes, and the loss of the last step."""
    torch.set_num_threads(1)
    few = CONTESTANTS[name].prepare(Size(50, size.dim, 10))
    few()
    step = CONTESTANTS[name].prepare(size)
    before = resident_bytes(reset_peak=True)
    seconds = []
    for _ in range(WARM_UP + (1 if size.classes**2 > 10**7 and name in ("all pairs", "plain") else STEPS)):
        start = time.process_time()
        value = step()
        seconds.append(time.process_time() - start)
    return {"seconds": seconds[WARM_UP:], "megabytes": (peak_bytes() - before) / 1e6, "value": value.item()}


def compare(size: Size, repeats: int, apart: bool) -> dict[str, Any]:
    """All contestants that can, at one number of classes, as one entry of the JSON."""
    rows = {}
    for name, contestant in CONTESTANTS.items():
        if contestant.most_classes is not None and size.classes > contestant.most_classes:
            continue
        runs = [run_apart(measure, name, size, apart=apart) for _ in range(repeats)]
        rows[name] = {
            "seconds": median(second for run in runs for second in run["seconds"]),
            "megabytes": max(run["megabytes"] for run in runs),
            "gradient_megabytes": 4e-6 * size.classes * size.dim if contestant.gradient else 0.0,
            "value": runs[0]["value"],
        }
    if "plain" in rows:
        check_agreement(rows["all pairs"]["value"], rows["plain"]["value"])
    return {"size": size._asdict(), "rows": rows}


def check_agreement(ours: float, theirs: float) -> None:
    """Two that claim the same energy are compared in time only if they have it."""
    if not abs(ours - theirs) < AGREEMENT * abs(theirs):
        raise RuntimeError(f"the energies differ, {ours} and {theirs}: nothing to compare")


def print_entry(entry: dict[str, Any]) -> None:
    size = Size(**entry["size"])
    print(f"\n{size.classes:,} classes, {size.dim}-D, {size.sample:,} drawn")
    print(f"  {'':12}{'CPU s':>10}{'memory MB':>12}{'of it gradient':>16}")
    for name, row in entry["rows"].items():
        print(f"  {name:12}{row['seconds']:10.4f}{row['megabytes']:12.0f}{row['gradient_megabytes']:16.0f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = measuring.parser(__doc__, 3, "processes for every measurement")
    parser.add_argument(
        "--classes", default=",".join(map(str, CLASSES)), help="numbers of classes (default %(default)s)"
    )
    parser.add_argument("--dim", type=int, default=128, help="of the centres (default 128)")
    parser.add_argument("--sample", type=int, default=1024, help="classes drawn at each step (default 1024)")
    options = measuring.parse(parser, arguments)
    try:
        options.classes = [int(classes) for classes in options.classes.split(",")]
    except ValueError:
        parser.error(f"--classes must be whole numbers with commas between them, got {options.classes}")
    if min(options.classes) < 2 or options.sample < 2 or options.dim < 1:
        parser.error("--classes and --sample must be at least 2 and --dim at least 1")
    machine = measuring.describe_machine(options.quick)
    sizes = [Size(classes, options.dim, options.sample) for classes in options.classes]
    if options.quick:
        sizes = [Size(classes, 4, 10) for classes in QUICK_CLASSES]
    entries = []
    for size in sizes:
        entries.append(compare(size, options.repeats, apart=not options.quick))
        print_entry(entries[-1])
    measuring.write_report(options, machine, HOW, entries)


if __name__ == "__main__":
    main()
