"""Speed of lookalike.load(run).embed(pictures) beside the bare timm network on the same pictures.

    python perf/embed.py [--json FILE] [--repeats N] [--backbone NAME] [--pictures N] [--threads N] [--quick]

The bare network is timm's, with its average pooling and no classifier, in eval and inference mode, over batches that
are already numbers; once as it comes and once with the channels last, which convolutions like on CPUs too. The second
is the reference of the ratios. Beside it: the model's forward over the same batches (its pooling in place of the
average), embed() of decoded arrays, which resizes, crops and normalises them and on a CPU computes them one by one, and
embed() of files, which decodes them as well; the latter also with the engines OpenVINO and ONNX Runtime.

All take turns in a new order in every repeat. A ratio is the bare network's least time over the contestant's: 1 is as
fast as the bare network. The least and not the median, because other work on the machine only adds to a time. It is
given for elapsed time, in which decoding may hide behind computing where there is a core to spare, and for the CPU time
of all threads, in which nothing hides.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measuring
import numpy as np
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from lookalike.data.loading import evaluation_batch
from lookalike.data.reading import read_picture
from lookalike.inference.model import TrainedModel, embed_batches
from lookalike.inference.preprocess import Preprocess
from lookalike.models import Embedder, create_backbone

HOW = "\n\n".join((__doc__ or "").split("\n\n")[2:4])  # printed and stored beside the figures
BARE, BARE_LAST = "bare timm, as it comes", "bare timm, channels last"
FORWARD, ARRAYS, FILES = "the model's forward", "embed(arrays)", "embed(files)"
OPENVINO, ONNXRUNTIME = "embed(files), OpenVINO", "embed(files), ONNX Runtime"
AIMS = {FORWARD: 0.9, ARRAYS: 0.9, FILES: 0.9, OPENVINO: 2.0, ONNXRUNTIME: 1.2}


class Size(NamedTuple):
    backbone: str
    side: int  # of the input
    pictures: int
    picture: tuple[int, int]  # width and height of the files

    def __str__(self) -> str:
        width, height = self.picture
        return f"{self.backbone} at {self.side} pixels, {self.pictures} JPEGs of {width} x {height}"


QUICK = Size("tf_efficientnet_lite0", 64, 6, (90, 60))


def draw_files(size: Size, folder: Path) -> list[Path]:
    """Photographs take as many bytes as smooth noise with some sharp noise on it: about 1 bit a pixel."""
    chance = np.random.default_rng(0)
    files = []
    for number in range(size.pictures):
        coarse = Image.fromarray(chance.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(size.picture, Image.Resampling.BICUBIC)).astype(float)
        pixels = smooth + chance.normal(0, 6, smooth.shape)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(files[-1], quality=85)
    return files


def contestants(size: Size, files: list[Path]) -> dict[str, Callable[[], NDArray[np.float32]]]:
    torch.manual_seed(0)
    backbone = create_backbone(size.backbone, weights="none")
    embedder = Embedder(backbone, dim=128, input_spec=backbone.spec.resized(size.side))
    model = TrainedModel(embedder, "torch")
    openvino, onnxruntime = TrainedModel(embedder, "openvino"), TrainedModel(embedder, "onnxruntime")
    bare = timm.create_model(size.backbone, num_classes=0).eval()
    last = timm.create_model(size.backbone, num_classes=0).eval().to(memory_format=torch.channels_last)
    transform = Preprocess(model.spec)
    arrays = [np.asarray(read_picture(file)) for file in files]
    numbers = torch.stack([transform(Image.fromarray(array)) for array in arrays])
    # As channels last they would be converted once for all; in use each batch has to be.
    batches = list(numbers.split(evaluation_batch()))

    def over(network: nn.Module, prepare: Callable[[Tensor], Tensor] = lambda batch: batch) -> NDArray[np.float32]:
        prepared = (prepare(batch) for batch in batches)
        vectors: Tensor = embed_batches(prepared, network, device=model.device, tick=lambda _: None)
        return vectors.numpy()

    return {
        BARE: lambda: over(bare),
        BARE_LAST: lambda: over(last, lambda batch: batch.contiguous(memory_format=torch.channels_last)),
        FORWARD: lambda: over(model.embedder),
        ARRAYS: lambda: model.embed(arrays),
        FILES: lambda: model.embed(files),
        OPENVINO: lambda: openvino.embed(files),
        ONNXRUNTIME: lambda: onnxruntime.embed(files),
    }


def compare(size: Size, repeats: int) -> dict[str, Any]:
    """All contestants, as one entry of the JSON."""
    with TemporaryDirectory() as folder:
        runs = contestants(size, draw_files(size, Path(folder)))
        vectors = {name: run() for name, run in runs.items()}  # also the warm-up
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        cpu_seconds: dict[str, list[float]] = {name: [] for name in runs}
        shuffled = random.Random(0)
        for _ in range(repeats):
            for name in shuffled.sample(list(runs), len(runs)):
                elapsed, cpu = time.perf_counter(), time.process_time()
                runs[name]()
                seconds[name].append(time.perf_counter() - elapsed)
                cpu_seconds[name].append(time.process_time() - cpu)
    return {
        "size": size._asdict(),
        "pictures_per_second": {name: size.pictures / min(times) for name, times in seconds.items()},
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "disagreement": disagreement(vectors),
        "ratios": {
            name: {"elapsed": ratio(seconds, name), "cpu": ratio(cpu_seconds, name), "aim": AIMS.get(name)}
            for name in (BARE, *AIMS)
        },
    }


def ratio(seconds: dict[str, list[float]], name: str) -> float:
    return min(seconds[BARE_LAST]) / min(seconds[name])


def disagreement(vectors: dict[str, NDArray[np.float32]]) -> float:
    """Ways to the same vectors are compared in time only if they have them."""
    difference = max(float(np.abs(vectors[name] - vectors[FORWARD]).max()) for name in AIMS)
    if not difference < 1e-4:
        raise RuntimeError(f"the vectors differ by {difference:.1e}: nothing to compare")
    return difference


def print_comparison(size: Size, entry: dict[str, Any]) -> None:
    print(f"\n{size}")
    print(f"  the vectors of all ways agree to {entry['disagreement']:.0e}")
    print(f"  {'':28}{'pictures/s':>11}{'ratio, elapsed':>16}{'ratio, CPU':>12}")
    for name, speed in entry["pictures_per_second"].items():
        if name == BARE_LAST:
            print(f"  {name:28}{speed:11.1f}{1:16.2f}{1:12.2f}")
            continue
        row = entry["ratios"][name]
        verdict = ""
        if name in AIMS:
            verdict = f"aim >= {AIMS[name]} " + ("met" if row["elapsed"] >= AIMS[name] else "NOT MET")
        print(f"  {name:28}{speed:11.1f}{row['elapsed']:16.2f}{row['cpu']:12.2f}  {verdict}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = measuring.parser(__doc__, 7, "of every measurement")
    parser.add_argument("--backbone", default="tf_efficientnet_lite0", help="one of timm's (default %(default)s)")
    parser.add_argument("--side", type=int, default=224, help="of the input in pixels (default %(default)s)")
    parser.add_argument("--pictures", type=int, default=64, help="how many (default %(default)s)")
    parser.add_argument("--threads", type=int, help="of torch (default: what torch takes)")
    options = measuring.parse(parser, arguments)
    for name in ("side", "pictures"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if not timm.is_model(options.backbone):
        parser.error(f"--backbone must be one of timm's, got {options.backbone}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    threads = torch.get_num_threads()
    machine = measuring.describe_machine(options.quick, timm=timm.__version__, torch_threads=str(threads))
    size = QUICK if options.quick else Size(options.backbone, options.side, options.pictures, (500, 375))
    entry = compare(size, options.repeats)
    print_comparison(size, entry)
    measuring.write_report(options, machine, HOW, [entry])


if __name__ == "__main__":
    main()
