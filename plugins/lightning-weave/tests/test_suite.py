"""The tracer passes the core's suite, with Weave's own functions in it."""

from collections.abc import Callable
from typing import Any

import weave
from lightning_weave import WeaveTracer

from lightning_core.testing import TracerSuite


class TestWeaveTracer(TracerSuite):
    def make_tracer(self) -> WeaveTracer:
        return WeaveTracer()

    def traced_function(self, tracer: WeaveTracer, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return weave.op(function, name=name)
