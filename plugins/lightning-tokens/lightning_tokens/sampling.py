"""How tokens are drawn, and what was drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

End = Literal["stop", "length", "aborted"]
"""Why an answer ended: by itself, at its limit, or because somebody wanted it to."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What decides how tokens are drawn. Requests with the same go into one batch."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    """The share of the probability that is drawn from."""
    top_k: int = 0
    """How many tokens are drawn from; 0 for all."""
    max_tokens: int = 16
    """The longest answer."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer; they are part of its tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer, besides the model's own."""
    ignore_eos: bool = False
    """Whether the model's own tokens do not end its answer."""

    @classmethod
    def of(cls, given: Mapping[str, Any], *, room: int, default_max_tokens: int) -> "Sampling":
        """Read parameters; what is not among the fields here has no effect.

        Args:
            given: By vLLM's names, or OpenAI's.
            room: How many tokens fit behind the prompt.
            default_max_tokens: The longest answer by default.

        Raises:
            ValueError: When the prompt leaves no room, or a number is out of its range.
        """
        if room < 1:
            raise ValueError("the prompt fills the model's context, nothing can be sampled behind it")
        temperature, top_p = _number(given, "temperature", 1.0), _number(given, "top_p", 1.0)
        if temperature < 0 or not 0 < top_p <= 1:
            raise ValueError(f"temperature is at least 0 and top_p in (0, 1]; got {temperature} and {top_p}")
        stop = given.get("stop") or ()
        return cls(
            temperature=temperature,
            top_p=top_p,
            top_k=max(0, int(_number(given, "top_k", 0))),
            max_tokens=max(1, min(int(_number(given, "max_tokens", default_max_tokens)), room)),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(given.get("stop_token_ids") or ()),
            ignore_eos=bool(given.get("ignore_eos")),
        )


def _number(given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name)
    return default if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was sampled for one prompt."""

    token_ids: list[int]
    """The sampled tokens, that which ends the answer included."""
    logprobs: list[float]
    """Of each token, under the distribution at the sampling temperature and before top_p and top_k: as verl's actor
    computes them."""
    end: End
    """Why it ended."""
