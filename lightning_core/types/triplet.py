"""One model call as a sample to learn from."""

from typing import Any

from pydantic import BaseModel, Field


class Triplet(BaseModel):
    """What a model was given, what it answered, and how good that was."""

    prompt: Any
    """What the model was given; the adapters put a dict with `token_ids` here."""
    response: Any
    """What it answered; the adapters put a dict with `token_ids` here."""
    reward: float | None = None
    """How good the answer was; None when not given."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything else that is known of the call."""
