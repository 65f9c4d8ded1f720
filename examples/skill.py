"""What a simulated model does more or less reliably, depending on how it is asked."""

import hashlib
import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Skill:
    """Something that the model does more or less reliably, depending on what the prompt says."""

    name: str
    unasked: float
    """The probability of getting it right when the prompt says nothing about it."""
    asked: float
    """The probability when the prompt asks for it, in any of the ways that `helps` matches."""
    helps: re.Pattern[str]
    hurts: re.Pattern[str]
    """What halves the probability, asked or not."""

    @classmethod
    def of(cls, name: str, unasked: float, asked: float, *, helps: str, hurts: str) -> Self:
        """Make a skill from patterns that ignore case."""
        return cls(name, unasked, asked, re.compile(helps, re.IGNORECASE), re.compile(hurts, re.IGNORECASE))

    def shown(self, prompt: str, seed: int) -> bool:
        """Return whether the model gets this right for this very request."""
        probability = self.asked if self.helps.search(prompt) else self.unasked
        if self.hurts.search(prompt):
            probability /= 2
        digest = hashlib.sha256(f"{self.name}\n{seed}\n{prompt}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < probability
