"""Names of agentlightning 0.3 that stand for something of ours."""

import threading
import typing

import lightning_core as agl
from lightning_core.execution import LocalStrategy


def test_deprecated_names_are_what_they_stand_for():
    assert agl.SharedMemoryExecutionStrategy is LocalStrategy
    assert agl.ThreadingEvent is threading.Event
    assert float in typing.get_args(agl.RolloutRawResult)


def test_runners_can_be_given_the_type_of_their_tasks():
    assert isinstance(agl.LitAgentRunner[str](agl.OtelTracer()), agl.Runner)
