"""A flipped bit in the model of an index is noticed when the model is loaded."""

import random
from pathlib import Path

import pytest

from lookalike import index
from lookalike.inference.model import TrainedModel

FLIPS = 60


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_every_flipped_bit_is_noticed_or_harmless(model: TrainedModel, tmp_path: Path, name: str) -> None:
    with index.create(tmp_path / "idx", model) as idx:
        file = tmp_path / "idx" / "model" / name
        good = file.read_bytes()
        rng = random.Random(0)
        noticed = 0
        for _ in range(FLIPS):
            content = bytearray(good)
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            file.write_bytes(content)
            try:
                loaded = idx.model("cpu")
            except ValueError:
                noticed += 1
                continue
            assert index.fingerprint_of(loaded) == idx.fingerprint  # white space of JSON, or a counter of batches
        assert noticed > FLIPS / 2
        file.write_bytes(good)
        assert index.fingerprint_of(idx.model("cpu")) == idx.fingerprint
