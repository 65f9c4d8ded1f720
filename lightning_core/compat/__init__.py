"""What agentlightning 0.3 has in other places, or in other forms: names that plugins supply, and module paths."""

from collections import ChainMap
from importlib import import_module
from typing import Any, Final

SUPPLIED: Final = {
    "APO": "lightning_apo",
    "AgentLightningClient": "lightning_legacy",
    "AgentLightningServer": "lightning_legacy",
    "AgentOpsTracer": "lightning_agentops",
    "ClientServerExecutionStrategy": "lightning_http.processes:ProcessesStrategy",
    "CommandAgent": "lightning_agents",
    "DevTaskLoader": "lightning_legacy",
    "HttpAgent": "lightning_agents",
    "LLMProxy": "lightning_proxy",
    "LegacyAgentRunner": "lightning_legacy",
    "LightningStoreClient": "lightning_http",
    "LightningStoreServer": "lightning_http",
    "ModelConfig": "lightning_proxy",
    "VERL": "lightning_verl",
    "WeaveTracer": "lightning_weave",
}
"""The module that has each name, and after a colon what it is called there."""

FORMER: Final = {
    "LightningEnvVar": "lightning_core.compat.command_line",
    "ParallelWorkerBase": "lightning_core.compat.names",
    "SpanAttributeNames": "lightning_core.compat.names",
    "SpanNames": "lightning_core.compat.names",
    "Task": "lightning_core.compat.names",
    "TaskIfAny": "lightning_core.compat.names",
    "RolloutLegacy": "lightning_core.compat.names",
    "RolloutRawResultLegacy": "lightning_core.compat.names",
    "GenericResponse": "lightning_core.compat.names",
    "resolve_bool_env_var": "lightning_core.compat.command_line",
    "resolve_int_env_var": "lightning_core.compat.command_line",
    "lightning_cli": "lightning_core.compat.command_line",
    "resolve_str_env_var": "lightning_core.compat.command_line",
}
"""Names of the former root package that only scripts written for it need, in the same form."""

OLD_NAMES: Final = ChainMap(SUPPLIED, FORMER)


def supplied(name: str) -> Any:
    """Return what stands behind a name of `OLD_NAMES`.

    Raises:
        ImportError: When it is a plugin's, which is not installed.
    """
    module, _, attribute = OLD_NAMES[name].partition(":")
    return getattr(import_plugin(module, name), attribute or name)


def import_plugin(module: str, name: str) -> Any:
    """Import the module that has what is called `name` here.

    Raises:
        ImportError: When it is a plugin's, which is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        distribution = module.partition(".")[0].replace("_", "-")
        if exc.name != module.partition(".")[0]:
            raise
        from lightning_core.registry.registry import how_to_install  # late: only for this message

        raise ImportError(
            f"{name} ships in {distribution}, which is not installed. {how_to_install(distribution)}", name=module
        ) from exc
