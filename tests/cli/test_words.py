"""Numbers and texts in few words."""

import pytest

from lightning_core.adapter.usage import Usage
from lightning_core.texts import counted, metric_words, seconds, usage_words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0004, "0.4 ms"),
        (0.042, "42 ms"),
        (0.9999, "1 s"),
        (1.25, "1.2 s"),
        (6, "6 s"),
        (9.96, "10 s"),
        (185, "3 min 5 s"),
        (7830, "2 h 10 min"),
    ],
)
def test_duration_is_told_as_a_person_would(value: float, words: str) -> None:
    assert seconds(value) == words


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"reward_initial": 0.25, "reward": 0.75}, {"reward": "0.250 → 0.750 (+0.500)"}),
        ({"reward": 0.5, "reward_initial": 0.75}, {"reward": "0.750 → 0.500 (-0.250)"}),
        ({"reward_initial": 0.25}, {"reward_initial": "0.25"}),
        (
            {"r_initial": 0.25, "r": 0.5, "r_low": 0.375, "r_high": 0.625},
            {"r": "0.250 → 0.500 [0.375..0.625] (+0.250)"},
        ),
        ({"gain": 0.25, "gain_low": -0.5, "gain_high": 1.0}, {"gain": "0.25 [-0.500..1.000]"}),
        ({"gain": 0.25, "gain_low": -0.5}, {"gain": "0.25", "gain_low": "-0.5"}),
        ({"x_low": 0.0, "x_low_low": -1.0, "x_low_high": 1.0, "x": 0.5, "x_high": 1.0}, {"x": "0.5 [0.000..1.000]"}),
        ({"tokens": 123456.0, "loss": float("nan")}, {"tokens": "123,456", "loss": "nan"}),
        ({}, {}),
    ],
)
def test_metric_is_told_with_what_belongs_to_it(metrics: dict[str, float], words: dict[str, str]) -> None:
    assert metric_words(metrics) == words


def test_use_of_models_tells_what_is_known() -> None:
    assert usage_words(Usage(1)) == "1 model call"
    assert usage_words(Usage(2345, 10, None, 0.5)) == "2,345 model calls, 10 tokens in, $0.5000"
    assert usage_words(Usage(2, None, 10)) == "2 model calls, 10 tokens out"
    assert counted(0, "call") == "0 calls"
