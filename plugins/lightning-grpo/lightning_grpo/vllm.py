"""A vLLM server that samples in the place of the module that is trained, and reads its weights from a folder."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_proxy.answer import objects
from lightning_proxy.openai_backend import OpenAIBackend
from lightning_tokens.engine import EngineRefused, Generated
from lightning_tokens.servers import VllmEngine

from lightning_core.errors import ConfigError, ProxyError
from lightning_grpo.options import TrainingOptions
from lightning_grpo.policy import Policy

_NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent with each call; by default the server takes what the model's author likes."""


class VllmGenerator(VllmEngine):
    """Samples with the weights that it was given last. Belongs to one event loop.

    The whole model is reloaded in place while the server is paused, which also empties its prefix cache. An adapter is
    loaded beside its base, each time under another name, so that nothing cached belongs to the one before.

    Args:
        url: Where the server is, with `/v1` or without. Its key is in the variable `VLLM_API_KEY`, as for vLLM.
        policy: The model that is trained.
        options: What it was loaded from, which the server has to have been started with.
        folder: Where weights are written for the server, which reads the same folder.
    """

    path = "/v1/completions"

    def __init__(self, url: str, policy: Policy, *, options: TrainingOptions, folder: Path) -> None:
        super().__init__(OpenAIBackend(url.rstrip("/").removesuffix("/v1"), os.environ.get("VLLM_API_KEY")))
        self._url = url
        self._policy = policy
        self._options = options
        self._folder = folder
        self._adapter: str | None = None
        self._is_open, self._is_idle = asyncio.Event(), asyncio.Event()
        self._is_idle.set()
        self._n_calls = 0
        self.version = -1
        """Which weights it has; -1 before `take`."""

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt; a call that comes while weights are loaded waits."""
        await self._is_open.wait()
        self._n_calls += 1
        self._is_idle.clear()
        try:
            generated = await super().generate(prompt_ids, sampling, request_id=request_id)
        finally:
            self._n_calls -= 1
            if not self._n_calls:
                self._is_idle.set()
        return replace(generated, weight_versions=(self.version, self.version))

    def request(self, prompt_ids: list[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
        return {**_NEUTRAL, **super().request(prompt_ids, sampling)}

    async def take(self) -> None:
        """Have the server load the policy's weights, when it has answered the calls that it has.

        Raises:
            ConfigError: When it does not, or cannot be reached, serves another model, or takes shorter conversations.
        """
        version = self._policy.version
        if self.version < 0:
            await self._start()
        self._is_open.clear()
        await self._is_idle.wait()  # with a new adapter vLLM samples the rest of its answers from that
        await asyncio.to_thread(self._policy.save, self._folder)
        needs = "VLLM_SERVER_DEV_MODE=1"
        if self._policy.has_lora:
            needs = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank that is large enough"
        try:
            await (self._load_adapter() if self._policy.has_lora else self._reload(str(self._folder)))
        except (ProxyError, EngineRefused) as exc:
            text = (await exc.answer.read()).decode()[:500] if isinstance(exc, EngineRefused) else "start it again"
            raise ConfigError(
                f"the vLLM server at {self._url} does not take the weights in {self._folder}: {exc}: {text}; it has to "
                f"see that folder, and needs {needs}"
            ) from exc
        self.version = version
        self._is_open.set()

    async def aclose(self) -> None:
        """Leave the server with the weights that it has."""
        await self._http.aclose()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _start(self) -> None:
        """Check that the server fits."""
        try:
            await self._check()
        except (ProxyError, EngineRefused) as exc:
            raise ConfigError(
                f"generator is {self._url}: {exc}; start a vLLM server of {self._options.model} there, and set "
                "VLLM_API_KEY where it has a key"
            ) from exc

    async def _check(self) -> None:
        model, most = self._options.model, self._options.max_tokens
        served = objects((await self.ask("GET", "/v1/models")).get("data"))
        base = next((each for each in served if each.get("max_model_len")), {})
        if str(base.get("root")).rstrip("/") != model:
            raise ConfigError(
                f"generator is {self._url}, which serves {base.get('root')!r}; start a vLLM server there of the model "
                f"that is trained, {model!r}"
            )
        self.model, self.max_context_tokens = base["id"], base["max_model_len"]
        if base["max_model_len"] < most:
            raise ConfigError(
                f"max_tokens is {most}, and the server at {self._url} takes {base['max_model_len']}; take fewer, or "
                "start it with a larger --max-model-len"
            )

    async def _reload(self, weights: str) -> None:
        await self._tell("/pause?mode=wait")
        try:
            await self._tell("/collective_rpc", method="reload_weights", kwargs={"weights_path": weights})
        finally:
            await self._tell("/resume")

    async def _load_adapter(self) -> None:
        before, name = self._adapter, f"policy-{secrets.token_hex(6)}"
        if before is None:
            try:
                await self._reload(self._options.model)
            except EngineRefused as refused:  # without VLLM_SERVER_DEV_MODE no other training has changed the base
                if refused.answer.status != 404:
                    raise
        await self._tell("/v1/load_lora_adapter", lora_name=name, lora_path=str(self._folder))
        self.model = self._adapter = name
        if before is not None:
            await self._tell("/v1/unload_lora_adapter", lora_name=before)

    async def _tell(self, path: str, **fields: Any) -> None:
        await (await self._send("POST", path, fields)).read()
