"""Who is let in: keys, names, sites; and what every answer carries."""

import hmac
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from server_helpers import READ, WRITE

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app
from lookalike.server.keys import Access
from lookalike.server.middleware import HEADERS

READING = [("GET", path) for path in ("/model", "/labels", "/items", "/items/a", "/items/a/image", "/map", "/metrics")]
READING += [("POST", path) for path in ("/search", "/embed", "/explain")]
WRITING = [("POST", "/items"), ("DELETE", "/items/a")]
OPEN = ["/", "/healthz", "/openapi.json"]


def code(answer: Any) -> str:
    """Checks the form of an error on the way."""
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message"}
    assert "\n" not in body["error"]["message"]
    return str(body["error"]["code"])


@pytest.mark.parametrize(("method", "path"), READING + WRITING)
def test_requests_without_a_key_get_401(locked: TestClient, method: str, path: str) -> None:
    for headers in ({}, {"X-API-Key": ""}, {"X-API-Key": READ[:-1]}, {"Authorization": "Bearer nonsense"}):
        answer = locked.request(method, path, headers=headers)
        assert (answer.status_code, code(answer)) == (401, "key_needed")
        assert answer.headers["www-authenticate"]


@pytest.mark.parametrize(("method", "path"), READING)
def test_both_keys_read(locked: TestClient, method: str, path: str) -> None:
    for headers in ({"X-API-Key": READ}, {"X-API-Key": WRITE}, {"Authorization": f"Bearer {READ}"}):
        answer = locked.request(method, path, headers=headers)
        assert answer.status_code in (200, 404, 415)


@pytest.mark.parametrize(("method", "path"), WRITING)
def test_only_the_write_key_writes(locked: TestClient, method: str, path: str) -> None:
    answer = locked.request(method, path, headers={"X-API-Key": READ})
    assert (answer.status_code, code(answer)) == (403, "read_only")
    assert locked.request(method, path, headers={"X-API-Key": WRITE}).status_code in (404, 415)


def test_public_routes_reveal_nothing(locked: TestClient, shared_index: index.Index) -> None:
    for path in OPEN:
        assert locked.get(path).status_code == 200
    assert locked.get("/healthz").json() == {"status": "ok", "items": None, "model": None}
    seen = locked.get("/healthz", headers={"X-API-Key": READ}).json()
    assert seen == {"status": "ok", "items": 64, "model": shared_index.fingerprint}


def test_the_key_is_checked_before_the_body(locked: TestClient) -> None:
    answer = locked.post(
        "/items", content=b"--x\r\nbroken", headers={"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == 401


def test_without_a_write_key_nobody_writes(shared_index: index.Index, served_model: TrainedModel) -> None:
    client = TestClient(create_app(shared_index, served_model, keys=Keys(read=(READ,))), base_url="http://localhost")
    assert client.delete("/items/a", headers={"X-API-Key": READ}).status_code == 403
    only = TestClient(create_app(shared_index, served_model, keys=Keys(write=(WRITE,))), base_url="http://localhost")
    assert only.get("/labels").status_code == 401
    assert only.get("/labels", headers={"X-API-Key": WRITE}).status_code == 200


def test_keys_are_compared_in_constant_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys(read=(READ, "an older key for looking"), write=(WRITE,))
    for given in (READ, "x", "", None, "käse", "\udcff"):
        compared.clear()
        assert keys.access(given) is (Access.READ if given == READ else Access.NONE)
        assert len(compared) == 3
    assert keys.access(WRITE) is Access.WRITE
    assert keys.access("an older key for looking") is Access.READ
    assert READ not in repr(keys)


def test_keys_from_files_and_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"\n{READ}\n  another key for looking \n")
    keys = Keys.load(file, None, {"LOOKALIKE_WRITE_KEY": WRITE, "LOOKALIKE_READ_KEY": "not this one, a file is named"})
    assert keys == Keys((READ, "another key for looking"), (WRITE,))
    assert not Keys.load(None, None, {})
    file.write_text("\n")
    with pytest.raises(ValueError, match="holds no key"):
        Keys.load(file, None, {})
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="printable ASCII"):
        Keys.load(None, file, {})
    with pytest.raises(ValueError, match="at least 16 characters, got 5"):
        Keys(read=("short",))
    with pytest.raises(ValueError, match="must differ"):
        Keys((READ,), (READ,))


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "[::1]"])
def test_loopback_hosts_are_accepted(shared: TestClient, host: str) -> None:
    assert shared.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "", "[::1", "10.0.0.1"]
)
def test_other_hosts_get_421(shared: TestClient, host: str) -> None:
    answer = shared.get("/items", headers={"Host": host})
    assert (answer.status_code, code(answer)) == (421, "wrong_host")


def test_configured_hosts(shared_index: index.Index, served_model: TrainedModel) -> None:
    named = TestClient(create_app(shared_index, served_model, hosts=["Search.example.org"]))
    assert named.get("/healthz", headers={"Host": "search.example.org:443"}).status_code == 200
    assert named.get("/healthz", headers={"Host": "localhost"}).status_code == 421
    anything = TestClient(create_app(shared_index, served_model, hosts=None))
    assert anything.get("/healthz", headers={"Host": "whatever"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Origin": "http://127.0.0.1"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://127.0.0.1:9999"}, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "none"}, True),
    ],
)
def test_cross_site_requests_get_403(shared: TestClient, headers: dict[str, str], allowed: bool) -> None:
    for method, path in [*WRITING, ("POST", "/search")]:
        answer = shared.request(method, path, headers=headers)
        assert (answer.status_code in (404, 415)) is allowed
        assert allowed or code(answer) == "cross_site"


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/items/", 404, "not_found"),
        ("GET", "/items/../../etc/passwd", 404, "not_found"),
        ("GET", "/items/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404, "not_found"),
        ("GET", "/items/..%5cwindows", 422, "invalid"),
        ("GET", "/items/....", 404, "not_found"),
        ("GET", f"/items/{'a' * 65}", 422, "invalid"),
        ("PUT", "/items", 405, "method_not_allowed"),
        ("GET", "/search", 405, "method_not_allowed"),
        ("GET", "/items?limit=0", 422, "invalid"),
        ("GET", "/items?limit=many", 422, "invalid"),
        ("GET", "/items?where=label", 422, "invalid"),
        ("GET", "/items?after=%00", 422, "invalid"),
        ("POST", "/search", 415, "not_a_form"),
    ],
)
def test_errors_have_one_form(shared: TestClient, method: str, path: str, status: int, expected: str) -> None:
    answer = shared.request(method, path)
    assert (answer.status_code, code(answer)) == (status, expected)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "allowed"), [("/", "GET"), ("/items", "GET, POST"), ("/items/a", "DELETE, GET"), ("/search", "POST")]
)
def test_405_lists_all_methods_of_a_path(shared: TestClient, path: str, allowed: str) -> None:
    answer = shared.put(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_unexpected_errors_reveal_nothing(
    client: TestClient, idx: index.Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError(f"the secret of {idx.path}")

    monkeypatch.setattr(idx, "labels", fail)
    answer = client.get("/labels")
    assert (answer.status_code, code(answer)) == (500, "failed")
    assert "secret" not in answer.text
    assert str(idx.path) not in answer.text
    assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]
    assert "the secret of" in caplog.text, "the log is where it belongs"
    assert 'route="/labels",status="500"' in client.get("/metrics").text


def test_every_answer_has_security_headers(shared: TestClient) -> None:
    for path, headers in (("/", {}), ("/labels", {}), ("/nothing", {}), ("/healthz", {"Host": "evil.example"})):
        answer = shared.get(path, headers=headers)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert shared.get("/labels").headers["cache-control"] == "no-store"


def test_filters_on_paths_are_refused(shared: TestClient, upload: bytes) -> None:
    for where in ('path>="/tmp/a"', "label=class1, path!=x", "PATH=1, path in (a)"):
        assert code(shared.get("/items", params={"where": where})) == "invalid"
        assert shared.post("/search", files={"picture": upload}, data={"where": where}).status_code == 422


def test_no_answer_contains_a_path(shared: TestClient, shared_index: index.Index, upload: bytes) -> None:
    root = str(shared_index.path.parent)
    for path in ("/model", "/items", "/labels", "/map", "/metrics", "/openapi.json", "/healthz"):
        assert root not in shared.get(path).text
        assert "pictures0" not in shared.get(path).text.replace("folder pictures0", "")
    assert root not in shared.post("/search", files={"picture": upload}).text
