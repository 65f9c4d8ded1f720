"""Which of our own distributions ships which component. Written by `.ci/ships_in.py`; do not edit."""

from collections.abc import Mapping
from typing import Final

_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "agents": {"lightning-agents": "command url"},
    "algorithms": {
        "lightning-apo": "apo",
        "lightning-evals": "evaluate evaluate-model gate label-agreement",
        "lightning-gepa": "gepa",
        "lightning-grpo": "grpo rloo",
        "lightning-verl": "ppo verl",
    },
    "backends": {
        "lightning-litellm": "litellm",
        "lightning-proxy": "openai",
        "lightning-tokens": "sglang-tokens tokens vllm-tokens",
    },
    "commands": {
        "lightning-environments": "environments",
        "lightning-evals": "check eval gate judge-check",
        "lightning-export": "export import tasks",
        "lightning-http": "store worker",
        "lightning-proxy": "proxy",
        "lightning-referee": "referee",
        "lightning-tokens": "vllm",
        "lightning-viewer": "compare report run show top ui",
    },
    "environments": {"lightning-environments": "harbor openenv reasoning_gym"},
    "exports": {"lightning-export": "atif hf jsonl otlp parquet", "lightning-tokens": "model"},
    "graders": {"lightning-agentos": "agentos", "lightning-evals": "judge"},
    "loggers": {"lightning-export": "tensorboard wandb"},
    "pages": {"lightning-viewer": "viewer"},
    "proxies": {"lightning-proxy": "proxy"},
    "runners": {"lightning-agentos": "agentos"},
    "stores": {"lightning-http": "http", "lightning-mongo": "mongo", "lightning-sqlite": "sqlite"},
    "strategies": {"lightning-http": "processes", "lightning-ray": "ray"},
    "tracers": {"lightning-agentops": "agentops", "lightning-weave": "weave"},
}
"""Kind -> distribution -> names."""

SHIPS_IN: Final[Mapping[str, Mapping[str, str]]] = {
    kind: {name: where for where, names in shipped.items() for name in names.split()}
    for kind, shipped in _NAMES.items()
}
"""Kind -> name -> distribution."""

REQUIRES: Final[Mapping[str, tuple[str, ...]]] = {
    "lightning-agents": ("lightning-http", "lightning-proxy"),
    "lightning-evals": ("lightning-http",),
    "lightning-export": ("lightning-http", "lightning-sqlite"),
    "lightning-gepa": ("lightning-apo",),
    "lightning-grpo": ("lightning-http", "lightning-proxy", "lightning-tokens"),
    "lightning-legacy": ("lightning-http",),
    "lightning-litellm": ("lightning-http", "lightning-proxy"),
    "lightning-proxy": ("lightning-http",),
    "lightning-ray": ("lightning-http",),
    "lightning-referee": ("lightning-evals", "lightning-http"),
    "lightning-tokens": ("lightning-http", "lightning-proxy"),
    "lightning-verl": ("lightning-http", "lightning-proxy", "lightning-tokens"),
    "lightning-weave": ("lightning-http", "lightning-proxy"),
}
"""Distribution -> those of ours that it requires, but for the core."""
