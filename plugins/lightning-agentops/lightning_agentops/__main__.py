"""`python -m lightning_agentops PROGRAM`: run a program whose AgentOps SDK reports to `agl agentops`.

Needed where OpenTelemetry is 1.45 or later: AgentOps' own exporter sends nothing there.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

from lightning_agentops.library import CORE, part
from lightning_agentops.service import API_URL, TRACES_URL, AgentOpsExporter


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
        traces_url = _config().exporter_endpoint
        told = endpoint if traces_url == TRACES_URL else f"{traces_url.removesuffix('/v1/traces')}/v1/metrics"
        return make_exporter(endpoint=told, **options)

    core.OTLPMetricExporter = make_metric_exporter


class _SdkExporter(AgentOpsExporter):
    """Takes the place of AgentOps' exporter; the SDK's settings say where to, and with which key."""

    def __init__(self, endpoint: str, **_: Any) -> None:
        config = _config()
        super().__init__(config.api_key or "", config.endpoint or API_URL, endpoint)


def _config() -> Any:
    return part("agentops").get_client().config


if __name__ == "__main__":
    main()
