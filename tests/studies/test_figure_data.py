"""What is read off a figure is what was drawn."""

import json

import numpy as np
from lookalike_studies.framework.figure_data import read_figure
from matplotlib.figure import Figure
from matplotlib.patches import Polygon


def test_every_kind_of_mark_gives_its_numbers_back() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.set(title="curves", xlabel="step", ylabel="MAP@R, %")
    left.plot([0, 10], [1.5, 2.25], label="GSP")
    left.scatter([1, 2], [3, 4], label="tokens")
    left.add_patch(Polygon([(0, 0), (1, 0), (0, 1)], label="hull"))
    left.fill_between([0, 1], [0, 0], [1, 2])
    right.bar(["a", "b"], [5, 6])
    right.imshow(np.array([[0.125, 1.0]]))
    right.imshow(np.zeros((2, 2, 3)))  # a picture
    curves, rest = read_figure(figure)
    assert (curves["title"], curves["x"], curves["y"]) == ("curves", "step", "MAP@R, %")
    assert curves["lines"] == [{"label": "GSP", "x": [0, 10], "y": [1.5, 2.25]}]
    assert curves["points"] == [{"label": "tokens", "places": [[1.0, 3.0], [2.0, 4.0]]}]
    hull = next(each for each in curves["outlines"] if each.get("label") == "hull")
    np.testing.assert_allclose(hull["places"][:3], [(0, 0), (1, 0), (0, 1)], atol=1e-9)
    assert any([1.0, 2.0] in each["places"] for each in curves["outlines"] if each is not hull)
    assert [bar["height"] for bar in rest["bars"]] == [5, 6]
    assert rest["maps"] == [{"values": [[0.125, 1.0]]}]


def test_panels_without_numbers_are_left_out_and_all_of_it_is_json() -> None:
    figure = Figure()
    empty, other = figure.subplots(1, 2)
    empty.imshow(np.zeros((2, 2, 3)))
    other.axhline(0.5)
    other.plot([1.0], [float("nan")])
    (panel,) = read_figure(figure)
    assert json.loads(json.dumps(panel))["lines"][0]["y"] == [0.5, 0.5]
