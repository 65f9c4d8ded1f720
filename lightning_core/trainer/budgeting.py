"""A run with a budget: it ends when that is used up, and a run that is taken up again goes on with what is left."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from lightning_core.adapter import genai
from lightning_core.budget import Budget, Limit
from lightning_core.errors import AlgorithmError, BudgetExhausted, ConfigError, ProxyError
from lightning_core.model_proxy import ModelProxy
from lightning_core.runs.result import BudgetUse
from lightning_core.store import LightningStore
from lightning_core.types import Span

logger = logging.getLogger(__name__)

_STATUS = 402
"""The proxy's answer to such a call; HTTP's "Payment Required"."""

_LAST_SECONDS = 1.0
"""How long the last answers may hold up the end of a run."""


def is_budget_error(error: BaseException) -> bool:
    """Whether an error is the refusal of a call, or was raised because of one: in a group, from it, or handling it.

    Each HTTP client has an exception of its own; they have the status in common.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if _status(each) == _STATUS:
            return True
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
        waiting += (each.__cause__, None if each.__suppress_context__ else each.__context__)
    return False


def _status(error: BaseException) -> Any:
    """Return the HTTP status as openai, anthropic, httpx, requests, aiohttp and urllib tell it."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            if isinstance(status := getattr(source, name, None), int):
                return status
    return None


class BudgetElsewhere:
    """What a proxy of another process counts, for all who call it: this run, and perhaps others.

    A listener of the run's hooks: it asks the proxy when a rollout had a call refused, and after each step of the
    algorithm. A refusal before `watching` began is not this run's.

    Args:
        proxy: The proxy; asked only while `watching`.
    """

    stays_with_algorithm = True

    def __init__(self, proxy: ModelProxy) -> None:
        self._proxy = proxy
        self._refusals_before: int | None = None
        self._on_refusal: Callable[[Limit], None] = lambda limit: None
        self.use: BudgetUse | None = None
        """How it stood when it was asked last; None where the proxy has no budget, or does not say."""

    async def lightning_rollout_end(self, spans: Sequence[Span]) -> None:
        """Ask the proxy if it has refused a call; the hook of this name."""
        if any(span.attributes.get(genai.ERROR_TYPE) == genai.BUDGET_EXHAUSTED for span in spans):
            await self.look()

    async def lightning_step_end(self) -> None:
        """Ask the proxy; the hook of this name."""
        await self.look()

    @asynccontextmanager
    async def watching(self, on_refusal: Callable[[Limit], None]) -> AsyncIterator[None]:
        """Count refusals from now on; during the block, pass the limit that has kept a call from starting on."""
        budget = await self._ask()
        if budget is None:
            yield
            return
        self._refusals_before, self._on_refusal = int(budget["refusals"]), on_refusal
        try:
            yield
        finally:
            self._refusals_before = None
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._ask()

    async def look(self) -> None:
        """Ask the proxy whether it has kept a call from starting since `watching` began."""
        if self._refusals_before is None or (budget := await self._ask()) is None or self._refusals_before is None:
            return
        if budget["refusals"] > self._refusals_before:
            self._on_refusal(budget["reached"])
        else:  # fewer than before are those of a proxy that was started again
            self._refusals_before = budget["refusals"]

    async def _ask(self) -> dict[str, Any] | None:
        try:
            budget: dict[str, Any] | None = (await self._proxy.status()).get("budget")
        except ProxyError as exc:  # a run whose proxy is gone finds that out by its calls
            logger.warning("lightning.proxy_budget_unknown url=%s: %s", self._proxy.url, exc)
            return None
        if budget is not None:
            self.use = BudgetUse.of(budget, proxy=self._proxy.url)
        return budget


STATE = "lightning_core.budget"
"""Under this name the store has what was used."""

SAVE_SECONDS = 1.0
"""What was used in so much time before a kill may not be known afterwards."""

_INTERRUPTED_SECONDS = 1.5
"""How long it may take when it is interrupted while it ends."""


def check_budget(
    spec: Budget | Mapping[str, Any] | None, proxy: ModelProxy | None
) -> Budget | Mapping[str, Any] | None:
    """Check that what a budget limits is counted, and return it.

    Args:
        spec: The trainer's budget; a `Budget` is that of all of its runs together.
        proxy: What counts calls, tokens and money.

    Raises:
        ConfigError: When it is not a budget, or limits what is not counted.
    """
    budget = Budget.of(spec)
    if proxy is not None and proxy.budget is not None:
        if budget is not None and budget is not proxy.budget:
            raise ConfigError("budget is given to the trainer and to its llm_proxy; say it in one place")
        return proxy.budget
    if budget is None:
        return None
    counted = [name for name in budget.limits if name != "seconds"]
    if counted and proxy is None:
        raise ConfigError(
            f"budget limits {', '.join(counted)}, which the model proxy counts, and there is none: give llm_proxy, as "
            "in llm_proxy={'model_list': [...]}, or limit seconds alone"
        )
    if counted and proxy is not None and (proxy.is_remote or proxy.is_running()):
        raise ConfigError(
            f"budget limits {', '.join(counted)}, but the llm_proxy runs by itself: it counts what it was told to when "
            "it was made, with 'budget:' in its own config or LLMProxy(budget=...); limit seconds alone here"
        )
    if "usd" in budget.limits and proxy is not None:
        proxy.require_prices()
    return spec


class BudgetOfRun:
    """What one run may use.

    Args:
        budget: The limits, and what was used; None for no limit.
        elsewhere: The budget of a proxy that runs by itself; None without such a proxy.
    """

    def __init__(self, budget: Budget | None, *, elsewhere: BudgetElsewhere | None = None) -> None:
        self.budget = budget
        self._elsewhere = elsewhere
        self._was_ended_elsewhere = False
        self.ended_by: Limit | None = None
        """The limit that ended the run; None when none did."""
        self._used_up: asyncio.Future[Limit] | None = None
        self._store: LightningStore | None = None

    @property
    def use(self) -> BudgetUse | None:
        """How it stands: the run's own, or that of its proxy where there is no other or it has ended the run."""
        if self._elsewhere is not None and (self.budget is None or self._was_ended_elsewhere):
            use = self._elsewhere.use
            return None if use is None else replace(use, ended_by=self.ended_by)
        return None if self.budget is None else BudgetUse.of(self.budget.status(), ended_by=self.ended_by)

    @asynccontextmanager
    async def counting(self, store: LightningStore) -> AsyncIterator[None]:
        """Count during the block, from what was used before in the same run; keep what is used in the store."""
        budget, loop = self.budget, asyncio.get_running_loop()
        self._used_up, self._store = loop.create_future(), store
        if budget is None:
            yield
            return
        kept = await store.load_state(STATE)
        if isinstance(kept, dict):
            budget.restore(kept["used"], unpriced_calls=kept["unpriced_calls"])
        budget.start()
        stop_listening = budget.listen_to_refusals(lambda limit: loop.call_soon_threadsafe(self._settle, limit))
        tasks = [asyncio.create_task(self._keep(store), name="budget")]
        if "seconds" in budget.limits:
            tasks.append(asyncio.create_task(self._watch_time(), name="time of the budget"))
        try:
            yield
        finally:
            stop_listening()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._save(store)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the budget of a proxy that runs by itself during the block; within `counting`."""
        if self._elsewhere is None:
            yield
            return
        async with self._elsewhere.watching(partial(self._settle, elsewhere=True)):
            yield

    async def spend(self, work: Callable[[], Awaitable[None]], *, can_be_cancelled: bool, end_seconds: float) -> None:
        """Do a piece of work until it comes to its end, or the budget to its own.

        Args:
            work: Does it.
            can_be_cancelled: Whether a cancellation tells it so. If not, it is given time to find out by itself.
            end_seconds: How long it may take to end once it is told; one that is to find out by itself is cancelled
                then, and has as long again.

        Raises:
            BudgetExhausted: When the budget has ended it.
            Exception: What it raised.
        """
        assert self._used_up is not None
        task = asyncio.ensure_future(work())
        try:
            await asyncio.wait((task, self._used_up), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if self._elsewhere is not None and not self._used_up.done():
            await self._elsewhere.look()  # the result of the work may be that of refused calls
        if not can_be_cancelled and self.budget is not None and self.budget.is_time_over:
            self._settle("seconds")  # it may have found out by itself first
        if not self._used_up.done():
            task.result()
            return
        has_succeeded = task.done() and not task.cancelled() and task.exception() is None
        if has_succeeded and can_be_cancelled and not self._was_ended_elsewhere:
            return  # it did not need the call that was refused
        self.ended_by = self._used_up.result()
        try:
            await self._end(task, can_be_cancelled=can_be_cancelled, end_seconds=end_seconds)
        except asyncio.CancelledError:  # in the time that it was given
            task.cancel()
            await asyncio.wait({task}, timeout=_INTERRUPTED_SECONDS)
            raise
        await self._let_attempts_end()
        raise BudgetExhausted(str(self.use))

    async def _let_attempts_end(self) -> None:
        """Give those a moment that need no further call; where the time is over, there is none."""
        if self._store is not None and self.ended_by != "seconds":
            running = await self._store.query_rollouts(status_in=["preparing", "running"])
            ids = [each.rollout_id for each in running]
            await self._store.wait_for_rollouts(rollout_ids=ids, timeout=_LAST_SECONDS)

    async def _end(self, task: "asyncio.Task[None]", *, can_be_cancelled: bool, end_seconds: float) -> None:
        if not can_be_cancelled:
            await asyncio.wait({task}, timeout=end_seconds)
        task.cancel()
        await asyncio.wait({task}, timeout=end_seconds)
        if not task.done():
            logger.error(
                "lightning.algorithm_abandoned; it does not let itself be cancelled, and the budget is used up"
            )
            return
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not (isinstance(error, AlgorithmError) or self._was_ended_elsewhere or is_budget_error(error)):
            raise error
        # It has seen the result of the refused calls before it heard of the budget: NoRewards, or the refusal of a
        # call of its own, which is all that a plain one hears. Of a budget elsewhere it hears last.
        logger.warning("lightning.budget_ended_algorithm", exc_info=error)

    def _settle(self, limit: Limit, *, elsewhere: bool = False) -> None:
        if self._used_up is not None and not self._used_up.done():
            self._was_ended_elsewhere = elsewhere
            self._used_up.set_result(limit)

    async def _watch_time(self) -> None:
        assert self.budget is not None
        limit = self.budget.limits["seconds"]
        while (left := limit - self.budget.used["seconds"]) > 0:  # noqa: ASYNC110  # time passes by itself
            await asyncio.sleep(left)
        self._settle("seconds")

    async def _keep(self, store: LightningStore) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                await self._save(store)
            except Exception:
                # The run itself finds out what is wrong with its store.
                logger.warning("lightning.budget_not_saved run_id=%s", store.run_id, exc_info=True)

    async def _save(self, store: LightningStore) -> None:
        assert self.budget is not None
        used = self.budget.used
        await store.save_state(STATE, {"used": used, "unpriced_calls": self.budget.unpriced_calls})
