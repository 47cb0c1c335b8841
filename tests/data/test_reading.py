import errno
import os
import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lookalike.data.files import FileReader, reading_at_least, table_of_files, verified
from lookalike.data.folder import list_pictures
from lookalike.data.pictures import Problem, UnreadablePicture
from lookalike.data.reading import _reason, read_picture, verify, verify_all

GRADIENT = np.linspace(0, 255, 40 * 60 * 3).reshape(40, 60, 3).astype(np.uint8)


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def corner(path: Path) -> tuple[int, ...]:
    image = read_picture(path)
    assert image.mode == "RGB"
    return image.getpixel((0, 0))


@pytest.mark.parametrize("name", ["a.png", "A.PNG", "a.bmp", "a.tif", "a.ppm", "a.webp"])
def test_lossless_formats_give_the_pixels_back(tmp_path: Path, name: str) -> None:
    options = {"lossless": True} if name.endswith("webp") else {}
    path = save(tmp_path / name, Image.fromarray(GRADIENT), **options)
    np.testing.assert_array_equal(np.asarray(read_picture(path)), GRADIENT)
    assert verify(path) is None


def test_the_content_decides_the_format_not_the_suffix(tmp_path: Path) -> None:
    path = save(tmp_path / "really.jpg", Image.fromarray(GRADIENT), format="PNG")
    np.testing.assert_array_equal(np.asarray(read_picture(path)), GRADIENT)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif", "bmp"])
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_truncated_files_are_found(tmp_path: Path, suffix: str, kept: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = save(tmp_path / f"whole.{suffix}", Image.fromarray(noise)).read_bytes()
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(whole[: int(len(whole) * kept)])
    assert verify(tmp_path / f"whole.{suffix}") is None
    assert verify(cut)
    with pytest.raises(UnreadablePicture, match="cut"):
        read_picture(cut)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_large_jpeg_that_lacks_its_last_bytes_is_found(tmp_path: Path, progressive: bool) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 500, 3), dtype=np.uint8)
    path = save(tmp_path / "a.jpg", Image.fromarray(noise), progressive=progressive)
    path.write_bytes(path.read_bytes()[:-2000])
    assert "truncated" in str(verify(path))


def test_reasons_are_for_people(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("this is not a picture")
    (tmp_path / "pointer.jpg").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "script.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    os.mkfifo(tmp_path / "pipe.jpg")  # opening it would wait for ever
    expected = {
        "empty.jpg": "empty file (0 bytes)",
        "text.jpg": "not a picture in a known format",
        "pointer.jpg": "a Git LFS pointer, not the picture: fetch it with git lfs pull",
        "folder.jpg": "not a file",
        "loop.jpg": "a symbolic link that leads back to itself",
        "script.eps": "not a picture in a known format",
        "pipe.jpg": "not a file",
        "absent.jpg": "no such file",
    }
    assert {name: verify(tmp_path / name) for name in expected} == expected
    assert _reason(PermissionError(errno.EACCES, "Permission denied")) == "no permission to read it"


def test_no_permission(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(GRADIENT))
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert verify(path) == "no permission to read it"


def test_huge_pictures_are_refused_before_decoding(tmp_path: Path) -> None:
    path = save(tmp_path / "bomb.png", Image.fromarray(GRADIENT))
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 20_000, 15_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verify(path) == "too large: 20000 x 15000 = 300 megapixels, the limit is 200"
    small = save(tmp_path / "small.png", Image.fromarray(GRADIENT))
    assert "the limit is 0.001" in str(verify(small, pixel_limit=1000))


def test_pillow_does_not_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [
        save(tmp_path / f"a.{suffix}", Image.fromarray(GRADIENT)) for suffix in ("png", "jpg", "tif", "webp", "gif")
    ]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)  # it warns above this and raises above twice that
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [read_picture(path).size for path in paths] == [(60, 40)] * 5
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        assert read_picture(paths[0]).size == read_picture(paths[1]).size == (60, 40)
        assert str(verify(paths[2])).startswith("too large: ")


def test_transparency_is_put_on_white(tmp_path: Path) -> None:
    assert corner(save(tmp_path / "rgba.png", Image.new("RGBA", (4, 4), (255, 0, 0, 0)))) == (255, 255, 255)
    half = corner(save(tmp_path / "half.png", Image.new("RGBA", (4, 4), (255, 0, 0, 128))))
    assert half == (255, 127, 127)
    assert corner(save(tmp_path / "la.png", Image.new("LA", (4, 4), (0, 0)))) == (255, 255, 255)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert corner(save(tmp_path / "p.png", palette)) == (40, 50, 60)
    assert corner(save(tmp_path / "pt.png", palette, transparency=1)) == (255, 255, 255)
    assert corner(save(tmp_path / "pt0.png", palette, transparency=0)) == (40, 50, 60)
    assert corner(save(tmp_path / "pt.gif", palette, transparency=1)) == (255, 255, 255)
    keyed = save(tmp_path / "rgbt.png", Image.new("RGB", (4, 4), (1, 2, 3)), transparency=(1, 2, 3))
    assert corner(keyed) == (255, 255, 255)


def test_one_bit_and_grey(tmp_path: Path) -> None:
    assert corner(save(tmp_path / "1.png", Image.new("1", (4, 4), 1))) == (255, 255, 255)
    assert corner(save(tmp_path / "l.png", Image.new("L", (4, 4), 77))) == (77, 77, 77)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_cut_off(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(values))
    assert np.asarray(read_picture(path))[0, :, 0].tolist() == [0, 1, 128, 255]


def test_wider_integers_and_floats(tmp_path: Path) -> None:
    def greys(name: str, values: np.ndarray) -> list[int]:
        return np.asarray(read_picture(save(tmp_path / name, Image.fromarray(values))))[0, :, 0].tolist()

    assert greys("i.tif", np.array([[0, 257, 65535]], dtype=np.int32)) == [0, 1, 255]
    assert greys("wide.tif", np.array([[-1000, 0, 1000]], dtype=np.int32)) == [0, 128, 255]
    assert greys("unit.tif", np.array([[0.0, 0.5, 1.0]], dtype=np.float32)) == [0, 128, 255]
    assert greys("bytes.tif", np.array([[0.0, 100.0, 200.0]], dtype=np.float32)) == [0, 100, 200]
    assert greys("any.tif", np.array([[-5.0, 0.0, 5.0]], dtype=np.float32)) == [0, 128, 255]
    assert greys("nan.tif", np.array([[np.nan, 0.2, 1.0]], dtype=np.float32))[2] == 255
    assert greys("flat.tif", np.full((1, 3), 1e9, dtype=np.float32)) == [0, 0, 0]
    assert greys("all_nan.tif", np.full((1, 3), np.nan, dtype=np.float32)) == [0, 0, 0]


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk(tmp_path: Path, suffix: str) -> None:
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    r, g, b = corner(save(tmp_path / f"a.{suffix}", red))  # Pillow writes JPEGs the way Adobe does, inverted
    assert r > 240
    assert max(g, b) < 15


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (60, 40), "white")
    image.paste((255, 0, 0), (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: the red corner goes to the right
    turned = read_picture(save(tmp_path / "a.jpg", image, exif=exif, quality=95))
    assert turned.size == (40, 60)
    assert turned.getpixel((37, 3))[1] < 40 < 200 < turned.getpixel((3, 3))[1]


def test_broken_exif_does_not_make_a_picture_unreadable(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", Image.fromarray(GRADIENT), exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xff\xff\xff")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_picture(path).size == (60, 40)


def test_the_first_frame_of_animations(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for suffix in ("gif", "webp", "png"):
        options = {"lossless": True} if suffix == "webp" else {}
        path = save(tmp_path / f"a.{suffix}", frames[0], save_all=True, append_images=frames[1:], **options)
        assert corner(path) == (255, 0, 0)


def test_large_jpegs_are_decoded_small_if_that_is_enough(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", Image.fromarray(GRADIENT).resize((640, 480)))
    assert read_picture(path).size == (640, 480)
    assert read_picture(path, at_least=120).size == (160, 120)
    assert read_picture(path, at_least=121).size == (320, 240)
    assert read_picture(path, at_least=1000).size == (640, 480)


def test_a_table_can_ask_for_less(tmp_path: Path) -> None:
    save(tmp_path / "a.jpg", Image.fromarray(GRADIENT).resize((640, 480)))
    table = table_of_files("t", tmp_path, ["a.jpg"], ["x"])
    smaller = reading_at_least(table, 240)
    assert smaller.image(0).size == (320, 240)
    assert smaller.key(0) == table.key(0)
    with pytest.raises(ValueError, match="at_least must be at least 1, got 0"):
        reading_at_least(table, 0)


def test_verify_all_keeps_the_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = save(tmp_path / "good.png", Image.fromarray(GRADIENT))
    paths = [good if i % 7 else tmp_path / "absent.png" for i in range(100)]
    expected = [None if i % 7 else "no such file" for i in range(100)]
    assert verify_all(paths, threads=3) == expected
    assert capsys.readouterr().err == ""
    assert verify_all(paths, progress=True) == expected
    assert capsys.readouterr() == ("", "")  # no bar where there is no terminal
    assert verify_all([]) == []


def test_unreadable_ones_leave_the_table(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "d.png"):
        save(tmp_path / name, Image.fromarray(GRADIENT))
    (tmp_path / "c.png").touch()
    table = table_of_files("t", tmp_path, ["a.png", "c.png", "b.png", "d.png"], ["x", "y", "z", "x"])
    checked = verified(table)
    assert checked.names == ("a.png", "b.png", "d.png")
    assert checked.classes == ("x", "z")
    assert checked.labels.tolist() == [0, 1, 0]
    assert checked.problems == (Problem("c.png", "empty file (0 bytes)"),)
    np.testing.assert_array_equal(np.asarray(checked.image(1)), GRADIENT)
    with pytest.raises(ValueError, match=r"t has 1 picture that cannot be used; the first: c\.png: empty file"):
        verified(table, strict=True)
    with pytest.raises(ValueError, match=r"not one of 1 pictures of t can be read; the first: c\.png"):
        verified(table.take([1]))


def test_keys_name_the_content(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save(tmp_path / name, Image.fromarray(GRADIENT))
    save(tmp_path / "c.png", Image.fromarray(GRADIENT[::-1].copy()))
    reader = FileReader(tmp_path, ["a.png", "b.png", "c.png", "absent.png"])
    assert reader.key(0) == reader.key(1) != reader.key(2)
    before = reader.key(0)
    assert pickle.loads(pickle.dumps(reader)).key(0) == before
    (tmp_path / "c.png").rename(tmp_path / "a.png")
    assert reader.key(0) != before
    with pytest.raises(UnreadablePicture, match=r"absent\.png"):
        reader.key(3)


def test_the_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(UnreadablePicture("a.jpg", "truncated")))
    assert (error.name, error.reason, str(error)) == ("a.jpg", "truncated", "a.jpg: truncated")


def test_heic(tmp_path: Path) -> None:
    heif = pytest.importorskip("pillow_heif", reason="pip install pillow-heif")
    picture = Image.new("RGB", (64, 48), (200, 30, 30))
    heif.from_pillow(picture).save(tmp_path / "phone.heic", quality=90)
    image = read_picture(tmp_path / "phone.heic")
    assert image.size == (64, 48)
    assert np.abs(np.asarray(image, int) - (200, 30, 30)).max() < 8
    assert list_pictures(tmp_path).pictures == ["phone.heic"]
