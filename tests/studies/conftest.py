"""Runs that tests of several files look at."""

import pytest
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Course
from small_ccp_race import solve_small


@pytest.fixture(scope="session")
def courses() -> dict[str, list[Course]]:
    return {kind: [solve_small(kind)[0]] for kind in (ONE, ALTERNATING, SAMPLES)}
