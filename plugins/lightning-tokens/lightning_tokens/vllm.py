"""A vLLM server, from its start to its end."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
from lightning_http.programs import Program
from lightning_proxy.models import ModelConfig

from lightning_core.concurrency import Startable
from lightning_core.errors import LightningError

OPTIONS: Mapping[str, str] = {
    # Log-probabilities of the distribution that was drawn from, which is what a loss is made of
    "--logprobs-mode": "processed_logprobs",
    # Agents get tool calls as OpenAI's API has them
    "--enable-auto-tool-choice": "",
    "--tool-call-parser": "hermes",
}
"""vLLM's default options. Token ids are asked for with each call, by the proxy."""

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of an adapter, the most that vLLM can be told."""
_LOOK_SECONDS = 0.25
_LAST_BYTES = 16_384
_LAST_LINES = 20
_KILLED_SECONDS = 10.0
"""How long the system may take to end what was killed, with tens of gigabytes on a GPU."""


class VLLMFailed(LightningError):
    """vLLM did not start, or ended by itself."""


class VLLMServer(Startable):
    """Starts vLLM, waits until it answers, and stops it with all that it has started; also when this process is killed.

        async with VLLMServer("Qwen/Qwen3-4B") as server:
            proxy.update_model_list([server.model_config("policy")])

    Args:
        model: A path, or a name at Hugging Face. The folder of a LoRA adapter is served beside its base, as a second
            model, whose name is the path.
        host: Where it listens.
        port: The same; 0 for a free one.
        arguments: Further ones of vLLM's server, such as `["--max-model-len", "8192"]`; they win over `OPTIONS`.
        python: The interpreter of the environment that vLLM is installed in; None for this one.
        start_seconds: The longest that it may take until it answers.
        command: What to run instead of vLLM, with the same arguments.
        grace_seconds: How long it may take to end when it is stopped, before it is killed.
    """

    def __init__(
        self,
        model: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        arguments: Sequence[str] = (),
        python: str | None = None,
        start_seconds: float = 900.0,
        command: Sequence[str] | None = None,
        grace_seconds: float = 10.0,
    ) -> None:
        self.model = model
        self.host = host
        self.port = port
        self._arguments = list(arguments)
        self._command = list(command or (python or sys.executable, "-m", "vllm.entrypoints.openai.api_server"))
        self._start_seconds = start_seconds
        self._grace_seconds = grace_seconds
        self._program: Program | None = None
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Its base URL, `/v1` included."""
        return f"http://{self.host}:{self.port}/v1"

    def model_config(self, name: str) -> ModelConfig:
        """Return an entry of a proxy's model list that leads to it."""
        return {
            "model_name": name,
            "litellm_params": {"model": f"hosted_vllm/{self.model}", "api_base": self.url},
        }

    async def start(self) -> None:
        """Start it; return when it answers.

        Raises:
            VLLMFailed: When an adapter lacks what it needs, or vLLM is not there, ends before it answers, or takes too
                long; with its last lines.
        """
        self.port = self.port or _free_port(self.host)
        where = ("--host", self.host, "--port", str(self.port))
        server = Program(
            [*self._command, "--model", *self._models(), *where, *self._options()],
            environment=os.environ,
            folder=os.getcwd(),
            stdin=Path(os.devnull),
            max_output_bytes=_LAST_BYTES,
            grace_seconds=self._grace_seconds,
            killed_seconds=_KILLED_SECONDS,
        )
        try:
            self._program = await self._stack.enter_async_context(server)
        except OSError as exc:
            raise VLLMFailed(f"{self._command[0]} cannot be started: {exc.strerror}") from exc
        try:
            async with asyncio.timeout(self._start_seconds):
                await self._until_ready(self._program)
        except TimeoutError as exc:
            output = _last_output(self._program)
            await self.stop()
            raise VLLMFailed(f"vLLM did not answer within {self._start_seconds:g} s{output}") from exc
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop it; return when nothing of it runs. Idempotent."""
        await self._stack.aclose()

    async def wait(self) -> None:
        """Return never; it serves until it is stopped.

        Raises:
            VLLMFailed: When it ends by itself.
        """
        assert self._program is not None
        raise VLLMFailed(f"vLLM ended with status {await self._program.wait()}{_last_output(self._program)}")

    def _models(self) -> list[str]:
        """Return the model to start with, and what an adapter needs besides."""
        try:
            adapter = json.loads((Path(self.model) / "adapter_config.json").read_text())
        except OSError:
            return [self.model]
        except ValueError as exc:
            raise VLLMFailed(f"{self.model}/adapter_config.json is no JSON: {exc}") from exc
        if missing := {"base_model_name_or_path", "r"} - set(adapter):
            raise VLLMFailed(f"{self.model}/adapter_config.json has no {min(missing)!r}; write it there, as PEFT does")
        served = json.dumps({"name": self.model, "path": self.model})
        rank = next((each for each in _RANKS if each >= adapter["r"]), adapter["r"])
        base = adapter["base_model_name_or_path"]
        return [base, "--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", served]

    def _options(self) -> list[str]:
        given = {argument.partition("=")[0] for argument in self._arguments}
        ours = [part for name, value in OPTIONS.items() if name not in given for part in (name, value) if part]
        return [*ours, *self._arguments]

    async def _until_ready(self, program: Program) -> None:
        async with aiohttp.ClientSession() as http:
            while program.exit_status is None:
                with suppress(aiohttp.ClientError):  # not yet
                    async with http.get(f"http://{self.host}:{self.port}/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(_LOOK_SECONDS)
        status, output = await program.wait(), _last_output(program)
        if "No module named 'vllm'" in output:
            raise VLLMFailed(
                f"vllm is not installed in the environment of {self._command[0]}; install it there, or name the "
                "interpreter that has it: --python"
            )
        raise VLLMFailed(f"vLLM ended with status {status} before it answered{output}")


def _last_output(program: Program) -> str:
    lines = [*program.stdout.text().splitlines(), *program.stderr.text().splitlines()][-_LAST_LINES:]
    return "; it said last:\n  " + "\n  ".join(lines) if lines else ""


def _free_port(host: str) -> int:
    """Return a port that can be listened on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
