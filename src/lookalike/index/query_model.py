"""The converted model of an index: what a query needs, loaded without torch."""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lookalike.index.storage import MODEL
from lookalike.inference.converted import FOLDER, ConvertedModel, read_converted
from lookalike.inference.engine_name import ENVIRONMENT, EngineName, may_have_gpu, resolve_engine

if TYPE_CHECKING:
    from lookalike.inference.model import TrainedModel

logger = logging.getLogger(__name__)


def load_converted(path: Path, fingerprint: str, device: object, engine: EngineName) -> ConvertedModel | None:
    """Load the converted model of an index.

    Args:
        path: The folder of the index.
        fingerprint: Fingerprint of its model.
        device: Where to compute; None for a GPU if there is one.
        engine: What computes. "auto" takes the engine that the model was converted for.

    Returns:
        The model; None if torch must be loaded. A warning says why, unless torch or a GPU was asked for.
    """
    if device is None and not may_have_gpu():
        device = "cpu"
    if str(device) != "cpu":
        return None
    name = resolve_engine(engine, "cpu")
    if name == "torch":
        return None
    try:
        model = read_converted(path / MODEL, fingerprint)
    except FileNotFoundError:
        logger.warning("%s has no converted model, torch is loaded instead; lookalike index adds one", path)
        return None
    except Exception as error:  # readers fail in many ways
        logger.warning("the converted model of %s cannot be used, torch is loaded instead: %s", path, error)
        return None
    is_chosen = engine != "auto" or ENVIRONMENT in os.environ
    if is_chosen and model.engine != name:
        logger.warning("%s has a model for %s, torch is loaded for %s", path, model.engine, name)
        return None
    return model


def use_int8(path: Path, model: "TrainedModel") -> None:
    """Let a model compute with the int8 network of an index; a warning says if that is not possible."""
    from lookalike.inference.engine import ConvertedEngine

    if model.engine.name != "openvino":
        logger.warning("%s was made in int8, %s computes in fp32", path, model.engine.name)
        return
    try:
        model.engine = ConvertedEngine("openvino", path / MODEL / FOLDER / "backbone.xml", "int8")
    except Exception as error:  # readers fail in many ways
        reason = str(error).partition("\n")[0]
        logger.warning("the int8 network of %s cannot be used, fp32 is used instead: %s", path, reason)


def convert_model(path: Path, fingerprint: str, engine: EngineName, model: "TrainedModel | None" = None) -> bool:
    """Convert the model of an index, unless that was done.

    Args:
        path: The folder of the index.
        fingerprint: Fingerprint of its model.
        engine: As for ``Index.convert_model``.
        model: The model, if it is loaded already; None loads it.

    Returns:
        As ``Index.convert_model``.
    """
    name = resolve_engine(engine, "cpu")
    if name == "torch":
        return False
    with suppress(Exception):  # readers fail in many ways
        converted = read_converted(path / MODEL, fingerprint)
        if converted.engine == name and (converted.places_file or not converted.can_match):
            return True
    from lookalike.inference.model import load
    from lookalike.inference.write_converted import write_converted

    try:
        if model is None:
            model = load(path / MODEL, "cpu", name)
        write_converted(model, path / MODEL, fingerprint, name)
    except Exception as error:  # converters fail in many ways
        reason = str(error).strip().partition("\n")[0]
        logger.warning("%s gets no converted model, queries load torch: %s", path, reason)
        return False
    return True
