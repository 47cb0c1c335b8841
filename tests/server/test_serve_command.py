"""``lookalike serve`` before it serves: what it refuses, in one line. That it serves is tested with its faults."""

import socket
from pathlib import Path

import pytest
from server_helpers import READ, WRITE

from lookalike.cli import main
from lookalike.cli.serve import ServeSettings, _accepted_hosts, _require_keys, _warn_of_readable_keys, is_loopback
from lookalike.server import Keys

INDEX = Path("mine.idx")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOKALIKE_READ_KEY", "LOOKALIKE_WRITE_KEY"):
        monkeypatch.delenv(name, raising=False)


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert main(["serve", *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_another_address_needs_a_key(host: str, index_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is open to other machines and needs a key" in refused(capsys, str(index_folder), "--host", host)


@pytest.mark.parametrize("keys", [Keys(read=(READ,)), Keys(write=(WRITE,)), Keys((READ,), (WRITE,))])
def test_any_key_allows_other_addresses(keys: Keys) -> None:
    _require_keys(ServeSettings(INDEX, host="0.0.0.0"), keys)


def test_loopback_names_by_default() -> None:
    assert ServeSettings(INDEX).host == "127.0.0.1"
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "", "127.0.0.1.evil")))
    assert set(_accepted_hosts(ServeSettings(INDEX)) or ()) == {"localhost", "127.0.0.1", "[::1]"}
    assert "search.example.org" in (_accepted_hosts(ServeSettings(INDEX, names=["search.example.org"])) or ())
    assert _accepted_hosts(ServeSettings(INDEX, host="0.0.0.0")) is None
    assert "a.example" in (_accepted_hosts(ServeSettings(INDEX, host="0.0.0.0", names=["a.example"])) or ())


def test_a_name_without_keys_gives_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    _require_keys(ServeSettings(INDEX, names=["search.example.org"]), Keys())
    assert "no keys are set: everybody who reaches search.example.org" in capsys.readouterr().err
    _require_keys(ServeSettings(INDEX, names=["search.example.org"]), Keys(read=(READ,)))
    assert capsys.readouterr().err == ""


def test_key_files_that_others_can_read_give_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "read.key"
    file.touch(mode=0o600)
    _warn_of_readable_keys(ServeSettings(INDEX, read_key_file=file))
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    _warn_of_readable_keys(ServeSettings(INDEX, read_key_file=file))
    assert f"other users of this machine can read {file}: chmod 600" in capsys.readouterr().err


def test_bad_input_is_one_line(index_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing INDEX" in refused(capsys)
    assert "there is no index" in refused(capsys, str(tmp_path / "nothing"))
    assert "port must be at most 65535, got 70000" in refused(capsys, str(index_folder), "--port", "70000")
    assert "queue must be at least 1, got 0" in refused(capsys, str(index_folder), "--queue", "0")
    assert "megapixels must be in (0, 1000000), got -1" in refused(capsys, str(index_folder), "--megapixels", "-1")
    assert "pixels must be at most" in refused(capsys, str(index_folder), "--megapixels", "500")
    assert "No such file" in refused(capsys, str(index_folder), "--read-key-file", str(tmp_path / "none"))
    (tmp_path / "short").write_text("abc\n")
    assert "at least 16 characters, got 3" in refused(
        capsys, str(index_folder), "--write-key-file", str(tmp_path / "short")
    )


def test_a_port_in_use(index_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(capsys, str(index_folder), "--port", port, code=1)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said
