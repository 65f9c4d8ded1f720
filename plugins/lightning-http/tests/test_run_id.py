"""A client that was given no run works for the server's own, and a trainer that has it as its store finds that out."""

import pytest
from lightning_http import LightningStoreClient, LightningStoreServer

from lightning_core.agent import rollout
from lightning_core.errors import StoreError
from lightning_core.trainer import Trainer


@rollout
async def score(task: float) -> float:
    return task


def test_the_run_is_asked_for_without_an_event_loop(memory):
    with LightningStoreServer(memory) as server:
        client = LightningStoreClient(server.url)
        with pytest.raises(StoreError, match="is not known yet"):
            _ = client.run_id
        assert client.find_run_id() == client.run_id == "run-1"


def test_a_trainer_works_for_the_run_of_its_server(memory):
    with LightningStoreServer(memory) as server:
        trainer = Trainer(algorithm="baseline", store=LightningStoreClient(server.url))
        result = trainer.fit(score, [1.0, 2.0])
    assert (result.run_id, result.rollouts.succeeded) == ("run-1", 2)
