"""Pictures that cost more than they should: they end a process that decodes, never the server or other requests."""

import io
import os
import signal
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from server_helpers import encoded, in_process, in_thread, noise

from lookalike import index
from lookalike.data import reading
from lookalike.data.cropping import CropSize
from lookalike.data.safe_decode import Bounds, Decoded, Job, Refused, open_picture, run
from lookalike.inference.model import TrainedModel
from lookalike.server import Limits, create_app, decoding
from lookalike.server.budget import WaitingBudget
from lookalike.server.decoding import QUICK, SLOW, Decoder
from lookalike.server.errors import ApiError

BOUNDS = Bounds(89_000_000, 32_768, 200, 200)
UNBOUNDED = Bounds(10**12, 10**9, 10**9, 10**9)
JOB = Job(bounds=BOUNDS, at_least=64, crop=CropSize(32, 36, "bilinear"))
CLIENT = httpx.Client(verify=False, timeout=60)


def with_scans(jpeg: bytes, scans: int) -> bytes:
    """Repeat the last scan of a progressive JPEG. Decoders go over all pixels once per scan."""
    start, end = jpeg.rindex(b"\xff\xda"), jpeg.rindex(b"\xff\xd9")
    return jpeg[:start] + scans * jpeg[start:end] + jpeg[end:]


def as_mpo(jpeg: bytes) -> bytes:
    """Add the segment that makes Pillow call a JPEG an MPO: an index of two pictures."""
    entries = [(0xB001, 4, 1, struct.pack("<I", 2)), (0xB002, 7, 32, struct.pack("<I", 50))]
    tags = b"".join(struct.pack("<HHI", tag, kind, count) + value for tag, kind, count, value in entries)
    version = struct.pack("<HHI4s", 0xB000, 7, 4, b"0100")
    directory = struct.pack("<H", 3) + version + tags + struct.pack("<I", 0)
    pictures = struct.pack("<IIIHH", 0x030000, len(jpeg), 0, 0, 0) + struct.pack("<IIIHH", 0, len(jpeg), 0, 0, 0)
    body = b"MPF\0" + b"II*\0" + struct.pack("<I", 8) + directory + pictures
    return jpeg[:2] + b"\xff\xe2" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def costly_jpeg(side: int, scans: int) -> bytes:
    flat = Image.new("RGB", (side, side), "gray")
    return with_scans(encoded(flat, "JPEG", progressive=True), scans)


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    made = Decoder(60)
    yield made
    made.close()


def error_of(decoder: Decoder, job: Job, data: bytes) -> tuple[int, str]:
    with pytest.raises(ApiError) as error:
        decoder.submit(job, data, "a").result(60)
    return error.value.status, error.value.code


def children_of(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listing.stdout.split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_ended(pids: list[int]) -> None:
    until = time.monotonic() + 30
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "TIFF"])
def test_scans_are_counted_by_content(shared: TestClient, kind: str) -> None:
    good = encoded(noise(64, 64), "JPEG", progressive=True)
    bad = with_scans(good, 300)
    if kind == "MPO":
        good, bad = as_mpo(good), as_mpo(bad)
        assert Image.open(io.BytesIO(good)).format == "MPO"
    if kind == "TIFF":
        good = encoded(noise(64, 640), "TIFF", compression="jpeg")
        bad = good + 300 * b"\xff\xda"
    assert shared.post("/embed", files={"picture": good}).status_code == 200
    answer = shared.post("/embed", files={"picture": bad})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "not_a_picture")
    assert "scans" in answer.json()["error"]["message"]


def test_large_pictures_may_have_few_scans_only() -> None:
    with pytest.raises(Refused, match="scans"):
        open_picture(costly_jpeg(1000, 100), BOUNDS._replace(pixels=1_000_000))


@pytest.mark.parametrize("kind", [kind for kind in reading.FORMATS if kind != "AVIF"])
def test_processes_give_the_same_pixels(decoder: Decoder, kind: str) -> None:
    data = encoded(noise(300, 200), kind)
    job = JOB._replace(jpeg_side=100, full_jpeg=True)
    expected = run(job, data)
    indexed = job._replace(bounds=None)
    for result in (decoder.submit(job, data, "a").result(60), decoder.submit(indexed, data, "a").result(60)):
        assert result.size == expected.size
        assert result.jpeg == expected.jpeg
        np.testing.assert_array_equal(result.pixels, expected.pixels)


def test_stored_jpegs_are_made_of_the_full_picture() -> None:
    data = encoded(noise(800, 600), "JPEG")
    decoded = run(JOB._replace(jpeg_side=4096, full_jpeg=True), data)
    assert decoded.size == (100, 75), "the model gets a reduced one"
    assert Image.open(io.BytesIO(decoded.jpeg or b"")).size == (800, 600)


def test_transparent_pictures_are_composited_strip_by_strip() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (700, 30, 4), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for picture in (image, image.convert("LA"), image.convert("RGB").quantize(8)):
        if picture.mode == "P":
            picture.info["transparency"] = 3
        white = Image.new("RGBA", picture.size, "white")
        expected = Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
        np.testing.assert_array_equal(reading.as_rgb(picture), expected)


def test_too_much_processor_time_gets_422() -> None:
    decoder = Decoder(60, slow=SLOW._replace(cpu_seconds=1))
    try:
        costly = costly_jpeg(2000, 3000)
        assert error_of(decoder, JOB._replace(bounds=UNBOUNDED), costly) == (422, "too_costly")
        small = encoded(noise(40, 30))
        assert decoder.submit(JOB, small, "a").result(60).size == (40, 30), "the next picture is decoded"
        large = encoded(Image.new("RGB", (4000, 4000)))
        assert decoder.submit(JOB, large, "a").result(60).size == (4000, 4000), "in a new process"
    finally:
        decoder.close()


def test_too_much_memory_gets_422() -> None:
    decoder = Decoder(60, slow=SLOW._replace(megabytes=150))
    try:
        bomb = encoded(Image.new("RGB", (7000, 7000)))
        assert error_of(decoder, JOB, bomb) == (422, "too_costly")
        large = encoded(Image.new("RGB", (3500, 3500)))
        assert decoder.submit(JOB, large, "a").result(60).size == (3500, 3500)
    finally:
        decoder.close()


def test_too_much_time_gets_503() -> None:
    decoder = Decoder(60, slow=SLOW._replace(seconds=0.5))
    try:
        assert error_of(decoder, JOB._replace(bounds=UNBOUNDED), costly_jpeg(2000, 3000)) == (503, "busy")
        assert decoder.submit(JOB, encoded(noise(40, 30)), "a").result(60).size == (40, 30)
    finally:
        decoder.close()


def test_crashed_decoders_are_started_again(decoder: Decoder) -> None:
    before = set(children_of(os.getpid()))
    decoder.start()
    assert decoder.submit(JOB, encoded(noise(40, 30)), "a").result(60).size == (40, 30)
    running = decoder.submit(JOB._replace(bounds=UNBOUNDED), costly_jpeg(2000, 3000), "a")
    until = time.monotonic() + 60
    while not running.done() and time.monotonic() < until:  # also those that have been started again
        for pid in set(children_of(os.getpid())) - before:
            with suppress(ProcessLookupError):  # the command that listed them has ended
                os.kill(pid, signal.SIGSEGV)
        time.sleep(0.5)
    error = running.exception(60)
    assert isinstance(error, ApiError)
    assert (error.status, error.code) == (415, "not_a_picture")
    assert decoder.submit(JOB, encoded(noise(40, 30)), "a").result(60).size == (40, 30), "idle ones were killed, too"


def test_a_full_slow_lane_gets_503() -> None:
    decoder = Decoder(60, slow=SLOW._replace(waiting=1))
    try:
        large = encoded(Image.new("RGB", (5000, 5000)))
        futures = [decoder.submit(JOB, large, "a") for _ in range(8)]
        refused = 0
        for future in futures:
            error = future.exception(60)
            if error is not None:
                assert isinstance(error, ApiError)
                assert (error.status, error.headers["Retry-After"]) == (503, "1")
                refused += 1
        assert 0 < refused < 8
    finally:
        decoder.close()


def test_decoded_bytes_in_flight_are_bounded() -> None:
    """Three pictures of 100 MB each, decoded, where 150 MB are allowed; each file has less than 1 MB."""
    decoder = Decoder(60, slow=SLOW._replace(decoded_megabytes=150))
    try:
        large = encoded(Image.new("RGB", (5000, 5000)))
        errors = [future.exception(60) for future in [decoder.submit(JOB, large, "a") for _ in range(3)]]
        refused = [error for error in errors if isinstance(error, ApiError)]
        assert 0 < len(refused) < 3
        for error in refused:
            assert (error.status, error.headers["Retry-After"]) == (503, "1")
            assert "pictures of 100 MB are being decoded or wait" in error.message
        assert decoder.submit(JOB, large, "a").result(60).size == (5000, 5000), "the first one always fits"
    finally:
        decoder.close()


def test_more_processes_do_not_take_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One large picture leaves memory for one quick process, of however many."""
    lock, release, entered = threading.Lock(), threading.Event(), threading.Semaphore(0)
    running: list[int] = []
    sums: list[int] = []

    def work(self: Any, job: Job, data: bytes) -> tuple[dict[str, Any], bytes]:
        if job.quick and data == b"large":
            return {"costly": True, "decoded_bytes": 1}, b""
        megabytes = self._limits.megabytes
        with lock:
            running.append(megabytes)
            sums.append(sum(running))
        entered.release()
        assert release.wait(60)
        with lock:
            running.remove(megabytes)
        return {"refused": [415, "not_a_picture", "no picture"]}, b""

    monkeypatch.setattr(decoding._Worker, "run", work)
    monkeypatch.setattr(decoding._Worker, "start", lambda _: None)
    decoder = Decoder(600, quick=QUICK._replace(workers=6))
    try:
        futures = [decoder.submit(JOB, b"large", "a")]
        assert entered.acquire(timeout=60)
        futures += [decoder.submit(JOB, b"small", "a") for _ in range(12)]
        assert entered.acquire(timeout=60), "there is always memory for a quick picture"
        assert not entered.acquire(timeout=0.3), "but not for two"
        release.set()
        assert {error_status(future) for future in futures} == {415}
    finally:
        release.set()
        decoder.close()
    assert max(sums) <= decoding.MEGABYTES == 1100


def error_status(future: "Future[Decoded]") -> int:
    error = future.exception(60)
    assert isinstance(error, ApiError)
    return error.status


def test_who_needs_much_is_not_overtaken() -> None:
    budget = WaitingBudget(10)
    order: list[str] = []
    waiting = threading.Event()

    def large() -> None:
        waiting.set()
        with budget.hold(10):
            order.append("large")

    def small() -> None:
        with budget.hold(1):
            order.append("small")

    with budget.hold(5):
        threads = [threading.Thread(target=large, daemon=True)]
        threads[0].start()
        assert waiting.wait(60)
        while not budget._waiting:
            time.sleep(0.001)
        threads.append(threading.Thread(target=small, daemon=True))
        threads[1].start()
        while len(budget._waiting) < 2:
            time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join(60)
    assert order == ["large", "small"]


def test_pictures_that_wait_too_long_get_503() -> None:
    decoder = Decoder(3)
    try:
        large = encoded(Image.new("RGB", (7000, 7000)))
        errors = [future.exception(60) for future in [decoder.submit(JOB, large, "a") for _ in range(5)]]
    finally:
        decoder.close()
    statuses = [getattr(error, "status", 200) for error in errors]
    assert set(statuses) <= {200, 503}
    assert 503 in statuses


def test_clients_take_turns() -> None:
    decoder = Decoder(60, quick=QUICK._replace(workers=1))
    finished: list[str] = []
    try:
        medium = encoded(Image.new("RGB", (1500, 1500)))
        futures = []
        for client in 10 * ["greedy"] + ["modest"]:
            future = decoder.submit(JOB, medium, client)
            future.add_done_callback(lambda _, client=client: finished.append(client))
            futures.append(future)
        for future in futures:
            future.result(60)
    finally:
        decoder.close()
    assert finished.index("modest") <= 2


def test_uploads_in_memory_are_bounded(
    idx: index.Index, served_model: TrainedModel, monkeypatch: pytest.MonkeyPatch, upload: bytes
) -> None:
    entered, allowed = threading.Event(), threading.Event()
    vectors = served_model.vectors

    def paused(crops: object) -> object:
        entered.set()
        assert allowed.wait(30)
        return vectors(crops)

    monkeypatch.setattr(served_model, "vectors", paused)
    app = create_app(idx, served_model, limits=Limits(upload_memory=len(upload) + 10))
    with in_thread(app) as (url, _), ThreadPoolExecutor(1) as threads:
        running = threads.submit(CLIENT.post, f"{url}/embed", files={"picture": upload})
        assert entered.wait(30)
        for path in ("/embed", "/search", "/explain", "/items"):
            refused = CLIENT.post(f"{url}{path}", files={"picture": upload})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        allowed.set()
        assert running.result(30).status_code == 200
        assert CLIENT.post(f"{url}/embed", files={"picture": upload}).status_code == 200, "it was given back"


def test_files_of_many_tiny_pieces_get_415() -> None:
    """Headers are parsed in Python, piece by piece: millions of pieces would take seconds."""
    empty_chunk = struct.pack(">I4sI", 0, b"teSt", zlib.crc32(b"teSt"))
    png = encoded(noise(30, 30))
    for data in (
        b"\xff\xd8" + 500_000 * b"\xff\xef\x00\x02",
        b"\xff\xd8" + 500_000 * b"\xff",
        png[:33] + 500_000 * empty_chunk + png[33:],
        png[:-12] + 500_000 * empty_chunk + png[-12:],
        b"P6\n#" + 500_000 * b"a",
        b"GIF89a\x0a\0\x0a\0\0\0\0!\xfe" + 500_000 * b"\x01a",
        b"\0\0\0\x0cjP  \r\n\x87\n" + 500_000 * b"\0\0\0\x08free",
    ):
        with pytest.raises(Refused, match="too many pieces") as refused:
            open_picture(data, BOUNDS)
        assert refused.value.status == 415


def test_uploads_are_private_and_leftovers_are_removed(index_folder: Path, served_model: TrainedModel) -> None:
    uploads = index_folder / "uploads"
    uploads.mkdir(exist_ok=True)
    leftover = uploads / ".0123456789abcdef-picture.jpg"
    leftover.write_bytes(b"half a pic")
    old = index_folder / ".0123456789abcdef-index.json"
    old.write_text("{")
    os.utime(old, (0, 0))
    with (
        index.open(index_folder) as idx,
        TestClient(create_app(idx, served_model), base_url="http://127.0.0.1") as client,
    ):
        assert not leftover.exists()
        item_id = client.post("/items", files={"picture": encoded(noise(30, 30))}).json()["id"]
        assert (uploads / f"{item_id}.jpg").stat().st_mode & 0o777 == 0o600
        assert not old.exists()
        assert client.get(f"/items/{item_id}/image").status_code == 200


def post_ignoring_errors(url: str, data: bytes) -> int:
    try:
        return CLIENT.post(f"{url}/embed", files={"picture": data}).status_code
    except httpx.HTTPError:
        return 0


@pytest.mark.slow
def test_sigterm_ends_the_server_while_pictures_are_decoded(index_folder: Path) -> None:
    large = encoded(Image.new("RGB", (7000, 7000)))  # seconds for each
    with (
        in_process(index_folder, "--seconds", "2") as (url, process),
        ThreadPoolExecutor(6) as threads,
    ):
        running = [threads.submit(post_ignoring_errors, url, large) for _ in range(6)]
        time.sleep(1)
        workers = children_of(process.pid)
        assert workers
        process.send_signal(signal.SIGTERM)
        assert process.wait(2 + 5 + 10) == 0
        wait_until_ended(workers)
        assert {future.result() for future in running} <= {0, 200, 422, 503, 504}
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_no_process_outlives_a_killed_server(index_folder: Path) -> None:
    large = encoded(Image.new("RGB", (7000, 7000)))
    with in_process(index_folder) as (url, process), ThreadPoolExecutor(6) as threads:
        assert CLIENT.get(f"{url}/healthz").status_code == 200
        workers = children_of(process.pid)
        assert len(workers) == QUICK.workers + SLOW.workers
        running = [threads.submit(post_ignoring_errors, url, large) for _ in range(6)]
        time.sleep(1)
        process.kill()
        wait_until_ended(workers)
        assert 0 in [future.result() for future in running], "pictures were being decoded"
