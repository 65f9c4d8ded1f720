"""One family of exceptions: a type per boundary, and below it a type per fact."""


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


class StoreError(LightningError):
    """The store refused a request or could not carry it out."""


class NotFound(StoreError, ValueError):
    """The store has no record of this id."""


class InvalidTransition(StoreError, ValueError):
    """A rollout or an attempt cannot go from its status to the one asked for."""


class InvalidRequest(StoreError, ValueError):
    """An argument of a store method has a value that it does not take."""


class StoreFull(StoreError):
    """A store that was given a limit has reached it; nothing was written."""


class StoreClosed(StoreError):
    """The store was used after it was closed."""


class TracerError(LightningError):
    """Spans could not be recorded."""


class NoActiveTracer(TracerError, RuntimeError):
    """Something was emitted outside of a traced rollout."""


class AgentError(LightningError):
    """An agent cannot be used as one."""


class InvalidAgent(AgentError, TypeError):
    """What was given as an agent is not one, or has a signature that cannot be called."""


class InvalidResult(AgentError, TypeError):
    """An agent returned something that is neither a reward nor spans."""


class MissingResource(AgentError, ValueError):
    """An agent needs a resource that the rollout does not have."""


class GraderError(AgentError):
    """A grader raised, or gave something that is no reward; the cause is chained."""


class Fault(LightningError):
    """What a rollout needs was out of reach: its model, its tools' server, the store.

    An agent or a grader raises it, also from inside of a library, to say that the attempt says nothing about the
    agent. The rollout is run again without using up one of its attempts, at most three times.
    """


class AlgorithmError(LightningError):
    """An algorithm cannot go on."""


class NoRewards(AlgorithmError):
    """Not one rollout of a whole step gave a reward, so there is nothing to learn from."""
