from .command import (
    CommandAgent as CommandAgent,
)
from .http import (
    HttpAgent as HttpAgent,
)

__all__ = [
    "CommandAgent",
    "HttpAgent",
]
