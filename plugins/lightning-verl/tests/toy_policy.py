"""A policy whose tokens are characters, and verl's client in front of it."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from lightning_verl.serving import Policy


class Letters:
    """A token for each character; remembers the options of its template."""

    eos_token_id = 1

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        self.options = options
        return "".join(f"{message['role'][0]}:{message['content']}\n" for message in conversation) + "a:"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))


class Client:
    """verl's client: says the same to everybody, and remembers how it was to sample."""

    def __init__(self) -> None:
        self.temperatures: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.versions: dict[str, int | None] = {}

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.temperatures.append(sampling_params["temperature"])
        self.meanwhile()
        return SimpleNamespace(
            token_ids=[111, 107], log_probs=[-0.5, -1.5], stop_reason="completed", extra_fields=self.versions
        )


def policy(client: Any = None, tokenizer: Letters | None = None) -> Policy:
    """Return the policy as a training serves it."""
    return Policy(
        name="tiny",
        client=client or Client(),
        tokenizer=tokenizer or Letters(),
        ends={1},
        sampling={"train": {"temperature": 1.0}, "val": {"temperature": 0}},
        chat_template={"enable_thinking": False},
        max_response_tokens=8,
        max_context_tokens=100,
    )
