from .agents import (
    one_call as one_call,
)

__all__ = ["one_call"]
