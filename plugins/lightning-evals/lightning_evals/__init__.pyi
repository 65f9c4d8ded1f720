from .judge import (
    Judge as Judge,
)

__all__ = [
    "Judge",
]
