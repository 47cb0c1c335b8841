"""The OpenAPI document against the server, by schemathesis: what is promised is what comes."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from server_helpers import WRITE, in_thread

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app

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
    with in_thread(create_app(idx, served_model, keys=Keys(write=(WRITE,)) if keyed else None)) as (url, _):
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
        *("GET /healthz", "GET /metrics", "GET /model", "GET /labels", "GET /map", "GET /items", "GET /items/{id}"),
        *("GET /items/{id}/image", "POST /items", "DELETE /items/{id}", "POST /search", "POST /embed", "POST /explain"),
    }
