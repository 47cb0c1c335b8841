"""Copies of pictures that were marked but are not in the index: uploads that somebody searched with.

    IDX/marked/HASH.jpg      named by the hash of the uploaded bytes, readable by the owner only

Their number and size are limited. When there is no room, copies that no mark names are removed.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lookalike._util.files import flush, remove_unfinished, replacing
from lookalike.index.contents import check_content

FOLDER = "marked"
MOST_KEPT = 2_000
LARGEST = 2 * 10**6  # bytes of one
LEFTOVER_SECONDS = 600  # the mark for a younger copy may be on its way


class KeptPictures:
    """The kept pictures of one index.

    Args:
        folder: The folder of the index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def find(self, content: str) -> Path | None:
        """Return the file of the picture with this content; None if there is none."""
        check_content(content)
        file = self._file(content)
        return file if file.is_file() else None

    def keep(self, content: str, jpeg: bytes, is_marked: Callable[[str], bool]) -> None:
        """Keep a picture. It is on the disk when this returns.

        Args:
            content: Hash of the uploaded bytes.
            jpeg: The picture.
            is_marked: Whether a mark names a content.

        Raises:
            ValueError: If it is too large, or there is no room.
        """
        check_content(content)
        if len(jpeg) > LARGEST:
            raise ValueError(f"a picture to keep may have at most {LARGEST:,} bytes, got {len(jpeg):,}")
        if self.find(content) is not None:
            return
        self._make_room(is_marked)
        with replacing(self._file(content), private=True) as unfinished:
            unfinished.write_bytes(jpeg)
        flush(self.folder)

    def _make_room(self, is_marked: Callable[[str], bool]) -> None:
        files = list(self.folder.glob("[0-9a-f]*.jpg"))
        if len(files) < MOST_KEPT:
            return
        remove_unfinished(self.folder, older_than=LEFTOVER_SECONDS)
        unmarked = [file for file in files if _is_old(file) and not is_marked(file.stem)]
        if not unmarked:
            raise ValueError(
                f"an index keeps at most {MOST_KEPT:,} marked pictures that are not in it: "
                "add the pictures to the index before they are marked"
            )
        for file in unmarked:
            file.unlink(missing_ok=True)

    def _file(self, content: str) -> Path:
        return self.folder / f"{content}.jpg"


def _is_old(file: Path) -> bool:
    with suppress(OSError):  # another process has removed it
        return time.time() - file.stat().st_mtime > LEFTOVER_SECONDS
    return False
