"""JSON answers about marks and labels, for the OpenAPI document and for client authors."""

from datetime import datetime, timezone
from typing import Literal

from pydantic import BaseModel, Field

from lookalike.index.active_choice import Question
from lookalike.index.contents import MarkedPicture
from lookalike.index.items import Item
from lookalike.index.label_suggestions import LabelSuggestion
from lookalike.index.labels import EditSummary
from lookalike.index.marks import Mark
from lookalike.index.marks_review import State
from lookalike.server.schemas import OneItem, name_of

TIME = "when, in UTC"
BY = "the name of the key, or a pseudonym; empty without keys"


class MarkedItem(BaseModel):
    """A picture of a mark."""

    id: str | None = Field(description="of an item with this content; null if there is none")
    name: str = Field(description="the name of the file when it was marked, without its folders")

    @classmethod
    def of(cls, picture: MarkedPicture, ids: dict[str, str]) -> "MarkedItem":
        """Convert a picture; ``ids`` are items by content."""
        name = name_of(Item(picture.id, picture.path)) if picture.path else "uploaded picture"
        return cls(id=ids.get(picture.content), name=name)


class OneMark(BaseModel):
    """One judgement."""

    mark: int
    together: int = Field(description="the first of the marks that were set together and are undone together")
    time: str = Field(description=TIME)
    by: str = Field(description=BY)
    verdict: Literal["same", "different", "skip"]
    state: State
    query: MarkedItem
    result: MarkedItem

    @classmethod
    def of(cls, mark: Mark, state: State, ids: dict[str, str]) -> "OneMark":
        """Convert a mark."""
        return cls(
            mark=mark.number,
            together=mark.batch,
            time=as_time(mark.time),
            by=mark.by,
            verdict=mark.verdict,
            state=state,
            query=MarkedItem.of(mark.query, ids),
            result=MarkedItem.of(mark.result, ids),
        )


class OneContradiction(BaseModel):
    """Marks that cannot all be true; none of them counts."""

    different: OneMark
    chain: list[OneMark] = Field(description="marks of the same thing that lead from one of its pictures to the other")
    marks: int = Field(description="number of all marks in this contradiction")


class MarkList(BaseModel):
    """Answer of ``GET /marks``."""

    marks: list[OneMark] = Field(description="the last one first, undone ones included")
    next: int | None = Field(description="the value of before for the next page; null at the end")
    count: int = Field(description="marks that are not undone")
    pairs: int = Field(description="pairs of pictures that training uses")
    expired: int = Field(description="marks on pictures that are gone")
    contradictions: list[OneContradiction] = Field(description="the first 50")
    contradictory: int = Field(description="marks that are left out because they contradict each other")


class Marked(BaseModel):
    """Answer of ``POST /marks`` and ``POST /marks/group``."""

    mark: int = Field(description="its number, for /marks/undo; of a group, the first")
    marks: int = Field(description="number of marks that were set")
    query: str | None = Field(description="hash of the query's content, which may be sent instead of the picture")
    count: int = Field(description="marks that are not undone")


class UndoneMarks(BaseModel):
    """Answer of ``POST /marks/undo``."""

    undone: int = Field(description="number of marks; 0 if they had been undone before")
    count: int = Field(description="marks that are not undone")


class OneQuestion(BaseModel):
    """Two pictures to compare."""

    item: OneItem
    other: OneItem
    distance: float
    probability: float | None = Field(description="that they are the same; null without a calibration")
    uncertainty: float = Field(description="from 0, certain, to 1")

    @classmethod
    def of(cls, question: Question) -> "OneQuestion":
        """Convert a question."""
        return cls(
            item=OneItem.of(question.item),
            other=OneItem.of(question.other),
            distance=question.distance,
            probability=question.probability,
            uncertainty=question.uncertainty,
        )


class NextMarks(BaseModel):
    """Answer of ``GET /marks/next``."""

    questions: list[OneQuestion]
    note: str = Field(description="how the pictures were chosen")


class EditedItems(BaseModel):
    """Answer of the routes that change labels and metadata."""

    edit: int = Field(description="its number, for /labels/undo; 0 if nothing had to change")
    changed: int = Field(description="number of items")
    skipped: int = Field(description="items that an undo left alone: they were changed or deleted since")


class OneEdit(BaseModel):
    """An edit of labels or metadata; of several items, the first one's values."""

    edit: int
    time: str = Field(description=TIME)
    by: str = Field(description=BY)
    action: str
    items: int
    undone: bool
    id: str
    old_label: str
    new_label: str

    @classmethod
    def of(cls, summary: EditSummary) -> "OneEdit":
        """Convert an entry of the history."""
        edit = summary.edit
        return cls(
            edit=edit.batch,
            time=as_time(edit.time),
            by=edit.by,
            action=edit.action,
            items=summary.pictures,
            undone=summary.undone,
            id=edit.id,
            old_label=edit.old_label,
            new_label=edit.new_label,
        )


class Edits(BaseModel):
    """Answer of ``GET /labels/history``."""

    edits: list[OneEdit] = Field(description="the last one first")
    next: int | None = Field(description="the value of before for the next page; null at the end")


class OneSuggestion(BaseModel):
    """A label that an item may have."""

    label: str
    probability: float | None = Field(description="that the nearest item with it is the same; null if not calibrated")
    distance: float
    neighbour: str = Field(description="id of the nearest item with this label")
    votes: int = Field(description="number of the neighbours with this label")

    @classmethod
    def of(cls, suggestion: LabelSuggestion) -> "OneSuggestion":
        """Convert a suggestion."""
        return cls(**suggestion._asdict())


class Suggestions(BaseModel):
    """Answer of ``GET /labels/suggestions``."""

    suggestions: list[OneSuggestion]
    note: str = Field(description="where the probabilities come from, or why there are none")


def as_time(seconds: float) -> str:
    """Return a time as ISO 8601."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
