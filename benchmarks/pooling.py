"""What generalized sum pooling costs: this layer beside the paper's two ways, and beside two cheap poolings.

    python benchmarks/pooling.py [--json FILE] [--figure FILE.png] [--repeats N] [--quick] [--compile] [--device cuda]

Time is one forward and one backward pass with gradients on features and prototypes. Every repeat runs each
contestant once, in a new order, on the same inputs; the figure given is the median over the repeats.

Memory is what has to be free beyond the inputs, the output and their gradients, which a caller holds anyway:
the larger of (peak of the forward pass - output) and (peak of both passes - output - gradients). On the CPU the
peak is the largest running sum of torch.profiler's raw ``[memory]`` events (profile_memory=True), on CUDA it is
torch.cuda.max_memory_allocated. It is given as a multiple of the larger of cost matrix (B, m, n) and features.

On a machine that does other work, OMP_NUM_THREADS=1 in the environment gives steadier times.
To add a pooling, add it to ``CONTESTANTS``.
"""

import argparse
import json
import os
import platform
import random
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike import GeneralizedSumPool
from lookalike.pooling.reference import paper_closed_form, paper_iteration, pool_by

HOW = "\n\n".join((__doc__ or "").split("\n\n")[2:4])  # printed and stored beside the figures
KEEP, SHARPNESS, ITERATIONS = 0.3, 5.0, 100
WARM_UP = 3

Result = TypeVar("Result")
Pool = Callable[[Tensor], Tensor]  # features (B, n, d) -> output (B, anything)
Build = Callable[[nn.Parameter], Pool]  # prototypes (m, d), shared by all contestants -> Pool


class Size(NamedTuple):
    bags: int
    features: int
    prototypes: int
    dim: int

    def __str__(self) -> str:
        return "B={}, n={}, m={}, d={}".format(*self)

    @property
    def unit_bytes(self) -> int:
        """The larger of cost matrix and features, in fp32."""
        return 4 * self.bags * self.features * max(self.prototypes, self.dim)


SIZES = [Size(32, 49, 64, 128), Size(112, 49, 128, 512), Size(32, 196, 128, 128), Size(8, 1024, 256, 256)]
ROUNDS = [1, 2, 5, 10, 25, 50, 100, 200]
QUICK_SIZES, QUICK_ROUNDS = [Size(2, 9, 4, 8), Size(3, 8, 6, 5)], [1, 5]

THIS, CLOSED_FORM, AUTOGRAD = "this layer", "paper, closed-form gradient", "paper, autograd"
FLOOR = "similarity-softmax"


def layer(prototypes: nn.Parameter) -> GeneralizedSumPool:
    pool = GeneralizedSumPool(prototypes.shape[1], prototypes.shape[0], KEEP, SHARPNESS)
    pool.prototypes = prototypes
    return pool


def sharp_layer(prototypes: nn.Parameter) -> Pool:
    """Above sharpness 5 the distances are taken by an fp64 product."""
    pool = GeneralizedSumPool(prototypes.shape[1], prototypes.shape[0], KEEP, sharpness=50.0)
    pool.prototypes = prototypes
    return pool


def layer_with_attributes(prototypes: nn.Parameter) -> Pool:
    pool = layer(prototypes)
    return lambda features: pool(features, details=True).vector


def compiled_layer(prototypes: nn.Parameter) -> Pool:
    compiled: Pool = torch.compile(layer(prototypes), fullgraph=True, dynamic=False)
    return compiled


def closed_form(prototypes: nn.Parameter, iterations: int = ITERATIONS) -> Pool:
    transport = partial(paper_closed_form, iterations=iterations)
    return lambda features: pool_by(transport, features, prototypes, KEEP, SHARPNESS)


def autograd(prototypes: nn.Parameter, iterations: int = ITERATIONS) -> Pool:
    transport = partial(paper_iteration, iterations=iterations)
    return lambda features: pool_by(transport, features, prototypes, KEEP, SHARPNESS)


def average(_: nn.Parameter) -> Pool:
    return lambda features: features.mean(1)


def similarity_softmax(prototypes: nn.Parameter) -> Pool:
    """The floor: the least that compares every feature with every prototype. A histogram (B, m), nothing else."""
    return lambda features: (features @ prototypes.T).softmax(-1).mean(1)


CONTESTANTS: dict[str, Build] = {
    THIS: layer,
    "this layer, sharpness 50": sharp_layer,
    "this layer, with attributes": layer_with_attributes,
    CLOSED_FORM: closed_form,
    AUTOGRAD: autograd,
    "average pooling": average,
    FLOOR: similarity_softmax,
}


class Inputs(NamedTuple):
    features: Tensor
    prototypes: nn.Parameter


def draw_inputs(size: Size, device: torch.device) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(size.bags, size.features, size.dim, generator=generator)
    prototypes = normalize(torch.randn(size.prototypes, size.dim, generator=generator))
    return Inputs(features.to(device).requires_grad_(), nn.Parameter(prototypes.to(device)))


Step = Callable[[], tuple[Tensor, list[Tensor]]]  # -> output, gradients


def training_step(pool: Pool, inputs: Inputs) -> Step:
    """One forward and one backward pass, with the gradient on the output drawn beforehand."""
    upstream = torch.randn_like(pool(inputs.features).detach())

    def step() -> tuple[Tensor, list[Tensor]]:
        output = pool(inputs.features)
        gradients = torch.autograd.grad(output, inputs, upstream, allow_unused=True)
        return output, [gradient for gradient in gradients if gradient is not None]

    return step


def measure_times(steps: dict[str, Step], repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Milliseconds of every repeat, interleaved, so that whatever disturbs the machine disturbs all of them."""
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    order, times = list(steps), {name: list[float]() for name in steps}
    shuffle = random.Random(0).shuffle
    for _ in range(repeats):
        shuffle(order)
        for name in order:
            synchronise(device)
            start = time.perf_counter()
            result = steps[name]()
            synchronise(device)
            times[name].append(1000 * (time.perf_counter() - start))
            del result
    return times


def measure_memory(pool: Pool, inputs: Inputs, device: torch.device) -> int:
    """Bytes beyond inputs, output and gradients, as defined at the top."""
    step = training_step(pool, inputs)
    step()
    forward_peak, output = peak_bytes(lambda: pool(inputs.features), device)
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


def compare(
    size: Size, contestants: dict[str, Build], repeats: int, device: torch.device, first: bool
) -> dict[str, Any]:
    """All contestants at one size, as one entry of the JSON."""
    inputs = draw_inputs(size, device)
    pools = {name: build(inputs.prototypes) for name, build in contestants.items()}
    difference = disagreement(pools[THIS], pools[CLOSED_FORM], inputs.features)
    times = measure_times({name: training_step(pool, inputs) for name, pool in pools.items()}, repeats, device)
    memory = {name: measure_memory(pool, inputs, device) for name, pool in pools.items()}
    milliseconds = {name: median(values) for name, values in times.items()}
    return {
        "size": size._asdict(),
        "milliseconds": milliseconds,
        "quartiles": {name: quartiles(values) for name, values in times.items()},
        "memory_bytes": memory,
        "memory_multiple": {name: value / size.unit_bytes for name, value in memory.items()},
        "disagreement": difference,
        "ratios": ratios_and_aims(milliseconds, memory[THIS] / size.unit_bytes, first),
    }


def ratios_and_aims(milliseconds: dict[str, float], memory_multiple: float, first: bool) -> dict[str, dict[str, Any]]:
    this = milliseconds[THIS]
    least = 4.0 if first else 2.0
    rows = [
        ("this layer / similarity-softmax", this / milliseconds[FLOOR], "<=", 1.5),
        ("closed form / this layer", milliseconds[CLOSED_FORM] / this, ">=", least),
        ("autograd / this layer", milliseconds[AUTOGRAD] / this, ">=", 10.0),
        ("memory / max(cost, features)", memory_multiple, "<", 2.0),
    ]
    holds = {"<=": float.__le__, ">=": float.__ge__, "<": float.__lt__}
    return {
        name: {"measured": value, "aim": f"{sign} {aim:g}", "met": holds[sign](value, aim)}
        for name, value, sign, aim in rows
    }


def disagreement(pool: Pool, other: Pool, features: Tensor) -> float:
    """Two contestants that claim the same result are compared in time only if they have it."""
    with torch.no_grad():
        ours, theirs = pool(features), other(features)
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    if not difference < 1e-3:
        raise RuntimeError(f"this layer and the paper's iteration differ by {difference:.1e}: nothing to compare")
    return difference


def sweep_rounds(size: Size, rounds: list[int], repeats: int, device: torch.device) -> dict[str, Any]:
    """Time and memory of both iterations against their number of rounds k; this layer has none."""
    inputs = draw_inputs(size, device)
    iterations: dict[str, Callable[..., Pool]] = {CLOSED_FORM: closed_form, AUTOGRAD: autograd}
    pools: dict[str, Pool] = {THIS: layer(inputs.prototypes)}
    for name, build in iterations.items():
        pools |= {f"{name}, k={k}": build(inputs.prototypes, k) for k in rounds}
    times = measure_times({name: training_step(pool, inputs) for name, pool in pools.items()}, repeats, device)
    memory = {name: measure_memory(pool, inputs, device) for name, pool in pools.items()}

    def series(values: dict[str, float]) -> dict[str, Any]:
        lines = {name: [values[f"{name}, k={k}"] for k in rounds] for name in iterations}
        return {THIS: values[THIS], **lines}

    return {
        "size": size._asdict(),
        "rounds": rounds,
        "milliseconds": series({name: median(values) for name, values in times.items()}),
        "megabytes": series({name: value / 1e6 for name, value in memory.items()}),
    }


def quartiles(values: list[float]) -> list[float]:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return [low, high]


def describe_machine(device: torch.device) -> dict[str, Any]:
    return {
        "processor": processor_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "torch": torch.__version__,
        "device": str(device),
    }


def processor_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_comparison(entry: dict[str, Any]) -> None:
    print(f"\n{Size(**entry['size'])}   (largest difference to the paper's vector: {entry['disagreement']:.0e})")
    print(f"  {'':32}{'ms':>9}  {'quartiles':>17}  {'x this':>7}  {'memory MB':>10}  {'multiple':>8}")
    this = entry["milliseconds"][THIS]
    for name, milliseconds in entry["milliseconds"].items():
        low, high = entry["quartiles"][name]
        megabytes, multiple = entry["memory_bytes"][name] / 1e6, entry["memory_multiple"][name]
        spread, ratio = f"{low:.2f} - {high:.2f}", milliseconds / this
        print(f"  {name:32}{milliseconds:9.2f}  {spread:>17}  {ratio:7.2f}  {megabytes:10.2f}  {multiple:8.2f}")
    for name, row in entry["ratios"].items():
        verdict = "met" if row["met"] else "NOT MET"
        print(f"  {name:32}{row['measured']:9.3f}  aim {row['aim']:8}{verdict}")


def print_rounds(sweep: dict[str, Any]) -> None:
    print(f"\nAgainst the number of rounds k, {Size(**sweep['size'])}: ms / MB")
    print(f"  {THIS:32}{sweep['milliseconds'][THIS]:8.2f} / {sweep['megabytes'][THIS]:.2f}, without rounds")
    for i, k in enumerate(sweep["rounds"]):
        cells = [
            f"{name} {sweep['milliseconds'][name][i]:8.2f} / {sweep['megabytes'][name][i]:6.2f}"
            for name in (CLOSED_FORM, AUTOGRAD)
        ]
        print(f"  k = {k:<4} " + "    ".join(cells))


def draw_rounds(sweep: dict[str, Any], machine: dict[str, Any], path: Path) -> None:
    """Two panels against k, told apart by line and marker, so that grey print is enough."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    looks = {THIS: ("-", ""), CLOSED_FORM: ("--", "o"), AUTOGRAD: (":", "s")}
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    quantities = [("milliseconds", "forward + backward [ms]"), ("megabytes", "memory beyond inputs and results [MB]")]
    for axis, (key, label) in zip(axes, quantities, strict=True):
        for name, (line, marker) in looks.items():
            values = sweep[key][name]
            values = values if isinstance(values, list) else [values] * len(sweep["rounds"])
            axis.plot(sweep["rounds"], values, linestyle=line, marker=marker, label=name)
        axis.set(xscale="log", yscale="log", xlabel="rounds of the iteration, k", ylabel=label)
        axis.set_xticks(sweep["rounds"], labels=map(str, sweep["rounds"]))
        axis.minorticks_off()
        low, high = axis.get_ylim()
        axis.set_ylim(low / 1.5, high * 1.5)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    axes[0].legend()
    where = (
        f"{machine['processor']}, {machine['threads']} threads" if machine["device"] == "cpu" else machine["processor"]
    )
    figure.suptitle(
        f"Generalized sum pooling, {Size(**sweep['size'])}, fp32\n{where}, torch {machine['torch']}", fontsize=11
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE.png", help="draw time and memory against k")
    parser.add_argument("--repeats", type=int, help="of every measurement (default 31; 1 with --quick)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs; the figures mean nothing"
    )
    parser.add_argument(
        "--compile", action="store_true", help="also the layer under torch.compile (needs a C++ compiler)"
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu (default) or cuda")
    options = parser.parse_args(arguments)
    if options.repeats is None:
        options.repeats = 1 if options.quick else 31
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {options.repeats}")
    if options.device.type not in ("cpu", "cuda"):
        parser.error(f"--device must be cpu or cuda, got {options.device}")
    if options.device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {options.device} was asked for, but torch sees no GPU on this machine")
    if options.compile and not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++")):
        parser.error("--compile needs a C++ compiler, and neither g++ nor clang++ was found")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler complains of a missing GPU
    contestants = CONTESTANTS | ({"this layer, torch.compile": compiled_layer} if options.compile else {})
    sizes, rounds = (QUICK_SIZES, QUICK_ROUNDS) if options.quick else (SIZES, ROUNDS)
    machine = describe_machine(options.device)
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(
        f"fp32, keep {KEEP}, sharpness {SHARPNESS}, k = {ITERATIONS}, medians of {options.repeats} interleaved repeats"
    )
    if options.quick:
        print("--quick: this shows that the script runs. The sizes are too small for the times to mean anything.")
    elif (machine["load_average"] or 0) > 0.5:
        print("Other work is running on this machine, see the load average: the times are provisional.")

    entries = []
    for size in sizes:
        entries.append(compare(size, contestants, options.repeats, options.device, first=size == sizes[0]))
        print_comparison(entries[-1])
    sweep = sweep_rounds(sizes[0], rounds, options.repeats, options.device)
    print_rounds(sweep)
    print(f"\n{HOW}")

    if options.json:
        settings = {"keep": KEEP, "sharpness": SHARPNESS, "iterations": ITERATIONS, "repeats": options.repeats}
        report: dict[str, Any] = {
            "machine": machine,
            "settings": settings,
            "how": HOW,
            "sizes": entries,
            "rounds": sweep,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.figure:
        draw_rounds(sweep, machine, options.figure)


if __name__ == "__main__":
    main()
