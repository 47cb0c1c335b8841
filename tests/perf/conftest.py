"""The script that a test is named after: ``test_benchmark_ccp.py`` is about ``perf/ccp.py``."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "perf"


@pytest.fixture(scope="module")
def benchmark(request: pytest.FixtureRequest) -> ModuleType:
    name = request.path.stem.removeprefix("test_benchmark_")
    specification = importlib.util.spec_from_file_location(f"benchmark_{name}", SCRIPTS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))  # where a script finds what it shares with others
        specification.loader.exec_module(module)
    return module
