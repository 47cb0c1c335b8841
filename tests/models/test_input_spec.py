"""The input spec keeps plain values, refuses what cannot be meant, and survives JSON."""

import json
from typing import Any

import pytest

from lookalike.models.input_spec import InputSpec


@pytest.mark.parametrize("spec", [InputSpec(), InputSpec(227, (104, 117, 128), (1, 1, 1), True, "bicubic", 256)])
def test_round_trip_through_json(spec: InputSpec) -> None:
    assert InputSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_resize_is_256_for_227_unless_said_otherwise() -> None:
    assert [InputSpec(size=size).resize_to for size in (227, 224, 32)] == [256, 253, 36]
    assert InputSpec(size=224, resize=224).resize_to == 224


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be at least 1"),
        ({"size": 22.4}, TypeError, "whole number"),
        ({"mean": (1, 2)}, ValueError, "mean must be 3 values"),
        ({"mean": "abc"}, TypeError, "three numbers"),
        ({"mean": 0.5}, TypeError, "three numbers"),
        ({"mean": (0, float("inf"), 0)}, ValueError, "finite"),
        ({"std": (1, 0, 1)}, ValueError, "above 0"),
        ({"std": (1, "1", 1)}, TypeError, "number"),
        ({"bgr255": 1}, TypeError, "true or false"),
        ({"interpolation": "nearest"}, ValueError, "one of bilinear, bicubic"),
        ({"resize": 100}, ValueError, "at least 224"),
        ({"colour": 1}, ValueError, "has no colour"),
    ],
)
def test_bad_values(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        InputSpec.from_dict(values)
