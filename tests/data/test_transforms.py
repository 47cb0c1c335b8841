"""Transforms by hand values: geometry on pictures whose pixels tell where they came from."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike.data.transforms import training_transform
from lookalike.models.input_spec import InputSpec

RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def ramp(width: int, height: int) -> Image.Image:
    """Red grows from 0 to 1 from left to right, green from top to bottom; blue is .2."""
    pixels = np.zeros((height, width, 3))
    pixels[..., 0] = (np.arange(width) + 0.5) / width
    pixels[..., 1] = ((np.arange(height) + 0.5) / height)[:, None]
    pixels[..., 2] = 0.2
    return Image.fromarray((pixels * 255).round().astype(np.uint8))


def plain(colour: tuple[int, int, int], size: tuple[int, int] = (50, 40)) -> Image.Image:
    return Image.new("RGB", size, colour)


def test_no_resize_leaves_small_pictures_alone() -> None:
    picture = ramp(64, 64)
    spec = InputSpec(size=64, resize=64, **RAW)
    pixels = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1) / 255
    torch.testing.assert_close(training_transform(spec, crop="none", flip=False)(picture), pixels, atol=1e-6, rtol=0)


@pytest.mark.parametrize("crop", ["area", "pixels", "none"])
def test_caffe_order(crop: Any) -> None:
    spec = InputSpec(size=8, mean=(104, 117, 128), std=(1, 1, 2), bgr255=True)
    got = training_transform(spec, crop=crop)(plain((10, 20, 30)))
    assert got.shape == (3, 8, 8)
    assert got[:, 0, 0].tolist() == [30 - 104, 20 - 117, (10 - 128) / 2]


@pytest.mark.parametrize(("crop", "least"), [("area", 0.16), ("wide", 0.08)])
def test_shares_and_aspects_of_random_crops(crop: Any, least: float) -> None:
    transform = training_transform(InputSpec(size=128, **RAW), crop=crop, flip=True)
    picture, shares, aspects, flips = ramp(256, 256), [], [], 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(300):
            got = transform(picture)
            slope_x = float(got[0, :, -32:].mean() - got[0, :, :32].mean()) / 96 * 128
            slope_y = float(got[1, -32:].mean() - got[1, :32].mean()) / 96 * 128
            flips += slope_x < 0
            shares.append(abs(slope_x) * slope_y)
            aspects.append(abs(slope_x) / slope_y)
    assert min(shares) == pytest.approx(least, abs=0.03)
    assert min(shares) > least - 0.01
    assert 0.9 < max(shares) < 1.02
    assert np.mean(shares) == pytest.approx((1 + least) / 2, abs=0.1)  # large crops of a wrong aspect do not fit
    assert 0.74 < min(aspects) < 0.8
    assert 1.25 < max(aspects) < 1.36
    assert 120 < flips < 180


@pytest.mark.parametrize(("resize", "width", "height"), [(256, 256, 256), (256, 512, 300), (160, 160, 200)])
def test_a_crop_by_side_lengths(resize: int, width: int, height: int) -> None:
    """40 to 256 pixels of a picture whose shorter side has 256, uniform as far as the aspect allows."""
    spec = InputSpec(size=128, resize=resize, **RAW)
    transform = training_transform(spec, crop="pixels", flip=False)
    picture, widths, heights = ramp(width, height), [], []
    scale = resize / min(width, height)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(400):
            got = transform(picture)
            widths.append(float(got[0, :, -32:].mean() - got[0, :, :32].mean()) / 96 * 128 * width * scale)
            heights.append(float(got[1, -32:].mean() - got[1, :32].mean()) / 96 * 128 * height * scale)
    widths, heights = np.array(widths) / resize * 256, np.array(heights) / resize * 256
    for sides in (widths, heights):
        assert 36 < sides.min() < 60
        assert 240 < sides.max() < 261
        assert np.mean(sides) == pytest.approx(148, abs=12)
    aspects = widths / heights
    assert 0.7 < aspects.min() < 0.8
    assert 1.25 < aspects.max() < 1.42


def test_without_flip_nothing_is_mirrored() -> None:
    transform = training_transform(InputSpec(size=16, **RAW), flip=False)
    for _ in range(40):
        got = transform(ramp(40, 40))
        assert got[0, :, -1].mean() > got[0, :, 0].mean()


def test_half_of_the_pictures_lose_a_rectangle() -> None:
    transform = training_transform(InputSpec(size=32, **RAW), crop="none", flip=False, erase=0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        erased = [float((transform(plain((200, 200, 200))) == 0).float().mean()) for _ in range(200)]
    affected = [share for share in erased if share]
    assert 75 < len(affected) < 125
    assert 0.01 < min(affected) < max(affected) < 0.36


def test_no_crop_takes_the_whole_picture_into_a_square() -> None:
    got = training_transform(InputSpec(size=32, **RAW), crop="none", flip=False)(ramp(128, 64))
    expected = (np.arange(32) + 0.5) / 32
    assert np.abs(got[0].mean(0).numpy() - expected).max() < 0.006
    assert np.abs(got[1].mean(1).numpy() - expected).max() < 0.006


@pytest.mark.parametrize("size", [(100_000, 3), (3, 100_000), (1, 1)])
def test_strange_shapes_are_affordable(size: tuple[int, int]) -> None:
    """100,000 x 3 pixels by the shorter side to 256 would be 6.6 GB."""
    assert training_transform(InputSpec())(plain((9, 9, 9), size)).shape == (3, 224, 224)


def test_unknown_crop() -> None:
    with pytest.raises(ValueError, match=r"^crop must be 'area', 'wide', 'pixels' or 'none', got 'centre'$"):
        training_transform(InputSpec(), crop="centre")  # type: ignore[arg-type]
