"""Requests that nobody should send: damaged pictures, wrong types, torn forms, headers that are too large.

Each is made from a seed, as the bytes that go over the wire, so that any of them can be sent again.
"""

import io
import random
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from PIL import Image, features

KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", *(("AVIF",) if features.check("avif") else ()))
FIELDS = {
    "/search": ("id", "k", "where", "crop", "rerank"),
    "/embed": ("crop",),
    "/explain": ("id", "crop"),
    "/items": ("label", "metadata"),
}
PATHS = tuple(FIELDS)
BOUNDARY = "----------------------------0123456789abcdef"
NASTY = (
    *("", " ", "\x00", "0", "-1", "1e309", "nan", "inf", "9" * 400, "²", "½", "None", "null", "true", "{}", "[]"),
    *(
        "../../etc/passwd",
        "..\\..\\x",
        "/etc/passwd",
        "file:///etc/passwd",
        "%2e%2e%2f",
        "a" * 5000,
        "\u202e",
        "\U0001f426",
    ),
    *(
        "' OR 1=1 --",
        '"; DROP TABLE items; --',
        "label=robin",
        "label in (",
        "label in (a,)",
        "a=b,c",
        "path>=/",
        'x="',
    ),
    *(
        "0,0,1,1",
        "0,0,0,0",
        "0.5,0.5,0.6,0.6",
        "1e-9,0,1e-9,1",
        ",,,",
        "nan,nan,nan,nan",
        '{"a": 1e999}',
        '{"\\ud800": 1}',
    ),
)
STRANGE = (
    *(
        b"",
        b"\x00" * 100,
        b"<html><script>alert(1)</script>",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
    ),
    *(
        b"PK\x03\x04" + b"\x00" * 60,
        b"%!PS-Adobe-3.0 EPSF-3.0\n(%pipe%id) (r) file",
        b"GIF89a" + b"\xff" * 30,
        b"BM" + b"\xff" * 60,
    ),
    *(
        b"\xff\xd8\xff\xe0",
        b"RIFF\xff\xff\xff\xffWEBPVP8 ",
        b"II*\x00\xff\xff\xff\xff",
        b"MM\x00*\x00\x00\x00\x08\xff\xff",
    ),
    *(
        b"P6 99999 99999 255\n",
        b"P5\n1 1\n99999999\n",
        b"P1 2 2\n1 0",
        b"\x89PNG\r\n\x1a\n",
        b"version https://git-lfs",
    ),
    *(b"\x00\x00\x00\x0cjP  \r\n\x87\n", b"\x00\x00\x00 ftypavif", b"#!/bin/sh\nrm -rf x", b"\x7fELF\x02\x01\x01"),
)

MORE = b"<more is to come>"  # marks, at the end of a request that is made here, one that is not complete
FORM = "multipart/form-data; boundary="
TYPES = (
    *("multipart/form-data", FORM, f'{FORM}"', f"{FORM}{'b' * 300}", f"{FORM}{BOUNDARY}; charset=rot13", f"{FORM}ä"),
    *(
        "multipart/mixed; boundary=x",
        "multipart/form-data; charset=x; boundary=y",
        "application/json",
        "text/plain",
        "",
    ),
)


class Case(NamedTuple):
    kind: str
    request: bytes
    hangs_up: bool  # says that more is to come, and leaves


def case(seed: int) -> Case:
    """The request of one seed."""
    chance = random.Random(seed)
    kind = ("picture", "type", "form", "header", "field")[seed % 5]
    request = _MAKERS[kind](chance)
    return Case(kind, request.removesuffix(MORE), request.endswith(MORE))


def send(address: tuple[str, int], sent: Case, timeout: float = 60.0) -> int:
    """The status that came back; 0 if the server closed the connection without a word, -1 if it did not answer."""
    with socket.create_connection(address, timeout) as connection:
        try:
            connection.sendall(sent.request)
            if sent.hangs_up:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has seen enough
        try:
            answer = b""
            while b"\r\n" not in answer:
                if not (some := connection.recv(4096)):
                    return 0
                answer += some
            return int(answer.split(None, 2)[1])
        except TimeoutError:
            return -1
        except OSError:
            return 0


def _picture(chance: random.Random) -> bytes:
    """A valid file with something wrong in it."""
    data = bytearray(_valid(chance))
    for _ in range(chance.choice((1, 1, 2, 5, 40))):
        place = chance.randrange(max(1, min(len(data), chance.choice((30, 200, len(data) + 1)))))
        match chance.randrange(6):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                data[place : place + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff"))
            case 2:
                del data[place:]
            case 3:
                data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 64)))
            case 4:
                del data[place : place + chance.randrange(1, 64)]
            case _:
                data[place:] = _valid(chance)[place:]
    return _request(chance, _form({"picture": ("x.jpg", bytes(data))}))


def _type(chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        data = chance.choice(STRANGE) + bytes(chance.randrange(256) for _ in range(chance.choice((0, 10, 3000))))
    else:
        data = bytes(chance.randrange(256) for _ in range(chance.choice((1, 16, 4096))))
    name = chance.choice(("x.jpg", "../../../etc/passwd", "a\x00b.png", "", 'q".gif', "\u202egpj.exe"))
    return _request(chance, _form({"picture": (name, data)}))


def _torn(chance: random.Random) -> bytes:
    """A form that ends too early, or is put together wrongly."""
    fields: dict[str, str | tuple[str, bytes]] = {"picture": ("x.png", _valid(chance)), "k": chance.choice(NASTY)}
    body = _form(fields)
    headers: dict[str, str] = {}
    match chance.randrange(10):
        case 0:
            return _request(chance, body[: chance.randrange(len(body))])
        case 1:
            return _request(chance, body[: chance.randrange(len(body))], {"Content-Length": str(len(body))}) + MORE
        case 2:
            headers["Content-Type"] = chance.choice(TYPES)
        case 3:
            body = body.replace(
                b"form-data; name", chance.choice((b"form-data; nome", b"name", b"attachment; name", b"")), 1
            )
        case 4:
            body = body.replace(b'name="picture"', b'name="' + chance.choice(NASTY).encode() + b'"', 1)
        case 5:
            body = body.replace(
                b"\r\n\r\n", b"\r\nX-Filler: " + b"y" * chance.choice((100, 5000, 100_000)) + b"\r\n\r\n", 1
            )
        case 6:
            body = body.replace(b"\r\n", b"\n")
        case 7:
            part = b"--" + BOUNDARY.encode() + b'\r\nContent-Disposition: form-data; name="k"\r\n\r\n1\r\n'
            body = part * chance.choice((2, 50, 2000)) + body
        case 8:
            body = b"--" + BOUNDARY.encode() + b"--\r\n" + body
        case _:
            cut = chance.randrange(len(body))
            body = body[:cut] + body[cut + chance.randrange(1, 50) :]
    return _request(chance, body, headers)


def _header(chance: random.Random) -> bytes:
    body = _form({"picture": ("x.png", _valid(chance))})
    match chance.randrange(9):
        case 0:
            return _request(chance, body, {"X-Filler": "x" * chance.choice((5_000, 20_000, 200_000))})
        case 1:
            return _request(chance, body, {f"X-{i}": "y" for i in range(chance.choice((50, 500, 5000)))})
        case 2:
            return _request(chance, body, path="/items/" + "a" * chance.choice((100, 5000, 100_000)))
        case 3:
            return _request(chance, body, {"Content-Length": chance.choice(("-1", "abc", "1e3", "9" * 30, "", "0x10"))})
        case 4:
            wrong = chance.choice((b"zz\r\nhello\r\n0\r\n\r\n", b"5\r\nhel", b"ffffffffffffffffff\r\nx", b"-1\r\n\r\n"))
            return _request(chance, wrong, {"Transfer-Encoding": "chunked"}, counted=False) + MORE
        case 5:
            return _request(chance, body, {"Transfer-Encoding": "chunked", "Content-Length": str(len(body))})
        case 6:
            line = chance.choice(
                (
                    b"GET",
                    b"GET /",
                    b"GET / HTTP/9.9",
                    b"\x16\x03\x01\x02\x00",
                    b"PRI * HTTP/2.0",
                    b"GET http://x/ HTTP/1.1",
                )
            )
            return line + b"\r\nHost: 127.0.0.1\r\n\r\n"
        case 7:
            path = chance.choice(("/items?limit=", "/items?after=", "/items?where=", "/items/", "/items/a/image?side="))
            tail = "".join(f"%{chance.randrange(256):02x}" for _ in range(chance.randrange(1, 30)))
            return _request(chance, b"", path=path + tail, method=chance.choice(("GET", "DELETE", "PATCH", "TRACE")))
        case _:
            strange = {
                "X-API-Key": "\xff" * 50,
                "Authorization": "Bearer " + "é" * 40,
                "Origin": "null",
                "Cookie": "a=" * 900,
            }
            name = chance.choice(list(strange))
            return _request(chance, body, {name: strange[name]})


def _field(chance: random.Random) -> bytes:
    path = chance.choice(PATHS)
    names = FIELDS[path] if chance.random() < 0.8 else ("surprise", "picture", *FIELDS["/search"])
    chosen = chance.sample(names, min(len(names), chance.choice((1, 1, 2))))
    fields: dict[str, str | tuple[str, bytes]] = {name: chance.choice(NASTY) for name in chosen}
    if chance.random() < 0.8:
        fields["picture"] = ("x.png", _valid(chance))
    return _request(chance, _form(fields), path=path)


_MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "picture": _picture,
    "type": _type,
    "form": _torn,
    "header": _header,
    "field": _field,
}
_KEPT: dict[tuple[str, int], bytes] = {}


def _valid(chance: random.Random) -> bytes:
    kind, side = chance.choice(KINDS), chance.choice((1, 8, 40))
    if (kind, side) not in _KEPT:
        pixels = np.random.default_rng(side).integers(0, 256, (side, side + 3, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        _KEPT[kind, side] = file.getvalue()
    return _KEPT[kind, side]


def _form(fields: Mapping[str, str | tuple[str, bytes]]) -> bytes:
    parts = b""
    for name, value in fields.items():
        file = f'; filename="{value[0]}"' if isinstance(value, tuple) else ""
        content = value[1] if isinstance(value, tuple) else value.encode("utf-8", "surrogatepass")
        parts += (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
        )
    return parts + f"--{BOUNDARY}--\r\n".encode()


def _request(
    chance: random.Random,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    path: str | None = None,
    method: str = "POST",
    counted: bool = True,
) -> bytes:
    every = {"Host": "127.0.0.1", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Connection": "close"}
    if counted:
        every["Content-Length"] = str(len(body))
    every |= headers or {}
    lines = [
        f"{method} {path or chance.choice(PATHS)} HTTP/1.1",
        *(f"{name}: {value}" for name, value in every.items()),
    ]
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + body
