"""Models that are made without checking them again."""

import copy
import pickle

from lightning_core.types import Attempt, Span
from lightning_core.types.frozen import clone, construct, evolve

ATTEMPT = Attempt(rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0)


def test_a_constructed_model_is_like_one_that_was_checked() -> None:
    made = construct(Attempt, dict(ATTEMPT.__dict__), set(ATTEMPT.model_fields_set))
    assert made == ATTEMPT
    assert made.model_dump() == ATTEMPT.model_dump()
    assert made.model_dump(exclude_unset=True) == ATTEMPT.model_dump(exclude_unset=True)
    assert made.model_copy(update={"status": "running"}).status == "running"
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == ATTEMPT


def test_what_follows_a_model_leaves_it_as_it_was() -> None:
    before = ATTEMPT.model_copy(deep=True)
    followed = evolve(ATTEMPT, status="running", end_time=None)
    assert (followed.status, followed.attempt_id, type(followed)) == ("running", "at-1", Attempt)
    assert before == ATTEMPT


def test_a_clone_and_its_original_can_be_changed_apart() -> None:
    original = Span.model_validate({**Span.from_attributes(attributes={}).model_dump(), "kind": "CLIENT"})
    copied = clone(original, name="copy")
    copied.trace_id = "c" * 32
    copied.color = "red"  # type: ignore[attr-defined]
    del copied.kind  # type: ignore[attr-defined]
    assert (original.name, copied.name) == ("agentlightning.virtual", "copy")
    assert original.model_extra == {"kind": "CLIENT"}
    assert copied.model_extra == {"color": "red"}
    assert original.trace_id != copied.trace_id
