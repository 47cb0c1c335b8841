"""Pictures per second from JPEG files to an index on 2 cores, beside timm + FAISS and open-metric-learning.

    python perf/pipeline.py --folder PICTURES [--pictures 256] [--repeats 2] [--oml DIR] [--json]

All three use the same backbone with the same weights and write their vectors to disk: lookalike an index of files,
the others a flat FAISS index. The other two run as their documentation shows: a DataLoader with as many workers as
cores, batches of 32, torch. Models are loaded before the clock starts. The first pass of each, over a few pictures, is
not timed. They take turns, and the fastest of the repeats counts. CPU milliseconds include those of worker processes:
where other programs use the cores, they say more than pictures per second.

open-metric-learning need not fit into this environment: pip install --target DIR --no-deps open-metric-learning
and what else it asks for, and --oml DIR.

The second table has the CPU milliseconds per picture of every stage of lookalike, each measured alone on one thread.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from lookalike import index
from lookalike.data.reading import decode, open_header
from lookalike.inference.engine import forward_each
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone

BACKBONE = "tf_efficientnet_lite0"
CORES = 2
BATCH = 32
AIM = 2.2
WARM_UP = 8

Contestant = Callable[[list[Path], Path], None]  # files and a folder to write to


class AveragePooled(torch.nn.Module):
    """The bare network with timm's average pooling."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.backbone = embedder.backbone

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Vectors (B, C) of images (B, 3, H, W)."""
        vectors: torch.Tensor = self.backbone(images).mean(1)
        return vectors


def torchvision_transform(model: TrainedModel) -> Any:
    """The transform of timm and torchvision for evaluation, with the numbers of the model."""
    from torchvision import transforms

    spec = model.spec
    mode = transforms.InterpolationMode(spec.interpolation)
    numbers = [transforms.ToTensor(), transforms.Normalize(spec.mean, spec.std)]
    return transforms.Compose([transforms.Resize(spec.resize_to, mode), transforms.CenterCrop(spec.size), *numbers])


def write_faiss(vectors: np.ndarray[Any, Any], folder: Path) -> None:
    """Write a flat index."""
    import faiss

    vectors = np.ascontiguousarray(vectors, np.float32)
    faiss.normalize_L2(vectors)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    faiss.write_index(flat, str(folder / "vectors.faiss"))


class ImageFiles(torch.utils.data.Dataset[torch.Tensor]):
    """Files as a plain script reads them."""

    def __init__(self, files: list[Path], transform: Any) -> None:
        self.files = files
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> torch.Tensor:
        from PIL import Image

        inputs: torch.Tensor = self.transform(Image.open(self.files[position]).convert("RGB"))
        return inputs


def lookalike_pipeline(model: TrainedModel) -> Contestant:
    """``lookalike index`` without the start of Python."""

    def run(files: list[Path], folder: Path) -> None:
        pictures = folder / "pictures"
        pictures.mkdir()
        for number, file in enumerate(files):
            (pictures / f"{number}.jpg").symlink_to(file.resolve())
        with index.create(folder / "pictures.idx", model, engine="torch") as idx:
            index.sync(idx, model, pictures)

    return run


def timm_pipeline(model: TrainedModel) -> Contestant:
    """A plain script: DataLoader, network, FAISS."""
    network, transform = AveragePooled(model.embedder).eval(), torchvision_transform(model)

    def run(files: list[Path], folder: Path) -> None:
        loader = torch.utils.data.DataLoader(ImageFiles(files, transform), batch_size=BATCH, num_workers=CORES)
        with torch.inference_mode():
            vectors = torch.cat([network(images) for images in loader])
        write_faiss(vectors.numpy(), folder)

    return run


def oml_pipeline(model: TrainedModel) -> Contestant:
    """open-metric-learning's inference, then FAISS."""
    datasets, inference = import_module("oml.datasets"), import_module("oml.inference")
    network, transform = AveragePooled(model.embedder).eval(), torchvision_transform(model)

    def run(files: list[Path], folder: Path) -> None:
        dataset = datasets.ImageBaseDataset(paths=files, transform=transform)
        vectors = inference.inference(network, dataset, batch_size=BATCH, num_workers=CORES)
        write_faiss(vectors.numpy(), folder)

    return run


def find_jpegs(folder: Path) -> list[Path]:
    """All JPEG files below a folder, also in linked folders."""
    found = []
    for path, _, names in os.walk(folder, followlinks=True):
        found += [Path(path) / name for name in names if name.lower().endswith((".jpg", ".jpeg"))]
    return sorted(found)


def cpu_seconds() -> float:
    """CPU time of this process and of the workers that it has ended."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def decode_jpeg(data: bytes, at_least: int) -> Any:
    """Decode as ``read_picture`` does."""
    image = open_header(BytesIO(data), "picture")
    image.draft(None, (at_least, at_least))
    return decode(image)


def stages(model: TrainedModel, files: list[Path]) -> dict[str, float]:
    """CPU milliseconds per picture of each stage, on one thread; the forward pass is that of the model's engine."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = work()
        seconds[name] = 1000 * (time.process_time() - started) / len(files)
        return result

    preprocess = model.preprocess
    contents = timed("reading", lambda: [file.read_bytes() for file in files])
    side = preprocess.decode_side
    images = timed("decoding", lambda: [decode_jpeg(data, side) for data in contents])
    crops = timed("resizing", lambda: np.stack([preprocess.crop(image) for image in images]))
    inputs = preprocess.inputs(crops)
    model.engine.maps(inputs[:1])
    maps = timed("forward", lambda: model.engine.maps(inputs))
    with torch.inference_mode():
        vectors = timed("pooling", lambda: forward_each(model.embedder.head, maps.flatten(1, 2)).numpy())
    with TemporaryDirectory() as folder, index.create(Path(folder) / "i.idx", model, engine="torch") as idx:
        items = [index.file_item(file) for file in files]
        timed("writing", lambda: idx.add(items, vectors))
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder of JPEG files, at any depth")
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--oml", type=Path, help="folder of open-metric-learning, made by pip install --target")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    torch.set_num_threads(CORES)
    if arguments.oml is not None:
        sys.path.append(str(arguments.oml))
    files = find_jpegs(arguments.folder)[: arguments.pictures]
    if len(files) < WARM_UP:
        raise SystemExit(f"{arguments.folder} has {len(files)} JPEG files, at least {WARM_UP} are needed")
    model = TrainedModel(Embedder(create_backbone(BACKBONE), dim=128))
    contestants = {"lookalike": lookalike_pipeline(model), "timm + FAISS": timm_pipeline(model)}
    try:
        contestants["open-metric-learning"] = oml_pipeline(model)
    except Exception as error:  # also a package of a wrong version
        print(f"NOT MEASURED: open-metric-learning cannot be imported ({error}); see --help", file=sys.stderr)
    best = dict.fromkeys(contestants, 0.0)
    cpu = dict.fromkeys(contestants, float("inf"))
    for repeat in range(arguments.repeats + 1):
        some = files if repeat else files[:WARM_UP]
        for name, run in contestants.items():
            with TemporaryDirectory() as folder:
                started, cpu_before = time.perf_counter(), cpu_seconds()
                run(some, Path(folder))
                if repeat:
                    best[name] = max(best[name], len(files) / (time.perf_counter() - started))
                    cpu[name] = min(cpu[name], 1000 * (cpu_seconds() - cpu_before) / len(files))
    torch.set_num_threads(1)
    single = TrainedModel(model.embedder, model.engine.name)  # type: ignore[arg-type]
    milliseconds = stages(single, files[:64])
    load = os.getloadavg()[0]
    if arguments.json:
        report = {"pictures per second": best, "CPU ms per picture": cpu, "CPU milliseconds": milliseconds}
        print(json.dumps({**report, "load": load}))
        return
    print(f"{len(files)} JPEG files, {BACKBONE} at {model.spec.size} pixels, {CORES} cores, load {load:.1f}")
    for name, rate in best.items():
        print(f"{name:<24}{rate:>8.1f} pictures/s{cpu[name]:>8.1f} ms CPU a picture", end="")
        if name != "lookalike":
            faster, cheaper = best["lookalike"] / rate, cpu[name] / cpu["lookalike"]
            print(f"  lookalike: {faster:.2f} times as fast, {cheaper:.2f} times less CPU (aim {AIM})", end="")
        print()
    total = sum(milliseconds.values())
    for name, value in milliseconds.items():
        print(f"{name:<24}{value:>8.2f} ms CPU  {100 * value / total:>4.0f} %")


if __name__ == "__main__":
    main()
