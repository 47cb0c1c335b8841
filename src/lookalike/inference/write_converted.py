"""Convert a model and write it into a folder, for ``inference.converted``."""

import json
import logging
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from lookalike._util.checksums import hash_content, write_checked
from lookalike._util.files import flush
from lookalike.inference.conversion import convert_once
from lookalike.inference.converted import FILE, FOLDER, FORMAT, PLACES, ConvertedModel, check_vector, example_crops
from lookalike.inference.engine import ConvertedEngine, TorchEngine, create_engine
from lookalike.inference.engine_name import EngineName
from lookalike.inference.model import TrainedModel
from lookalike.inference.runtime import NETWORKS, Network
from lookalike.models.embedder import Head
from lookalike.models.store import SETTINGS, WEIGHTS
from lookalike.models.weight_files import first_line

logger = logging.getLogger(__name__)


class _HeadOutputs(nn.Module):
    """A head that gives a tuple: vectors and, if the pooling has them, weights and attributes.

    With ``any_count`` the number of local features may vary. It is then counted in a mask, because OpenVINO does not
    convert arithmetic with sizes.
    """

    def __init__(self, head: Head, any_count: bool) -> None:
        super().__init__()
        self.head = head
        self.any_count = any_count

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        mask = None
        if self.any_count:
            mask = torch.ones_like(tokens[..., 0], dtype=torch.bool)
        if not self.head.pooling.has_weights:
            return (self.head(tokens, mask),)
        pooled = self.head(tokens, mask, details=True)
        if not self.head.pooling.has_attributes:
            return pooled.vector, pooled.weights
        return pooled.vector, pooled.weights, pooled.attributes


class _Contributions(nn.Module):
    """The contributions of the places to the vector, (1, N, D), of local features (1, N, C)."""

    def __init__(self, head: Head, any_count: bool) -> None:
        super().__init__()
        self.head = head
        self.any_count = any_count

    def forward(self, tokens: Tensor) -> Tensor:
        mask = None
        if self.any_count:
            mask = torch.ones_like(tokens[..., 0], dtype=torch.bool)
        return self.head.contributions(tokens, mask)


def write_converted(model: TrainedModel, folder: Path, fingerprint: str, engine: EngineName) -> None:
    """Convert a model for queries without torch and compare its vectors with torch's.

    Args:
        model: The model, on the CPU.
        folder: Has ``model.json`` and ``model.safetensors``; the folder ``engine`` is written there.
        fingerprint: Of the model.
        engine: "openvino" or "onnxruntime".

    Raises:
        ValueError: If the model cannot be converted, or its vectors differ.
    """
    maps_engine = model.engine
    if maps_engine.name != engine:
        maps_engine = create_engine(model.embedder.backbone, model.spec, engine)
    if not isinstance(maps_engine, ConvertedEngine):
        raise ValueError(f"{engine} does not run {model.embedder.backbone.name}")
    sees_whole = model.spec.sees_whole
    head_module = _HeadOutputs(model.embedder.head, sees_whole).eval()
    pictures = list(example_crops(model.spec.size)[:, None])
    if sees_whole:
        pictures.append(np.concatenate(pictures, 2))  # a wide one
    with torch.inference_mode():
        reference = model
        if maps_engine.precision == "fp32":
            reference = TrainedModel(model.embedder, "torch")
            reference.engine = TorchEngine(model.embedder.backbone)
        bags = [reference.maps(torch.from_numpy(crops)).flatten(1, 2) for crops in pictures]
        vectors = [model.embedder.head(bag)[0].numpy() for bag in bags]

    def load_head(path: Path) -> tuple[Path, Network]:
        head: Network = NETWORKS[engine](path)
        for bag, vector in zip(bags, vectors, strict=True):
            check_vector(head.run(bag.numpy())[0][0], vector)
        return path, head

    name = json.dumps(model.settings(), sort_keys=True)
    title = f"the head with {model.settings()['pooling']['name']}"
    head_path, head = convert_once(
        head_module, bags[0].clone(), engine, name, load_head, title=title, any_count=sees_whole
    )
    parts = {"backbone": maps_engine.path, "head": head_path}
    if model.can_match:
        places_path = _convert_places(model, bags, engine, name)
        if places_path is not None:
            parts[PLACES] = places_path
    converted = ConvertedModel(model.settings(), fingerprint, engine, maps_engine.network, head)
    for crops, vector in zip(pictures, vectors, strict=True):
        check_vector(converted.embed_crops(crops)[0], vector)
    with TemporaryDirectory(dir=folder, prefix=".engine-") as temporary:
        unfinished = Path(temporary) / FOLDER
        unfinished.mkdir()
        digests = {name: hash_content(folder / name) for name in (SETTINGS, WEIGHTS)}
        for part, source in parts.items():
            for file in sorted(source.parent.glob(f"{source.stem}.*")):
                copy = unfinished / f"{part}{file.suffix}"
                shutil.copyfile(file, copy)
                flush(copy)
                digests[f"{FOLDER}/{copy.name}"] = hash_content(copy)
        about = {
            "format": FORMAT,
            "engine": engine,
            "precision": maps_engine.precision,
            "fingerprint": fingerprint,
            "files": digests,
            "vector": [float(x) for x in vectors[0]],
        }
        write_checked(unfinished / FILE, json.dumps(about, indent=2) + "\n")
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        unfinished.rename(folder / FOLDER)


def _convert_places(model: TrainedModel, bags: list[Tensor], engine: EngineName, name: str) -> Path | None:
    """Convert what ``match`` computes; a warning says if that is not possible, and ``match`` then loads torch."""
    sees_whole = model.spec.sees_whole
    module = _Contributions(model.embedder.head, sees_whole).eval()

    def load(path: Path) -> Path:
        network: Network = NETWORKS[engine](path)
        for bag in bags:
            check_vector(network.run(bag.numpy())[0][0], model.embedder.head.contributions(bag)[0].numpy())
        return path

    title = f"the match of {model.settings()['pooling']['name']}"
    try:
        return convert_once(
            module, bags[0].clone(), engine, f"{name} {PLACES}", load, title=title, any_count=sees_whole
        )
    except Exception as error:  # converters fail in many ways
        logger.warning("%s cannot be converted, it will load torch: %s", title, first_line(error))
        return None
