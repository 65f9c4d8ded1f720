"""GEPA passes the conformance suite of algorithms."""

import hashlib
from typing import Any

from gepa_toys import CURRENT, Client
from lightning_gepa import GEPA

from lightning_core.algorithm import Algorithm
from lightning_core.testing.algorithm import AlgorithmSuite


def add_a_word(request: str, seed: int) -> str:
    current = CURRENT.search(request)
    assert current is not None
    word = hashlib.blake2b(f"{seed} {request}".encode(), digest_size=3).hexdigest()
    return f"```\n{current[1]} [{word}]\n```"


class TestGEPA(AlgorithmSuite):
    def make_algorithm(self, *, seed: int) -> Algorithm:
        client: Any = Client(add_a_word)
        return GEPA(client, seed=seed, max_metric_calls=60, reflection_minibatch_size=2)
