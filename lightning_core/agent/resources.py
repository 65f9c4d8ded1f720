"""Which of a rollout's resources an agent, or its grader, is given."""

from typing import TypeVar

from lightning_core.errors import MissingResource
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


def resolved(resources: NamedResources, rollout: AttemptedRollout, *, purpose: str | None = None) -> NamedResources:
    """Return the resources with the plain `LLM` of this attempt for every `ProxyLLM`.

    Args:
        resources: Stay as they are.
        rollout: The rollout with the attempt.
        purpose: What calls are for, where they are none of the agent's own; the proxy records it.
    """
    return {
        name: _of_attempt(resource, rollout, purpose) if isinstance(resource, ProxyLLM) else resource
        for name, resource in resources.items()
    }


def missing(who: str, kind: type[Resource], resources: NamedResources) -> MissingResource:
    """Return the error that says what somebody needs, and what there is."""
    held = ", ".join(f"{name} ({type(resource).__name__})" for name, resource in resources.items()) or "none"
    return MissingResource(
        f"{who} needs a resource of type {kind.__name__}, but has: {held}; give it one in initial_resources"
    )


def _of_attempt(resource: ProxyLLM, rollout: AttemptedRollout, purpose: str | None) -> LLM:
    llm = resource.with_attempted_rollout(rollout)
    if purpose is None:
        return llm
    attempt = llm.endpoint.removesuffix("/v1")
    version = llm.endpoint.removeprefix(attempt)
    return llm.model_copy(update={"endpoint": f"{attempt}/{purpose}{version}"})
