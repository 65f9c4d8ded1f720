"""Each file runs, with warnings as errors, and shows what it is about."""

from collections.abc import Callable

import pytest

SHOWN = {
    "write_traces": [
        "1 agentlightning.message",
        "2 agentlightning.operation",
        "3 check",
        "4 agentlightning.annotation",
    ],
    "write_metrics": ["step 3: {'train_reward': 0.30000000000000004, 'lost': 0.0}", "metrics.jsonl has "],
    "llm_proxy": ["five", "30 tokens in, 4 out"],
    "parallelise": ["{'n_runners': 8}: 8 rollouts in ", "'concurrency': 4}}: 8 rollouts in "],
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_file_runs(name: str, run_python: Callable[..., str]) -> None:
    printed = run_python("-W", "error", f"{name}.py")
    assert [line for line in SHOWN[name] if line not in printed] == []
