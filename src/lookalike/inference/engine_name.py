"""Names of the engines, for settings: importing them does not load torch."""

from typing import Literal

EngineName = Literal["auto", "torch", "openvino", "onnxruntime"]
ENGINE_HELP = "what computes local features; auto: openvino on a CPU if it is installed, else torch"
