"""Which of a rollout's resources an agent is given."""

from typing import TypeVar

from lightning_core.types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Resource

ResourceT = TypeVar("ResourceT", bound=Resource)

_MAIN: dict[type[Resource], str] = {LLM: "main_llm", PromptTemplate: "main_prompt"}
"""The name of the resource that is given where there are several of its kind."""


def main_or_first(resources: NamedResources, kind: type[ResourceT]) -> ResourceT | None:
    """Return the main resource of a kind, or else the first one; None where there is none."""
    main = resources.get(_MAIN[kind])
    if isinstance(main, kind):
        return main
    return next((resource for resource in resources.values() if isinstance(resource, kind)), None)


def resolved(resources: NamedResources, rollout: AttemptedRollout) -> NamedResources:
    """Return the resources with the plain `LLM` of this attempt for every `ProxyLLM`."""
    return {
        name: resource.with_attempted_rollout(rollout) if isinstance(resource, ProxyLLM) else resource
        for name, resource in resources.items()
    }
