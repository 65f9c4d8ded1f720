"""`AgentModeDaemon` of agentlightning 0.3: batches of rollouts for a training loop of one's own."""

import math
import random
import uuid
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lightning_proxy import LLMProxy
from lightning_tokens.learning.groups import LearnedRow, Lesson, learn_from_group
from lightning_tokens.learning.metrics import training_metrics, validation_metrics
from lightning_tokens.learning.options import LearningOptions, Level
from lightning_tokens.learning.outcomes import EndedRollout, read_rollout
from lightning_tokens.learning.rollouts import enqueue, record_of
from lightning_tokens.learning.serving import RESOURCE

from lightning_core.algorithm.batch import wait_for_all
from lightning_core.concurrency import EventLoopThread
from lightning_core.deprecated import deprecated
from lightning_core.errors import AlgorithmError, ConfigError
from lightning_core.registry import check_options
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources, Rollout, RolloutConfig, Span
from lightning_verl.rules import TraceAggregator

if TYPE_CHECKING:
    import torch
    from verl import DataProto

T = TypeVar("T")

_SET_UP_SECONDS = 300.0
_UNLIMITED = LearningOptions(max_prompt_length=2**63, max_response_length=2**63)


class AgentModeDaemon:
    """Runs batches of tasks through the store, and makes tensors of what comes back.

        daemon.set_up_data_and_server({"question": [...]}, server_addresses)
        daemon.run_until_all_finished()
        batch, metrics = daemon.get_train_data_batch(1024, 2048, device, global_steps)
        daemon.clear_data_and_server()

    For a loop that is written by hand, and for scripts of agentlightning 0.3; `VERL` has no use for it. It has an event
    loop of its own, in a thread. Unlike in 0.3, a missing reward is left out of its group, unless
    `reward_fillna_value` is set; and a prompt that is too long is left out of the batch, rather than marked.

    Args:
        port: The proxy's, where it makes one; None for a free one.
        train_rollout_n: How often each training task is run.
        train_information: `model` is what agents ask for, `temperature` how they sample.
        tokenizer: The model's.
        mini_batch_size: A batch has a multiple of it; which rows are left out for that is drawn by lot. 1 for all.
        pad_token_id: What stands where there is no token.
        reward_fillna_value: What a rollout that failed is worth; None to leave it out.
        llm_timeout_seconds: The longest that a rollout may take.
        mode: `v1`; there is no other.
        llm_proxy: The trainer's proxy; None for one of its own.
        store: Where runners look for work.
        adapter: The trainer's.
        trace_aggregator: `level`, `trajectory_max_prompt_length` and `trajectory_max_response_length`.

    Raises:
        ConfigError: Without a store, for another mode, or when a value cannot be.
    """

    @deprecated(
        without_effect={
            "processor": "prompts are of text alone",
            "image_base_dir": "prompts are of text alone",
        }
    )
    def __init__(
        self,
        port: int | None,
        train_rollout_n: int,
        train_information: Mapping[str, Any],
        tokenizer: Any,
        mini_batch_size: int,
        pad_token_id: int,
        reward_fillna_value: float | None = None,
        llm_timeout_seconds: float = 1200.0,
        mode: Literal["v1"] = "v1",
        llm_proxy: LLMProxy | None = None,
        store: LightningStore | None = None,
        adapter: object = None,
        *,
        trace_aggregator: Mapping[str, Any] | None = None,
    ) -> None:
        if mode != "v1" or store is None:
            raise ConfigError(f"mode is {mode!r} and store is {store!r}; it works in mode 'v1', with a store")
        if reward_fillna_value is not None and not math.isfinite(reward_fillna_value):
            raise ConfigError(f"reward_fillna_value is {reward_fillna_value!r}; give a finite number, or None")
        check_options("trace_aggregator", trace_aggregator or {}, TraceAggregator)
        self._trace_aggregator = dict(trace_aggregator or {})
        self.store = store
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.train_rollout_n = train_rollout_n
        self.train_information = dict(train_information)
        self.mini_batch_size = mini_batch_size
        self.pad_token_id = pad_token_id
        self.reward_fillna_value = reward_fillna_value
        self.llm_timeout_seconds = llm_timeout_seconds
        self.llm_proxy = LLMProxy(port=port, store=store, key="") if llm_proxy is None else llm_proxy
        self.is_train = True
        self._is_own = llm_proxy is None
        self._groups: list[list[Rollout]] = []
        self._sources: list[str | None] = []
        self._ended: list[list[tuple[Rollout, Sequence[Span] | str]]] | None = None
        """With the record of each, or why that is not whole."""
        self._thread = EventLoopThread("AgentModeDaemon")

    def start(self) -> None:
        """Start the proxy, where it is its own."""
        if self._is_own and not self.llm_proxy.is_running():
            self._call(self.llm_proxy.start())

    def stop(self) -> None:
        """Stop the proxy, where it is its own, and the event loop."""
        if self._is_own:
            self._call(self.llm_proxy.stop())
        self._thread.stop()
        self._thread.join()

    def set_up_data_and_server(
        self, data: Mapping[str, Sequence[Any]], server_addresses: Sequence[str], is_train: bool = True
    ) -> None:
        """Enqueue the tasks of a batch.

        Args:
            data: By column, a value for each task.
            server_addresses: Where the model is served: `host:port`.
            is_train: Whether it is for training, `train_rollout_n` times each, or for validation, once.
        """
        self._call(self._set_up(data, server_addresses, is_train), seconds=_SET_UP_SECONDS)

    def run_until_all_finished(self, verbose: bool = True) -> None:
        """Return when all of them have ended, and were read.

        Args:
            verbose: Not used: the run itself tells how far it is.
        """
        self._ended = self._call(self._wait())

    def get_train_data_batch(
        self, max_prompt_length: int, max_response_length: int, device: Any, global_steps: int = 0
    ) -> "tuple[DataProto, dict[str, float]]":
        """Return the batch to train on, and what there is to say of it.

        Args:
            max_prompt_length: The length of all prompts, in tokens.
            max_response_length: The same of responses.
            device: Where the tensors are to be.
            global_steps: The number of the step; where rows are left out, which ones depends on it.

        Returns:
            Tensors `[rows, length]` by verl's names, with `data_id_list`, `rollout_id_list` and `turn_index_list` of
            the rows; and metrics.

        Raises:
            AlgorithmError: When the rollouts have not ended, or there is nothing to learn from.
        """
        level: Level = self._trace_aggregator.get("level", "transition")
        if level == "trajectory":
            max_prompt_length = self._trace_aggregator.get("trajectory_max_prompt_length", max_prompt_length)
            max_response_length = self._trace_aggregator.get("trajectory_max_response_length", max_response_length)
        options = LearningOptions(
            max_prompt_length=max_prompt_length,
            max_response_length=max_response_length,
            level=level,
            on_failure="drop" if self.reward_fillna_value is None else self.reward_fillna_value,
            # One rollout of a task is compared with nothing: then a reward is enough.
            estimator="grpo" if self.train_rollout_n > 1 else "gae",
            needs_logprobs=False,
        )
        lessons = [learn_from_group(group, options=options) for group in self._read(options)]
        lessons, n_left_out = _whole_mini_batches(lessons, self.mini_batch_size, seed=global_steps)
        rows = [(number, row) for number, lesson in enumerate(lessons) for row in lesson.rows]
        if not rows:
            why = next((lesson.dropped for lesson in lessons if lesson.dropped), "the batch has no row")
            if n_left_out:
                why = f"there are {n_left_out} rows, fewer than mini_batch_size, {self.mini_batch_size}"
            raise AlgorithmError(f"there is nothing to learn from: {why}")
        import numpy as np
        from verl import DataProto

        learned = [row for _, row in rows]
        rollouts = [self._groups[number][row.session] for number, row in rows]
        told = {
            "data_id_list": [rollout.input["data_id"] for rollout in rollouts],
            "rollout_id_list": [rollout.rollout_id for rollout in rollouts],
            "turn_index_list": [row.index for row in learned],
        }
        padded = padded_batch(
            learned,
            max_prompt_length=max_prompt_length,
            max_response_length=max_response_length,
            pad_token_id=self.pad_token_id,
        )
        batch = DataProto.from_dict(
            tensors={name: tensor.to(device) for name, tensor in padded.items()},
            non_tensors={name: np.array(values, dtype=object) for name, values in told.items()},
        )
        return batch, training_metrics(lessons, options=options, n_dropped_remainder=n_left_out)

    def get_test_metrics(self) -> dict[str, float]:
        """Return how a validation went, each rollout counted once.

        Raises:
            AlgorithmError: When the rollouts have not ended.
        """
        groups = self._read(_UNLIMITED)
        sources = [source for group, source in zip(groups, self._sources, strict=True) for _ in group]
        return validation_metrics([ended for group in groups for ended in group], sources=sources)

    def clear_data_and_server(self) -> None:
        """Forget the batch."""
        self._groups, self._sources, self._ended = [], [], None

    async def _set_up(self, data: Mapping[str, Sequence[Any]], server_addresses: Sequence[str], is_train: bool) -> None:
        self.clear_data_and_server()
        self.is_train = is_train
        name = str(self.train_information.get("model", "default-model"))
        if self._is_own:
            engine = {"model": f"hosted_vllm/{name}"}
            self.llm_proxy.update_model_list(
                [
                    {"model_name": name, "litellm_params": {**engine, "api_base": f"http://{address}/v1"}}
                    for address in server_addresses
                ]
            )
            await self.llm_proxy.start()
        sampling = {"temperature": self.train_information.get("temperature", 0.7 if is_train else 0.0)}
        resources: NamedResources = {RESOURCE: self.llm_proxy.as_resource(sampling_parameters=sampling)}
        tasks = [
            {**dict(zip(data, values, strict=True)), "data_id": str(uuid.uuid4())}
            for values in zip(*data.values(), strict=True)
        ]
        seconds = self.llm_timeout_seconds
        self._groups = await enqueue(
            self.store,
            dict(enumerate(tasks)),
            "train" if is_train else "val",
            times=self.train_rollout_n if is_train else 1,
            step=0,
            resources_id=(await self.store.add_resources(resources)).resources_id,
            config=RolloutConfig(timeout_seconds=seconds, unresponsive_seconds=seconds),
            key=str(uuid.uuid4()),
            name="batch",
        )
        self._sources = [task.get("data_source") for task in tasks]

    async def _wait(self) -> list[list[tuple[Rollout, Sequence[Span] | str]]]:
        groups = []
        for group in self._groups:
            ended = await wait_for_all(self.store, [rollout.rollout_id for rollout in group])
            groups.append(
                [(rollout, await record_of(rollout, store=self.store, proxy=self.llm_proxy)) for rollout in ended]
            )
        return groups

    def _read(self, options: LearningOptions) -> list[list[EndedRollout]]:
        if self._ended is None:
            raise AlgorithmError("the rollouts have not ended; call run_until_all_finished")
        return [
            [read_rollout(rollout, record, options=options, adapter=self.adapter) for rollout, record in group]
            for group in self._ended
        ]

    def _call(self, coroutine: Coroutine[Any, Any, T], *, seconds: float | None = None) -> T:
        return self._thread.submit(coroutine).result(seconds)


def _whole_mini_batches(lessons: Sequence[Lesson], size: int, *, seed: int) -> tuple[list[Lesson], int]:
    """Leave out as many rows as are too many for whole mini-batches, and say how many; which ones is drawn by lot."""
    places = [(number, place) for number, lesson in enumerate(lessons) for place in range(len(lesson.rows))]
    out = set(random.Random(seed).sample(places, len(places) % size))
    kept = [
        replace(lesson, rows=tuple(row for place, row in enumerate(lesson.rows) if (number, place) not in out))
        for number, lesson in enumerate(lessons)
    ]
    return kept, len(out)


def get_left_padded_ids_and_attention_mask(
    ids: Sequence[int], max_length: int, pad_token_id: int
) -> tuple[list[int], list[int]]:
    """Pad at the front, or keep the last `max_length` ids.

    Args:
        ids: Token ids, of any number.
        max_length: How many there will be.
        pad_token_id: What stands where there was none.

    Returns:
        The ids, and 1 for each that was given, 0 for each that was added.
    """
    kept = list(ids[max(len(ids) - max_length, 0) :])
    missing = max_length - len(kept)
    return [pad_token_id] * missing + kept, [0] * missing + [1] * len(kept)


def get_right_padded_ids_and_attention_mask(
    ids: Sequence[int], max_length: int, pad_token_id: int
) -> tuple[list[int], list[int]]:
    """Pad at the end, or keep the first `max_length` ids.

    Args:
        ids: Token ids, of any number.
        max_length: How many there will be.
        pad_token_id: What stands where there was none.

    Returns:
        The ids, and 1 for each that was given, 0 for each that was added.
    """
    kept = list(ids[:max_length])
    missing = max_length - len(kept)
    return kept + [pad_token_id] * missing, [1] * len(kept) + [0] * missing


def padded_batch(
    rows: Sequence[LearnedRow], *, max_prompt_length: int, max_response_length: int, pad_token_id: int
) -> dict[str, "torch.Tensor"]:
    """Pad prompts at the front and responses at the end.

    Args:
        rows: What is trained on.
        max_prompt_length: The length of all prompts.
        max_response_length: The length of all responses.
        pad_token_id: What stands where there is no token.

    Returns:
        By verl's names, int64 `[rows, length]`: `prompts`, `responses`, `input_ids` (both), `attention_mask` and
        `position_ids` (of both), `response_mask`; and float32 `token_level_scores`, which is 0.0 on padding.
    """
    import torch

    def padded(pad: Any, values: Iterable[Any], length: int, token: int = 0) -> list["torch.Tensor"]:
        return [torch.tensor(each) for each in zip(*(pad(ids, length, token) for ids in values), strict=True)]

    left, right = get_left_padded_ids_and_attention_mask, get_right_padded_ids_and_attention_mask
    prompts, before = padded(left, (row.prompt_ids for row in rows), max_prompt_length, pad_token_id)
    responses, after = padded(right, (row.response_ids for row in rows), max_response_length, pad_token_id)
    attention_mask = torch.cat([before, after], dim=1)
    return {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(1) - 1).clamp(min=0),
        "response_mask": padded(right, (row.mask for row in rows), max_response_length)[0],
        "token_level_scores": padded(right, (row.scores for row in rows), max_response_length)[0].float(),
    }
