"""One training step of the head alone: generalized sum pooling beside average pooling.

    python perf/head_step.py [--repeats 60] [--sharpness 5] [--loss c2] [--json]

The step is that of ``lookalike train`` with frozen features: 32 cached maps (7, 7, 1280) in fp16, the projection to 128
dimensions, the pooling (with 64 prototypes), loss, backward pass and optimizer. The steps take turns on one thread. CPU
time counts, and the ratio is that of the medians.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from lookalike.models.embedder import Head
from lookalike.training.model import Learner, create_objective
from lookalike.training.optim import create_optimizer
from lookalike.training.settings import Settings

BAGS, PLACES, CHANNELS, DIM, PROTOTYPES, CLASSES = 32, 49, 1280, 128, 64, 100
WARM_UP = 3
AIM = 1.15


def training_step(pooling: str, pooling_settings: dict[str, Any], loss: str) -> Callable[[], None]:
    """Return one step of the head, on the same maps for every pooling."""
    torch.manual_seed(0)
    settings = Settings(data="glyphs", loss=loss, pooling=pooling, lr=1e-3, proxy_lr=1.0)
    maps = torch.randn(BAGS, PLACES, CHANNELS).relu().half()
    labels = torch.arange(BAGS) // 4
    head = Head(CHANNELS, DIM, pooling, pooling_settings)
    objective, _ = create_objective(settings, CLASSES, DIM, head.pooling, validates=True)
    learner = Learner(head, objective)
    optimizer = create_optimizer(head, objective, settings)

    def step() -> None:
        optimizer.zero_grad()
        learner(maps.float(), labels).value.backward()
        optimizer.step()

    return step


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--sharpness", type=float, default=5.0)
    parser.add_argument("--loss", default="c2")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gsp = {"num_prototypes": PROTOTYPES, "sharpness": arguments.sharpness}
    steps = {
        "average": training_step("average", {}, arguments.loss),
        "gsp": training_step("gsp", gsp, arguments.loss),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    shuffled = random.Random(0)
    for repeat in range(arguments.repeats + WARM_UP):
        for name in shuffled.sample(list(steps), len(steps)):
            started = time.process_time()
            steps[name]()
            if repeat >= WARM_UP:
                times[name].append(1000 * (time.process_time() - started))
    milliseconds = {name: median(values) for name, values in times.items()}
    least = {name: min(values) for name, values in times.items()}
    ratios = {"median": milliseconds["gsp"] / milliseconds["average"], "least": least["gsp"] / least["average"]}
    load = os.getloadavg()[0]
    if arguments.json:
        print(json.dumps({"milliseconds": milliseconds, "least": least, "ratios": ratios, "load": load}))
        return
    print(f"{BAGS} maps of {PLACES} places, {CHANNELS} to {DIM} dimensions, {PROTOTYPES} prototypes, load {load:.1f}")
    for name, value in milliseconds.items():
        print(f"{name:<10}{value:>8.2f} ms CPU, median {least[name]:>8.2f} least")
    print(f"gsp takes {ratios['median']:.3f} times as long (aim {AIM}), by the least times {ratios['least']:.3f}")


if __name__ == "__main__":
    main()
