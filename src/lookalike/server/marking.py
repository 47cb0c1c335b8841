"""Marks and labels as the routes use them: blocking calls that run in a thread, with errors for clients."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from lookalike._util.checksums import hash_bytes
from lookalike.index.active_choice import choose_next
from lookalike.index.contents import MarkedPicture, locate, marked_pictures
from lookalike.index.label_suggestions import suggest_labels
from lookalike.index.labels import Edited, Labels
from lookalike.index.marks import Mark, Marks, Verdict
from lookalike.index.marks_review import Review
from lookalike.index.storage import BrokenIndex
from lookalike.server.collection import Collection, upload_id
from lookalike.server.errors import RETRY, ApiError, invalid
from lookalike.server.schemas_marks import (
    EditedItems,
    Edits,
    Marked,
    MarkList,
    NextMarks,
    OneContradiction,
    OneEdit,
    OneMark,
    OneQuestion,
    OneSuggestion,
    Suggestions,
    UndoneMarks,
)

logger = logging.getLogger(__name__)
MOST_CONTRADICTIONS = 50  # that are listed
KEPT_SIDE = 1024  # pixels of the longer side of a kept picture


class Marking:
    """The marks and labels of one collection.

    Args:
        collection: The collection.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.marks = Marks(collection.idx.path)
        self.labels = Labels(collection.idx)
        self._review_lock = Lock()
        self._review: tuple[Any, Review] | None = None

    def close(self) -> None:
        """Close the files."""
        self.marks.close()
        self.labels.close()

    # ---- marks

    def item(self, item_id: str) -> MarkedPicture:
        """Identify an item by its content.

        Raises:
            ApiError: 404 if there is none.
        """
        with refusals():
            return marked_pictures(self.collection.idx, [item_id])[0]

    def known(self, content: str) -> MarkedPicture | None:
        """Return the picture with this content if it is in the index or kept."""
        with refusals():
            if self.marks.picture(content) is not None:
                return MarkedPicture(content)
            return self._indexed(MarkedPicture(content))

    def uploaded(self, data: bytes) -> MarkedPicture | None:
        """Return the picture with these bytes if it is in the index or kept."""
        picture = uploaded_picture(data)
        if self.marks.picture(picture.content) is not None:
            return picture
        return self._indexed(picture)

    def keep(self, data: bytes, jpeg: bytes) -> MarkedPicture:
        """Keep an uploaded picture, so that training can use marks on it.

        Raises:
            ApiError: 422 if there is no room.
        """
        picture = uploaded_picture(data)
        with refusals():
            self.marks.keep(picture.content, jpeg)
        return picture

    def mark(self, query: MarkedPicture, item_id: str, verdict: Verdict, by: str) -> Marked:
        """Store one judgement."""
        other = self.item(item_id)
        with refusals():
            number = self.marks.add(query, other, verdict, by, self.collection.idx.fingerprint)
        return Marked(mark=number, marks=1, query=query.content, count=self.marks.count())

    def mark_group(self, ids: Sequence[str], verdict: Verdict, by: str) -> Marked:
        """Store the same judgement about each two of several items."""
        with refusals():
            pictures = marked_pictures(self.collection.idx, ids)
            number = self.marks.add_group(pictures, verdict, by, self.collection.idx.fingerprint)
            together = len(self.marks.together(number))
        return Marked(mark=number, marks=together, query=None, count=self.marks.count())

    def undo_mark(self, number: int, by: str) -> UndoneMarks:
        """Undo a mark and those that were set together with it."""
        with refusals("there is no mark with this number"):
            undone = self.marks.undo(number, by)
        return UndoneMarks(undone=undone, count=self.marks.count())

    def verdicts(self, query: str | bytes | None, ids: Sequence[str]) -> dict[str, Mark]:
        """Return what was said about a query and items: item id -> its last mark.

        Args:
            query: Id of an item, or the bytes of an uploaded picture; None if it is not one picture.
            ids: Ids of the items.
        """
        if query is None or not self.marks.exists():
            return {}
        with suppress(KeyError, ApiError), refusals():  # deleted in between, or damaged: a search goes on
            picture = uploaded_picture(query) if isinstance(query, bytes) else self.item(query)
            contents = {other.id: other.content for other in marked_pictures(self.collection.idx, ids)}
            found = self.marks.between(picture.content, list(dict.fromkeys(contents.values())))
            return {item_id: found[content] for item_id, content in contents.items() if content in found}
        return {}

    def list_marks(self, limit: int, before: int | None) -> MarkList:
        """List marks, and what follows from all of them."""
        with refusals():
            review = self.review()
            page = self.marks.history(limit + 1, before)
            contradictions = review.contradictions[:MOST_CONTRADICTIONS]
            numbers = {pair.mark for found in contradictions for pair in (found.different, *found.chain)}
            named = {number: self.marks.get(number) for number in numbers}
            by_number = {number: mark for number, mark in named.items() if mark is not None}
            shown = [*page[:limit], *by_number.values()]
            ids = locate(self.collection.idx, [picture for mark in shown for picture in (mark.query, mark.result)])

        def one(mark: Mark) -> OneMark:
            return OneMark.of(mark, review.states.get(mark.number, "in force"), ids)

        listed = []
        for found in contradictions:
            chain = [one(by_number[pair.mark]) for pair in found.chain]
            listed.append(
                OneContradiction(different=one(by_number[found.different.mark]), chain=chain, marks=len(found.marks))
            )
        return MarkList(
            marks=[one(mark) for mark in page[:limit]],
            next=page[limit - 1].number if len(page) > limit else None,
            count=self.marks.count(),
            pairs=len(review.pairs),
            expired=review.expired,
            contradictions=listed,
            contradictory=list(review.states.values()).count("contradictory"),
        )

    def review(self) -> Review:
        """Return what follows from all marks. It is computed again only after a change."""
        with self._review_lock:
            state = (self.marks.version(), self.collection.state())
            if self._review is None or self._review[0] != state:
                self._review = (state, self.marks.review(self.collection.idx))
            return self._review[1]

    def marks_csv(self) -> bytes:
        """Return the whole history of marks as CSV."""
        with refusals():
            return self.marks.as_csv(self.collection.idx).encode("utf-8", "surrogateescape")

    def next_marks(self, k: int) -> NextMarks:
        """Choose pictures to compare next."""
        with refusals():
            queue = choose_next(self.collection.idx, self.marks, k, self.collection.calibration())
        return NextMarks(questions=[OneQuestion.of(question) for question in queue.questions], note=queue.note)

    # ---- labels

    def edit(self, change: Callable[[Labels], Edited], missing: str = "there is no item with this id") -> EditedItems:
        """Change labels or metadata.

        Args:
            change: Is called with the labels.
            missing: What a client is told if something named is missing.

        Raises:
            ApiError: 404 if it is missing, 422 if the change is not possible.
        """
        with refusals(missing):
            edited = change(self.labels)
        if edited.changed:
            self.collection.changed()
        return EditedItems(edit=edited.number, changed=edited.changed, skipped=edited.skipped)

    def edits(self, limit: int, before: int | None) -> Edits:
        """List edits of labels and metadata."""
        with refusals():
            summaries = self.labels.history(limit + 1, before)
        page = [OneEdit.of(summary) for summary in summaries[:limit]]
        return Edits(edits=page, next=page[-1].edit if len(summaries) > limit else None)

    def suggestions(self, item_id: str) -> Suggestions:
        """Suggest labels for an item."""
        with refusals():
            found = suggest_labels(self.collection.idx, item_id, self.collection.calibration())
        return Suggestions(suggestions=[OneSuggestion.of(one) for one in found.suggestions], note=found.note)

    def labels_csv(self) -> bytes:
        """Return the table of labels that ``lookalike train`` reads."""
        with refusals():
            return self.labels.as_csv().encode("utf-8", "surrogateescape")

    def _indexed(self, picture: MarkedPicture) -> MarkedPicture | None:
        located = locate(self.collection.idx, [picture])
        if picture.content not in located:
            return None
        item = self.collection.get(located[picture.content])
        return picture._replace(id=item.id, path=item.path)


def uploaded_picture(data: bytes) -> MarkedPicture:
    """Identify an uploaded picture by its bytes."""
    return MarkedPicture(hash_bytes(data), upload_id(data))


@contextmanager
def refusals(missing: str = "there is no item with this id") -> Iterator[None]:
    """Turn errors of the index into errors for clients. Messages about damage have paths and go to the log."""
    try:
        yield
    except KeyError:
        raise ApiError(404, "not_found", missing) from None
    except BrokenIndex as error:
        logger.error("marks or labels are damaged", exc_info=error)
        raise ApiError(503, "unavailable", "the index is unavailable: try again later", RETRY) from None
    except (TypeError, ValueError) as error:
        raise invalid(str(error)) from None
