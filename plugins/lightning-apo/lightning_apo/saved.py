"""What a search keeps in the store, so that it goes on where it was killed."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_apo.models import Answer
from lightning_core.adapter.usage import Usage
from lightning_core.algorithm.own_calls import add_own_usage
from lightning_core.store import LightningStore

logger = logging.getLogger(__name__)

STATE, ANSWERS = "apo", "apo.answers"
"""Under these names the store has those of `apo`."""


@dataclass(slots=True)
class SavedSearch:
    """The state of a search as of its last step, and what the models answered since."""

    store: LightningStore
    about: Mapping[str, Any]
    """What the search depends on: options, prompts, samples. Only a search about the same goes on."""
    key: str
    """Names the search in the run."""
    counts_calls: bool
    """Whether what the models use is counted here, since no model proxy sees it."""
    algorithm: str = STATE
    """Whose search it is; the store has it under this name."""
    keeps_answers: bool = False
    """Whether answers hold for the whole search, however often it is begun again, and not for one step alone."""
    tries: int = 0
    """How often it was begun again."""
    state: dict[str, Any] | None = None
    """As of the last step; None when none has ended."""
    answers: dict[str, list[Any]] = field(default_factory=dict)
    """What the models answered in the step that goes on."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def open(
        cls,
        store: LightningStore,
        about: Mapping[str, Any],
        *,
        counts_calls: bool,
        algorithm: str = STATE,
        keeps_answers: bool = False,
    ) -> "SavedSearch":
        """Find the search that did not come to its end in this run, or begin a new one."""
        record = await store.load_state(algorithm)
        if isinstance(record, dict) and not record["ended"]:
            if record["about"] == about:
                search = cls(store, about, record["key"], counts_calls, algorithm, keeps_answers)
                search.tries, search.state = record["tries"], record["state"]
                answers = await store.load_state(f"{algorithm}.answers")
                if isinstance(answers, dict) and answers["step"] == search._step():
                    search.answers = answers["answers"]
                logger.info("lightning.%s_resumed step=%s", algorithm, search._step())
                return search
            changed = sorted(name for name in about if record["about"].get(name) != about[name])
            logger.warning(
                "lightning.%s_begun_anew changed=%s; the search that is in the store was about something else",
                algorithm,
                changed,
            )
        search = cls(store, about, secrets.token_hex(8), counts_calls, algorithm, keeps_answers)
        await search._save(ended=False)
        return search

    @property
    def name(self) -> str:
        """Names what is done in this run of the search; with answers that hold for all of it, in all of its runs."""
        return f"{self.key}/{self.tries}" if self.tries and not self.keeps_answers else self.key

    async def keep(self, state: dict[str, Any]) -> None:
        """Keep the state as of a step that has ended."""
        self.state, self.answers = state, {}
        await self._save(ended=False)

    async def try_again(self) -> None:
        """Begin the search again, under another name."""
        self.tries, self.state = self.tries + 1, None
        await self._save(ended=False)

    async def end(self) -> None:
        """Mark the search as ended; the next one in this run begins anew."""
        await self._save(ended=True)

    async def once(self, name: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer that was given to a question in this step; ask it where there is none yet."""
        if name in self.answers:
            return Answer(*self.answers[name])
        answer = await ask()
        async with self._lock:
            if self.counts_calls:
                await add_own_usage(self.store, Usage(1, answer.input_tokens or None, answer.output_tokens or None))
            self.answers[name] = list(answer)
            saved = {"step": self._step(), "answers": self.answers}
            await self.store.save_state(f"{self.algorithm}.answers", saved)
        return answer

    async def _save(self, *, ended: bool) -> None:
        saved = {"key": self.key, "about": self.about, "tries": self.tries, "ended": ended, "state": self.state}
        await self.store.save_state(self.algorithm, saved)

    def _step(self) -> str:
        return (
            self.name if self.keeps_answers else f"{self.name}/{0 if self.state is None else self.state['round'] + 1}"
        )
