"""A backend of the model proxy: whatever provider the litellm library knows."""

from lightning_litellm.backend import LitellmBackend

__all__ = ["LitellmBackend"]
