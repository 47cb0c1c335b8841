"""CLIP and SigLIP from open_clip: pictures and texts in one space.

The backbone ``open_clip:NAME`` gives one feature for the whole picture, as a grid of one cell: the vector that texts
are compared with. The text tower is part of the network, so that an index holds what queries by text need.

Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.models.input_spec import InputSpec
from lookalike.models.text_names import INSTALL, PREFIX
from lookalike.models.weight_files import load_into, read_weights


class TwoTowers(nn.Module):
    """A picture tower and a text tower.

    Args:
        name: Name in open_clip, without the prefix.
        tag: Weights that open_clip downloads; None starts at random.

    Attributes:
        spec: The input of the picture tower.
        num_features: C, the size of the vectors.
    """

    stage_prefixes = ("clip.visual.",)
    default_cfg: Mapping[str, Any] = {"fixed_input_size": True}

    def __init__(self, name: str, tag: str | None = None) -> None:
        super().__init__()
        open_clip = load_open_clip()
        device = torch.empty(0).device  # meta, where only shapes are wanted
        with _quiet():
            self.clip = open_clip.create_model(name, pretrained=tag, device=device, load_weights=tag is not None)
        for parameter in self.clip.parameters():
            parameter.requires_grad_(True)
        self.name = name
        self.num_features = int(self.clip.visual.output_dim)
        settings = self.clip.visual.preprocess_cfg
        size = int(settings["size"][0])
        self.spec = InputSpec(
            size=size, mean=settings["mean"], std=settings["std"], interpolation="bicubic", resize=size
        )
        self._tokenizer: Any = None

    def forward_features(self, images: Tensor) -> Tensor:
        """Vectors of images (B, 3, H, W) as maps (B, C, 1, 1)."""
        vectors: Tensor = self.clip.encode_image(images.contiguous())
        return vectors[:, :, None, None]

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        """Vectors (n, C) of texts, not normalised.

        Raises:
            ValueError: If the tokenizer cannot be loaded, as those of SigLIP without transformers and a download.
        """
        if self._tokenizer is None:
            try:
                self._tokenizer = load_open_clip().get_tokenizer(self.name)
            except Exception as error:  # libraries and downloads raise many kinds of errors
                reason = str(error).strip().partition("\n")[0]
                raise ValueError(f"the tokenizer of {self.name} cannot be loaded: {reason}") from error
        tokens = self._tokenizer(list(texts)).to(self.clip.logit_scale.device)
        vectors: Tensor = self.clip.encode_text(tokens)
        return vectors


def create_two_towers(name: str, weights: str | Path) -> TwoTowers:
    """Create the network of a backbone.

    Args:
        name: Name of the backbone, with the prefix.
        weights: A file of open_clip (safetensors, or a state dict for ``torch.load``), one of open_clip's tags, which
            is downloaded, or "none" for random weights.

    Raises:
        ValueError: If there is no such model, or no such weights, or they do not fit.
        OSError: If the weights cannot be downloaded.
    """
    short = _known_name(name)
    if weights == "none":
        return TwoTowers(short)
    tags = load_open_clip().list_pretrained_tags_by_model(short)
    if str(weights) in tags:
        try:
            return TwoTowers(short, str(weights))
        except Exception as error:  # clients of the hub raise many kinds of errors
            raise OSError(f"open_clip could not download the weights {weights} of {short}: {error}") from error
    path = Path(weights).expanduser()
    if not path.is_file():
        listed = ", ".join(tags) or "none"
        raise ValueError(
            f"no weights of {name} come with a package; set weights to a file, or 'none' for a random start, "
            f"or to one of open_clip's tags, which downloads them: {listed}"
        )
    network = TwoTowers(short)
    state = {key.removeprefix("module."): value for key, value in read_weights(path).items()}
    state.pop("attn_mask", None)  # of older files; it is computed
    load_into(network.clip, state, what=f"the backbone {name}")
    return network


def load_open_clip() -> Any:
    """Import open_clip.

    Raises:
        ValueError: If it is not installed.
    """
    if find_spec("open_clip") is None:
        raise ValueError(INSTALL)
    import open_clip

    return open_clip


def _known_name(name: str) -> str:
    short = name.removeprefix(PREFIX)
    known = load_open_clip().list_models()
    if short not in known:
        from lookalike._util.suggestions import did_you_mean

        raise ValueError(f"open_clip has no model {short!r}{did_you_mean(short, known)}")
    return short


@contextmanager
def _quiet() -> Iterator[None]:
    """Without open_clip's warning that a model starts at random, which it sends to the root logger."""
    root = logging.getLogger()

    def is_error(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    root.addFilter(is_error)  # one for every thread; setting the level could leave it changed when threads overlap
    try:
        yield
    finally:
        root.removeFilter(is_error)
