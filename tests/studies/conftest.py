"""Runs that tests of several files look at."""

import pytest
from small_ccp_race import solve_small

from lookalike.studies.ccp_geometry_race import ALTERNATING, ONE, SAMPLES, Course


@pytest.fixture(scope="session")
def courses() -> dict[str, list[Course]]:
    return {kind: [solve_small(kind)[0]] for kind in (ONE, ALTERNATING, SAMPLES)}
