"""Groups of rollouts: through the store, the runners and the proxy, to rows. Without Ray, torch or verl."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import pytest
from lightning_proxy import LLMProxy
from lightning_proxy.outbox import CallsLost
from lightning_proxy.testing import FakeEngine
from lightning_tokens.learning.groups import LearnedRow, Lesson
from lightning_tokens.learning.options import LearningOptions
from lightning_verl.bridge import Bridge
from lightning_verl.manager import RolloutManager
from lightning_verl.serving import Serving
from toy_policy import Client, policy

from lightning_core import LLM, LitAgent, Trainer, rollout
from lightning_core.algorithm import Algorithm
from lightning_core.errors import AlgorithmError, Fault, NoRewards
from lightning_core.store import InMemoryLightningStore
from lightning_core.types import RolloutMode

OPTIONS = LearningOptions(max_prompt_length=64, max_response_length=64, level="trajectory")


class Queue:
    """Takes rows in the place of TransferQueue."""

    def __init__(self, groups: int) -> None:
        self.begun: list[str] = []
        self.ended: dict[str, tuple[list[LearnedRow], int]] = {}
        self._missing = groups
        self.is_full = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def begin(self, uid: str, *, partition: str) -> None:
        self.begun.append(uid)

    def end(self, uid: str, lesson: Lesson, *, partition: str, step: int) -> None:
        self.ended[uid] = (list(lesson.rows), step)
        self._missing -= 1
        if not self._missing:
            self._loop.call_soon_threadsafe(self.is_full.set)

    def keys(self, *uids: str) -> list[str]:
        """Return the keys of the rows of these groups, or of all, as verl has them."""
        return [f"{uid}_{row.session}_{row.index}" for uid in uids or self.ended for row in self.ended[uid][0]]


@dataclass(eq=False)
class Driven(Algorithm):
    """Does with a manager what a test wants, in the place of verl's trainer."""

    drive: Callable[["Driven"], Awaitable[None]]
    _: KW_ONLY
    key: str = "k"
    size: int = 2
    batch_size: int | None = None
    is_sync: bool = True
    options: LearningOptions = OPTIONS
    model_list: Sequence[dict[str, Any]] | None = None
    client: Client = field(default_factory=Client)
    asked: list[int] = field(default_factory=list)

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        self.bridge = Bridge(asyncio.get_running_loop())
        proxy = (
            None if self.model_list is None else LLMProxy(store=self.get_store(), key="", model_list=self.model_list)
        )
        self.serving = Serving(self.get_store(), proxy=proxy, key=self.key)
        tasks: dict[RolloutMode, Sequence[Any]] = {"train": train_dataset, "val": val_dataset or []}
        self.manager = RolloutManager(
            self.get_store(),
            bridge=self.bridge,
            serving=self.serving,
            tasks=tasks,
            group_size={"train": self.size, "val": 1},
            batch_size=self.batch_size or len(train_dataset),
            is_sync=self.is_sync,
            options=self.options,
            key=self.key,
        )
        try:
            await self.serving.resume(3)
            await self.serving.start(policy(self.client))
            await self.drive(self)
        finally:
            self.bridge.stop()
            await self.manager.aclose()
            await self.serving.stop()
            if proxy is not None:
                await proxy.stop()

    async def learn(self, *uids: str, **more: Any) -> Queue:
        """Ask for a group for each task, and return the queue when it has all of them."""
        queue = Queue(len(uids))
        self.manager.write_to(queue)
        await self.ask(uids, **more)
        await asyncio.wait_for(queue.is_full.wait(), 20)
        return queue

    async def ask(self, uids: Sequence[str], *, step: int = 4, tasks: Sequence[int] | None = None) -> None:
        """Ask for a group for each task, as verl does."""
        numbers = range(len(uids)) if tasks is None else tasks
        prompts: Any = {"uid": list(uids), "index": list(numbers), "global_steps": step}
        await asyncio.to_thread(self.manager.generate_sequences, prompts)


@rollout
async def agent(task: dict[str, Any], llm: LLM) -> float | None:
    """Make two calls, unless the task says that something happens."""
    import aiohttp

    if task.get("raises"):
        raise RuntimeError(task["raises"])
    messages = [{"role": "user", "content": task["say"]}]
    async with aiohttp.ClientSession() as http:
        for _ in range(2):
            asked = {"model": llm.model, "messages": messages, "temperature": 0.3}
            async with http.post(f"{llm.endpoint}/chat/completions", json=asked) as response:
                answer = await response.json()
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "on"}]
    if task.get("raises_late"):
        raise RuntimeError(task["raises_late"])
    reward: float | None = task.get("reward", 1.0)
    return reward


@rollout
async def hanging(task: dict[str, Any], llm: LLM) -> float:
    """Never come to an end."""
    await asyncio.Event().wait()
    return 0.0


@rollout
async def helped(task: dict[str, Any], llm: LLM) -> float:
    """Make a call, and one to another model."""
    import aiohttp

    async with aiohttp.ClientSession() as http:
        for model in (llm.model, "helper"):
            asked = {"model": model, "messages": [{"role": "user", "content": task["say"]}]}
            async with http.post(f"{llm.endpoint}/chat/completions", json=asked) as response:
                assert response.status == 200
                await response.read()
    return 1.0


async def fit(driven: Driven, tasks: list[dict[str, Any]], **more: Any) -> Any:
    return await Trainer(algorithm=driven, n_runners=4).fit_async(agent, tasks, **more)


async def test_each_rollout_whose_turns_continue_is_one_row_of_exact_tokens() -> None:
    async def drive(driven: Driven) -> None:
        queue = await driven.learn("u0", "u1")
        assert queue.begun == ["u0", "u1"]
        for rows, step in queue.ended.values():
            assert step == 4
            assert [row.versions for row in rows] == [(3, 3)] * 2
            assert [(row.session, row.index) for row in rows] == [(0, 0), (1, 0)]
            for row in rows:
                assert row.logprobs is not None
                assert [p for p, m in zip(row.logprobs, row.mask, strict=True) if m] == [-0.5, -1.5] * 2
                assert [t for t, m in zip(row.response_ids, row.mask, strict=True) if m] == [111, 107] * 2
                assert sum(row.scores) == 1.0
        assert driven.client.temperatures == [1.0] * 8
        metrics = await driven.manager.take_metrics(queue.keys(), waiting=())
        assert (metrics["training/n_rollouts"], metrics["training/n_triplets_learned"]) == (4, 4)

    await fit(Driven(drive), [{"say": "a"}, {"say": "b"}])


@pytest.mark.parametrize("gives_tokens", [True, False])
async def test_what_another_model_of_the_proxy_says_is_not_learned_from(gives_tokens: bool) -> None:
    async def drive(driven: Driven) -> None:
        queue = await driven.learn("u0")
        assert [row.response_ids for row in queue.ended["u0"][0]] == [[111, 107]] * 2
        assert [row.num_turns for row in queue.ended["u0"][0]] == [1] * 2
        metrics = await driven.manager.take_metrics(queue.keys(), waiting=())
        assert metrics["training/n_rollouts_wo_token_ids"] == 0
        await driven.manager.validate(driven.serving.measure("tiny:step-4"), step=4)

    async with FakeEngine(["what a helper says"]) as engine:
        params = {"model": "hosted_vllm/helper", "api_base": engine.url, "return_token_ids": gives_tokens}
        driven = Driven(drive, model_list=[{"model_name": "helper", "litellm_params": params}])
        trainer = Trainer(algorithm=driven, n_runners=2)
        await trainer.fit_async(helped, [{"say": "a"}], val_dataset=[{"say": "b"}])


async def until_stopped(driven: Driven) -> None:
    """Ask for a group for each task, and wait for what stops the trainer."""
    driven.manager.write_to(Queue(2))
    await driven.ask([f"u{number}" for number in range(driven.batch_size or 2)])
    for _ in range(2):
        await asyncio.to_thread(driven.bridge.wait, 20)


LUCKLESS = "step 4: none of 4 rollouts gave a reward; the first: RuntimeError: no luck"


@pytest.mark.parametrize(
    ("task", "options", "size", "error", "message"),
    [
        ({"raises": "no luck"}, OPTIONS, 2, NoRewards, LUCKLESS),
        ({"say": "a", "raises_late": "no luck"}, replace(OPTIONS, on_failure=-1.0), 2, NoRewards, LUCKLESS),
        ({"say": "a"}, OPTIONS, 1, AlgorithmError, "step 4: nothing can be learned from any of 2 rollouts"),
    ],
)
async def test_a_step_of_which_nothing_is_learned_ends_the_run_with_the_first_cause(
    task: dict[str, Any], options: LearningOptions, size: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await fit(Driven(until_stopped, size=size, options=options), [task] * 2)


async def test_agents_that_do_not_call_the_model_are_told_so() -> None:
    @rollout
    async def elsewhere(task: dict[str, Any], llm: LLM) -> float:
        return 1.0

    with pytest.raises(AlgorithmError, match="none of its rollouts has called the model that is trained; agents call"):
        await Trainer(algorithm=Driven(until_stopped, batch_size=1), n_runners=2).fit_async(elsewhere, [{"say": "a"}])


async def test_the_first_group_that_is_dropped_for_its_length_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def drive(driven: Driven) -> None:
        driven.manager.write_to(Queue(2))
        await driven.ask(["u0"], step=4)
        await asyncio.to_thread(driven.bridge.wait, 20)
        await driven.ask(["u1"], step=5, tasks=[1])
        await asyncio.to_thread(driven.bridge.wait, 20)

    driven = Driven(drive, batch_size=3, options=replace(OPTIONS, max_prompt_length=1))
    with caplog.at_level("INFO", "lightning_verl.manager"):
        await fit(driven, [{"say": "a"}, {"say": "b"}])
    told = [each for each in caplog.records if "group_dropped" in each.message]
    assert [each.levelname for each in told] == ["WARNING", "INFO"]
    assert "has a row that fits: a prompt has " in told[0].message
    assert "tokens, more than 1; training/n_groups_dropped counts further ones" in told[0].message


async def test_a_rollout_whose_calls_are_lost_is_a_fault_and_the_others_go_on() -> None:
    async def drive(driven: Driven) -> None:
        flush, lost = driven.serving.proxy.flush, [CallsLost("a worker of the proxy died")]

        async def lose_one(rollout_id: str, attempt_id: str) -> None:
            await flush(rollout_id, attempt_id)
            if lost:
                raise lost.pop()

        driven.serving.proxy.flush = lose_one  # type: ignore[method-assign]
        queue = await driven.learn("u0")
        assert len(queue.ended["u0"][0]) == 2
        assert (await driven.manager.take_metrics(queue.keys(), waiting=()))["training/n_faults"] == 1

    await fit(Driven(drive, size=3), [{"say": "a"}])


async def test_calls_that_do_not_say_which_weights_answered_them_end_the_run() -> None:
    async def drive(driven: Driven) -> None:
        driven.serving.proxy.set_weight_version(None)
        driven.manager.write_to(Queue(1))
        await driven.ask(["u0"])
        for _ in range(2):
            await asyncio.to_thread(driven.bridge.wait, 20)

    with pytest.raises(AlgorithmError, match="step 4: the calls of task 0 do not say with which weights"):
        await fit(Driven(drive), [{"say": "a"}])


async def test_verl_s_own_versions_count_rather_than_what_the_proxy_was_told() -> None:
    async def drive(driven: Driven) -> None:
        driven.client.versions = {"min_global_steps": 1, "max_global_steps": 2}
        queue = await driven.learn("u0")
        assert [row.versions for row in queue.ended["u0"][0]] == [(1, 2), (1, 2)]

    options = replace(OPTIONS, level="transition", estimator="gae")
    await fit(Driven(drive, size=1, options=options), [{"say": "a"}])


async def test_a_step_is_told_of_the_groups_that_it_learned_from_and_of_those_dropped_each_once() -> None:
    async def drive(driven: Driven) -> None:
        queue = await driven.learn("1-0", "1-1", "1-2", "1-3")

        async def of(*uids: str, waiting: Sequence[str]) -> tuple[float | None, ...]:
            keys = [*queue.keys(*uids), "pad0_0_0"]
            metrics = await driven.manager.take_metrics(keys, waiting=waiting)
            return tuple(metrics.get(f"training/{name}") for name in ("n_groups", "n_groups_dropped", "reward"))

        # 1-1 is dropped, and verl gives up 1-3
        assert await of("1-2", waiting=["1-0"]) == (2, 1, 4.0)
        assert await of("1-0", waiting=["1-0"]) == (1, 0, 2.0)
        assert await driven.manager.take_metrics(queue.keys(), waiting=queue.ended) == {}

    tasks = [{"say": "a", "reward": 2.0}, {"raises": "no luck"}, {"say": "b", "reward": 4.0}, {"say": "c"}]
    await fit(Driven(drive), tasks)


async def one_by_one(driven: Driven) -> None:
    """Ask for a group for each task, each in a step of its own, when the one before has ended."""
    for task in driven.asked:
        queue = Queue(1)
        driven.manager.write_to(queue)
        await driven.ask([f"{task}-0"], step=task + 1, tasks=[task])
        await asyncio.to_thread(driven.bridge.wait, 20)
        await asyncio.wait_for(queue.is_full.wait(), 20)


async def test_asynchronously_groups_without_a_reward_end_the_run_whatever_their_steps() -> None:
    driven = Driven(one_by_one, batch_size=2, is_sync=False)
    driven.asked = [0, 1, 2, 3]
    tasks = [{"say": "a"}, {"raises": "no luck"}, {"raises": "no more"}, {"say": "b"}]
    with pytest.raises(NoRewards, match="step 3: none of 4 rollouts gave a reward; the first: RuntimeError: no luck"):
        await fit(driven, tasks)


async def test_asynchronously_a_group_with_a_reward_begins_the_count_anew() -> None:
    driven = Driven(one_by_one, batch_size=2, is_sync=False)
    driven.asked = [0, 1, 2, 3]
    await fit(driven, [{"raises": "no luck"}, {"say": "a"}, {"raises": "no luck"}, {"say": "b"}])
    assert len(driven.client.temperatures) == 8


async def test_groups_without_a_reward_in_two_steps_are_no_whole_batch() -> None:
    async def drive(driven: Driven) -> None:
        for step, tasks in ((4, [0, 1]), (5, [2, 3])):
            await driven.learn(*(f"{step}-{task}" for task in tasks), step=step, tasks=tasks)

    tasks = [{"say": "a"}, {"raises": "no luck"}, {"raises": "no luck"}, {"say": "b"}]
    await fit(Driven(drive, batch_size=2), tasks)


async def again(driven: Driven, store: InMemoryLightningStore, tasks: list[Any], runs: LitAgent[Any] = agent) -> int:
    """Fit in the same run, as after a kill; return how many calls the model got."""
    trainer = Trainer(algorithm=driven, n_runners=4, store=store)
    trainer._fits = 0
    await trainer.fit_async(runs, tasks)
    return len(driven.client.temperatures)


async def test_work_that_is_taken_up_again_does_not_run_again_what_has_ended() -> None:
    store = InMemoryLightningStore(run_id="r")

    async def drive(driven: Driven) -> None:
        queue = await driven.learn("1-0", "1-1")
        assert all(len(rows) == 2 for rows, _ in queue.ended.values())

    tasks = [{"say": "a"}, {"say": "b"}]
    assert [await again(Driven(drive, key=key), store, tasks) for key in ("k", "k", "other")] == [8, 0, 8]


@rollout
async def without_its_proxy(task: dict[str, Any], llm: LLM) -> float:
    raise Fault("the model proxy is out of reach")


@pytest.mark.parametrize(("left", "status"), [(hanging, "cancelled"), (without_its_proxy, "failed")])
async def test_what_a_kill_has_left_unfinished_is_enqueued_anew_when_its_step_comes_again(
    left: LitAgent[Any], status: str
) -> None:
    store = InMemoryLightningStore(run_id="r")

    async def leave(driven: Driven) -> None:
        driven.manager.write_to(Queue(1))
        await driven.ask(["1-0"])
        if status == "failed":
            await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in await store.query_rollouts()])

    async def go_on(driven: Driven) -> None:
        await driven.manager.cancel_left()
        queue = await driven.learn("1-0", step=5)
        assert len(queue.ended["1-0"][0]) == 2
        rollouts = await store.query_rollouts()
        assert sorted(each.status for each in rollouts) == [status] * 2 + ["succeeded"] * 2

    await again(Driven(leave), store, [{"say": "a"}], left)
    await again(Driven(go_on), store, [{"say": "a"}])


async def test_a_group_is_asked_for_again_beside_others_than_before() -> None:
    store = InMemoryLightningStore(run_id="r")

    async def drive(driven: Driven) -> None:
        await driven.learn(*(f"1-{number}" for number in driven.asked), tasks=driven.asked)

    calls = []
    for asked in ([0, 1, 2], [2, 3], [1]):
        driven = Driven(drive)
        driven.asked = asked
        calls.append(await again(driven, store, [{"say": say} for say in "abcd"]))
    assert calls == [12, 4, 0]


async def test_what_was_begun_for_a_step_that_does_not_come_is_cancelled() -> None:
    async def drive(driven: Driven) -> None:
        driven.manager.write_to(Queue(1))
        await driven.ask(["u0"])
        await driven.manager.cancel_rest()
        rollouts = await driven.get_store().query_rollouts()
        assert [each.status for each in rollouts] == ["cancelled"] * 2

    await fit(Driven(drive), [{"say": "a"}])


async def test_once_the_training_is_to_end_refused_calls_neither_judge_a_group_nor_stop_the_trainer() -> None:
    is_refused = asyncio.Event()

    @rollout
    async def refused(task: dict[str, Any], llm: LLM) -> float:
        await is_refused.wait()
        raise RuntimeError("the budget is used up")

    async def drive(driven: Driven) -> None:
        queue, ending = Queue(1), driven.manager.ending
        driven.manager.write_to(queue)
        await driven.ask(["4-0"])
        groups = [task for task in asyncio.all_tasks() if task.get_name() == "group 4-0"]
        ending.ask()
        is_refused.set()
        store = driven.get_store()
        ids = [each.rollout_id for each in await store.query_rollouts()]
        await store.wait_for_rollouts(rollout_ids=ids)
        await asyncio.wait(groups, timeout=20)
        await asyncio.to_thread(driven.bridge.wait, 0)
        assert await driven.manager.take_metrics(queue.keys(), waiting=queue.begun) == {}
        assert queue.ended == {}, "whoever goes on asks for it again"

    await Trainer(algorithm=Driven(drive), n_runners=4).fit_async(refused, [{"say": "a"}])


async def test_validation_counts_each_rollout_once_and_samples_as_it_is_told() -> None:
    async def drive(driven: Driven) -> None:
        metrics = await driven.manager.validate(driven.serving.measure("tiny:step-4"), step=4)
        assert metrics["val/n_rollouts"] == 3
        assert metrics["val/reward"] == pytest.approx(2.0)
        assert metrics["val/turn_count"] == 2.0
        assert metrics["val/n_failures"] == 1
        assert set(driven.client.temperatures) == {0}

    val = [{"say": "a", "reward": 1.0}, {"say": "b", "reward": 3.0}, {"raises": "no luck"}]
    await fit(Driven(drive), [{"say": "a"}], val_dataset=val)


async def test_a_validation_without_a_reward_ends_the_run() -> None:
    async def drive(driven: Driven) -> None:
        await driven.manager.validate(driven.serving.measure("tiny:step-4"), step=4)

    with pytest.raises(NoRewards, match=r"validation at step 4: none of 1 rollouts .* no luck"):
        await fit(Driven(drive), [{"say": "a"}], val_dataset=[{"raises": "no luck"}])
