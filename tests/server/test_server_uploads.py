"""What strangers send: forms, pictures, bombs; and what is left of a picture when it is sent back."""

import io
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from server_helpers import encoded, noise

from lookalike import index
from lookalike.data.reading import FORMATS
from lookalike.data.safe_decode import (
    LONGEST_UPLOAD_SIDE,
    MOST_ELONGATED,
    MOST_SCANS,
    Bounds,
    Refused,
    as_jpeg,
    open_picture,
)
from lookalike.inference.model import TrainedModel
from lookalike.server import Limits, create_app
from lookalike.server.errors import ApiError
from lookalike.server.pictures import Crop

BOUNDS = Bounds(50_000_000, LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS)
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def error_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def embed(client: TestClient, data: bytes, name: str = "x.jpg") -> Any:
    return client.post("/embed", files={"picture": (name, data)})


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int, interlace: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, interlace))


def interlaced(width: int, height: int, missing: int = 0) -> bytes:
    """A grey interlaced PNG, which Pillow cannot write; ``missing`` bytes lack at the end of the pixels."""
    rows = b""
    for left, top, x_step, y_step in ADAM7:
        columns = len(range(left, width, x_step))
        rows += len(range(top, height, y_step)) * (b"\0" + bytes([90]) * columns)
    data = zlib.compress(rows[: len(rows) - missing])
    return b"\x89PNG\r\n\x1a\n" + png_header(width, height, 1) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bomb(width: int, height: int) -> bytes:
    """A PNG that is small as a file and as large as it says."""
    rows = zlib.compressobj(9)
    data = b"".join(rows.compress(bytes(1 + width)) for _ in range(height)) + rows.flush()
    return b"\x89PNG\r\n\x1a\n" + png_header(width, height) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "AVIF"])
def test_every_format_by_its_content(shared: TestClient, kind: str, served_model: TrainedModel) -> None:
    data = encoded(noise(40, 30), kind)
    answer = embed(shared, data, "actually.exe")
    assert answer.status_code == 200, answer.text
    expected = served_model.embed(Image.open(io.BytesIO(data)).convert("RGB"))[0]
    np.testing.assert_allclose(answer.json()["vector"], expected, atol=1e-5)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        b"GIF89a",
        b"%PDF-1.4",
        b"\x00\x00\x01\x00\x01\x00" + bytes(40),  # an icon: a picture, but not of the kinds that are read
    ],
)
def test_other_files_get_415(shared: TestClient, data: bytes) -> None:
    assert error_of(embed(shared, data, "photo.jpg")) == (415, "not_a_picture")


def test_truncated_pictures_get_415(shared: TestClient, upload: bytes) -> None:
    assert error_of(embed(shared, upload[: len(upload) // 2])) == (415, "not_a_picture")
    jpeg = encoded(noise(200, 200), "JPEG")
    assert error_of(embed(shared, jpeg[: len(jpeg) // 2])) == (415, "not_a_picture")


def header_of_png(width: int, height: int) -> bytes:
    """A PNG whose header says ``width`` x ``height``, with pixels for a single row; the stream itself is complete."""
    return bomb(1, 1).replace(png_header(1, 1), png_header(width, height), 1)


def test_pngs_with_too_few_rows_get_415(shared: TestClient) -> None:
    """Pillow reads such files without an error and leaves the remaining rows black."""
    for data in (header_of_png(1, 50), header_of_png(30, 30), header_of_png(1, 3)):
        assert error_of(embed(shared, data)) == (415, "not_a_picture")
    black = Image.new("L", (30, 30))
    for picture in (black, black.convert("1"), black.convert("P"), black.convert("RGBA"), black.convert("I;16")):
        assert embed(shared, encoded(picture)).status_code == 200, picture.mode
    assert embed(shared, interlaced(30, 30)).status_code == 200
    assert error_of(embed(shared, interlaced(30, 30, missing=1))) == (415, "not_a_picture")


EXTREME = [(1, 50_000_000), (50_000_000, 1), (40_000, 400), (30_000, 10), (10, 3000)]


@pytest.mark.parametrize("path", ["/embed", "/search", "/explain", "/items"])
def test_extreme_sides_and_proportions_get_413(idx: index.Index, served_model: TrainedModel, path: str) -> None:
    with TestClient(create_app(idx, served_model), base_url="http://127.0.0.1") as client:
        for size in EXTREME:
            assert error_of(client.post(path, files={"picture": header_of_png(*size)})) == (413, "too_long")


@pytest.mark.parametrize("size", EXTREME)
def test_sides_and_proportions_are_checked_before_decoding(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(Refused) as refused:
        open_picture(header_of_png(*size), BOUNDS)
    assert (refused.value.status, refused.value.code) == (413, "too_long")


def test_explain_computes_no_weights_per_pixel(shared: TestClient) -> None:
    data = bomb(100, 10_000)
    explain = {"files": {"picture": data}}
    assert shared.post("/explain", **explain).status_code == 200
    tracemalloc.start()
    try:
        answer = shared.post("/explain", **explain)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array(answer.json()["weights"]).sum() == pytest.approx(1, abs=1e-5)
    assert peak < 3_000_000  # weights of a million pixels are 4 MB


def test_pixels_are_counted_before_they_are_decoded(shared: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("it was decoded"))
    for width, height in ((1001, 1000), (20_000, 20_000), (60_000, 60_000)):  # the last two are bombs to Pillow, too
        head = bomb(width, 1).replace(struct.pack(">II", width, 1), struct.pack(">II", width, height), 1)
        crc = zlib.crc32(head[12:29])
        data = head[:29] + struct.pack(">I", crc) + head[33:]
        with pytest.raises(Refused) as refused:
            open_picture(data, BOUNDS._replace(pixels=1_000_000))
        assert (refused.value.status, refused.value.code) == (413, "too_many_pixels")
    monkeypatch.undo()
    assert error_of(embed(shared, data)) == (413, "too_many_pixels")


def test_decompression_bombs_get_413(shared: TestClient) -> None:
    small_file = bomb(10_000, 6_000)
    assert len(small_file) < 100_000
    assert error_of(embed(shared, small_file)) == (413, "too_many_pixels")
    assert embed(shared, bomb(1000, 1000)).status_code == 200


def test_jpegs_with_many_scans_get_415(shared: TestClient) -> None:
    jpeg = encoded(noise(64, 64), "JPEG", progressive=True)
    assert embed(shared, jpeg).status_code == 200
    place = jpeg.rindex(b"\xff\xda")
    scan = jpeg[place : jpeg.rindex(b"\xff\xd9")]
    assert error_of(embed(shared, jpeg[:place] + 300 * scan + b"\xff\xd9")) == (415, "not_a_picture")


def test_compressed_comment_bombs(shared: TestClient) -> None:
    text = PngInfo()
    text.add_text("comment", "a" * 8_000_000, zip=True)
    data = encoded(noise(40, 30), pnginfo=text)
    assert len(data) < 200_000
    assert embed(shared, data).status_code in (200, 415)


@pytest.fixture
def narrow(shared_index: index.Index, served_model: TrainedModel) -> Iterator[TestClient]:
    limits = Limits(upload_bytes=10_000, upload_seconds=0.3)
    with TestClient(create_app(shared_index, served_model, limits=limits), base_url="http://127.0.0.1") as made:
        yield made


def test_body_bytes_are_counted_while_reading(narrow: TestClient, upload: bytes) -> None:
    assert embed(narrow, upload).status_code == 200
    assert error_of(embed(narrow, upload + bytes(10_000))) == (413, "too_large")
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
        while True:
            sent += 1000
            yield bytes(1000)
            assert sent < 100_000, "nobody stopped it"

    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    limited = (chunk for chunk, _ in zip(endless(), range(50), strict=False))
    assert error_of(narrow.post("/embed", content=limited, headers=kind)) == (413, "too_large")
    lying = {**kind, "Content-Length": "10"}
    limited = (chunk for chunk, _ in zip(endless(), range(50), strict=False))
    assert error_of(narrow.post("/embed", content=limited, headers=lying)) == (413, "too_large")
    early = {**kind, "Content-Length": "99999999999999999999999"}
    assert error_of(narrow.post("/embed", content=b"x", headers=early)) == (413, "too_large")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": "0"}, "k must be a whole number from 1 to 200"),
        ({"k": "201"}, "k must be"),
        ({"k": "ten"}, "k must be"),
        ({"k": "1e1"}, "k must be"),
        ({"k": "9" * 5000}, "k must be"),
        ({"k": "²"}, "k must be"),
        ({"crop": "1,2"}, "crop must be left,top,width,height"),
        ({"crop": "0,0,2,2"}, "inside the picture"),
        ({"crop": "nan,0,1,1"}, "crop must be left,top,width,height"),
        ({"crop": "0,0,inf,1"}, "crop must be left,top,width,height"),
        ({"crop": "0,0,0,1"}, "inside the picture"),
        ({"crop": "-0.5,0,1,1"}, "crop must be left,top,width,height"),
        ({"rerank": "magic"}, "rerank must be one of none, expansion, augmentation, reciprocal"),
        ({"where": "label"}, "where: the filter cannot be read"),
        ({"where": "label=\x00"}, "where: "),
        ({"id": "abc"}, "either a picture or the id"),
        ({"surprise": "abc"}, "unknown field"),
    ],
)
def test_fields_of_a_search(shared: TestClient, upload: bytes, fields: dict[str, str], message: str) -> None:
    answer = shared.post("/search", files={"picture": upload}, data=fields)
    assert error_of(answer) == (422, "invalid")
    assert message in answer.json()["error"]["message"]


def test_malformed_forms(shared: TestClient, upload: bytes) -> None:
    files: Any = {"id": (None, "no such thing")}
    assert error_of(shared.post("/search", files=files)) == (422, "invalid")
    assert error_of(shared.post("/search", files={"id": (None, "unknown")})) == (404, "not_found")
    assert error_of(shared.post("/search", files={"k": (None, "3")})) == (422, "invalid")
    assert error_of(shared.post("/search", files={"picture": (None, "text")})) == (422, "invalid")
    assert error_of(shared.post("/search", files={"id": ("name", "a file")})) == (422, "invalid")
    assert error_of(shared.post("/search", files=[("picture", upload), ("picture", upload)])) == (400, "bad_request")
    twice: Any = [("k", (None, "1")), ("k", (None, "2"))]
    assert error_of(shared.post("/search", files=[("picture", upload), *twice])) == (422, "invalid")
    assert error_of(shared.post("/search", data={"id": "a"})) == (415, "not_a_form")
    assert error_of(shared.post("/search", json={"id": "a"})) == (415, "not_a_form")
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=" + "x" * 500):
        assert error_of(shared.post("/search", content=b"--x", headers={"Content-Type": kind}))[0] in (400, 422)
    text = b'--x\r\nContent-Disposition: form-data; name="id"\r\n\r\nabc-\r\n--x--\r\n'
    for charset in ("punycode", "undefined", "idna", "unicode_escape", ""):  # codecs that raise, or take long
        kind = f"multipart/form-data; boundary=x; charset={charset}"
        assert error_of(shared.post("/search", content=text, headers={"Content-Type": kind})) == (415, "not_a_form")
    kind = 'Multipart/Form-Data; boundary=x; charset="UTF-8"'
    assert error_of(shared.post("/search", content=text, headers={"Content-Type": kind})) == (404, "not_found")
    assert error_of(shared.post("/search", files={"picture": upload}, data={"where": "a" * 20_000})) == (
        400,
        "bad_request",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": "[1]"},
        {"metadata": "{"},
        {"metadata": '{"a": NaN}'},
        {"metadata": '{"a": 1e999}'},
        {"metadata": '{"a": 123456789012345678901234567890}'},
        {"metadata": '{"a": "\\ud800"}'},
        {"metadata": '{"path": 1}'},
        {"metadata": '{"not a name": 1}'},
        {"metadata": '{"a":' + 3000 * "[" + 3000 * "]" + "}"},
        {"label": "a\x00b"},
        {"label": "a" * 5000},
    ],
)
def test_invalid_labels_and_metadata(shared: TestClient, upload: bytes, fields: dict[str, str]) -> None:
    answer = shared.post("/items", files={"picture": upload}, data=fields)
    assert error_of(answer) == (422, "invalid")
    assert "item 0" not in answer.text
    assert shared.get("/healthz").json()["items"] == 64


def secret_jpeg() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    exif[0x010E] = "SECRET-exif"
    exif.get_ifd(0x8825)[1] = "N"
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 12.0)
    pixels = Image.new("RGB", (60, 40), "red")
    pixels.paste("blue", (0, 0, 60, 10))  # along the top, which becomes the right side
    return encoded(
        pixels, "JPEG", exif=exif, comment=b"SECRET-comment", xmp=b"<x>SECRET-xmp</x>", icc_profile=b"SECRET-icc" * 20
    )


def test_metadata_of_pictures_are_removed(client: TestClient, idx: index.Index) -> None:
    data = secret_jpeg()
    assert data.count(b"SECRET") >= 4
    item_id = client.post("/items", files={"picture": data}).json()["id"]
    kept = (idx.path / "uploads" / f"{item_id}.jpg").read_bytes()
    for sent in (
        kept,
        client.get(f"/items/{item_id}/image").content,
        client.get(f"/items/{item_id}/image?side=32").content,
    ):
        assert b"SECRET" not in sent
        assert b"Exif" not in sent
        image = Image.open(io.BytesIO(sent))
        assert not dict(image.getexif())
        assert image.width < image.height, "it was to be turned upright"
        red, _, blue = image.convert("RGB").getpixel((image.width - 3, image.height // 2))
        assert blue > 200 > red
    text = PngInfo()
    text.add_text("Comment", "SECRET-png")
    png = encoded(noise(30, 30), pnginfo=text)
    assert b"SECRET" in png
    assert b"SECRET" not in as_jpeg(open_picture(png, BOUNDS))


def test_crops() -> None:
    picture = noise(40, 20)
    assert np.array_equal(np.asarray(Crop.read("0.5,0,0.5,0.5").of(picture)), np.asarray(picture)[:10, 20:])
    assert Crop.read("").of(picture) is picture
    assert Crop.read("0.9999,0.9999,0.0001,0.0001").of(picture).size == (1, 1)
    assert Crop(0, 0, 0.1, 0.5).side_for(64) == 640
    with pytest.raises(ApiError, match="crop must be"):
        Crop.read("a,b,c,d")


def test_invalid_limits() -> None:
    with pytest.raises(ValueError, match="queue must be at least 1, got 0"):
        Limits(queue=0)
    with pytest.raises(ValueError, match="seconds must be finite and above 0, got 0"):
        Limits(seconds=0)
    with pytest.raises(ValueError, match="pixels must be at most"):
        Limits(pixels=200_000_000)
