"""Secrets that are remembered, in a process that runs many rollouts."""

import gc
import threading
import tracemalloc

from lightning_core.secrets import hide_keys, remember_secrets
from lightning_core.types import LLM


class LogsWhenCollected:
    def __init__(self, said: list[str]) -> None:
        self.said, self.myself = said, self

    def __del__(self) -> None:
        self.said.append(hide_keys("the key is sk-0123456789-0007"))


def test_garbage_that_logs_can_be_collected_while_a_text_is_looked_through() -> None:
    said: list[str] = []

    def work() -> None:
        for number in range(200):
            remember_secrets("api_key", f"sk-0123456789-{number:04d}")
        gc.collect()
        gc.disable()
        LogsWhenCollected(said)
        gc.set_threshold(60)
        gc.enable()
        said.append(hide_keys("sk-0123456789-0008"))

    thresholds = gc.get_threshold()
    worker = threading.Thread(target=work, daemon=True)
    try:
        worker.start()
        worker.join(20.0)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert sorted(said) == ["***", "the key is ***"]


def test_a_secret_that_comes_with_each_rollout_is_kept_once() -> None:
    resources = {"model": LLM(endpoint="http://127.0.0.1:1/v1", model="m", api_key="sk-of-resources-0001")}
    remember_secrets("resources", resources)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(2_000):
            remember_secrets("resources", resources)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000  # bytes
    assert hide_keys("sk-of-resources-0001") == "***"
