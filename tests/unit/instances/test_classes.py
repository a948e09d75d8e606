"""Instances that are of another kind than their class."""

from math import log

import pytest

from isochrone.instances.classes import (
    SETTLES_AFTER_NS,
    USUAL_STEP,
    differing_since,
    is_due,
    kind_of,
    nearest,
    split,
    split_name,
)
from isochrone.instances.steptime import StepTimeModel
from isochrone.nouns.instant import SECOND


def model(factor: float = 1.0) -> StepTimeModel:
    made = StepTimeModel()
    made.samples = 100
    made.scale_by(factor)
    return made


def test_ten_minutes_without_a_break() -> None:
    since = differing_since(None, True, 5 * SECOND)
    assert since == 5 * SECOND
    since = differing_since(since, True, 100 * SECOND)
    assert not is_due(since, 5 * SECOND + SETTLES_AFTER_NS - 1)
    assert is_due(since, 5 * SECOND + SETTLES_AFTER_NS)
    assert differing_since(since, False, 200 * SECOND) is None
    assert not is_due(None, 10**18)


def test_it_joins_its_like() -> None:
    others = [("k~2x", model(2.0)), ("k~4x", model(4.0))]
    found = nearest(model(), log(2.1), others)
    assert found is not None
    assert found[0] == "k~2x"
    assert found[1] == pytest.approx(log(1.05))
    assert nearest(model(), log(3.0), others) is None
    assert nearest(model(), log(3.0), []) is None


def test_a_split_class_steps_as_its_founder_does() -> None:
    old = model()
    new = split(old, 2.5)
    assert new.predict(USUAL_STEP) == pytest.approx(2.5 * old.predict(USUAL_STEP))
    assert new.samples == old.samples
    assert old.predict(USUAL_STEP) == pytest.approx(model().predict(USUAL_STEP)), "the old one is left as it was"


def test_names_tell_the_kind_and_the_pace() -> None:
    first = model()
    name = split_name("gpt/vllm/4000", first, first, log(2.5))
    assert name == "gpt/vllm/4000~2.5x"
    assert kind_of(name) == "gpt/vllm/4000"
    again = split_name(name, model(2.5), first, log(2.0))
    assert again == "gpt/vllm/4000~5x"
    assert split_name("k", model(), None, log(0.5)) == "k~0.5x"
