"""The OpenAPI document against the server, by schemathesis: what is promised is what comes."""

import itertools

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from server_helpers import WRITE, in_thread

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app
from lookalike.server.quotas import Buckets

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    checks.ignored_auth,
]


@pytest.mark.parametrize(("keyed", "examples"), [(False, 8), (True, 2)])
def test_answers_match_the_openapi_document(
    keyed: bool, examples: int, idx: index.Index, served_model: TrainedModel
) -> None:
    headers = {"X-API-Key": WRITE} if keyed else {}
    called: set[str] = set()
    app = create_app(idx, served_model, keys=Keys(write=(WRITE,)) if keyed else None)
    hours = itertools.count(0, 3600)  # wrong keys are soon forgotten
    app.state.context.access.buckets = Buckets(lambda: float(next(hours)))
    with in_thread(app) as (url, _):
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", wait_for_schema=30)
        for found in schema.get_all_operations():
            operation = found.ok()

            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def call(case: schemathesis.Case) -> None:
                case.call_and_validate(headers=headers, checks=CHECKS)

            call()
            called.add(operation.label)
    assert called == {
        *("GET /health", "GET /ready"),
        *("GET /healthz", "GET /metrics", "GET /model", "GET /labels", "GET /map", "GET /items", "GET /items/{id}"),
        *("GET /items/{id}/image", "POST /items", "DELETE /items/{id}", "POST /search", "POST /embed", "POST /explain"),
        *("POST /match", "GET /fields", "POST /export", "GET /marks", "GET /marks.csv", "GET /marks/next"),
        *("POST /marks", "POST /marks/group", "POST /marks/undo", "POST /labels/set", "POST /labels/metadata"),
        *("POST /labels/rename", "POST /labels/undo", "GET /labels/history", "GET /labels/suggestions"),
        *("GET /labels.csv", "GET /map/progress"),
        *("GET /improve", "POST /improve", "DELETE /improve", "POST /improve/rollback"),
        *("GET /doctor", "POST /doctor", "DELETE /doctor", "GET /doctor/findings", "POST /doctor/decide"),
        *("GET /doctor/effect", "POST /doctor/apply", "GET /doctor/corrected.csv"),
    }
