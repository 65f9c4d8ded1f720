"""Weights on their way to generating processes that are on other devices than training: through Ray's object store.

verl's own ways need an accelerator. This one belongs to the mode `separate_async`; verl imports it, by
`checkpoint_engine.custom_backend_module`, wherever weights are sent or received.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

# The receiver is not a training worker, so it imports no `external_lib`.
import lightning_verl.hf.register  # noqa: F401

BACKEND = "ray_objects"
"""What it is called, as `checkpoint_engine.backend`."""


class _Shelf:
    """Becomes a Ray actor: keeps the newest weights for those who ask for them."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._weights: Any = None
        self._changed = asyncio.Condition()

    async def put(self, step: int, weights: list[Any]) -> None:
        """Keep the weights of a step, as a reference in a list: a bare one would be resolved."""
        async with self._changed:
            self._step, self._weights = step, weights
            self._changed.notify_all()

    async def get(self, step: int) -> list[Any]:
        """Wait for the weights of a step; the trainer waits for the sender, too, and ends all when it fails."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._step == step)
            return list(self._weights)


@CheckpointEngineRegistry.register(BACKEND)
class RayObjects(CheckpointEngine):  # type: ignore[misc]
    """Puts all weights into one object of Ray.

    Args:
        bucket_size: Not used.
        is_master: Whether this is the training worker that sends.
        _: What else verl gives.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, **_: Any) -> None:
        self._is_master = is_master
        self._shelf: Any = None

    def prepare(self) -> dict[str, Any]:
        """Find the actor that keeps the weights, or make it: it lives for as long as who has made it keeps it."""
        if self._shelf is None:
            self._shelf = (
                ray.remote(_Shelf).options(name="lightning_verl_weights", get_if_exists=True, num_cpus=0).remote()
            )
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """All callers find the same actor by its name."""
        return {}, {}

    def init_process_group(self, **_: Any) -> None:
        """There is none."""

    def finalize(self) -> None:
        """The next weights take the place of these."""

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, Any]:
        """Send the weights. Each rank takes all of them, for gathering them is a joint operation."""
        taken = {name: weight.detach().cpu().clone() for name, weight in weights}
        if self._is_master:
            await self._shelf.put.remote(global_steps, [ray.put(taken)])
        return {}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Give the weights of a step, once they were sent."""
        [reference] = await self._shelf.get.remote(global_steps)
        sent: Mapping[str, torch.Tensor] = await reference
        for name, weight in sent.items():
            yield name, weight
