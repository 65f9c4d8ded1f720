"""The algorithm that improves nothing itself: it tries what another program submits, and says what may be known."""

import asyncio
import logging
import math
import os
import random
import re
import secrets
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lightning_evals.evaluation import Trial, key_of, run_trials
from pydantic import BaseModel, PositiveInt

from lightning_core.adapter import TraceToMessages
from lightning_core.algorithm import Algorithm
from lightning_core.algorithm.estimates import CONFIDENCE
from lightning_core.errors import ConfigError, InvalidInput, InvalidRequest, NotFound
from lightning_core.store import LightningStore
from lightning_core.store.records import digest_of
from lightning_core.types import Dataset, NamedResources, PromptTemplate, samples_of
from lightning_referee import KEY_VARIABLE, PORT
from lightning_referee.comparison import LOOKS, level_of, verdict
from lightning_referee.server import serving

logger = logging.getLogger(__name__)

_STATE = "referee"
_STATEMENT = re.compile(r"\{%.*?%\}", re.DOTALL)
_MAX_CHARACTERS = 100_000
_ERROR_TYPE = re.compile(r"([A-Za-z_]\w{0,60}): ")


class Candidate(BaseModel):
    """What was submitted, and what is known of it. Saved after each step."""

    number: int
    """From 1 on; 0 is what the run started from."""
    prompts: dict[str, str]
    """All prompts, by name."""
    parent: int | None
    """The candidate that it was made from."""
    resources_id: str
    train: list[Trial] | None = None
    """How each training sample went; None before the end."""
    beats_best: bool | None = None
    """Whether it won its challenge; None before the end of one."""


class Game(BaseModel):
    """All that is kept of a game, so that one that was killed goes on."""

    key: str
    """Names its rollouts within the run."""
    of: str
    """Tells which samples it is played on."""
    candidates: list[Candidate] = []
    challengers: list[int] = []
    """The candidates that have challenged the best one of their time, in order."""
    won: list[int] = []
    """Those of them that were better, in order. The last one is the best; without any it is the first prompts."""
    chosen: int | None = None
    """What the optimiser has chosen at the end."""
    is_finished: bool = False
    """Whether no more candidates are taken."""


class Referee(Algorithm):
    """Lets another program improve the agent's prompts, over HTTP and MCP, until that says that it is done.

    A candidate is run on the training samples, and its outcomes there are told. It may then challenge the best one, the
    first prompts to begin with: the two are compared on the validation samples, which nobody is shown. One bit is told,
    whether it is better; then it is the best. All these bits are true at once with a probability of at least 95%,
    whatever they lead to (see `level_of`). The optimiser chooses one candidate at the end, the best one by default, and
    the metric `is_proven` says whether that one is better than the first prompts. The test samples are measured by the
    trainer, once, when the run ends.

    Needs the variable `AGL_REFEREE_KEY`: whoever submits has to know it.

    Args:
        max_candidates: How many candidates there can be.
        max_challenges: How many of them can be compared on validation samples. Few ones have more power.
        texts: Whether to tell inputs, messages and errors of training samples, too. What an agent wrote may be meant
            to instruct whoever reads it.
        low: The lowest reward that there can be.
        high: The highest one.
        host: The address to listen on.
        port: The port; 0 lets the system choose.
    """

    def __init__(
        self,
        *,
        max_candidates: PositiveInt = 100,
        max_challenges: PositiveInt = 3,
        texts: bool = False,
        low: float = 0.0,
        high: float = 1.0,
        host: str = "127.0.0.1",
        port: int = PORT,
    ) -> None:
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"low is {low}, and high is {high}; low is the smaller one, and both are finite")
        self.max_candidates = max_candidates
        self.max_challenges = max_challenges
        self.texts = texts
        self.low = low
        self.high = high
        self.host = host
        self.port = port
        self._game = Game(key="", of="")
        self._hidden: dict[int, list[Trial]] = {}
        self._samples: tuple[list[Any], list[Any]] = ([], [])
        self._changed = asyncio.Condition()
        self._serves = asyncio.Event()
        self._url = ""

    @property
    def choice(self) -> str:
        """Say which candidate the game has ended with, and whether it is proven to be better."""
        chosen = self._chosen()
        is_proven = chosen.number in self._game.won
        words = f"is better than the first prompts (at {CONFIDENCE:.0%})" if is_proven else "was not shown to be better"
        return f"candidate {chosen.number} {words}" if chosen.number else "it ended with the first prompts"

    async def url(self) -> str:
        """Return where it is served, such as `http://127.0.0.1:4749`, as soon as it is."""
        await self._serves.wait()
        return self._url

    # What is told

    def rules(self) -> dict[str, Any]:
        """Return what there is to improve, how it stands, and what is left."""
        best = self._best()
        return {
            "prompts": {
                name: {"text": text, "placeholders": sorted(self._placeholders(name))}
                for name, text in best.prompts.items()
            },
            "best": best.number,
            "candidates_left": self.max_candidates - len(self._candidates) + 1,
            "challenges_left": self.max_challenges - len(self._game.challengers),
            "train_samples": len(self._samples[0]),
            "validation_samples": len(self._samples[1]),
            "confidence": CONFIDENCE,
        }

    async def submit(self, prompts: Mapping[str, str], parent: int | None = None) -> int:
        """Take a candidate, and return its number. One that was submitted before keeps its number.

        Args:
            prompts: The texts by name. What is left out is as in the parent.
            parent: The candidate that it was made from; None for the best one.

        Raises:
            InvalidRequest: When it cannot be a candidate, or no more are taken.
        """
        async with self._changed:
            origin = self._best() if parent is None else self._candidate(parent)
            texts = {**origin.prompts, **prompts}
            for name, text in prompts.items():
                self._check_prompt(name, text)
            for known in self._candidates:
                if known.prompts == texts:
                    return known.number
            self._check_goes_on()
            if len(self._candidates) > self.max_candidates:
                raise InvalidRequest(f"all {self.max_candidates} candidates were submitted; no more are taken")
            await self._add(texts, origin)
            self._changed.notify_all()
            return self._candidates[-1].number

    async def challenge(self, number: int) -> None:
        """Compare a candidate with the best one on the validation samples. One that did so before does not do it again.

        Raises:
            NotFound: When there is no such candidate.
            InvalidRequest: When it is the best one, or no challenge is left.
        """
        async with self._changed:
            self._candidate(number)
            if number in self._game.challengers:
                return
            self._check_goes_on()
            if number == 0:
                raise InvalidRequest("candidate 0 is the first prompts, which challenge nothing")
            if len(self._game.challengers) >= self.max_challenges:
                raise InvalidRequest(f"all {self.max_challenges} challenges were made; no more are taken")
            self._game.challengers.append(number)
            await self._save()
            self._changed.notify_all()

    async def look(self, number: int, *, wait_seconds: float = 0.0) -> dict[str, Any]:
        """Return what is known of a candidate, as soon as nothing of it is under way, or after so many seconds.

        Raises:
            NotFound: When there is no such candidate.
        """
        candidate = self._candidate(number)
        try:
            async with asyncio.timeout(wait_seconds), self._changed:
                await self._changed.wait_for(lambda: not (self._is_under_way(candidate) and self._serves.is_set()))
        except TimeoutError:
            pass
        record: dict[str, Any] = {
            "candidate": number,
            "parent": candidate.parent,
            "prompts": candidate.prompts,
            "status": "running" if self._is_under_way(candidate) else "ended",
            "beats_best": candidate.beats_best,
        }
        if candidate.train is not None:
            record["train_reward"] = self._mean(candidate.train)
            record["train_lost"] = sum(trial.is_fault for trial in candidate.train)
            record["train"] = [await self._tell(*each) for each in enumerate(candidate.train)]
        return record

    async def finish(self, number: int | None = None) -> None:
        """End the game with a candidate, the best one by default. What was asked before is still answered.

        Raises:
            NotFound: When there is no such candidate.
            InvalidRequest: When the game has ended with another one.
        """
        async with self._changed:
            if number is not None:
                self._candidate(number)
            if self._game.is_finished and number != self._game.chosen:
                raise InvalidRequest("the game is over; it has ended with another choice")
            self._game.is_finished, self._game.chosen = True, number
            await self._save()
            self._changed.notify_all()

    # The run

    def check_access(self) -> None:
        """See `Algorithm.check_access`."""
        if not os.environ.get(KEY_VARIABLE):
            raise ConfigError(
                f"the referee has no key; set one that whoever submits has to know: export {KEY_VARIABLE}=$(openssl "
                "rand -hex 16)"
            )

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Serve, and try what is submitted, until the game is over.

        Raises:
            InvalidInput: When samples or prompts are missing, or a reward is beyond its range.
            ConfigError: When there is no key, or the port cannot be had.
        """
        self.check_access()
        self._samples = train, val = self._split(train_dataset, val_dataset)
        self._changed, self._hidden = asyncio.Condition(), {}
        store, about = self.get_store(), [[key_of(each) for each in part] for part in (train, val)]
        first = {name: prompt.template for name, prompt in self._prompts().items()}
        self._game = await self._saved_game(store, digest_of([about, first, self.max_challenges]))
        if not self._candidates:
            await self._add(first, None)
        async with serving(self, os.environ[KEY_VARIABLE]) as url:
            self._url = url
            self._serves.set()
            logger.info("lightning.referee_serves url=%s", url)
            try:
                await self._referee()
            finally:
                async with self._changed:
                    self._serves.clear()
                    self._changed.notify_all()
        self._report(chosen := self._chosen())
        if chosen.number and chosen.number not in self._game.won:
            logger.warning("lightning.referee_choice: %s", self.choice)

    async def _saved_game(self, store: LightningStore, of: str) -> Game:
        saved = await store.load_state(_STATE)
        if saved is None:
            return Game(key=secrets.token_hex(8), of=of)
        game = Game.model_validate(saved)
        if game.of != of:
            raise InvalidInput(
                "the game of this run is on other samples, first prompts or challenges; resume it with those, or start "
                "a new run"
            )
        return game

    async def _referee(self) -> None:
        """Do what is waiting, one after the other: so the answers before a challenge are all known."""
        while True:
            async with self._changed:
                await self._changed.wait_for(
                    lambda: self._game.is_finished or any(map(self._is_under_way, self._candidates))
                )
            untrained = next((each for each in self._candidates if each.train is None), None)
            challengers = [self._candidates[number] for number in self._game.challengers]
            challenger = next((each for each in challengers if each.beats_best is None), None)
            if untrained is not None:
                untrained.train = await self._run(untrained, self._samples[0], "train", mode="train")
            elif challenger is not None:
                challenger.beats_best = await self._compare(self._best(), challenger)
                if challenger.beats_best:
                    self._game.won.append(challenger.number)
                logger.info("lightning.referee_challenge number=%d won=%s", challenger.number, challenger.beats_best)
            else:
                return
            async with self._changed:
                await self._save()
                self._changed.notify_all()
            self._report(self._best(), step=len(self._candidates) - 1)

    def _is_under_way(self, candidate: Candidate) -> bool:
        return candidate.train is None or (candidate.number in self._game.challengers and candidate.beats_best is None)

    def _report(self, candidate: Candidate, step: int | None = None) -> None:
        metrics = {
            "candidates": float(len(self._candidates) - 1),
            "challenges": float(len(self._game.challengers)),
            "train_reward": self._mean(candidate.train or []),
            "is_proven": float(candidate.number in self._game.won),
        }
        self.report(metrics, step=step, best_resources=self._resources(candidate.prompts))

    async def _compare(self, best: Candidate, candidate: Candidate) -> bool:
        level = level_of(len(self._game.won), of=self.max_challenges)
        order = list(self._samples[1])
        random.Random(self._game.key).shuffle(order)
        step = math.ceil(len(order) / LOOKS)
        for end in range(step, len(order) + step, step):
            part = order[:end]
            first, second = [await self._measure(each, part, step) for each in (best, candidate)]
            # What makes a fault, as a prompt that is too long, may be the candidate itself.
            pairs = [(old, new or 0.0) for old, new in zip(first, second, strict=True) if old is not None]
            if None in first + second:
                lost = first.count(None), second.count(None)
                logger.warning("lightning.referee_faults best=%d candidate=%d samples=%d", *lost, len(part))
            outcome = verdict(
                [old for old, _ in pairs],
                [new for _, new in pairs],
                of=len(order) - len(part) + len(pairs),
                level=level,
                seed=self._game.key,
            )
            if outcome is not None:
                return outcome
        return False

    async def _measure(self, candidate: Candidate, part: Sequence[Any], step: int) -> list[float | None]:
        """Return the rewards on hidden samples, from 0 to 1; what is known of them is not run again."""
        known = self._hidden.setdefault(candidate.number, [])
        while len(known) < len(part):
            start = len(known)
            known += await self._run(candidate, part[start : start + step], f"val/{start}", mode="val")
        return [self._value(each) for each in known[: len(part)]]

    async def _run(self, candidate: Candidate, samples: Sequence[Any], part: str, *, mode: Any) -> list[Trial]:
        trials = await run_trials(
            self.get_store(),
            samples,
            resources_id=candidate.resources_id,
            config=self.get_rollout_config(),
            request_id=f"{self._game.key}/{candidate.number}/{part}",
            mode=mode,
        )
        for trial in trials:
            if trial.reward is not None and not self.low <= trial.reward <= self.high:
                raise InvalidInput(
                    f"a reward of candidate {candidate.number} is {trial.reward:g}, which is not from {self.low:g} to "
                    f"{self.high:g}; say what rewards there can be, with --range, or go on with this run: agl resume "
                    f"{self.get_store().run_id} --force --set algorithm.low=LOW --set algorithm.high=HIGH"
                )
        return trials

    # Candidates

    @property
    def _candidates(self) -> list[Candidate]:
        return self._game.candidates

    def _best(self) -> Candidate:
        return self._candidates[self._game.won[-1] if self._game.won else 0]

    def _chosen(self) -> Candidate:
        return self._best() if self._game.chosen is None else self._candidates[self._game.chosen]

    def _check_goes_on(self) -> None:
        if self._game.is_finished:
            raise InvalidRequest("the game is over; no more is taken")

    def _candidate(self, number: int) -> Candidate:
        if not 0 <= number < len(self._candidates):
            raise NotFound(f"there is no candidate {number}; there are 0 to {len(self._candidates) - 1}")
        return self._candidates[number]

    async def _add(self, prompts: dict[str, str], parent: Candidate | None) -> None:
        number = len(self._candidates)
        added = await self.get_store().add_resources(
            self._resources(prompts),
            parent_id=None if parent is None else parent.resources_id,
            request_id=f"{self._game.key}/resources/{number}",
        )
        self._candidates.append(
            Candidate(
                number=number,
                prompts=prompts,
                parent=None if parent is None else parent.number,
                resources_id=added.resources_id,
            )
        )
        await self._save()

    async def _save(self) -> None:
        await self.get_store().save_state(_STATE, self._game.model_dump(mode="json"))

    def _prompts(self) -> dict[str, PromptTemplate]:
        resources = self.get_initial_resources() or {}
        return {name: each for name, each in resources.items() if isinstance(each, PromptTemplate)}

    def _resources(self, prompts: Mapping[str, str]) -> NamedResources:
        changed = {name: each.model_copy(update={"template": prompts[name]}) for name, each in self._prompts().items()}
        return {**(self.get_initial_resources() or {}), **changed}

    def _placeholders(self, name: str) -> frozenset[str]:
        return self._prompts()[name].placeholders()

    def _check_prompt(self, name: str, text: str) -> None:
        known = self._prompts()
        if name not in known:
            raise InvalidRequest(f"there is no prompt {name!r}; there are {', '.join(map(repr, known))}")
        if len(text) > _MAX_CHARACTERS:
            raise InvalidRequest(f"prompt {name!r} has {len(text)} characters; it may have {_MAX_CHARACTERS}")
        try:
            placeholders = known[name].model_copy(update={"template": text}).placeholders()
        except ValueError as exc:
            raise InvalidRequest(f"prompt {name!r} cannot be used: {exc}") from exc
        new = set(_STATEMENT.findall(text)) - set(_STATEMENT.findall(known[name].template))
        if new and known[name].engine == "jinja":  # a loop could hold up the referee
            raise InvalidRequest(f"prompt {name!r} has {min(new)!r}; statements are those of the first prompt only")
        wanted = self._placeholders(name)
        if placeholders != wanted:
            raise InvalidRequest(
                f"prompt {name!r} has the placeholders {sorted(placeholders)}; it needs exactly {sorted(wanted)}"
            )

    def _split(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> tuple[list[Any], list[Any]]:
        if not self._prompts():
            raise InvalidInput("there is nothing to improve; give initial_resources a prompt template")
        train, val = ([] if each is None else samples_of(each) for each in (train_dataset, val_dataset))
        hidden = {key_of(sample) for sample in val}
        train = [sample for sample in train if key_of(sample) not in hidden]  # what these get is told
        val = list({key_of(sample): sample for sample in val}.values())  # equal ones are not independent
        for name, samples in (("train_dataset", train), ("val_dataset", val)):
            if not samples:
                raise InvalidInput(f"the referee needs a {name} with samples of its own; give one")
        return train, val

    # Values

    def _value(self, trial: Trial) -> float | None:
        """Return a reward, from 0 to 1; 0 where the agent failed, None where the trial says nothing of it."""
        if trial.is_fault:
            return None
        return 0.0 if trial.reward is None else (trial.reward - self.low) / (self.high - self.low)

    def _mean(self, trials: Sequence[Trial]) -> float:
        values = [value for each in trials if (value := self._value(each)) is not None]
        return self.low + (self.high - self.low) * fmean(values) if values else self.low

    async def _tell(self, index: int, trial: Trial) -> dict[str, Any]:
        """Return what may be known of a training sample. Without `texts` nothing in it was written by the agent."""
        record: dict[str, Any] = {"sample": index, **trial.model_dump(exclude={"failure"})}
        if trial.failure is not None:
            named = _ERROR_TYPE.match(trial.failure)
            record["failure"] = trial.failure if self.texts else named[1] if named else "no reward"
        if self.texts:
            spans = await self.get_store().query_spans(trial.rollout_id, "latest")
            record["input"] = self._samples[0][index]
            record["conversations"] = [each["messages"] for each in TraceToMessages().adapt(spans)]
        return record
