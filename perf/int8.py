"""int8 beside fp32: CPU milliseconds of the backbone for a picture, and what int8 changes in the search.

    python perf/int8.py --folder PICTURES [--backbone NAME] [--repeats 15]

PICTURES has class folders. The backbone is calibrated and measured as by ``lookalike index --precision int8``. Both
take turns on one thread with OpenVINO, five pictures at a time; medians and least times of the CPU are printed.
"""

import argparse
import os
import time
from pathlib import Path
from statistics import median

import torch

from lookalike.cli.precision import quantise_on_files
from lookalike.data.folder import list_pictures
from lookalike.inference.model import untrained

PICTURES = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="class folders of pictures")
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = untrained(arguments.backbone, engine="openvino")
    names = list_pictures(arguments.folder).pictures
    quantised = quantise_on_files(model, arguments.folder, names)
    inputs = torch.randn(PICTURES, 3, model.spec.size, model.spec.size)
    milliseconds: dict[str, list[float]] = {}
    for repeat in range(arguments.repeats + 1):
        for each in (model, quantised):
            started = time.process_time()
            each.engine.maps(inputs)
            if repeat:  # the first pass warms up
                milliseconds.setdefault(each.precision, []).append(1000 * (time.process_time() - started) / PICTURES)
    print(f"{arguments.backbone} at {model.spec.size} pixels, load {os.getloadavg()[0]:.1f}")
    for precision, times in milliseconds.items():
        print(f"{precision:<6}{median(times):>8.2f} ms median {min(times):>8.2f} ms least")


if __name__ == "__main__":
    main()
