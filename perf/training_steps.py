"""Time and memory of one training step of a pooling, for the benchmark of poolings.

Time is one forward and one backward pass with gradients on features and parameters. Every repeat runs each
contestant once, in a new order, on the same inputs; the figure given is the median over the repeats. It is the time
that went by or, with --cpu-time, that of the CPU, which other work on the machine disturbs less.

Memory is what has to be free beyond the inputs, the output and their gradients, which a caller holds anyway:
the larger of (peak of the forward pass - output) and (peak of both passes - output - gradients). On the CPU the
peak is the largest running sum of torch.profiler's raw ``[memory]`` events (profile_memory=True), on CUDA it is
torch.cuda.max_memory_allocated. It is given as a multiple of the features or, for prototypes, of the larger of cost
matrix (B, m, n) and features.
"""

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

HOW = "\n\n".join((__doc__ or "").strip().split("\n\n")[1:3])  # printed and stored beside the figures
WARM_UP = 3

Result = TypeVar("Result")
Pool = Callable[[Tensor], Tensor]  # features (B, n, d) -> output (B, anything)
Step = Callable[[], tuple[Tensor, list[Tensor]]]  # -> output, gradients


class Contestant(NamedTuple):
    """A pooling with its inputs: what a training step takes."""

    pool: Pool
    features: Tensor
    parameters: Sequence[nn.Parameter]


class Procedure(NamedTuple):
    """How it is measured."""

    repeats: int
    device: torch.device = torch.device("cpu")
    clock: Callable[[], float] = time.perf_counter


class Measured(NamedTuple):
    times: list[float]  # milliseconds of every repeat
    memory: int  # bytes

    @property
    def milliseconds(self) -> float:
        return median(self.times)

    @property
    def quartiles(self) -> list[float]:
        low, _, high = quantiles(self.times, n=4, method="inclusive") if len(self.times) > 1 else self.times * 3
        return [low, high]


def measure(contestants: Mapping[str, Contestant], procedure: Procedure) -> dict[str, Measured]:
    """Time and memory of every contestant."""
    times = measure_times({name: training_step(one) for name, one in contestants.items()}, procedure)
    return {name: Measured(times[name], measure_memory(one, procedure.device)) for name, one in contestants.items()}


def training_step(contestant: Contestant) -> Step:
    """One forward and one backward pass, with the gradient on the output drawn beforehand."""
    pool, features, parameters = contestant
    upstream = torch.randn_like(pool(features).detach())

    def step() -> tuple[Tensor, list[Tensor]]:
        output = pool(features)
        gradients = torch.autograd.grad(output, (features, *parameters), upstream, allow_unused=True)
        return output, [gradient for gradient in gradients if gradient is not None]

    return step


def measure_times(steps: Mapping[str, Step], procedure: Procedure) -> dict[str, list[float]]:
    """Milliseconds of every repeat, interleaved, so that other work on the machine affects all of them."""
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    order, times = list(steps), {name: list[float]() for name in steps}
    shuffle = random.Random(0).shuffle
    for _ in range(procedure.repeats):
        shuffle(order)
        for name in order:
            synchronise(procedure.device)
            start = procedure.clock()
            result = steps[name]()
            synchronise(procedure.device)
            times[name].append(1000 * (procedure.clock() - start))
            del result
    return times


def measure_memory(contestant: Contestant, device: torch.device) -> int:
    """Bytes beyond inputs, output and gradients, as defined at the top."""
    step = training_step(contestant)
    step()
    forward_peak, output = peak_bytes(lambda: contestant.pool(contestant.features), device)
    forward_extra = forward_peak - storage_bytes([output])
    del output
    whole_peak, (output, gradients) = peak_bytes(step, device)
    return max(forward_extra, whole_peak - storage_bytes([output, *gradients]), 0)


def peak_bytes(run: Callable[[], Result], device: torch.device) -> tuple[int, Result]:
    """The most that ``run`` had allocated at any time, and its result, which counts."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, result
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler complains of a missing GPU
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak, result


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
