"""What a model has to offer: tokens for tokens, a tokenizer, and a context."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lightning_proxy.backend import WholeAnswer


@dataclass(frozen=True, slots=True)
class Generated:
    """What an engine sampled: an answer, or the next piece of a streamed one."""

    token_ids: Sequence[int]
    """Those that were sampled, that which ends the answer included."""
    logprobs: Sequence[float] | None = None
    """Of each of them, at the sampling temperature and before top_p and top_k; None where the engine gives none."""
    finish_reason: str | None = "stop"
    """`stop`, `length` or `abort`; None for a piece that is not the last one."""
    weight_versions: tuple[int, int] | None = None
    """The oldest and the newest weights that they were sampled with; None where the engine does not say."""


class EngineRefused(Exception):
    """An engine behind HTTP answered with an error, which its caller gets as it came.

    Args:
        answer: The error.
    """

    def __init__(self, answer: WholeAnswer) -> None:
        super().__init__(f"the engine answered {answer.status}")
        self.answer = answer


class TokenEngine(Protocol):
    """Samples tokens.

    An engine that can stream has, too:
    `def stream(self, prompt_ids, sampling, *, request_id) -> AsyncIterator[Generated]`.

    One that says in `max_context_tokens: int` how long a prompt and its answer may be together is not asked for more.
    Where `lowers_max_tokens` is true, too, only prompts are refused, and the engine ends long answers at the context.

    One that takes more than the usual sampling parameters says so in `takes: Collection[str]`. `json_schema` stands for
    the schema of an answer, by which tool calls are forced, too; other names, such as `logit_bias`, are the request's.
    """

    async def generate(self, prompt_ids: list[int], sampling: Mapping[str, Any], *, request_id: str) -> Generated:
        """Continue a prompt. Cancelling the call stops the sampling.

        Args:
            prompt_ids: The prompt, exactly as it is to be seen.
            sampling: What the agent asked, by OpenAI's names: `temperature`, `max_tokens`, `stop`, ... Nothing that it
                did not ask, and nothing that `takes` would have to name.
            request_id: Calls of one attempt have the same, so that they can go where their prefix is cached.
        """
        ...


class Tokenizer(Protocol):
    """What is needed of a tokenizer; those of transformers have it.

    It is called in the proxy's event loop, and for long conversations in a thread beside it.
    """

    eos_token_id: int | None

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the text of a conversation (with `tokenize=False`)."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return a text's tokens."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens."""
        ...


def context_length(told: Mapping[str, Any]) -> int | None:
    """Return how many tokens a model can have before it; None where that is not said.

    Args:
        told: What its `config.json` has; a model of more than text says it under `text_config`.
    """
    names = ("max_position_embeddings", "n_positions")  # the second is GPT-2's
    lengths = (place.get(name) for place in (told, told.get("text_config") or {}) for name in names)
    return next((length for length in lengths if isinstance(length, int)), None)
