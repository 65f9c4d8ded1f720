"""Rewards as they were written before agentlightning 0.3."""

import json
from collections.abc import Mapping
from typing import Any

from lightning_core.emitter.span_like import SpanLike
from lightning_core.semconv import AGL_ANNOTATION

_AGENTOPS_OUTPUTS = ("agentops.task.output", "agentops.entity.output")
"""Where AgentOps puts what a decorated reward function gave: `{"type": "reward", "value": 0.5}`, mostly as JSON."""

_ANNOTATION = "reward"
"""The attribute of an annotation that was the reward in agentlightning 0.2."""


def old_reward(span: SpanLike) -> Any:
    """Return what a span of those times has as its reward, number or not; None when it has none."""
    attributes = span.attributes or {}
    for name in _AGENTOPS_OUTPUTS:
        output = attributes.get(name)
        if isinstance(output, str) and '"reward"' in output:
            try:
                output = json.loads(output)
            except ValueError:
                # Any function's output may be there; this is a text that has the word in it.
                continue
        if isinstance(output, Mapping) and output.get("type") == "reward":
            return output.get("value")
    return attributes.get(_ANNOTATION) if span.name == AGL_ANNOTATION else None
