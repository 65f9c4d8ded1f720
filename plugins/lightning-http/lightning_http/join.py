"""Runner processes of this machine for a run whose store is served somewhere else."""

from collections.abc import Callable
from functools import partial

import lightning_http as http
from lightning_core.errors import AccessDenied, ConfigError, RunEnded, StoreError, StoreUnavailable
from lightning_core.execution.base import RunnerBundle
from lightning_core.store import LightningStore
from lightning_http.pool import MakeProcess, RunnerPool, release

CONNECT_SECONDS = 5.0
"""How long to look for a store before giving up."""


async def join_run(
    runner: RunnerBundle,
    url: str,
    make: Callable[[RunnerBundle, LightningStore], MakeProcess],
    *,
    key: str | None = None,
    run_id: str | None = None,
    n_runners: int = 1,
    concurrency: int = 1,
    max_restarts: int = 10,
    graceful_seconds: float = 2.0,
    terminate_seconds: float = 1.0,
    on_joined: Callable[[str], None] = lambda run_id: None,
) -> None:
    """Work for a run until it ends.

    Cancelling it gives back what is worked on, and ends the processes.

    Args:
        runner: The runners' side.
        url: Where the store is served.
        make: Returns what makes processes for the runners' side and the store.
        key: What to say to it; None for the variable `AGL_KEY`.
        run_id: The run; None for the one that is served there.
        n_runners: How many processes.
        concurrency: How many rollouts each of them runs at once.
        max_restarts: How many processes may be replaced.
        graceful_seconds: How long they may take to end, when this is cancelled.
        terminate_seconds: How long after they are terminated.
        on_joined: Is told the run, before the first process starts.

    Raises:
        RunEnded: When it had ended before anything was started here.
        ConfigError: When nothing is served there, or it wants another key.
        ExecutionError: When the processes cannot begin, or too many of them have died, or the store was lost.
    """
    try:
        async with http.LightningStoreClient(url, key=key, run_id=run_id, retry_seconds=CONNECT_SECONDS) as found:
            await found.dequeue_many_rollouts(limit=0)  # no work, but the word of a run that has ended
            run_id = found.run_id
    except RunEnded:
        raise
    except (StoreUnavailable, AccessDenied) as exc:
        raise ConfigError(f"{exc}{_advice(exc)}") from exc
    except StoreError as exc:
        raise ConfigError(str(exc)) from exc
    on_joined(run_id)
    async with http.LightningStoreClient(url, key=key, run_id=run_id) as store:
        pool = RunnerPool(
            make(runner, store),
            n_runners=n_runners,
            concurrency=concurrency,
            max_restarts=max_restarts,
            release=partial(release, store),
        )
        try:
            await pool.run()
        finally:
            try:
                await pool.stop(graceful_seconds=graceful_seconds, terminate_seconds=terminate_seconds)
            finally:
                pool.close()


def _advice(error: StoreError) -> str:
    if isinstance(error, AccessDenied):
        return "; give the run's runner key, with --key or AGL_KEY"
    return "; is the run still going on, and can its address be reached from here?"
