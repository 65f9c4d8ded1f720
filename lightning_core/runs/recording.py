"""Takes what an algorithm reports, and keeps a run in its folder while it goes on."""

import asyncio
import json
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lightning_core.agent.environments import TaskRows, kept_rows
from lightning_core.algorithm.base import Conclusion
from lightning_core.algorithm.own_calls import cancel_own_calls, is_of_algorithm
from lightning_core.errors import AlgorithmError, RunFolderError, StoreError, first_fault
from lightning_core.lifecycle import RUN_KILLED
from lightning_core.plugins import Hooks
from lightning_core.registry import default_registry
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.manifest import Continuation, Manifest, Origin, changes_since, now, write_atomically
from lightning_core.runs.metrics import MetricsFile, merged
from lightning_core.runs.result import FitResult, RunStatus, keep_usage
from lightning_core.secrets import hide_in_text, hide_keys_in, without_secrets
from lightning_core.store import InMemoryLightningStore, LightningStore
from lightning_core.types import LLM, NamedResources, Resource

logger = logging.getLogger(__name__)

_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


def write_best(path: Path, resources: NamedResources) -> None:
    """Write resources.

    Raises:
        RunFolderError: When they cannot be written.
    """
    write_atomically(path, json.dumps(resources_record(resources), indent=2, ensure_ascii=False) + "\n")


def resources_record(resources: NamedResources) -> dict[str, dict[str, Any]]:
    """Return resources as JSON has them, without keys and the values of headers."""
    return {name: _without_secrets(resource) for name, resource in resources.items()}


def read_best(path: Path, initial: NamedResources | None = None) -> NamedResources | None:
    """Read resources; None where there are none.

    Args:
        path: The file.
        initial: Gives back to each what the file does not have, the resource of the same name.

    Raises:
        RunFolderError: When the file is damaged.
    """
    try:
        resources = _RESOURCES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise RunFolderError(f"cannot read {path}: {exc.strerror}") from exc
    except ValidationError as exc:
        raise RunFolderError(f"{path} is damaged: {first_fault(exc)}; remove it") from exc
    for name, resource in resources.items():
        first = (initial or {}).get(name)
        if isinstance(resource, LLM) and isinstance(first, LLM):
            resource.api_key = first.api_key
            if resource.sampling_parameters == _show_parameters(first.sampling_parameters):
                resource.sampling_parameters = first.sampling_parameters
    return resources


def _without_secrets(resource: Resource) -> dict[str, Any]:
    record = resource.model_dump(mode="json", exclude={"api_key"})
    if "sampling_parameters" in record:
        record["sampling_parameters"] = _show_parameters(record["sampling_parameters"])
    return record


def _show_parameters(parameters: Mapping[str, Any]) -> Any:
    return hide_keys_in(without_secrets("sampling_parameters", parameters))


STATE = "lightning_core.run"
"""Under this name the store has which parts of the run have ended."""

DURABLE = "sqlite"
"""The store that a run gets where none is given, if it is installed."""


class Recording:
    """What is written down of a run while one process works on it. The run is this process's until `close`.

    A folder with a manifest is that of a run to go on with.

    Args:
        folder: The folder, which is there.

    Raises:
        RunFolderError: When another process works on it, it has ended, or it is damaged.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.metrics: dict[str, float] = {}
        """The newest value of each metric that was reported before this process."""
        self.best_resources: NamedResources | None = None
        """The best resources that were."""
        self.is_resumed = False
        self._changes: list[str] = []
        self._parts: list[str] | None = None
        self._store_version: dict[str, str] = {}
        self._file: MetricsFile | None = None
        self._manifest: Manifest | None = None
        folder.lock.take()
        try:
            if folder.manifest_file.exists():
                self._manifest = folder.manifest()
                self.is_resumed = True
                if self._manifest.outcome == "succeeded":
                    raise RunFolderError(
                        f"run {folder.run_id} has ended; take another run_id, or remove it: agl runs rm {folder.run_id}"
                    )
                require_store(folder, self._manifest)
        except BaseException:
            self.close()
            raise

    def make_store(self) -> LightningStore:
        """Make, or open, a store in the folder: of SQLite where lightning-sqlite is installed, else one in memory.

        Raises:
            RunFolderError: When what there was of the run is not there any more, or cannot be opened.
            RegistryError: When lightning-sqlite is installed, and cannot be used.
        """
        folder, before = self.folder, self._manifest
        if before is not None and before.store_file is None:
            raise RunFolderError(
                f"run {folder.run_id} was kept in a store that it was given, not in its folder; give that store"
            )
        registry, name = default_registry(), "memory"
        options: dict[str, Any] = {"run_id": folder.run_id}
        durable = [component for component in registry.components("stores") if component.name == DURABLE]
        if durable or before is not None:
            name, options["path"] = DURABLE, folder.store_file
            self._store_version = {each.distribution: each.version for each in durable}
        try:
            return registry.build("stores", {"name": name, **options}, expected=LightningStore)
        except StoreError as exc:
            raise RunFolderError(f"cannot use the store of run {folder.run_id}: {exc}") from exc

    def begin(self, *, algorithm: str, store: LightningStore, origin: Origin, initial: NamedResources | None) -> None:
        """Write down what the run is made of, and read what is known of it.

        Raises:
            RunFolderError: When something cannot be read or written.
        """
        folder = self.folder
        file_name = folder.store_file.name if folder.store_file.exists() else None
        name = DURABLE if file_name else "memory" if isinstance(store, InMemoryLightningStore) else type(store).__name__
        start, resumed, conclusion = now(), [], None
        if self._manifest is not None:
            self._changes = changes_since(self._manifest.origin, origin)
            if self._changes:
                logger.warning("lightning.run_changed run_id=%s: %s", folder.run_id, "; ".join(self._changes))
            start = self._manifest.start
            resumed = [*self._manifest.resumed, Continuation(time=now(), changes=self._changes)]
            conclusion = None if self._changes else self._manifest.conclusion
            self.best_resources = read_best(folder.best_file, initial)
        versions = dict(sorted({**origin.versions, **self._store_version}.items()))
        self._file = MetricsFile(folder.metrics_file)
        self.metrics = self._file.newest
        self._manifest = Manifest(
            run_id=folder.run_id,
            algorithm=algorithm,
            outcome="running",
            start=start,
            resumed=resumed,
            store=name,
            store_file=file_name,
            origin=origin.model_copy(update={"versions": versions}),
            conclusion=conclusion,
        )
        self._manifest.write(folder.manifest_file)

    def keep_tasks(self, datasets: Mapping[str, Any]) -> None:
        """Write tasks that were made, so that a run that goes on has the same ones.

        Raises:
            RunFolderError: When they cannot be written.
        """
        for name, rows in datasets.items():
            if isinstance(rows, TaskRows):
                write_atomically(kept_rows(self.folder.path, name), "".join(f"{json.dumps(row)}\n" for row in rows))

    async def take_over(self, store: LightningStore) -> None:
        """Queue again what ran when the process before this one was killed.

        Not in a store that is served by another process: its runners may be alive, and know by their leases.

        A run in which every rollout failed has nothing to go on with. Its rollouts are deleted, so that the algorithm
        runs them again now that their cause may be gone. What they used still counts.
        """
        if not self.is_resumed:
            return
        if not store.is_remote:
            ended = await store.report_dead_workers(RUN_KILLED)
            logger.info("lightning.run_resumed run_id=%s interrupted_attempts=%d", self.folder.run_id, ended)
        ended_before = await store.query_rollouts(status_in=["failed", "succeeded"])
        rollouts = [rollout for rollout in ended_before if not is_of_algorithm(rollout)]
        failed = [rollout for rollout in rollouts if rollout.status == "failed"]
        if not store.is_remote and failed and len(failed) == len(rollouts):
            await keep_usage(store, failed)
            await store.delete_rollouts([rollout.rollout_id for rollout in failed])
            logger.warning(
                "lightning.failed_rollouts_run_again run_id=%s count=%d: none of the run's rollouts had succeeded",
                self.folder.run_id,
                len(failed),
            )
        await cancel_own_calls(store)

    async def once(self, store: LightningStore, part: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the run, unless it came to its end before this process, with the same config and code.

        Args:
            store: Where it is kept which parts have ended.
            part: What the part is called; each is another.
            work: Does it.
        """
        if self._parts is None:
            kept = await store.load_state(STATE) if self.is_resumed and not self._changes else None
            self._parts = list(kept) if isinstance(kept, list) else []
            await store.save_state(STATE, self._parts)
        if part not in self._parts:
            await work()
            self._parts.append(part)
            await store.save_state(STATE, self._parts)

    def report(self, metrics: Mapping[str, float | None], step: int | None, best: NamedResources | None) -> None:
        """Write down what the algorithm reports.

        Raises:
            RunFolderError: When it cannot be written.
        """
        if self._file is None:
            return
        if best is not None:
            write_best(self.folder.best_file, best)
        if metrics:
            self._file.append(metrics, step)

    @property
    def conclusion(self) -> Conclusion | None:
        """What the algorithm has come to, also before this process; None where it says nothing, or has not ended."""
        return None if self._manifest is None else self._manifest.conclusion

    def conclude(self, conclusion: Conclusion | None) -> None:
        """Write down what the algorithm has come to.

        Raises:
            RunFolderError: When it cannot be written.
        """
        if self._manifest is not None and conclusion is not None:
            self._manifest = self._manifest.model_copy(update={"conclusion": conclusion})
            self._manifest.write(self.folder.manifest_file)

    def end(self, status: RunStatus, *, result: FitResult | None = None, error: BaseException | None = None) -> None:
        """Write down that the run has ended, and its result.

        Raises:
            RunFolderError: When it cannot be written.
        """
        if self._manifest is None:
            return
        failures = [
            replace(each, cause=hide_in_text(each.cause)) for each in (() if result is None else result.failures)
        ]
        ended = {
            "outcome": status,
            "end": now(),
            "error": None if error is None else _in_one_line(error),
            "result": None if result is None else replace(result, failures=failures),
        }
        self._manifest = self._manifest.model_copy(update=ended)
        self._manifest.write(self.folder.manifest_file)

    def close(self) -> None:
        """Let go of the run."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.folder.lock.release()


def require_store(folder: RunFolder, manifest: Manifest) -> None:
    """Check that what a run is to go on with is there.

    Raises:
        RunFolderError: When it is not, or never was.
    """
    if manifest.store == "memory":
        raise RunFolderError(
            f"run {folder.run_id} was kept in memory, and nothing of it is left to go on with; install "
            "lightning-sqlite, and start it again: agl train"
        )
    if manifest.store_file is not None and not (folder.path / manifest.store_file).is_file():
        raise RunFolderError(
            f"run {folder.run_id} cannot go on: its store {folder.path / manifest.store_file} is missing; "
            "put it back, or start anew: agl train"
        )


def _in_one_line(error: BaseException) -> str:
    return hide_in_text(" ".join(f"{type(error).__name__}: {error}".split()))


def start_recording(
    place: str | os.PathLike[str] | RunFolder, store: LightningStore | None
) -> tuple[Recording, LightningStore]:
    """Begin to record a run.

    Args:
        place: The folder of all runs; or that of one, to go on with it.
        store: Where the run is kept; None for a store in its folder.

    Returns:
        The recording, and the store of the run.

    Raises:
        RunFolderError: When the folder cannot be used.
        RegistryError: When the store cannot be built.
    """
    recording = Recording(_folder_at(place, None if store is None else store.run_id))
    try:
        if store is None:
            return recording, recording.make_store()
        return recording, store.for_run(place.run_id) if isinstance(place, RunFolder) else store
    except BaseException:
        recording.close()
        if not recording.is_resumed:
            shutil.rmtree(recording.folder.path)
        raise


def _folder_at(place: str | os.PathLike[str] | RunFolder, run_id: str | None) -> RunFolder:
    if isinstance(place, RunFolder):
        if not place.manifest_file.exists():
            raise RunFolderError(f"{place.path} is not a run: it has no {place.manifest_file.name}")
        return place
    if run_id is not None:
        there = RunFolder(os.path.join(place, run_id))
        if there.manifest_file.exists():  # that store's run goes on
            return there
    return RunFolder.create(place, run_id)


FINISH_SECONDS = 30.0
"""How long hooks may take to hear of the last steps."""

STOP_SECONDS = 0.2
"""How long a hook that is cancelled may take to end."""


class Progress:
    """Takes an algorithm's reports, from any thread; hooks are told of steps in their order, in the run's loop.

    Args:
        recording: Where reports are written down, too, and what was reported before; None for nowhere.
    """

    def __init__(self, recording: Recording | None = None) -> None:
        self.metrics: dict[str, float] = {} if recording is None else dict(recording.metrics)
        """The newest value of each metric."""
        self.best_resources: NamedResources | None = None if recording is None else recording.best_resources
        """The newest best resources."""
        self._recording = recording
        self._steps: asyncio.Queue[tuple[int, dict[str, float | None]] | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def __call__(
        self,
        metrics: Mapping[str, float | None],
        *,
        step: int | None = None,
        best_resources: NamedResources | None = None,
    ) -> None:
        """Take a report; see `Algorithm.report`.

        Raises:
            AlgorithmError: When a metric is not a number, or a best resource not a resource; then nothing is taken.
            RunFolderError: When it cannot be written down.
        """
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        best = None if best_resources is None else _copies(best_resources)
        with self._lock:
            if self._recording is not None:
                self._recording.report(numbers, step, best)
            self.metrics = merged(self.metrics, numbers)
            self.best_resources = self.best_resources if best is None else best
            if step is not None and self._loop is not None and self._steps is not None:
                self._loop.call_soon_threadsafe(self._steps.put_nowait, (step, numbers))

    @asynccontextmanager
    async def telling(self, hooks: Hooks) -> AsyncIterator[None]:
        """Tell hooks of steps during the block; when it ends, they have been told of all of them.

        Where the block is cancelled, steps that they have not been told of by then are left out.
        """
        self._loop, self._steps = asyncio.get_running_loop(), asyncio.Queue()
        steps = self._steps

        async def tell() -> None:
            while (report := await steps.get()) is not None:
                if "lightning_step_end" in hooks.listened:
                    await hooks.emit("lightning_step_end", step=report[0], metrics=report[1])

        task = asyncio.create_task(tell(), name="progress")
        try:
            yield
        except Exception:
            await self._finish(task)
            raise
        else:
            await self._finish(task)
        finally:
            with self._lock:
                self._loop = None
            task.cancel()
            await asyncio.wait((task,), timeout=STOP_SECONDS)

    async def _finish(self, telling: "asyncio.Task[None]") -> None:
        """Take no more steps, and wait until hooks have been told of those that were taken."""
        with self._lock:
            if self._loop is not None and self._steps is not None:
                self._loop.call_soon_threadsafe(self._steps.put_nowait, None)
            self._loop = None
        await asyncio.wait((telling,), timeout=FINISH_SECONDS)
        if not telling.done():
            logger.warning("lightning.step_hooks_abandoned; they took longer than %g s", FINISH_SECONDS)


def _number(name: str, value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Real):
        raise AlgorithmError(f"metric {name!r} is {value!r}; report a number, or None where it has no value any more")
    return float(value)


def _copies(resources: NamedResources) -> NamedResources:
    for name, resource in resources.items():
        if not isinstance(resource, Resource):
            raise AlgorithmError(
                f"best resource {name!r} is {resource!r}; report a resource, as in PromptTemplate(template=...)"
            )
    return {name: resource.model_copy(deep=True) for name, resource in resources.items()}
