"""What chance-constrained programming costs: a training step beside the plain loss, and the choice of proxies.

    python perf/ccp.py [--json FILE] [--repeats N] [--losses c1,c2,ms,triplet] [--sizes CUB,SOP] [--quick]

A step is CPU seconds (time.process_time) on one thread of forward and backward pass, pull and optimiser (Adam), for a
batch of 32 with 4 pictures of a class. "plain" is the loss inside the batch; "proxies" the same loss between the batch
and all proxies, with the pull towards the last solution; "samples" the same between the batch and as many pictures,
which are part of the pass. The three take turns in one process, in a new order every time; given are the median of each
and its ratio to the plain loss of the same turns. Samples are left out where they are more than 1,000, and come in
every tenth turn only.

"frozen head" trains projection and pooling (gsp, 64 prototypes, 128-D) on features of 49 places and 1280 channels;
"resnet20" trains a whole network with average pooling on pictures of 32 pixels. The papers' authors report 105 ms
against 97 ms with BN-Inception on an RTX 2080 Ti, 8 % more: the larger the network, the less proxies weigh.

"choice" is what a new problem takes, once: drawing the pool, embedding it by a head from features of 4 places and 128
channels in memory, greedy k-centre against the proxies of the last problem. It is CPU seconds and the most memory that
the process held beyond what it held before, the vectors of the pool among it.
"""

import random
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from statistics import median
from typing import Any, NamedTuple

import measuring
import numpy as np
import torch
from measuring import peak_bytes, resident_bytes, run_apart
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike import objectives
from lookalike.models import Embedder
from lookalike.models.embedder import Head
from lookalike.objectives import BetweenProxies, BetweenSamples, PairObjective
from lookalike.training.ccp import ProxyProblems

HOW = "\n\n".join((__doc__ or "").split("\n\n")[2:5])  # printed and stored beside the figures
LOSSES = ["c1", "c2", "ms", "triplet"]
THESIS = 105 / 97
MOST_SAMPLES, SAMPLES_EVERY = 1000, 10
WARM_UP = 1
EMBEDDED_AT_ONCE = 64


class Size(NamedTuple):
    name: str
    classes: int
    proxies: int
    pool: int
    batch: int = 32
    per_class: int = 4
    channels: int = 1280
    dim: int = 128


SIZES = [Size("CUB", 100, 8, 12), Size("SOP", 11_318, 4, 7)]
QUICK_SIZES = [Size("few", 4, 2, 3, 4, 2, 16, 8)]


def frozen_head(size: Size) -> tuple[nn.Module, tuple[int, ...]]:
    return Head(size.channels, size.dim, "gsp", {"num_prototypes": 64}, normalise="clip"), (49, size.channels)


def resnet20(size: Size) -> tuple[nn.Module, tuple[int, ...]]:
    return Embedder("resnet20", size.dim, "average", normalise="clip"), (3, 32, 32)


NETWORKS: dict[str, Callable[[Size], tuple[nn.Module, tuple[int, ...]]]] = {
    "frozen head": frozen_head,
    "resnet20": resnet20,
}


def plain(model: nn.Module, loss: PairObjective, inputs: Tensor, labels: Tensor, _: Size) -> Callable[[], None]:
    optimiser = torch.optim.Adam(model.parameters())

    def step() -> None:
        loss(model(inputs), labels).value.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def proxies(model: nn.Module, loss: PairObjective, inputs: Tensor, labels: Tensor, size: Size) -> Callable[[], None]:
    objective = BetweenProxies(loss, size.classes, size.dim, size.proxies)
    problems = problems_of(model, objective, size)
    optimiser = torch.optim.Adam([*model.parameters(), objective.proxies])

    def step() -> None:
        objective(model(inputs), labels).value.backward()
        problems.add_pull()
        optimiser.step()
        optimiser.zero_grad()

    return step


def samples(model: nn.Module, loss: PairObjective, inputs: Tensor, labels: Tensor, size: Size) -> Callable[[], None]:
    objective = BetweenSamples(loss, size.classes, size.proxies)
    problems = problems_of(model, objective, size)
    optimiser = torch.optim.Adam(model.parameters())
    joined = torch.cat((inputs, torch.randn(size.classes * size.proxies, *inputs.shape[1:])))

    def step() -> None:
        vectors = model(joined)
        objective.see(vectors[len(inputs) :])
        objective(vectors[: len(inputs)], labels).value.backward()
        problems.add_pull()
        optimiser.step()
        optimiser.zero_grad()

    return step


def problems_of(model: nn.Module, objective: BetweenProxies | BetweenSamples, size: Size) -> ProxyProblems:
    """In the second problem, for the first has no pull."""
    labels = np.arange(size.classes * size.proxies) % size.classes
    problems = ProxyProblems(
        model, objective, labels, lambda places: torch.randn(len(places), size.dim), pool=size.pool
    )
    problems.last = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return problems


CONTESTANTS = {"plain": plain, "proxies": proxies, "samples": samples}


def measure_steps(network: str, loss: str, size: Size, turns: int) -> dict[str, list[float]]:
    """The whole life of a process: CPU seconds of every step of every contestant."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, shape = NETWORKS[network](size)
    inputs = torch.randn(size.batch, *shape)
    labels = torch.arange(size.batch // size.per_class).repeat_interleave(size.per_class) % size.classes
    pairs = objectives.create(loss, normalise=False)
    assert isinstance(pairs, PairObjective)
    steps = {
        name: prepare(deepcopy(model), pairs, inputs, labels, size)
        for name, prepare in CONTESTANTS.items()
        if name != "samples" or size.classes * size.proxies <= MOST_SAMPLES
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    shuffled = random.Random(0)
    for turn in range(-WARM_UP, turns):
        for name in shuffled.sample(list(steps), len(steps)):
            if name == "samples" and turn > 0 and turn % SAMPLES_EVERY:
                continue
            start = time.process_time()
            steps[name]()
            if turn >= 0:
                seconds[name].append(time.process_time() - start)
    return seconds


def measure_choice(size: Size) -> dict[str, float]:
    """The whole life of a process: CPU seconds of the parts of a choice, and megabytes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    head = Head(128, size.dim, "average", normalise="clip").eval()
    features = torch.randn(size.classes * size.pool, 4, 128).half()
    embedding = 0.0

    @torch.no_grad()
    def embed(places: NDArray[np.int64]) -> Tensor:
        nonlocal embedding
        start = time.process_time()
        chosen = torch.from_numpy(places).split(EMBEDDED_AT_ONCE)
        vectors = torch.cat([head(features[part].float()) for part in chosen])
        embedding += time.process_time() - start
        return vectors

    objective = BetweenProxies(objectives.create("c1"), size.classes, size.dim, size.proxies)  # type: ignore[arg-type]
    labels = np.arange(len(features)) % size.classes
    problems = ProxyProblems(head, objective, labels, embed, pool=size.pool, patience=1)
    problems.begin()
    problems.report(1.0)
    before, embedding, start = resident_bytes(reset_peak=True), 0.0, time.process_time()
    problems.report(0.0)
    whole = time.process_time() - start
    memory = (peak_bytes() - before) / 1e6
    start = time.process_time()
    problems._draw_pool(3)
    drawing = time.process_time() - start
    parts = {"drawing": drawing, "embedding": embedding, "choosing": whole - drawing - embedding}
    return {**parts, "whole": whole, "megabytes": memory, "pool_megabytes": 4e-6 * len(features) * size.dim}


def compare(size: Size, losses: Sequence[str], turns: int, apart: bool) -> dict[str, Any]:
    """Everything at one size, as one entry of the JSON."""
    rows = []
    for network in NETWORKS:
        for loss in losses:
            seconds = run_apart(measure_steps, network, loss, size, turns, apart=apart)
            medians = {name: median(times) for name, times in seconds.items()}
            ratios = {name: value / medians["plain"] for name, value in medians.items()}
            rows.append({"network": network, "loss": loss, "seconds": medians, "ratios": ratios, "all": seconds})
    return {"size": size._asdict(), "steps": rows, "choice": run_apart(measure_choice, size, apart=apart)}


def print_entry(entry: dict[str, Any]) -> None:
    size = Size(**entry["size"])
    print(f"\n{size.name}: {size.classes:,} classes, {size.proxies} proxies of each, {size.dim}-D, batch {size.batch}")
    print(f"  {'':24}{'plain ms':>10}{'proxies ms':>12}{'ratio':>8}{'samples ms':>12}{'ratio':>8}")
    for row in entry["steps"]:
        milliseconds = {name: 1000 * value for name, value in row["seconds"].items()}
        line = f"  {row['network']:13}{row['loss']:11}{milliseconds['plain']:10.1f}"
        for name in ("proxies", "samples"):
            line += f"{milliseconds[name]:12.1f}{row['ratios'][name]:8.2f}" if name in milliseconds else f"{'-':>12}"
        print(line)
    print(f"  {'thesis: BN-Inception c1':24}{97:10.1f}{105:12.1f}{THESIS:8.2f}")
    choice = entry["choice"]
    parts = ", ".join(f"{name} {choice[name]:.2f}" for name in ("drawing", "embedding", "choosing"))
    print(f"  choice: {choice['whole']:.2f} s ({parts}), {choice['megabytes']:.0f} MB", end="")
    print(f", of which the pool's vectors are {choice['pool_megabytes']:.0f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = measuring.parser(__doc__, 30, "turns, each with a step of every contestant")
    names = [size.name for size in SIZES]
    parser.add_argument("--losses", default=",".join(LOSSES), help="on pairs (default %(default)s)")
    parser.add_argument("--sizes", default=",".join(names), help=f"some of {','.join(names)} (default all)")
    options = measuring.parse(parser, arguments)
    losses = options.losses.split(",")
    for loss in losses:
        try:
            pairs = isinstance(objectives.create(loss, 2, 2), PairObjective)
        except ValueError as error:
            parser.error(str(error))
        if not pairs:
            parser.error(f"--losses must be losses on pairs, got {loss}")
    unknown = sorted(set(options.sizes.split(",")) - set(names))
    if unknown:
        parser.error(f"--sizes must be some of {','.join(names)}, got {','.join(unknown)}")
    machine = measuring.describe_machine(options.quick)
    sizes = QUICK_SIZES if options.quick else [size for size in SIZES if size.name in options.sizes.split(",")]
    entries = []
    for size in sizes:
        entries.append(compare(size, losses, options.repeats, apart=not options.quick))
        print_entry(entries[-1])
    measuring.write_report(options, machine, HOW, entries)


if __name__ == "__main__":
    main()
