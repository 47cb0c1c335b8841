"""One problem stays, alternating ones change, and each is shown at its best."""

import json

import numpy as np
import torch
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, Course, map_at_r
from small_ccp_race import PARTS, solve_small


def test_one_problem_stays_and_alternating_ones_change(courses: dict[str, list[Course]]) -> None:
    (one,), (alternating,) = courses[ONE], courses[ALTERNATING]
    assert [each.number for each in one.snapshots] == [1]
    assert one.snapshots[0].following is None
    numbers = [each.number for each in alternating.snapshots]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 2
    for before in alternating.snapshots[:-1]:
        assert before.following is not None
        assert before.radius_after is not None
        assert before.radius_before is not None
        assert before.radius_after <= before.radius_before


def test_the_first_problem_is_the_same_until_it_ends(courses: dict[str, list[Course]]) -> None:
    end = courses[ALTERNATING][0].snapshots[0].step
    until = [row for row in courses[ALTERNATING][0].curve if row[0] <= end]
    assert until == [row for row in courses[ONE][0].curve if row[0] <= end]
    assert courses[ALTERNATING][0].curve != courses[ONE][0].curve


def test_every_problem_is_shown_at_its_best(courses: dict[str, list[Course]]) -> None:
    for (course,) in courses.values():
        start = -1
        for each in course.snapshots:
            own = [figure for step, figure in course.curve if start < step <= each.step]
            assert each.figure == max(own)
            assert each.figure == map_at_r(each.plane, PARTS.validation.labels)
            start = each.step
        assert max(figure for _, figure in course.curve) == map_at_r(course.validation, PARTS.validation.labels)


def test_the_model_ends_with_its_best_weights() -> None:
    course, model = solve_small(ALTERNATING)
    with torch.no_grad():
        assert np.allclose(course.test, model(PARTS.test.inputs).numpy())
        assert np.allclose(course.validation, model(PARTS.validation.inputs).numpy())


def test_training_helps(courses: dict[str, list[Course]]) -> None:
    for (course,) in courses.values():
        assert max(figure for _, figure in course.curve) > course.curve[0][1] + 0.03


def test_a_course_survives_being_kept(courses: dict[str, list[Course]]) -> None:
    for (course,) in courses.values():
        kept = course.arrays()
        rest = {name: each for name, each in kept.items() if not isinstance(each, np.ndarray)}
        again = Course.of({**kept, **json.loads(json.dumps(rest))})
        assert again.curve == course.curve
        assert [each[:6] for each in again.snapshots] == [tuple(each[:6]) for each in course.snapshots]
        assert np.array_equal(again.train, course.train)
        for one, other in zip(again.snapshots, course.snapshots, strict=True):
            for mine, theirs in zip(one[6:], other[6:], strict=True):
                assert (mine is None and theirs is None) or np.array_equal(mine, theirs)
