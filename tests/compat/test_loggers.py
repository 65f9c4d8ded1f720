"""A program that has set up a logger of agentlightning hears where its records are."""

import logging

import pytest

import lightning_core as agl


@agl.rollout
async def solve(task: float) -> float:
    return task


def test_a_logger_that_was_set_up_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("agentlightning.algorithm.apo")
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logging.getLogger("agentlightning.quiet")  # it was not set up
    try:
        for _ in range(2):
            agl.Trainer(algorithm="baseline").fit(solve, [1.0])
    finally:
        logger.removeHandler(handler)
    told = [record.getMessage() for record in caplog.records if "former_logger" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("lightning.former_logger name=agentlightning.algorithm.apo; its records are those of ")
