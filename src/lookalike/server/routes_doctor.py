"""``/doctor``: examine the pictures, decide about findings, and apply the decisions. For those who may write."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator

from lookalike.index.findings_file import Action
from lookalike.server.collection import check_entry
from lookalike.server.context import Context
from lookalike.server.errors import invalid, responses, with_timeout
from lookalike.server.findings import Findings
from lookalike.server.jobs import Examiner
from lookalike.server.keys import Access
from lookalike.server.numbers import whole_number
from lookalike.server.routes_improve import Started, Stopping
from lookalike.server.routes_marks import CSV_RESPONSE, FORM_ERRORS, csv_file
from lookalike.server.schemas_doctor import Applied, Effect, Examination, FindingList, OneFinding
from lookalike.server.schemas_marks import as_time
from lookalike.server.uploads import form_openapi

MOST_LISTED = 100
KINDS = Literal[
    "broken",
    "exact duplicate",
    "near duplicate",
    "doubtful label",
    "outlier",
    "tiny",
    "few pictures",
    "confused classes",
]
DECISION_FIELDS: dict[str, dict[str, Any]] = {
    "finding": {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "its key"},
    "action": {"type": "string", "enum": list(Action.__args__)},  # type: ignore[attr-defined]
    "label": {"type": "string", "maxLength": 1000, "description": "for relabel; empty: the likely label"},
}


def routes(context: Context) -> APIRouter:
    """Create the routes.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["doctor"], dependencies=[context.requires(Access.WRITE, changes=True)])
    findings, examiner = context.findings, context.examiner
    seconds = context.limits.seconds

    @router.get("/doctor", responses=responses(401, 504), summary="Progress and number of findings")
    async def status() -> Examination:
        """Report the progress of an examination, and how many findings are open."""
        return await with_timeout(seconds, context.scan(_answer, examiner, findings))

    @router.post("/doctor", status_code=202, responses=responses(401, 409, 504), summary="Examine the pictures")
    async def start() -> Started:
        """Start to look for duplicates, doubtful labels and other faults, in another process."""
        await with_timeout(seconds, context.in_index(examiner.start))
        return Started()

    @router.delete("/doctor", responses=responses(401, 409, 504), summary="Stop examining")
    async def cancel() -> Stopping:
        """Stop the examination. The findings of the one before stay."""
        await with_timeout(seconds, context.in_index(examiner.cancel))
        return Stopping()

    @router.get("/doctor/findings", responses=responses(401, 504), summary="Findings")
    async def list_findings(
        kind: KINDS,
        offset: Annotated[int, BeforeValidator(whole_number), Query(ge=0, le=1_000_000)] = 0,
        limit: Annotated[int, BeforeValidator(whole_number), Query(ge=1, le=MOST_LISTED)] = 20,
    ) -> FindingList:
        """List the open findings of a kind, the most certain first."""
        return await with_timeout(seconds, context.scan(findings.page, kind, offset, limit))

    @router.post(
        "/doctor/decide",
        responses=responses(*FORM_ERRORS),
        openapi_extra=form_openapi(DECISION_FIELDS, required=["finding", "action"]),
        summary="Decide about a finding",
    )
    async def decide(request: Request) -> OneFinding:
        """Store what to do about a finding; the last decision counts. The index changes with /doctor/apply only."""
        by = await context.in_index(context.person_of, request)
        async with context.read_form(request, DECISION_FIELDS) as form:
            action, label = form.texts.get("action") or "", form.texts.get("label") or ""
            if action not in DECISION_FIELDS["action"]["enum"]:
                raise invalid(f"action must be one of {', '.join(DECISION_FIELDS['action']['enum'])}")
            check_entry(label, {})
            return await context.change(findings.decide, form.texts.get("finding") or "", action, label, by)

    @router.get("/doctor/effect", responses=responses(401, 504), summary="Effect of the decisions")
    async def effect() -> Effect:
        """Measure MAP@R as the index is and with the present choices."""
        return await with_timeout(seconds, context.scan(findings.effect))

    @router.post("/doctor/apply", responses=responses(401, 504), summary="Apply the decisions")
    async def apply(request: Request) -> Applied:
        """Relabel and drop in the index what is chosen. Relabelling can be undone. Indexed files are never touched."""
        by = await context.in_index(context.person_of, request)
        return await context.change(findings.apply, by)

    @router.get(
        "/doctor/corrected.csv",
        response_class=Response,
        responses={200: CSV_RESPONSE, **responses(401, 504)},
        summary="Corrected labels as CSV",
    )
    async def corrected_csv() -> Response:
        """Send the table for lookalike train with the present choices."""
        return csv_file(await with_timeout(seconds, context.scan(findings.corrected_csv)), "corrected.csv")

    return router


def _answer(examiner: Examiner, findings: Findings) -> Examination:
    status = examiner.status()
    relabelled, dropped = findings.pending()
    return Examination(
        state=status.state,  # type: ignore[arg-type]
        stage=status.stage,
        done=status.done,
        total=status.total,
        message=status.message,
        examined=as_time(status.started) if status.started else None,
        pictures=status.report.get("pictures", 0),
        kinds=findings.counts(),
        relabelled=relabelled,
        dropped=dropped,
    )
