"""Names of agentlightning 0.3 that stand for something of ours."""

import logging
import threading
import typing

import pytest

import lightning_core as agl
from lightning_core.execution import LocalStrategy
from lightning_core.logs import reset_logging


def test_configure_logger_shows_the_logs_of_one_logger():
    with pytest.warns(DeprecationWarning, match="configure_logger is deprecated; call setup_logging"):
        logger = agl.configure_logger(logging.WARNING)
    try:
        assert (logger.name, logger.level) == ("lightning_core", logging.WARNING)
        assert any(isinstance(handler, logging.StreamHandler) for handler in logger.handlers)
    finally:
        reset_logging()


def test_deprecated_names_are_what_they_stand_for():
    assert agl.SharedMemoryExecutionStrategy is LocalStrategy
    assert agl.ThreadingEvent is threading.Event
    assert float in typing.get_args(agl.RolloutRawResult)


def test_runners_can_be_given_the_type_of_their_tasks():
    assert isinstance(agl.LitAgentRunner[str](agl.OtelTracer()), agl.Runner)
