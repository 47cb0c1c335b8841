"""Preprocessing by hand values and against torchvision, on pictures whose pixels tell where they came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.data.reading import read_picture
from lookalike.inference.preprocess import Preprocess, crop_loader, to_inputs
from lookalike.models.input_spec import InputSpec

RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
SPEC = InputSpec(size=16)


def torchvision_input(spec: InputSpec, picture: Image.Image) -> Tensor:
    """What the specification says, in torchvision's words."""
    width, height = picture.size
    longest = 10 * min(width, height)
    left, top = max(0, width - longest) // 2, max(0, height - longest) // 2
    middle = picture.crop((left, top, left + min(width, longest), top + min(height, longest)))
    resize = v2.Resize([spec.resize_to], interpolation=InterpolationMode(spec.interpolation), antialias=True)
    pixels = v2.PILToTensor()(v2.CenterCrop([spec.size, spec.size])(resize(middle)))
    if spec.bgr255:
        pixels = pixels.flip(0)
    numbers = v2.ToDtype(torch.float32, scale=not spec.bgr255)(pixels)
    normalised: Tensor = v2.Normalize(list(spec.mean), list(spec.std))(numbers)
    return normalised


def ramp(width: int, height: int) -> Image.Image:
    """Red grows from 0 to 1 from left to right, green from top to bottom; blue is .2."""
    pixels = np.zeros((height, width, 3))
    pixels[..., 0] = (np.arange(width) + 0.5) / width
    pixels[..., 1] = ((np.arange(height) + 0.5) / height)[:, None]
    pixels[..., 2] = 0.2
    return Image.fromarray((pixels * 255).round().astype(np.uint8))


def plain(colour: tuple[int, int, int], size: tuple[int, int] = (50, 40)) -> Image.Image:
    return Image.new("RGB", size, colour)


@dataclass
class Noise:
    """Reader of a picture of noise for each number; picture 7 is unreadable while ``missing`` exists."""

    missing: Path | None = None

    def __call__(self, index: int) -> Image.Image:
        if self.missing is not None and self.missing.exists() and index == 7:
            raise UnreadablePicture("birds/wren/7.jpg", "the file is no longer there")
        pixels = np.random.default_rng(index).integers(0, 256, (24, 30, 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    def key(self, index: int) -> str:
        return f"noise {index}"


def noise(count: int = 24, missing: Path | None = None) -> Pictures:
    return Pictures(
        name="noise",
        names=tuple(f"noise/{index}" for index in range(count)),
        labels=np.arange(count, dtype=np.int64) % 4,
        classes=tuple("abcd"),
        reader=Noise(missing),
        origins=np.arange(count, dtype=np.int64),
    )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_shows_the_middle(interpolation: Any) -> None:
    spec = InputSpec(size=227, interpolation=interpolation, **RAW)
    got = Preprocess(spec)(ramp(800, 400))
    assert got.shape == (3, 227, 227)
    assert got.dtype == torch.float32
    assert type(got) is torch.Tensor
    # 800 x 400 -> 512 x 256; the middle 227 begins at 142.5 of 512 and at 14.5 of 256
    red = (142.5 + np.arange(227) + 0.5) / 512
    green = (14.5 + np.arange(227) + 0.5) / 256
    assert np.abs(got[0].mean(0).numpy() - red).max() < 0.006
    assert np.abs(got[1].mean(1).numpy() - green).max() < 0.006
    assert np.abs(got[2].numpy() - 0.2).max() < 0.003


def test_a_picture_of_the_right_size_is_not_resized() -> None:
    picture = ramp(64, 64)
    spec = InputSpec(size=64, resize=64, **RAW)
    pixels = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1) / 255
    torch.testing.assert_close(Preprocess(spec)(picture), pixels, atol=1e-6, rtol=0)


def test_normalisation_by_hand() -> None:
    spec = InputSpec(size=8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    got = Preprocess(spec)(plain((255, 51, 0)))
    assert got[:, 3, 3].tolist() == pytest.approx([(1 - 0.1) / 0.5, 0.0, -0.15], abs=1e-6)


def test_caffe_order() -> None:
    spec = InputSpec(size=8, mean=(104, 117, 128), std=(1, 1, 2), bgr255=True)
    got = Preprocess(spec)(plain((10, 20, 30)))
    assert got.shape == (3, 8, 8)
    assert got[:, 0, 0].tolist() == [30 - 104, 20 - 117, (10 - 128) / 2]


@pytest.mark.parametrize("size", [(100_000, 3), (3, 100_000), (1, 1)])
def test_strange_shapes_are_affordable(size: tuple[int, int]) -> None:
    """100,000 x 3 pixels by the shorter side to 256 would be 6.6 GB."""
    assert Preprocess(InputSpec())(plain((9, 9, 9), size)).shape == (3, 224, 224)


def test_long_pictures_keep_their_middle() -> None:
    long = ramp(3000, 100)
    got = Preprocess(InputSpec(size=64, resize=64, **RAW))(long)
    red = (50 * 0.64 * 30 - 32 + np.arange(64) + 0.5) / (64 * 30)
    assert np.abs(got[0].mean(0).numpy() - red).max() < 0.004


@pytest.mark.parametrize("bgr255", [False, True])
@pytest.mark.parametrize(
    ("size", "resize", "interpolation"), [(20, 26, "bilinear"), (21, 24, "bicubic"), (9, 9, "bicubic")]
)
def test_a_batch_is_what_torchvision_gives_for_each_picture(
    bgr255: bool, size: int, resize: int, interpolation: Any
) -> None:
    spec = InputSpec(size, (0.1, 0.2, 0.3), (0.4, 0.7, 0.9), bgr255, interpolation, resize)
    rng = np.random.default_rng(0)
    shapes = [(30, 40), (90, 21), (26, 26), (24, 33), (1, 1), (3, 100), (101, 4), (333, 499), (9, 10)]
    images = [Image.fromarray(rng.integers(0, 256, (*shape, 3), np.uint8)) for shape in shapes]
    preprocess = Preprocess(spec)
    batch = preprocess.inputs(np.stack([preprocess.crop(image) for image in images]))
    assert torch.equal(batch, torch.stack([torchvision_input(spec, image) for image in images]))
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_pixels_in_memory() -> None:
    spec = InputSpec(size=8, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 7, 3), np.uint8)
    got = to_inputs(pixels, spec)
    assert got.shape == (3, 3, 5, 7)
    expected = (pixels / 255 - np.array(spec.mean)) / np.array(spec.std)
    np.testing.assert_allclose(got.permute(0, 2, 3, 1), expected, atol=1e-6)
    assert torch.equal(to_inputs(torch.from_numpy(pixels), spec), got)
    assert torch.equal(to_inputs(pixels[:, :, ::-1], spec), got.flip(3))
    for wrong in (pixels[0], pixels.astype(np.float32), pixels[..., :2]):
        with pytest.raises(ValueError, match=r"^pixels must be uint8 \(B, H, W, 3\), got "):
            to_inputs(wrong, spec)


def test_a_loader_has_every_crop_once_in_order() -> None:
    pictures = noise()
    preprocess = Preprocess(SPEC)
    expected = torch.from_numpy(np.stack([preprocess.crop(pictures.image(i)) for i in range(24)]))
    for workers in (None, 0, 2):
        loader = crop_loader(pictures, SPEC, 10, workers)
        for _ in range(2):
            batches = list(loader)
            assert [len(batch) for batch in batches] == [10, 10, 4]
            assert torch.equal(torch.cat(batches), expected)


def test_a_loader_decodes_large_jpegs_as_a_model_does(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.jpg")
    preprocess = Preprocess(SPEC)
    (batch,) = crop_loader(table_of_files("one", tmp_path, ["large.jpg"], ["a"]), SPEC, workers=0)
    np.testing.assert_array_equal(batch[0], preprocess.read_crop(tmp_path / "large.jpg"))
    in_full = preprocess.crop(read_picture(tmp_path / "large.jpg"))
    assert (batch[0].numpy() != in_full).any(), "it was decoded at reduced size"
    assert np.abs(batch[0].numpy().astype(int) - in_full).max() < 20


def test_a_loader_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    for workers in (0, 1):
        next(iter(crop_loader(noise(), SPEC, workers=workers)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_goes_away_is_named_in_one_line(workers: int, tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    loader = crop_loader(noise(missing=missing), SPEC, 6, workers)
    assert len(list(loader)) == 4
    missing.touch()
    with pytest.raises(UnreadablePicture) as caught:
        list(loader)
    assert str(caught.value) == "birds/wren/7.jpg: the file is no longer there"
    assert caught.value.name == "birds/wren/7.jpg"
    missing.unlink()
    assert len(list(loader)) == 4


def test_loader_errors() -> None:
    with pytest.raises(ValueError, match=r"^workers must be at least 0, got -1$"):
        crop_loader(noise(), SPEC, workers=-1)
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, got 0$"):
        crop_loader(noise(), SPEC, batch_size=0)
