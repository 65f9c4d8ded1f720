"""One family of exceptions: a type per boundary, and below it a type per fact."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class LightningError(Exception):
    """Anything that Lightning Core raises on purpose."""


class RegistryError(LightningError):
    """A component could not be found, loaded or built."""


class UnknownComponent(RegistryError, LookupError):
    """No installed distribution registers a component of this name."""


class BrokenPlugin(RegistryError):
    """A registered component could not be loaded; the cause is chained."""


class InvalidComponent(RegistryError, TypeError):
    """What was given as a component is not one, or does not take these options."""


class ConfigError(LightningError, ValueError):
    """A config file, or what it names, is wrong."""


class InvalidOptions(InvalidComponent, ConfigError):
    """Options do not fit what they are for.

    Args:
        label: What takes them.
        faults: What is wrong, by the option's name; `""` for what is missing.
    """

    def __init__(self, label: str, faults: Mapping[str, str]) -> None:
        super().__init__("\n".join(faults.values()))
        self.label = label
        self.faults = faults

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.label, self.faults)


class StoreError(LightningError):
    """The store refused a request or could not carry it out."""


class NotFound(StoreError, ValueError):
    """The store has no record of this id."""


class InvalidTransition(StoreError, ValueError):
    """A rollout or an attempt cannot go from its status to the one asked for."""


class RunEnded(StoreError):
    """Work was asked for of a run that has ended: there is no more."""


class InvalidRequest(StoreError, ValueError):
    """An argument of a store method has a value that it does not take."""


class StoreFull(StoreError):
    """A store has no room left; nothing was written."""


class StoreClosed(StoreError):
    """The store was used after it was closed."""


class AccessDenied(StoreError):
    """A store's server wants a key, or another one than it was given."""


class InvalidReward(LightningError, TypeError, ValueError):
    """What was given as a reward is not a number."""


class TracerError(LightningError, RuntimeError):
    """Spans could not be recorded."""


class NeedsLegacy(LightningError, ImportError):
    """A class has a form of agentlightning 0.3, which only lightning-legacy understands."""


class NoActiveTracer(TracerError):
    """Something was emitted outside of a traced rollout."""


class AgentError(LightningError):
    """An agent cannot be used as one."""


class InvalidAgent(AgentError, TypeError):
    """What was given as an agent is not one, or has a signature that cannot be called."""


class InvalidResult(AgentError, TypeError):
    """An agent returned something that is neither a reward nor spans."""


class MissingResource(AgentError, ValueError):
    """An agent needs a resource that the rollout does not have."""


class InvalidTask(AgentError, ValueError):
    """A task cannot be given to a program or a service: it is not JSON, or lacks a field."""


class ProgramFailed(AgentError):
    """A program that is an agent ended with an exit status other than 0, by a signal, or because it was stopped.

    Args:
        message: What happened, with the end of what it printed.
        exit_status: How it ended; a signal is a negative number, and None means that it had to be stopped.
    """

    def __init__(self, message: str, *, exit_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class ServiceFailed(AgentError):
    """A service that is an agent answered with an error, or with something that is not an answer.

    Args:
        message: What happened, with the beginning of the answer.
        status: The HTTP status of the answer; None where a client of the user's own hides it.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class GraderError(AgentError):
    """A grader raised, or returned something that is not a reward; the cause is chained."""


class AgentTimeout(AgentError, TimeoutError):
    """The agent ran out of its time, or its grader did."""

    def __init__(self, timeout_seconds: float, who: str = "agent") -> None:
        extra = "" if who == "agent" else f" with its {who}"
        super().__init__(f"the agent{extra} ran longer than {timeout_seconds:g} s")


class AttemptLimitReached(AgentError):
    """An attempt has used what the model proxy lets an attempt use: no further call of it starts."""


class AttemptStopped(AgentError):
    """The store does not want an attempt any more: its rollout was cancelled, or it was given up."""


class AgentNotAttached(AgentError, ValueError):
    """An agent was asked for something that it is not attached to: its trainer, or its runner."""


class RunnerNotReady(LightningError, ValueError):
    """A runner was asked for something that it has only between its set-up and its teardown."""


class Fault(LightningError):
    """What a rollout needs was out of reach: its model, its tools' server, the store.

    An agent or a grader raises it, also from inside of a library, to say that the attempt says nothing about the
    agent. The rollout is run again without using up one of its attempts, at most three times.

    Args:
        args: What happened.
        retry_after: The least seconds to wait before the rollout is run again, of which there are more each time; None
            for at once.
    """

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after = retry_after


class StoreUnavailable(StoreError, Fault):
    """A store's server could not be reached, or could not answer, for as long as its client tried."""


class ProxyError(LightningError):
    """A model call was not made, or did not come to an end."""


class BudgetExhausted(ProxyError):
    """A limit of the run's budget is reached, so no further model call starts."""


class AlgorithmError(LightningError):
    """An algorithm cannot go on."""


class AlgorithmNotAttached(AlgorithmError, ValueError):
    """An algorithm was asked for something that it is not attached to: its trainer, its store or its adapter."""


class InvalidInput(AlgorithmError, ValueError):
    """What an algorithm was given to work on cannot be used: a dataset, or the initial resources."""


class NoBestYet(AlgorithmError, ValueError):
    """An algorithm was asked for the best before it has found one."""


class NoRewards(AlgorithmError):
    """Not one rollout of a whole step gave a reward, so there is nothing to learn from."""


class RunFolderError(LightningError, ValueError):
    """The folder of a run is not there, cannot be used, or belongs to a run that goes on."""


class ExecutionError(LightningError):
    """The algorithm and the runners cannot be kept going."""


def first_fault(exc: "ValidationError", *, at: str = "", shows_input: bool = False) -> str:
    """Say what pydantic found wrong first, and where, as in `config.timeout: Input should be a number`.

    Args:
        exc: What it raised.
        at: Where the value is that was validated; empty for nowhere else.
        shows_input: Whether the wrong value is shown: it may be a secret.
    """
    fault = exc.errors(include_url=False, include_input=shows_input)[0]
    place = ".".join(map(str, (*([at] if at else ()), *fault["loc"])))
    got = f" is {fault['input']!r}" if shows_input else ""
    return f"{place}{got}: {fault['msg']}" if place else str(fault["msg"])
