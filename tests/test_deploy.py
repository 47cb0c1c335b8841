"""The files in ``deploy/`` have the form that their programs expect, and fit the server. They are not run.

Where the proxies send requests is compared with the routes of a replica in ``server/test_server_endpoints.py``.
"""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema

from lookalike.cli.arguments import parse
from lookalike.cli.serve import GRACE, ServeSettings
from lookalike.server.keys import READ_VARIABLE, WRITE_VARIABLE

DEPLOY = Path(__file__).parents[1] / "deploy"
KUBERNETES = "1.31"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
COMPOSE_SCHEMA = get_builtin_schema("vendor.compose-spec")


def named(kind: str) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == kind}


def serve_settings(words: list[str]) -> ServeSettings:
    """What ``lookalike serve`` makes of these arguments, behind those of the image."""
    settings, _ = parse(ServeSettings, ["/index", *words], "serve", "", "", positional=["index"], flags=[])
    return settings


def test_compose() -> None:
    jsonschema.validate(COMPOSE, COMPOSE_SCHEMA)
    for name, service in COMPOSE["services"].items():
        assert set(service.get("depends_on", [])) <= set(COMPOSE["services"]), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source.startswith(".") or source in COMPOSE["volumes"]
    for name, read_only in (("writer", False), ("replica", True)):
        service = COMPOSE["services"][name]
        settings = serve_settings(service["command"])
        assert settings.read_only == read_only
        assert int(service["stop_grace_period"].removesuffix("s")) > settings.seconds + GRACE
        assert set(service["environment"]) == {READ_VARIABLE, WRITE_VARIABLE}
        assert service["volumes"][0].endswith(":ro") == read_only
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"writer": {"image": "x", "comand": []}}}, COMPOSE_SCHEMA)


@pytest.mark.parametrize("name", ["PersistentVolumeClaim", "Deployment", "Service"])
def test_kubernetes_schemas(name: str) -> None:
    for each in named(name).values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**next(iter(named(name).values())), "spek": {}}, KUBERNETES, strict=True)


def test_kubernetes_objects_fit_together() -> None:
    for deployment in named("Deployment").values():
        template = deployment["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
        (container,) = template["spec"]["containers"]
        settings = serve_settings(container["args"])
        assert settings.read_only == (labels["role"] == "replica")
        assert template["spec"]["terminationGracePeriodSeconds"] > settings.seconds + GRACE
        assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            (host,) = container[probe]["httpGet"]["httpHeaders"]
            assert host["value"] in (settings.names or [])
        assert {entry["name"] for entry in container["env"]} == {READ_VARIABLE, WRITE_VARIABLE}
        (volume,) = template["spec"]["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] in named("PersistentVolumeClaim")
    assert named("Deployment")["lookalike-writer"]["spec"]["replicas"] == 1
    roles = [service["spec"]["selector"]["role"] for service in named("Service").values()]
    assert sorted(roles) == ["replica", "writer"]
    (route,) = named("HTTPRoute").values()
    for rule in route["spec"]["rules"]:
        for backend in rule["backendRefs"]:
            assert backend["name"] in named("Service")
