"""A backbone with a whitening head, fitted on pictures without labels."""

from pathlib import Path

import numpy as np
import pytest

from lookalike import index
from lookalike.inference import load, untrained, whitened
from lookalike.models import save_model

SIZE = 32


@pytest.fixture(scope="module")
def files(class_folders: Path) -> list[Path]:
    return sorted(class_folders.rglob("*.png"))[:12]


def test_vectors_are_centred_and_stored(files: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    model = whitened([*files, broken], size=SIZE, device="cpu")
    vectors = model.embed(files)
    plain = untrained("efficientnet_lite0", size=SIZE, device="cpu").embed(files)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert np.linalg.norm(vectors.mean(0)) < 0.5 * np.linalg.norm(plain.mean(0))
    again = whitened([*files, broken], size=SIZE, device="cpu")
    assert index.fingerprint_of(again) == index.fingerprint_of(model)
    save_model(model.embedder, tmp_path / "saved")
    np.testing.assert_array_equal(load(tmp_path / "saved", "cpu").embed(files), vectors)


def test_one_picture_has_no_head(files: list[Path]) -> None:
    model = whitened(files[:1], size=SIZE, device="cpu")
    assert "untrained head" in repr(model)
    assert "whitening head" in repr(whitened(files[:2], size=SIZE, device="cpu"))


def test_random_weights_are_refused(files: list[Path]) -> None:
    with pytest.raises(ValueError, match="random weights"):
        whitened(files, "resnet20")
