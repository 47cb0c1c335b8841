"""What people said about results: the same thing, another thing, or skipped. Stored durably with the index.

    marks = Marks("birds.idx")
    number = marks.add(query, result, "same", by="anna")      # on the disk when it returns
    marks.undo(number, by="anna")
    marks.review(idx).pairs                                    # what training uses

Pictures are identified by their content, so marks survive moved and renamed files. Nothing is ever deleted: an undone
mark stays in the history. Of several marks on two pictures the last one counts, whoever set it; if that is "skip", none
does. Marks whose pictures are gone, and marks that contradict each other, are left out and reported.

The file is ``marks.sqlite`` in the folder of the index. Any number of processes may write to it at the same time, also
while another one adds pictures to the index. Every row has a CRC-32; damaged ones are reported once and left out.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import combinations
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import TypeVar, get_args

from filelock import FileLock

from lookalike._util.checksums import Finding
from lookalike._util.files import flush, replacing, write_text
from lookalike._util.outside_text import csv_line
from lookalike.index.base import Index
from lookalike.index.contents import MarkedPicture, check_picture, locate
from lookalike.index.contradictions import Contradiction, MarkedPair
from lookalike.index.kept_pictures import KeptPictures
from lookalike.index.marks_file import FILE, SCHEMA, Mark, MarksFile, Verdict
from lookalike.index.marks_review import Review, review_marks

__all__ = ["Contradiction", "Mark", "MarkedPair", "MarkedPicture", "Marks", "Review", "Verdict"]

LOCK = "marks.lock"  # held while the file is made
MOST_PICTURES = 50  # that are marked together; each two of them are a mark
LONGEST_NAME = 100  # characters of a person or a model
VERDICTS = get_args(Verdict)
CSV_COLUMNS = (
    *("mark", "together", "time", "by", "verdict", "state", "query_path", "result_path", "query_id", "result_id"),
    *("query_content", "result_content", "model", "undone_time", "undone_by"),
)

T = TypeVar("T")


class Marks:
    """The marks of one index. Threads may share it. The file is made with the first mark.

    Args:
        folder: The folder of the index.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.kept = KeptPictures(self.folder)
        self._threads = RLock()
        self._file: MarksFile | None = None

    def add(
        self,
        query: MarkedPicture | str,
        result: MarkedPicture | str,
        verdict: Verdict,
        by: str | None = None,
        model: str | None = None,
    ) -> int:
        """Store one judgement. It is on the disk when this returns.

        Args:
            query: One picture, or the hash of its content.
            result: The other.
            verdict: "same", "different" or "skip".
            by: Who judged.
            model: Fingerprint of the model whose result was judged.

        Returns:
            The number of the mark.

        Raises:
            ValueError: If an argument is invalid, both pictures have the same content, or there are too many marks.
            IndexInUse: If another process blocks the file for half a minute.
        """
        pictures = [_as_picture(query), _as_picture(result)]
        if pictures[0].content == pictures[1].content:
            raise ValueError("both pictures have the same content: a mark needs two different files")
        return self._insert([(pictures[0], pictures[1])], verdict, by, model)

    def add_group(
        self,
        pictures: Sequence[MarkedPicture | str],
        verdict: Verdict,
        by: str | None = None,
        model: str | None = None,
    ) -> int:
        """Store the same judgement about each two of several pictures: all of the same thing, or no two of them.

        Args:
            pictures: Up to 50 pictures. Copies of one file count once.
            verdict: "same", "different" or "skip".
            by: Who judged.
            model: Fingerprint of the model.

        Returns:
            The number of the first mark. ``undo`` with any of them undoes all.

        Raises:
            ValueError: If there are fewer than two contents or too many pictures, or as for ``add``.
        """
        by_content = {picture.content: picture for picture in map(_as_picture, pictures)}
        if len(by_content) < 2:
            raise ValueError("a mark needs at least two pictures with different contents")
        if len(by_content) > MOST_PICTURES:
            raise ValueError(f"at most {MOST_PICTURES} pictures can be marked together, got {len(by_content)}")
        return self._insert(list(combinations(by_content.values(), 2)), verdict, by, model)

    def undo(self, mark: int, by: str | None = None) -> int:
        """Undo a mark and those that were set together with it. It stays in the history.

        Args:
            mark: Its number.
            by: Who undoes it.

        Returns:
            How many marks were undone; 0 if they had been undone before.

        Raises:
            KeyError: If there is no such mark.
        """
        check_name("by", by)
        if not (self.folder / FILE).exists():
            raise KeyError(f"there is no mark {mark}")
        with self._threads:
            file = self._opened()
            with file.writing():
                return file.undo(mark, time.time(), by or "")

    def history(self, limit: int | None = None, before: int | None = None) -> list[Mark]:
        """Return marks, the last one first, undone ones included.

        Args:
            limit: Largest number of marks.
            before: Only marks with smaller numbers.
        """
        marks: list[Mark] = self._read(lambda file: file.history(limit, before), [])
        return marks

    def get(self, mark: int) -> Mark | None:
        """Return the mark with this number; None if there is none."""
        marks = self.history(1, mark + 1)
        if marks and marks[0].number == mark:
            return marks[0]
        return None

    def together(self, mark: int) -> list[Mark]:
        """Return the marks that were set together with this one, itself included."""
        marks: list[Mark] = self._read(lambda file: file.together(mark), [])
        return marks

    def between(self, content: str, others: Sequence[str]) -> dict[str, Mark]:
        """Return what was said last about a picture and each of some others.

        Args:
            content: Hash of the picture.
            others: Hashes of the others.

        Returns:
            Hash -> the last mark that was not undone, also if it is "skip"; without those that have none.
        """
        return self._read(lambda file: file.between(content, others), {})

    def review(self, idx: Index | None = None) -> Review:
        """Return what follows from all marks.

        Args:
            idx: The open index. Marks on pictures that are neither in it nor kept are expired. Without it, no mark is.
        """
        marks: list[Mark] = self._read(lambda file: file.history(), [])
        return review_marks(marks[::-1], lambda pictures: self._missing(idx, pictures))

    def pairs(self, idx: Index | None = None) -> list[MarkedPair]:
        """Return the marks that training uses, see ``review``."""
        return self.review(idx).pairs

    def contradictions(self, idx: Index | None = None) -> list[Contradiction]:
        """Return marks that cannot all be true, see ``review``."""
        return self.review(idx).contradictions

    def keep(self, content: str, jpeg: bytes) -> None:
        """Keep a picture that is not in the index, so that training can use marks on it.

        Args:
            content: Hash of the uploaded bytes.
            jpeg: The picture, re-encoded; at most 2 MB.

        Raises:
            ValueError: If it is too large, or there are too many kept pictures.
        """
        self.kept.keep(content, jpeg, self._is_marked)

    def picture(self, content: str) -> Path | None:
        """Return the file of a kept picture; None if there is none."""
        return self.kept.find(content)

    def salt(self) -> str:
        """Return a random text that belongs to this file; for pseudonyms of keys."""
        with self._threads:
            return self._opened_for_writing().salt()

    def exists(self) -> bool:
        """Return whether anything was ever marked."""
        return self._file is not None or (self.folder / FILE).exists()

    def version(self) -> tuple[int, int]:
        """Return something that changes with every mark and every undo, whoever made it."""
        return self._read(MarksFile.version, (0, 0))

    def count(self) -> int:
        """Count the marks that are not undone."""
        return self._read(MarksFile.count, 0)

    def write_csv(self, path: str | Path, idx: Index | None = None) -> int:
        """Write the whole history as CSV.

        Args:
            path: The file; written whole or not at all.
            idx: As for ``review``.

        Returns:
            The number of marks.
        """
        text, count = self._csv(idx)
        write_text(Path(path), text)
        return count

    def as_csv(self, idx: Index | None = None) -> str:
        """Return the whole history as the text of a CSV; see ``write_csv``."""
        return self._csv(idx)[0]

    def check(self) -> Finding | None:
        """Check the structure of the file and the checksums of all rows; None if there is no file."""
        return self._read(MarksFile.check, None)

    def close(self) -> None:
        """Close the file."""
        with self._threads:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> "Marks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _insert(
        self, pairs: Sequence[tuple[MarkedPicture, MarkedPicture]], verdict: str, by: str | None, model: str | None
    ) -> int:
        if verdict not in VERDICTS:
            raise ValueError(f"the verdict must be one of {', '.join(VERDICTS)}, got {verdict!r}")
        check_name("by", by)
        check_name("model", model)
        with self._threads:
            file = self._opened_for_writing()
            with file.writing():
                return file.insert(pairs, time.time(), by or "", verdict, model or "")

    def _read(self, read: "Callable[[MarksFile], T]", without_file: T) -> T:
        with self._threads:
            if not self.exists():
                return without_file
            file = self._opened()
            with file.reading():
                return read(file)

    def _opened(self) -> "MarksFile":
        if self._file is None:
            self._file = MarksFile(self.folder / FILE)
        return self._file

    def _opened_for_writing(self) -> "MarksFile":
        path = self.folder / FILE
        if self._file is None and not path.exists():
            if not self.folder.is_dir():
                raise FileNotFoundError(f"there is no index {self.folder}")
            with FileLock(self.folder / LOCK):
                if not path.exists():  # another process may have made it
                    with replacing(path) as unfinished:
                        MarksFile.make_file(unfinished, SCHEMA % token_hex(16))
                    flush(self.folder)
        return self._opened()

    def _csv(self, idx: Index | None) -> tuple[str, int]:
        marks = self.history()[::-1]
        states = review_marks(marks, lambda pictures: self._missing(idx, pictures)).states
        lines = [csv_line(CSV_COLUMNS)]
        for mark in marks:
            undone = "" if mark.undone_time is None else _as_time(mark.undone_time)
            row = [mark.number, mark.batch, _as_time(mark.time), mark.by, mark.verdict, states[mark.number]]
            row += [mark.query.path, mark.result.path, mark.query.id, mark.result.id]
            row += [mark.query.content, mark.result.content, mark.model, undone, mark.undone_by]
            lines.append(csv_line(row))
        return "".join(lines), len(marks)

    def _is_marked(self, content: str) -> bool:
        return self._read(lambda file: file.is_marked(content), False)

    def _missing(self, idx: Index | None, pictures: Sequence[MarkedPicture]) -> set[str]:
        """Contents that are neither in the index nor kept."""
        if idx is None:
            return set()
        unkept = [picture for picture in pictures if self.kept.find(picture.content) is None]
        return {picture.content for picture in unkept} - set(locate(idx, unkept))


def _as_picture(picture: MarkedPicture | str) -> MarkedPicture:
    if isinstance(picture, str):
        picture = MarkedPicture(picture)
    check_picture(picture)
    return picture


def check_name(name: str, value: str | None) -> None:
    """Raise ValueError if the name of a person or a model cannot be stored."""
    if value is not None and (not isinstance(value, str) or len(value) > LONGEST_NAME or not value.isprintable()):
        raise ValueError(f"{name} must be a printable text of at most {LONGEST_NAME} characters, got {value!r}")


def _as_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
