"""`keep_spans`: what was said in rollouts of older steps is given up while a run goes on."""

import asyncio

import pytest

from lightning_core import InMemoryLightningStore, Trainer, emit_message, emit_reward, rollout
from lightning_core.algorithm import Baseline
from lightning_core.errors import ConfigError

EPOCHS = 5


@rollout
def talk(task: float) -> None:
    emit_message(f"a secret about {task}")
    emit_reward(task)


def fit(**options: int) -> tuple[list[bool], dict[str, float]]:
    """Return of each epoch whether all its rollouts have their content, or none, and what was measured."""
    store = InMemoryLightningStore()
    trainer = Trainer(algorithm=Baseline(n_epochs=EPOCHS), store=store, n_runners=2, **options)
    result = trainer.fit(talk, [0.25, 0.5, 0.75])

    async def told() -> list[bool]:
        spans = [await store.query_spans(each.rollout_id) for each in await store.query_rollouts()]
        have = [any("a secret" in each.model_dump_json() for each in of) for of in spans]
        epochs = [have[start : start + 3] for start in range(0, len(have), 3)]
        assert all(len(set(epoch)) == 1 for epoch in epochs)
        return [epoch[0] for epoch in epochs]

    return asyncio.run(told()), dict(result.metrics)


def test_all_spans_are_kept_by_default() -> None:
    assert fit()[0] == [True] * EPOCHS


def test_the_newest_steps_keep_what_was_said_and_all_keep_their_rewards() -> None:
    kept, metrics = fit(keep_spans=2)
    assert kept[:2] == [False, False]
    assert kept[-2:] == [True, True]
    assert metrics == fit()[1]


@pytest.mark.parametrize("name", ["apo", "gepa"])
def test_an_algorithm_that_reads_older_steps_refuses_it(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"keep_spans is 8, and {name.upper()} reads what was .* leave keep_spans out"
    ):
        Trainer(algorithm=name, keep_spans=8)


def test_a_number_of_steps_below_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep_spans is 0; it is a number of steps from 1 on, or None to keep all"):
        Trainer(algorithm="baseline", keep_spans=0)
