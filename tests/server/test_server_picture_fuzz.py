"""Mutated pictures of every accepted format through the real door: a process, its limits, and an answer for each."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, features
from server_helpers import encoded, noise

from lookalike.data.cropping import CropSize
from lookalike.data.reading import FORMATS
from lookalike.data.safe_decode import LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS, Bounds, Job
from lookalike.server.decoding import Decoder
from lookalike.server.errors import ApiError

KINDS = [kind for kind in FORMATS if kind != "AVIF" or features.check("avif")]
JOB = Job(
    bounds=Bounds(2_000_000, LONGEST_UPLOAD_SIDE, MOST_ELONGATED, MOST_SCANS),
    at_least=64,
    crop=CropSize(32, 36, "bilinear"),
    jpeg_side=64,
    full_jpeg=True,
)
EXPECTED = {(413, "too_many_pixels"), (413, "too_long"), (415, "not_a_picture"), (422, "too_costly")}
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "cut", "repeat"]),
        st.integers(0, 10_000),
        st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    made = Decoder(60)
    yield made
    made.close()


def files(kind: str) -> list[bytes]:
    """Small files of a format, in the modes that it can hold."""
    made = []
    for mode in ("RGB", "L", "P", "RGBA", "I;16", "1"):
        try:
            made.append(encoded(noise(24, 17).convert("L" if mode == "I;16" else mode).convert(mode), kind))
        except (OSError, ValueError):  # not every format holds every mode
            continue
    if kind == "JPEG":
        made.append(encoded(noise(40, 33), kind, progressive=True, exif=Image.Exif()))
    if kind == "TIFF":
        for compression in ("jpeg", "tiff_lzw", "tiff_deflate"):
            made.append(encoded(noise(40, 33), kind, compression=compression))
    if kind in ("GIF", "WEBP", "PNG", "TIFF"):
        made.append(encoded(noise(20, 20), kind, save_all=True, append_images=[noise(20, 20, 1), noise(20, 20, 2)]))
    return made


FILES = {kind: files(kind) for kind in KINDS}


def mutated(data: bytes, mutations: list[tuple[str, int, bytes]]) -> bytes:
    result = bytearray(data)
    for action, where, value in mutations:
        position = where % (len(result) + 1)
        if action == "set":
            result[position : position + len(value)] = value
        elif action == "insert":
            result[position:position] = value
        elif action == "delete":
            del result[position : position + len(value)]
        elif action == "cut":
            del result[max(position, 1) :]
        else:
            result[position:position] = 50 * result[position : position + 40]
    return bytes(result)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(choice=st.integers(0, 100), mutations=MUTATIONS)
def test_mutated_pictures(decoder: Decoder, kind: str, choice: int, mutations: list[tuple[str, int, bytes]]) -> None:
    data = mutated(FILES[kind][choice % len(FILES[kind])], mutations)
    future = decoder.submit(JOB, data, "fuzz")
    error = future.exception(60)
    if error is not None:
        assert isinstance(error, ApiError)
        assert (error.status, error.code) in EXPECTED
        return
    decoded = future.result()
    assert decoded.pixels is not None
    assert decoded.pixels.shape == (32, 32, 3)
    assert decoded.pixels.dtype == np.uint8
    assert decoded.jpeg is not None
    assert decoded.jpeg.startswith(b"\xff\xd8")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_themselves_are_accepted(decoder: Decoder, kind: str) -> None:
    for data in FILES[kind]:
        assert decoder.submit(JOB, data, "fuzz").result(60).pixels is not None
