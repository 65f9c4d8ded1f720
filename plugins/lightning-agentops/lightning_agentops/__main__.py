"""`python -m lightning_agentops PROGRAM`: run a program whose AgentOps SDK reports to `agl agentops`.

Needed where OpenTelemetry is 1.45 or later: AgentOps' own exporter sends nothing there.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from lightning_agentops.library import CORE, part

TRACES_PATH = "/v1/traces"
_REQUEST_SECONDS = 10.0


def main() -> None:
    """Run the program whose name and arguments follow, as `python` would."""
    program = sys.argv[1] if len(sys.argv) > 1 else ""
    if not Path(program).is_file():
        sys.exit(
            f"usage: python -m lightning_agentops PROGRAM [ARGUMENTS]; PROGRAM is a Python file, and {program!r} is not"
        )
    repair_exporters()
    del sys.argv[0]
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


def repair_exporters() -> None:
    """Let `agentops.init()` of this process report to where it is told, from then on.

    AgentOps 0.4.21 sends no span with OpenTelemetry 1.45 and later, and its metrics go to AgentOps whatever it is told.
    """
    core = part(CORE)
    core.AuthenticatedOTLPExporter = _SdkExporter
    make_exporter = core.OTLPMetricExporter

    def make_metric_exporter(endpoint: str, **options: Any) -> Any:
        place = _config().exporter_endpoint.removesuffix(TRACES_PATH)
        return make_exporter(endpoint=f"{place}/v1/metrics", **options)

    core.OTLPMetricExporter = make_metric_exporter


class _SdkExporter(OTLPSpanExporter):
    """Takes the place of AgentOps' exporter; the SDK's settings say with which key. It is the token, too."""

    def __init__(self, endpoint: str, **_: Any) -> None:
        key = {"authorization": f"Bearer {_config().api_key}"}
        super().__init__(endpoint, headers=key, timeout=_REQUEST_SECONDS, compression=Compression.Gzip)


def _config() -> Any:
    return part("agentops").get_client().config


if __name__ == "__main__":
    main()
