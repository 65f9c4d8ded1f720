"""A policy whose tokens are characters, and verl's client in front of it."""

from collections.abc import Sequence
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
    """verl's client: says the same to everybody, and remembers what it was asked."""

    def __init__(
        self, stop_reason: str | None = "completed", answer: Sequence[int] = (111, 107), **versions: int | None
    ) -> None:
        self.asked: list[tuple[str, list[int], dict[str, Any]]] = []
        self.stop_reason = stop_reason
        self.answer = list(answer)
        self.versions = versions

    @property
    def temperatures(self) -> list[float]:
        return [sampling["temperature"] for _, _, sampling in self.asked]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append((request_id, prompt_ids, sampling_params))
        return SimpleNamespace(
            token_ids=self.answer, log_probs=[-0.5, -1.5], stop_reason=self.stop_reason, extra_fields=self.versions
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
