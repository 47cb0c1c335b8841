"""In the plane, whose token it is can be read without colour."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lookalike_studies.tokens.claims import Outcome
from lookalike_studies.tokens.model import Run, Trained, create_stack, draw_samples
from lookalike_studies.tokens.plots import NAMES, NEAR, draw_planes, label_tokens
from lookalike_studies.tokens.study import STUDY
from matplotlib.figure import Figure

SETTINGS = STUDY.load_settings("full", {"classes": 12, "tokens": 3, "background": 2, "size": 20, "prototypes": 8})


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4), st.floats(0.01, 3))
def test_every_token_has_its_number_and_those_apart_one_each(seed: int, classes: int, tokens: int, near: float) -> None:
    points = np.random.default_rng(seed).uniform(-1, 1, (classes * tokens, 2)).astype(np.float32)
    found = label_tokens(points, tokens, near)
    for i, point in enumerate(points):
        told = [text.split(", ") for place, text in found if np.linalg.norm(place - point) < 2 * near]
        assert any(str(i // tokens) in each for each in told)
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    assert len(found) == len(points) or (distances + 9 * np.eye(len(points))).min() < near
    alone = (distances < near).sum(1) == 1
    for i in np.flatnonzero(alone):
        assert ((float(points[i, 0]), float(points[i, 1])), str(i // tokens)) in found


def test_tokens_in_one_place_have_one_number() -> None:
    points = np.zeros((6, 2), np.float32)
    assert label_tokens(points, 2, 0.1) == [((0.0, 0.0), "0, 1, 2")]


@pytest.fixture(scope="module")
def drawn() -> Figure:
    """Before training tokens are all over the square, after it those of a class are together, many in the corners."""
    outcomes = []
    for name, run in zip(NAMES, (Run(0.2, 0), Run(0.2, 0, 0.3, 20.0, 8)), strict=True):
        tokens, prototypes = create_stack([run], SETTINGS).points(0)
        corners = np.sign(tokens[:: SETTINGS.tokens]).repeat(SETTINGS.tokens, 0)[: len(tokens)] * np.float32(0.3)
        outcomes.append(Outcome(name, run, Trained([0.5], tokens, prototypes, corners, prototypes), {}))
    figure = draw_planes(outcomes, draw_samples(SETTINGS, 5, np.random.default_rng(0)), SETTINGS.tokens)
    figure.draw_without_rendering()
    return figure


def test_every_panel_numbers_all_tokens(drawn: Figure) -> None:
    for panel in drawn.axes:
        near = 2 * NEAR * panel.get_xlim()[1]
        dots = panel.collections[: SETTINGS.classes]
        small = [text for text in panel.texts if text.get_weight() != "bold"]  # those of hulls are
        numbers = [(text.xy, text.get_text().split(", ")) for text in small]  # type: ignore[attr-defined]
        for label, of_class in enumerate(dots):
            assert len(of_class.get_offsets()) == SETTINGS.tokens
            for dot in np.asarray(of_class.get_offsets()):
                assert any(str(label) in told and np.linalg.norm(dot - place) < near for place, told in numbers)


def test_numbers_lie_inside_the_panels(drawn: Figure) -> None:
    for panel in drawn.axes:
        frame = panel.get_window_extent()
        for text in panel.texts:
            extent = text.get_window_extent()
            assert frame.y0 <= extent.y0 < extent.y1 <= frame.y1, text.get_text()
            assert drawn.bbox.x0 <= extent.x0 < extent.x1 <= drawn.bbox.x1, text.get_text()
