"""APO passes the conformance suite of algorithms."""

import hashlib
from types import SimpleNamespace
from typing import Any

from lightning_apo import APO
from toy_models import CRITIQUE, TEMPLATE

from lightning_core.algorithm import Algorithm
from lightning_core.testing.algorithm import AlgorithmSuite


class Client:
    """Takes the place of an `AsyncOpenAI`, with neither connection nor task: the same request has one answer."""

    api_key = "toy"
    base_url = "http://models.invalid/v1"

    @property
    def chat(self) -> Any:
        return SimpleNamespace(completions=self)

    async def create(self, *, model: str, messages: list[dict[str, str]], temperature: float, seed: int) -> Any:
        text = messages[0]["content"]
        template = TEMPLATE.search(text)
        assert template is not None
        word = hashlib.blake2b(f"{seed} {text}".encode(), digest_size=3).hexdigest()
        said = f"{template[1]} [{word}]" if CRITIQUE.search(text) else f"- It lacks {word}."
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=said), finish_reason="stop")])


class TestAPO(AlgorithmSuite):
    def make_algorithm(self, *, seed: int) -> Algorithm:
        client: Any = Client()
        return APO(
            client, seed=seed, beam_width=2, branch_factor=2, beam_rounds=2, gradient_batch_size=2, val_batch_size=4
        )
