"""All benchmarks by name, and which of them a folder holds."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from lookalike.data.datasets.aircraft import AIRCRAFT
from lookalike.data.datasets.cars import CARS
from lookalike.data.datasets.cifar import CIFAR10, CIFAR100
from lookalike.data.datasets.cub import CUB
from lookalike.data.datasets.inshop import INSHOP
from lookalike.data.datasets.layout import Benchmark
from lookalike.data.datasets.mnist import FASHION, MNIST
from lookalike.data.datasets.products import SOP
from lookalike.data.pictures import BrokenData, Pictures

BENCHMARKS = {each.name: each for each in (CUB, CARS, SOP, INSHOP, AIRCRAFT, CIFAR10, CIFAR100, MNIST, FASHION)}
MOST_BESIDE = 16  # folders beside each other in which a benchmark is looked for; where there are more, they are classes
_ALIASES = {alias: each.name for each in BENCHMARKS.values() for alias in each.aliases}


def names() -> list[str]:
    return list(BENCHMARKS)


def get(name: str) -> Benchmark:
    """A benchmark by its name, or one of the names it goes by elsewhere."""
    known = lookup(name)
    if known is None:
        near = get_close_matches(name.lower(), [*BENCHMARKS, *_ALIASES], n=1)
        hint = f"did you mean {_ALIASES.get(near[0], near[0])!r}?" if near else f"there are {', '.join(BENCHMARKS)}"
        raise ValueError(f"there is no benchmark called {name!r}; {hint}")
    return known


def lookup(name: str) -> Benchmark | None:
    name = name.lower()
    return BENCHMARKS.get(_ALIASES.get(name, name))


def describe() -> list[dict[str, Any]]:
    """A row for each benchmark, for people and for JSON."""
    return [
        {
            "name": each.name,
            "title": each.title,
            "classes": each.classes,
            "pictures": each.pictures,
            "parts": {part: size._asdict() for part, size in each.parts.items()},
            "page": each.page,
            "files": list(each.files),
        }
        for each in BENCHMARKS.values()
    ]


def recognise(path: str | Path) -> str | None:
    """The benchmark whose layout ``path`` has, complete or not; None if it looks like none."""
    path = Path(path)
    return next((each.name for each in BENCHMARKS.values() if path.is_dir() and each.recognises(path)), None)


def hint_below(path: str | Path) -> str | None:
    """What to say of a folder that is no benchmark but holds one; None if it holds none."""
    try:
        folders = [each for each in sorted(Path(path).iterdir()) if each.is_dir() and not each.name.startswith(".")]
    except OSError:  # whoever lists the pictures in it will say so
        return None
    for folder in folders if len(folders) <= MOST_BESIDE else ():
        name = recognise(folder)
        if name is not None:
            return f"{path} is not a folder of classes but holds {get(name).title}: did you mean {name}:{folder}?"
    return None


def read_benchmark(name: str, path: str | Path) -> Pictures:
    """The table of a benchmark that lies in ``path``, or in its usual folder below. No picture is opened."""
    benchmark = get(name)
    path = Path(path)
    root = benchmark.find(path)
    if root is None:
        wanted = "; ".join(benchmark.files)
        raise ValueError(
            f"{path} does not hold {benchmark.title}; expected {wanted}. It is offered at {benchmark.page}"
        )
    lacking = benchmark.missing(root)
    if lacking:
        raise BrokenData(f"{benchmark.title} in {root} is not complete: {', '.join(lacking)} missing")
    try:
        return benchmark.read(root)
    except ValueError as error:
        raise BrokenData(str(error)) from error
