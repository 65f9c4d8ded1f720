"""For programs that call `agentops.init()` themselves, and report to `agl agentops`."""

from typing import Any

from lightning_agentops.library import CORE, part
from lightning_agentops.service import API_URL, TRACES_URL, AgentOpsExporter

SPAN_EXPORTER = "AuthenticatedOTLPExporter"
METRIC_EXPORTER = "OTLPMetricExporter"
"""What `agentops.init()` exports with, in `CORE`."""


def repair_exporters() -> None:
    """Let `agentops.init()` of this process report to where it is told, from then on.

    AgentOps 0.4.21 sends no span with OpenTelemetry 1.45 and later, and its metrics go to AgentOps whatever it is told.
    """
    core = part(CORE)
    setattr(core, SPAN_EXPORTER, _SdkExporter)
    metrics = getattr(core, METRIC_EXPORTER)

    def make_metric_exporter(endpoint: str, **options: Any) -> Any:
        traces_url = _config().exporter_endpoint
        told = endpoint if traces_url == TRACES_URL else f"{traces_url.removesuffix('/v1/traces')}/v1/metrics"
        return metrics(endpoint=told, **options)

    setattr(core, METRIC_EXPORTER, make_metric_exporter)


class _SdkExporter(AgentOpsExporter):
    """Takes the place of AgentOps' exporter; the SDK's settings say where to, and with which key."""

    def __init__(self, endpoint: str, **_: Any) -> None:
        config = _config()
        super().__init__(config.api_key or "", config.endpoint or API_URL, endpoint)


def _config() -> Any:
    return part("agentops").get_client().config
