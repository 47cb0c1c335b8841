"""Pictures in object storage: any URL that fsspec opens, such as s3://, gs://, hf:// or file://.

The pictures come from somebody else. A file is refused by its size before it is fetched, and decoded under the limits
of ``lookalike.data.safe_decode``.
"""

from __future__ import annotations

import logging
import re
import time
from functools import lru_cache
from typing import Any, NamedTuple

from PIL import Image

from lookalike.data import safe_decode
from lookalike.data.pictures import UnreadablePicture

URL = re.compile(r"[a-z][a-z0-9+.-]*://")
INSTALL = "pip install 'lookalike[cloud]'"
LARGEST_FILE = 256 * 2**20  # bytes
BOUNDS = safe_decode.Bounds(
    pixels=safe_decode.PILLOW_MAX_PIXELS,
    side=safe_decode.LONGEST_UPLOAD_SIDE,
    elongation=safe_decode.MOST_ELONGATED,
    scans=safe_decode.MOST_SCANS,
)
ATTEMPTS = 4  # to fetch a file
FIRST_PAUSE = 0.5  # seconds; doubled after every attempt
VERSIONS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "mtime", "LastModified", "last_modified", "created")

for _provider in ("fsspec", "s3fs", "gcsfs", "huggingface_hub"):  # they log what they raise, with tracebacks
    logging.getLogger(_provider).addHandler(logging.NullHandler())  # for those who set up logging only


class StorageError(OSError):
    """Object storage that cannot be used; the message has the provider's own in one line."""


class StoredFile(NamedTuple):
    """A file in object storage.

    Attributes:
        name: Path below the listed URL.
        size: Bytes.
        version: Changes with the content: what the provider has of ETag, generation, time.
    """

    name: str
    size: int
    version: str


def is_url(source: str) -> bool:
    """Return whether a source is a URL, not a path.

    Examples:
        >>> [is_url(source) for source in ("s3://bucket/birds", "hf://datasets/me/birds", "C:/birds", "cub:birds")]
        [True, True, False, False]
    """
    return URL.match(source) is not None


def list_files(url: str) -> list[StoredFile]:
    """List all files below a URL, in order of their names.

    Raises:
        StorageError: If it cannot be listed: a missing package, credentials, network or folder.
    """
    system, root = _open(url)
    try:
        found = system.find(root, detail=True)
    except Exception as error:  # every provider has exceptions of its own
        raise _storage_error(url, error) from error
    root = root.rstrip("/")
    files = []
    for path, info in found.items():
        name = str(path)[len(root) :].lstrip("/")
        if name and info.get("type", "file") == "file":
            files.append(StoredFile(name, int(info.get("size") or 0), _version(info)))
    return sorted(files)


def fetch(url: str, name: str) -> bytes:
    """Fetch a file below a URL. A failure that may pass is tried again.

    Raises:
        UnreadablePicture: If the file is gone, empty or too large.
        StorageError: If the storage cannot be used.
    """
    system, root = _open(url)
    path = f"{root.rstrip('/')}/{name}"
    location = f"{url.rstrip('/')}/{name}"
    pause = FIRST_PAUSE
    for attempt in range(1, ATTEMPTS + 1):
        try:
            content: bytes = system.cat_file(path, end=LARGEST_FILE + 1)
            break
        except (FileNotFoundError, IsADirectoryError):
            raise UnreadablePicture(location, "no such file") from None
        except Exception as error:  # every provider has exceptions of its own
            if attempt == ATTEMPTS or isinstance(error, PermissionError):
                raise _storage_error(location, error) from error
            time.sleep(pause)
            pause *= 2
    if not content:
        raise UnreadablePicture(location, "empty file (0 bytes)")
    if len(content) > LARGEST_FILE:
        raise UnreadablePicture(location, f"larger than {LARGEST_FILE // 2**20} MB")
    return content


class StoredPicture:
    """A picture in object storage; ``TrainedModel.embed`` takes it like a path.

    Args:
        url: The listed URL.
        name: Path below it.
        content: Bytes of the file, if they are known; else they are fetched when they are needed.
    """

    def __init__(self, url: str, name: str, content: bytes | None = None) -> None:
        self.url, self.name = url, name
        self._content = content

    def __str__(self) -> str:
        return f"{self.url.rstrip('/')}/{self.name}"

    def read(self, at_least: int | None = None) -> Image.Image:
        """Decode the picture: mode RGB, upright.

        Args:
            at_least: Shorter side that is needed, as for ``lookalike.data.reading.read_picture``.

        Raises:
            UnreadablePicture: If it cannot be decoded, or exceeds a limit.
            StorageError: If the storage cannot be used.
        """
        content = self._content
        if content is None:
            content = fetch(self.url, self.name)
        try:
            return safe_decode.open_picture(content, BOUNDS, at_least)
        except safe_decode.Refused as refused:
            raise UnreadablePicture(str(self), refused.message.removeprefix("the upload is ")) from None
        except MemoryError:
            raise UnreadablePicture(str(self), "not enough memory to decode it") from None


@lru_cache(maxsize=16)
def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    scheme = url.partition("://")[0]
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except ImportError as error:
        raise StorageError(f"{scheme}:// needs another package ({_one_line(error)}): {INSTALL}") from None
    except Exception as error:  # every provider has exceptions of its own
        raise _storage_error(url, error) from error
    return system, str(path)


def _version(info: dict[str, Any]) -> str:
    for name in VERSIONS:
        if info.get(name):
            return str(info[name]).strip('"').replace(":", ".")
    return ""


def _storage_error(url: str, error: Exception) -> StorageError:
    return StorageError(f"{url} cannot be read: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    """The provider's message in one line, or else the name of the exception."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return " ".join(text.split())[:500] or type(error).__name__
