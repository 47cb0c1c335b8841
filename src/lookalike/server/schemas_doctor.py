"""JSON answers about the findings of the doctor, for the OpenAPI document and for client authors."""

from typing import Literal

from pydantic import BaseModel, Field

from lookalike.index.decisions import Choice, Decision
from lookalike.index.findings_file import Action, Record
from lookalike.index.items import Item
from lookalike.server.schemas import OneItem
from lookalike.server.schemas_marks import BY


class FindingsOfKind(BaseModel):
    """How many findings of a kind are open."""

    kind: str
    open: int
    decided: int = Field(description="how many of them somebody has decided; for the others the suggestion counts")


class Examination(BaseModel):
    """Answer of ``GET /doctor``."""

    state: Literal["never", "running", "done", "failed", "stopped"]
    stage: str = Field(description="what it is doing")
    done: int = Field(description="finished units of the stage")
    total: int = Field(description="all units of the stage; 0 if there is nothing to count")
    message: str = Field(description="the outcome in one sentence")
    examined: str | None = Field(description="when the last examination began, in UTC; null if there was none")
    pictures: int = Field(description="that were examined")
    kinds: list[FindingsOfKind] = Field(description="the open findings")
    relabelled: int = Field(description="pictures that the present choices give another label")
    dropped: int = Field(description="pictures that the present choices remove from the index")


class OneFinding(BaseModel):
    """Something that looks wrong."""

    finding: str = Field(description="its key")
    kind: str
    name: str = Field(description="of the class or classes; empty for a finding about a picture")
    label: str
    new_label: str = Field(description="the label that relabel gives")
    score: float = Field(description="how certain it is, 0 to 1")
    reason: str
    suggested: Action
    action: Action = Field(description="the decision, or else the suggestion")
    decided: bool
    by: str = Field(description=BY)
    items: list[OneItem] = Field(description="pictures that show it; the first one is what it is about")

    @classmethod
    def of(cls, record: Record, shown: list[Item], choice: Choice, decision: Decision | None) -> "OneFinding":
        """Convert a finding with the present choice."""
        return cls(
            finding=record.key,
            kind=record.kind,
            name=record.name,
            label=record.label,
            new_label=choice.new_label or record.new_label,
            score=record.score,
            reason=record.reason,
            suggested=record.action,  # type: ignore[arg-type]
            action=choice.action,
            decided=decision is not None,
            by=decision.by if decision is not None else "",
            items=[OneItem.of(item) for item in shown],
        )


class FindingList(BaseModel):
    """Answer of ``GET /doctor/findings``."""

    findings: list[OneFinding]
    total: int = Field(description="open findings of this kind")


class Effect(BaseModel):
    """Answer of ``GET /doctor/effect``."""

    before: float | None = Field(description="MAP@R of the index as it is, a fraction; null: nothing to measure")
    after: float | None = Field(description="MAP@R with the present choices")
    queries: int = Field(description="pictures that were searched for")
    relabelled: int
    dropped: int


class Applied(BaseModel):
    """Answer of ``POST /doctor/apply``."""

    relabelled: int
    dropped: int
    edit: int = Field(description="number of the relabelling, for /labels/undo; 0 if nothing was relabelled")
