"""What is written down of a run: what it was made of, and what came of it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lightning_core.errors import RunFolderError
from lightning_core.runs.atomic import write_atomically
from lightning_core.runs.comparison import Comparison
from lightning_core.runs.result import BudgetUse, RunStatus, RunUsage

Outcome = RunStatus | Literal["running"]
"""`running` stays where the process was killed."""


class Git(BaseModel):
    """The state of the repository that the config, or the program, is in."""

    commit: str
    dirty: bool
    """Whether tracked files differ from the commit."""


class Origin(BaseModel):
    """What a run is made of. In place of secrets is `***`."""

    config_file: str | None = None
    """The absolute path; None where a program made the run."""
    folder: str | None = None
    """The current folder of the process that started it."""
    overrides: list[str] = Field(default_factory=list)
    """What was set over the config file, each as `key=value`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The resolved config: what was set, and the defaults of what was not."""
    seed: Any = None
    """The algorithm's, where it has one."""
    python: str = ""
    platform: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    """Distribution -> version, of all that were in use when the run started."""
    git: Git | None = None
    files: dict[str, str] = Field(default_factory=dict)
    """Absolute path -> SHA-256, of the datasets, the agent's module and all others that come from no distribution."""


class Cause(BaseModel):
    """Why rollouts failed."""

    cause: str
    count: int


class Summary(BaseModel):
    """What came of a run; a number that is not finite is null."""

    model_config = ConfigDict(ser_json_inf_nan="null")

    metrics: dict[str, float | None]
    rollouts: dict[str, int]
    """How many ended how: `succeeded`, `failed`, `cancelled`, `unfinished`, `retried`."""
    comparison: Comparison | None = None
    """The rewards of the initial resources and of the best."""
    failures: list[Cause] = Field(default_factory=list)
    usage: RunUsage = Field(default_factory=RunUsage)
    """What model calls used."""
    budget: BudgetUse | None = None
    """What the run might use, and which limit ended it."""
    duration_seconds: float
    """How long the process worked that ended it; those that were killed before are not counted."""


class Continuation(BaseModel):
    """A run was taken up again."""

    time: datetime
    changes: list[str] = Field(default_factory=list)
    """What was different from what the run was made of before, each in a few words."""


class Manifest(BaseModel):
    """What is written down of a run."""

    format: Literal[1] = 1
    run_id: str
    algorithm: str
    outcome: Outcome
    error: str | None = None
    """What was raised, in one line, when it failed."""
    start: datetime
    end: datetime | None = None
    resumed: list[Continuation] = Field(default_factory=list)
    store: str
    """The name of the store that has its rollouts, or its class."""
    store_file: str | None = None
    """The store's file in the folder of the run; None where the store is elsewhere."""
    origin: Origin
    result: Summary | None = None

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read one.

        Raises:
            RunFolderError: When there is none, or it is not as it was written.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as exc:
            raise RunFolderError(f"{path.parent} is no run: it has no {path.name}") from exc
        except OSError as exc:
            raise RunFolderError(f"cannot read {path}: {exc.strerror}") from exc
        except ValidationError as exc:
            fault = exc.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise RunFolderError(
                f"{path} is damaged: {f'{place}: ' if place else ''}{fault['msg']}; put a good copy in its place, or "
                f"remove the run: agl runs rm {path.parent.name}"
            ) from exc

    def write(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            RunFolderError: When it cannot be written.
        """
        write_atomically(path, self.model_dump_json(indent=2) + "\n")


def now() -> datetime:
    """Return the time, to the millisecond."""
    time = datetime.now(UTC)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)
