"""agentlightning 0.3's daemon: batches of rollouts for a loop that is written by hand."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from lightning_proxy.testing import FakeEngine
from lightning_verl import AgentModeDaemon

from lightning_core import LLM, Trainer, rollout
from lightning_core.algorithm import Algorithm
from lightning_core.errors import AlgorithmError, ConfigError
from lightning_core.store import InMemoryLightningStore


class ByHand(Algorithm):
    """A training loop that is written by hand, in a thread of its own."""

    def __init__(self, loop: Callable[[AgentModeDaemon], None], **options: Any) -> None:
        self.loop = loop
        self.options = {"train_rollout_n": 2, "mini_batch_size": 1, **options}

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        daemon = AgentModeDaemon(
            port=None,
            train_information={"model": "tiny", "temperature": 0.7},
            tokenizer=None,
            pad_token_id=0,
            store=self.get_store(),
            **self.options,
        )
        daemon.start()
        try:
            self.loop(daemon)
        finally:
            daemon.stop()


@rollout
async def agent(task: dict[str, Any], llm: LLM) -> float:
    import aiohttp

    messages = [{"role": "user", "content": task["question"]}]
    async with aiohttp.ClientSession() as http:
        for _ in range(2):
            asked = {"model": llm.model, "messages": messages}
            async with http.post(f"{llm.endpoint}/chat/completions", json=asked) as response:
                answer = await response.json()
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "on"}]
    if task["reward"] is None:
        raise RuntimeError("no luck")
    return float(task["reward"])


async def run(loop: Callable[[AgentModeDaemon, list[str]], None], **options: Any) -> None:
    async with FakeEngine(["yes"]) as engine:
        address = [f"127.0.0.1:{engine.port}"]
        algorithm = ByHand(lambda daemon: loop(daemon, address), **options)
        await Trainer(algorithm=algorithm, n_runners=4).fit_async(agent, [{}])


async def test_seven_rollouts_of_two_turns_are_validated_each_once() -> None:
    def loop(daemon: AgentModeDaemon, address: list[str]) -> None:
        questions = {"question": list("abcdefg"), "reward": [1, 2, 3, 4, 5, 6, 7]}
        daemon.set_up_data_and_server(questions, address, is_train=False)
        with pytest.raises(AlgorithmError, match="call run_until_all_finished"):
            daemon.get_test_metrics()
        daemon.run_until_all_finished()
        metrics = daemon.get_test_metrics()
        assert metrics["val/n_rollouts"] == 7
        assert metrics["val/reward"] == 4.0
        assert metrics["val/turn_count"] == 2.0
        daemon.clear_data_and_server()
        with pytest.raises(AlgorithmError, match="have not ended"):
            daemon.get_test_metrics()

    await run(loop)


@pytest.mark.slow  # verl takes half a minute to import
@pytest.mark.filterwarnings("ignore")  # those of verl and of what it imports
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("level", "rows"), [("transition", 4), ("trajectory", 2)])
async def test_a_batch_has_the_tensors_of_verl(level: str, rows: int) -> None:
    def loop(daemon: AgentModeDaemon, address: list[str]) -> None:
        daemon.set_up_data_and_server({"question": ["a", "b"], "reward": [1, None]}, address)
        daemon.run_until_all_finished()
        batch, metrics = daemon.get_train_data_batch(20, 32, "cpu", 1)
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.batch.items()}
        assert shapes["prompts"] == (rows, 20)
        assert shapes["responses"] == shapes["response_mask"] == shapes["token_level_scores"] == (rows, 32)
        assert shapes["input_ids"] == shapes["attention_mask"] == shapes["position_ids"] == (rows, 52)
        assert batch.batch["response_mask"].sum().item() == 2 * 2 * len("yes")
        ids = batch.non_tensor_batch
        assert len(set(ids["data_id_list"])) == 1
        assert len(set(ids["rollout_id_list"])) == 2
        assert metrics["training/n_failures"] == 2

    await run(loop, trace_aggregator={"level": level})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of verl and of what it imports
@pytest.mark.timeout(300)
async def test_one_rollout_of_a_task_is_enough_where_nothing_is_compared() -> None:
    def loop(daemon: AgentModeDaemon, address: list[str]) -> None:
        daemon.set_up_data_and_server({"question": ["a", "b"], "reward": [1, 2]}, address)
        daemon.run_until_all_finished()
        batch, _ = daemon.get_train_data_batch(20, 32, "cpu", 1)
        assert sorted(batch.batch["token_level_scores"].sum(dim=1).tolist()) == [1, 1, 2, 2]

    await run(loop, train_rollout_n=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of verl and of what it imports
@pytest.mark.timeout(300)
async def test_rows_beyond_whole_mini_batches_are_left_out_by_lot_and_counted() -> None:
    left_out = set()

    def loop(daemon: AgentModeDaemon, address: list[str]) -> None:
        questions = {"question": list("abc"), "reward": [1, 2, 3]}
        daemon.set_up_data_and_server(questions, address)
        daemon.run_until_all_finished()
        for step in range(12):
            batch, metrics = daemon.get_train_data_batch(20, 32, "cpu", step)
            assert len(batch) == 10
            assert metrics["training/n_triplets"] == 12
            assert metrics["training/n_triplets_learned"] == 10
            assert metrics["training/n_triplets_dropped_remainder"] == 2
            scores = batch.batch["token_level_scores"].sum(dim=1).tolist()
            left_out.update(reward for reward in (1, 2, 3) if scores.count(reward) < 4)
            again, _ = daemon.get_train_data_batch(20, 32, "cpu", step)
            assert again.batch["token_level_scores"].tolist() == batch.batch["token_level_scores"].tolist()

    await run(loop, mini_batch_size=5)
    assert left_out == {1, 2, 3}


@pytest.mark.parametrize(
    ("reward", "error"),
    [
        (1, "there are 4 rows, fewer than mini_batch_size, 5"),
        (None, r"nothing to learn from: 0 of 2 rollouts have a reward.* no luck"),
    ],
)
async def test_a_batch_that_cannot_be_says_why(reward: int | None, error: str) -> None:
    def loop(daemon: AgentModeDaemon, address: list[str]) -> None:
        daemon.set_up_data_and_server({"question": ["a"], "reward": [reward]}, address)
        daemon.run_until_all_finished()
        with pytest.raises(AlgorithmError, match=error):
            daemon.get_train_data_batch(20, 32, "cpu", 1)

    await run(loop, mini_batch_size=5)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"store": None}, "with a store"),
        ({"mode": "v0"}, "mode is 'v0'"),
        ({"trace_aggregator": {"level": "all"}}, "level is 'all'; it has to be 'transition' or 'trajectory'"),
        ({"trace_aggregator": {"trajectory_max_prompt_len": 5}}, "Did you mean 'trajectory_max_prompt_length'?"),
        ({"reward_fillna_value": float("nan")}, "reward_fillna_value is nan; give a finite number, or None"),
    ],
)
def test_what_it_cannot_work_with_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        AgentModeDaemon(None, 1, {}, None, 1, 0, **{"store": InMemoryLightningStore(), **wrong})
