"""int8 on request: the backbone in whole numbers of 8 bits, for OpenVINO on a CPU.

Weights and activations become int8 after training (post-training quantisation by NNCF), with ranges calibrated on the
user's own pictures. The head stays in fp32. This makes the forward pass faster; ``export.int8`` makes files smaller.
"""

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path

from lookalike._util.files import cache_folder
from lookalike._util.hashing import digest
from lookalike.data.cropping import Pixels, squares
from lookalike.inference.conversion import add_files
from lookalike.inference.engine import ConvertedEngine
from lookalike.inference.engine_name import require_int8
from lookalike.inference.model import TrainedModel
from lookalike.inference.preprocess import to_arrays
from lookalike.models.weight_files import weights_key

VERSION = 1  # raise this when quantisation changes

logger = logging.getLogger(__name__)


def quantise(model: TrainedModel, crops: Sequence[Pixels]) -> TrainedModel:
    """Quantise the backbone of a model.

    Args:
        model: The model, on the CPU.
        crops: Crops of pictures (H, W, 3), made by ``model.preprocess``, that give the ranges of activations.

    Returns:
        A model with the same head that computes in int8.

    Raises:
        ValueError: If int8 cannot be computed, or there are no crops.
    """
    require_int8("openvino", model.device)
    if not crops:
        raise ValueError("int8 is calibrated on pictures, got none")
    source = model.engine
    if not isinstance(source, ConvertedEngine) or source.name != "openvino":
        source = TrainedModel(model.embedder, "openvino").engine
    if not isinstance(source, ConvertedEngine):
        raise ValueError(f"openvino does not run {model.embedder.backbone.name}, so int8 is not possible")
    inputs = _as_squares(model, crops)
    weights, spec = weights_key(model.embedder.backbone), str(model.spec.to_dict())
    calibration = digest(*(pixels.tobytes() for pixels in inputs))
    key = digest(str(VERSION), weights, spec, calibration, version("nncf"), version("openvino"))
    path = cache_folder() / "engines" / key / "network.xml"
    quantised = TrainedModel(model.embedder, "openvino", model.source)
    quantised.engine = _load_or_write(path, source.path, inputs, model)
    return quantised


def _as_squares(model: TrainedModel, crops: Sequence[Pixels]) -> list[Pixels]:
    """Crops as inputs of the backbone, (1, size, size, 3) each."""
    if not model.spec.sees_whole:
        return [crop[None] for crop in crops]
    inputs = []
    for crop in crops:
        _, parts = squares(model.spec, *crop.shape[:2])
        inputs += [crop[None][part.pixels] for part in parts]
    return inputs


def _load_or_write(path: Path, source: Path, inputs: list[Pixels], model: TrainedModel) -> ConvertedEngine:
    if path.exists():
        try:
            return ConvertedEngine("openvino", path, "int8")
        except Exception as error:  # readers fail in many ways
            logger.warning("%s is damaged and is written again: %s", path, error)
    logger.warning("calibrating int8 on %d crops of pictures: this takes some seconds", len(inputs))
    add_files(path, lambda unfinished: _write(source, inputs, model, unfinished))
    return ConvertedEngine("openvino", path, "int8")


def _write(source: Path, inputs: list[Pixels], model: TrainedModel, target: Path) -> None:
    import openvino

    with redirect_stdout(StringIO()):  # progress bars
        import nncf

        logging.getLogger("nncf").setLevel(logging.ERROR)  # its own function changes handlers that others share
        dataset = nncf.Dataset([to_arrays(pixels, model.spec) for pixels in inputs])
        network = openvino.Core().read_model(source)
        preset = nncf.QuantizationPreset.MIXED  # asymmetric activations: more exact, and no slower
        quantised = nncf.quantize(network, dataset, preset=preset, subset_size=len(inputs))
    openvino.save_model(quantised, target, compress_to_fp16=False)
