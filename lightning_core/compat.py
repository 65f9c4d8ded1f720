"""Names of agentlightning 0.3's root package that plugins supply."""

from importlib import import_module
from typing import Any, Final

SUPPLIED: Final = {
    "APO": "lightning_apo",
    "AgentOpsTracer": "lightning_agentops",
    "ClientServerExecutionStrategy": "lightning_http.processes:ProcessesStrategy",
    "CommandAgent": "lightning_proxy.agents",
    "HttpAgent": "lightning_proxy.agents",
    "LLMProxy": "lightning_proxy",
    "LightningStoreClient": "lightning_http",
    "LightningStoreServer": "lightning_http",
    "ModelConfig": "lightning_proxy",
    "VERL": "lightning_verl",
    "WeaveTracer": "lightning_weave",
}
"""The module that has each name, and after a colon what it is called there."""


def supplied(name: str) -> Any:
    """Return what a plugin supplies under a name of `SUPPLIED`.

    Raises:
        ImportError: When the plugin is not installed.
    """
    module, _, attribute = SUPPLIED[name].partition(":")
    try:
        return getattr(import_module(module), attribute or name)
    except ModuleNotFoundError as exc:
        distribution = module.partition(".")[0].replace("_", "-")
        if exc.name != module.partition(".")[0]:
            raise
        raise ImportError(
            f"{name} ships in {distribution}, which is not installed. Install it from a checkout of Lightning Core: "
            f"pip install . ./plugins/{distribution}",
            name=module,
        ) from exc
