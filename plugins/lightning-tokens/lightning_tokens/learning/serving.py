"""The model that is trained, as agents call it: behind the trainer's proxy, or behind one of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from lightning_proxy import LLMProxy, RemoteProxy

from lightning_core.adapter.trajectory import as_trajectory_adapter
from lightning_core.algorithm import Algorithm
from lightning_core.budget import Budget
from lightning_core.errors import ConfigError
from lightning_core.model_proxy import ModelProxy
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources
from lightning_tokens.backend import TokensBackend

RESOURCE = "main_llm"
"""What the model is called among the resources, as in agentlightning 0.3."""


def check_parts(algorithm: Algorithm, model: str) -> None:
    """Refuse a proxy that cannot serve the model that is trained, and an adapter that makes no rows.

    Args:
        algorithm: Whose trainer has them.
        model: The model; agents call it by the last part of its path, or by the whole.

    Raises:
        ConfigError: When one does not fit.
    """
    proxy = algorithm.get_llm_proxy()
    if isinstance(proxy, RemoteProxy):
        raise ConfigError(
            f"llm_proxy is {proxy.url}, which runs by itself and cannot be given the model that is trained; leave it "
            "out, or give options of one that runs here, as in llm_proxy=True"
        )
    named = {str(entry.get("model_name")) for entry in proxy.model_list} if isinstance(proxy, LLMProxy) else set()
    if taken := named & {model, Path(model).name}:
        raise ConfigError(
            f"llm_proxy has a model {min(taken)!r}, which the model that is trained is called; give the one of "
            "llm_proxy another model_name"
        )
    try:
        as_trajectory_adapter(algorithm._adapter)
    except TypeError as exc:
        raise ConfigError(str(exc)) from exc


def model_of(resources: NamedResources) -> str:
    """Return what agents that are given these resources call the model that is trained."""
    return str(getattr(resources[RESOURCE], "model", ""))


def checkpoints_of(algorithm: Algorithm, name: str, *, otherwise: Path) -> Path:
    """Return where a piece of work keeps its checkpoints: a folder of its own, so that no other run continues it.

    Args:
        algorithm: Whose run it is: it is below the run's folder, where there is one.
        name: The work's.
        otherwise: Below which folder it is where the run has none.
    """
    recording = None if algorithm._trainer is None else algorithm.get_trainer().recording
    root = otherwise if recording is None else Path(recording.folder.path, "checkpoints")
    return root.absolute() / name


class PolicyProxy:
    """The proxy that agents' calls of a model that is trained go through. Belongs to one event loop.

    Other models of the trainer's proxy stay. Where the trainer has none, there is one on this machine alone.

    Args:
        store: The run's.
        proxy: The trainer's, which `check_parts` has seen; None for one of its own.
        key: Names its resources within the run: the same one again continues them.
        resources: What else agents are given.
        budget: What a proxy of its own counts calls against.
    """

    def __init__(
        self,
        store: LightningStore,
        *,
        proxy: ModelProxy | None,
        key: str,
        resources: NamedResources | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._store = store
        self._is_own = proxy is None
        self.proxy = LLMProxy(store=store, key="", budget=budget) if proxy is None else cast(LLMProxy, proxy)
        """What agents' calls go through."""
        self._others: list[Mapping[str, Any]] = [] if self._is_own else list(self.proxy.model_list)
        self._key = key
        self._given = dict(resources or {})
        self._ids: dict[str, str] = {}

    async def begin(self) -> None:
        """Take calls."""
        if not self.proxy.is_running():
            await self.proxy.start()

    async def stop(self) -> None:
        """Stop serving; a proxy of the trainer's goes on, with what it had."""
        if self._is_own:
            await self.proxy.stop()
            return
        self.proxy.update_model_list(self._others)
        if self.proxy.is_running():  # and may be paused, where the run ended while the model learned
            await self.proxy.resume()

    def serve_as(self, backends: Mapping[str, TokensBackend]) -> None:
        """Tell the proxy what it serves, by the names that agents call it by."""
        others = [entry for entry in self._others if entry.get("model_name") not in backends]
        entries = [{"model_name": name, "backend": backend} for name, backend in backends.items()]
        self.proxy.update_model_list([*others, *entries])

    def resources_of(self, model: str, sampling: Mapping[str, Any]) -> NamedResources:
        """Return what agents are given.

        Args:
            model: What they call it.
            sampling: How tokens are drawn.
        """
        llm = self.proxy.as_resource(model=model, sampling_parameters=dict(sampling))
        return {**self._given, RESOURCE: llm}

    async def resources_id(self, resources: NamedResources) -> str:
        """Return the id of what agents are given, in the store."""
        model = model_of(resources)
        if model not in self._ids:
            update = await self._store.add_resources(resources, request_id=f"{self._key}/resources/{model}")
            if update.resources != resources:  # those of before it was taken up again: the proxy is elsewhere now
                update = await self._store.update_resources(update.resources_id, resources)
            self._ids[model] = update.resources_id
        return self._ids[model]

    def other_models(self, *ours: str) -> frozenset[str]:
        """Return what agents call the other models of the proxy, where they call this one by these names."""
        return frozenset(str(entry.get("model_name")) for entry in self._others) - set(ours)
