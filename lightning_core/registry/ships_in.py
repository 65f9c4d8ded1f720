"""Which of our own distributions ships which component. Written by `.ci/ships_in.py`; do not edit."""

from collections.abc import Mapping
from typing import Final

SHIPS_IN: Final[Mapping[str, Mapping[str, str]]] = {
    "agents": {
        "command": "lightning-agents",
        "url": "lightning-agents",
    },
    "algorithms": {
        "apo": "lightning-apo",
        "evaluate": "lightning-evals",
        "evaluate-model": "lightning-evals",
        "gate": "lightning-evals",
        "gepa": "lightning-gepa",
        "grpo": "lightning-grpo",
        "label-agreement": "lightning-evals",
        "ppo": "lightning-verl",
        "rloo": "lightning-grpo",
        "verl": "lightning-verl",
    },
    "backends": {
        "litellm": "lightning-litellm",
        "openai": "lightning-proxy",
        "sglang-tokens": "lightning-tokens",
        "tokens": "lightning-tokens",
        "vllm-tokens": "lightning-tokens",
    },
    "commands": {
        "agentops": "lightning-agentops",
        "check": "lightning-evals",
        "compare": "lightning-viewer",
        "environments": "lightning-environments",
        "eval": "lightning-evals",
        "gate": "lightning-evals",
        "import": "lightning-export",
        "judge-check": "lightning-evals",
        "legacy": "lightning-legacy",
        "proxy": "lightning-proxy",
        "referee": "lightning-referee",
        "report": "lightning-viewer",
        "show": "lightning-viewer",
        "store": "lightning-http",
        "tasks": "lightning-export",
        "top": "lightning-viewer",
        "ui": "lightning-viewer",
        "vllm": "lightning-tokens",
        "worker": "lightning-http",
    },
    "environments": {
        "harbor": "lightning-environments",
        "openenv": "lightning-environments",
        "reasoning_gym": "lightning-environments",
    },
    "exports": {
        "atif": "lightning-export",
        "hf": "lightning-export",
        "jsonl": "lightning-export",
        "model": "lightning-tokens",
        "otlp": "lightning-export",
        "parquet": "lightning-export",
    },
    "graders": {
        "agentos": "lightning-agentos",
        "judge": "lightning-evals",
    },
    "loggers": {
        "tensorboard": "lightning-export",
        "wandb": "lightning-export",
    },
    "pages": {
        "viewer": "lightning-viewer",
    },
    "proxies": {
        "proxy": "lightning-proxy",
    },
    "runners": {
        "agentos": "lightning-agentos",
    },
    "stores": {
        "http": "lightning-http",
        "mongo": "lightning-mongo",
        "sqlite": "lightning-sqlite",
    },
    "strategies": {
        "processes": "lightning-http",
        "ray": "lightning-ray",
    },
    "tracers": {
        "agentops": "lightning-agentops",
        "weave": "lightning-weave",
    },
}
"""Kind -> name -> distribution."""

REQUIRES: Final[Mapping[str, tuple[str, ...]]] = {
    "lightning-agentops": ("lightning-http", "lightning-proxy"),
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
