"""An algorithm for Lightning Core: a few sentences are tried at the end of the prompt, and the best is kept."""

from lightning_mytuner.mytuner import MyTuner

__all__ = ["MyTuner"]
