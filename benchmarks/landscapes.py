"""Which search finds the better prompt with the same number of agent runs, on measured prompts.

    python benchmarks/landscapes.py                        # all tables; docs/decisions/0011 has some
    python benchmarks/landscapes.py --every 2 --calls 200  # every second landscape, 200 calls only

A landscape is one task and one model: up to 255 templates with the accuracy that each was measured to have (`data/`).
It is played. A sample has a latent difficulty, a template a threshold, and the answer is right where difficulty and
noise together stay below the threshold (a one-factor Gaussian copula). So a template is expected to have its measured
accuracy, and `correlation` says how much templates share what they find hard. An edit of a template is one of the 20
that are nearest to it in text. A call is one run of the agent on one sample.

`apo` plays with the plugin's own search and all its decisions, where only rollouts, critic and editor are played. The
others are the package `gepa`, random search, and successive halving: of edits of the first template, of walks of
several edits, and of templates of the whole task, which no editor could draw. All of them hold as many validation
samples as `apo` does, and end with its test of the gain.

They begin with the template of median accuracy, and with the best one. Printed are the regret, which is the best
template's accuracy less that of the chosen one, and how often a gain is claimed; also where there is none to be found,
and edits keep their parents' answers.
"""

import argparse
import asyncio
import gzip
import inspect
import json
import logging
import math
import os
import random
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gepa
from gepa.core.adapter import EvaluationBatch
from lightning_apo import APO
from lightning_apo.candidate import Candidate, Texts, proves_gain
from lightning_apo.growth import Tools
from lightning_apo.models import Answer, PromptModel
from lightning_apo.plan import Options
from lightning_apo.saved import SavedSearch
from lightning_apo.search import BeamSearch
from lightning_apo.tools import Trials

from lightning_core import InMemoryLightningStore, PromptTemplate
from lightning_core.adapter import TraceToMessages
from lightning_core.algorithm import Batch, RolloutOutcome
from lightning_core.algorithm.estimates import Estimate, estimate
from lightning_core.types import Rollout

DATA = Path(__file__).resolve().parent / "data" / "templates.jsonl.gz"
BUDGETS = (200, 500, 1000)
CORRELATIONS = (0.0, 0.3, 0.6)
ROUND_NUMBERS = (3, 10, 30)
NEAR = 20
"""An edit draws from this many templates, those nearest to its parent in text."""
N_VAL, N_TRAIN = 100, 100
FIRST_SEED = 100
"""Sizes were chosen with the seeds from 0."""
KEEPS = 0.75
"""Where nothing is to be found, an edit gives its parent's answer on this share of samples."""

APO_SIZES: Mapping[int | None, Mapping[str, int]] = {
    200: {"branch_factor": 8, "beam_rounds": 2},
    500: {"branch_factor": 16},
    1000: {"branch_factor": 16},
}
GEPA_VALIDATES_ON: Mapping[int | None, int] = {200: 20, 500: 50, 1000: 50}
RANDOM_TRIES_ON: Mapping[int | None, int] = {200: 10, 500: 25, 1000: 25}
HALVING_BEGINS_WITH, WALKS, LONGEST_WALK = 64, 96, 4
"""These sizes were chosen in favour of the searches on every second task, the first, third, and so on, where the
constants of `apo` were chosen, too. The others were kept back."""


@dataclass(frozen=True)
class Landscape:
    """One task and one model."""

    task: str
    model: str
    accuracies: tuple[float, ...]
    """Of each template."""
    near: tuple[tuple[int, ...], ...]
    """For each template those nearest to it in text, the nearest first."""
    first: int
    """The template that a search begins with."""

    def from_the_best(self) -> "Landscape":
        """Return it with the best template as the first."""
        return replace(self, first=max(range(len(self.accuracies)), key=lambda template: self.accuracies[template]))


@cache
def tasks() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Return the data: task -> template -> model -> accuracy. Equal templates are one, with their mean."""
    measured: dict[str, dict[str, dict[str, list[float]]]] = {}
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            of_template = measured.setdefault(row["task"], {}).setdefault(row["template"], defaultdict(list))
            for model, accuracy in row["accuracies"].items():
                of_template[model].append(accuracy)
    return {
        task: {
            text: {model: statistics.fmean(each) for model, each in by_model.items()}
            for text, by_model in templates.items()
        }
        for task, templates in sorted(measured.items())
    }


def trigrams(text: str) -> frozenset[str]:
    """Return all runs of three characters, regardless of case and of how much white space there is."""
    flat = " ".join(text.lower().split())
    return frozenset(flat[start : start + 3] for start in range(len(flat) - 2))


def landscapes(of_tasks: Iterable[str] | None = None) -> list[Landscape]:
    """Return the landscapes of these tasks, or of all."""
    found = []
    for task in of_tasks or tasks():
        templates = tasks()[task]
        grams = [trigrams(text) for text in templates]
        near = []
        for number, own in enumerate(grams):
            likeness = [len(own & other) / (len(own) + len(other) - len(own & other)) for other in grams]
            ranked = sorted(range(len(grams)), key=lambda each, likeness=likeness: -likeness[each])  # type: ignore[misc]
            near.append(tuple(each for each in ranked if each != number)[:NEAR])
        for model in next(iter(templates.values())):
            accuracies = tuple(by_model[model] for by_model in templates.values())
            median = sorted(range(len(accuracies)), key=lambda template: accuracies[template])[len(accuracies) // 2]
            found.append(Landscape(task, model, accuracies, tuple(near), first=median))
    return found


class Answers:
    """Whether the agent is right, with each template on each sample.

    Args:
        landscape: What is played.
        correlation: How much templates share what they find hard, from 0 to 1: that of their latent normal variables.
        seed: The same one gives the same answers.
    """

    def __init__(self, landscape: Landscape, *, correlation: float, seed: str) -> None:
        self.landscape = landscape
        self.seed = seed
        self._correlation = correlation
        samples = random.Random(f"samples/{seed}")
        self._difficulty = [samples.gauss() for _ in range(N_VAL + N_TRAIN)]
        self._rewards: dict[int, list[float]] = {}

    def accuracy(self, template: int) -> float:
        """Return the accuracy over all samples that there could be."""
        return self.landscape.accuracies[template]

    def edit(self, template: int, chance: random.Random) -> int:
        """Draw an edit."""
        return chance.choice(self.landscape.near[template])

    def rewards(self, template: int) -> list[float]:
        """Return the reward on each sample, validation samples first."""
        if template not in self._rewards:
            self._rewards[template] = self._draw(template)
        return self._rewards[template]

    def _draw(self, template: int) -> list[float]:
        accuracy = self.accuracy(template)
        threshold = statistics.NormalDist().inv_cdf(accuracy) if 0 < accuracy < 1 else math.inf * (accuracy - 0.5)
        shared, own = math.sqrt(self._correlation), math.sqrt(1 - self._correlation)
        noise = random.Random(f"template/{template}/{self.seed}")
        return [float(shared * difficulty + own * noise.gauss() < threshold) for difficulty in self._difficulty]


class NothingToFind(Answers):
    """Each edit is as good as the first template, and keeps its parent's answer on most samples (`KEEPS`)."""

    def __init__(self, landscape: Landscape, *, correlation: float, seed: str) -> None:
        super().__init__(landscape, correlation=correlation, seed=seed)
        self._parents: dict[int, int] = {}

    def accuracy(self, template: int) -> float:
        """Return that of the first template."""
        return self.landscape.accuracies[self.landscape.first]

    def edit(self, template: int, chance: random.Random) -> int:
        """Make a new template."""
        number = len(self.landscape.accuracies) + len(self._parents)
        self._parents[number] = template
        return number

    def _draw(self, template: int) -> list[float]:
        drawn = super()._draw(template)
        if template not in self._parents:
            return drawn
        kept = random.Random(f"kept/{template}/{self.seed}")
        parents = self.rewards(self._parents[template])
        return [old if kept.random() < KEEPS else new for old, new in zip(parents, drawn, strict=True)]


class Game:
    """One run of one search.

    Args:
        answers: What is played.
        calls: How many calls there may be, None for as many as `apo` takes with `beam_rounds`.
        beam_rounds: How many rounds `apo` has; None for what is chosen for the calls.
    """

    def __init__(self, answers: Answers, *, calls: int | None, beam_rounds: int | None = None) -> None:
        self.landscape = answers.landscape
        self.limit = calls
        self.beam_rounds = beam_rounds
        self.used = 0
        self.edits = 0
        self.chance = random.Random(f"search/{answers.seed}/{calls}")
        self._answers = answers

    @property
    def held(self) -> int:
        """How many validation samples are held for the test at the end, as `apo` does it."""
        return N_VAL // 3 if self.limit is None else min(N_VAL // 3, self.limit // 10)

    @property
    def calls(self) -> int:
        """How many calls there are before that."""
        assert self.limit is not None, "only apo plays without a limit"
        return self.limit - 2 * self.held

    @property
    def n_val(self) -> int:
        """How many validation samples there are before that."""
        return N_VAL - self.held

    def call(self, template: int, samples: Sequence[int]) -> list[float]:
        """Run the agent once on each sample."""
        self.used += len(samples)
        rewards = self._answers.rewards(template)
        return [rewards[sample] for sample in samples]

    def accuracy(self, template: int) -> float:
        """Return the accuracy over all samples that there could be."""
        return self._answers.accuracy(template)

    def edit(self, template: int, chance: random.Random | None = None) -> int:
        """Draw an edit."""
        self.edits += 1
        return self._answers.edit(template, chance or self.chance)

    def end(self, best: int, first_rewards: Sequence[float], best_rewards: Sequence[float]) -> "Choice":
        """End any search but `apo` as `apo` ends.

        Args:
            best: The template that the search chose.
            first_rewards: Those of the first template on validation samples before the end.
            best_rewards: Those of `best` on the same samples.
        """
        first = self.landscape.first
        if best == first:
            return Choice(first, False)
        held = range(N_VAL - self.held, N_VAL)
        before, after = self.call(first, held), self.call(best, held)
        is_better = math.fsum(after) + math.fsum(best_rewards) > math.fsum(before) + math.fsum(first_rewards)
        return Choice(best, proves_gain(before, after)) if is_better else Choice(first, False)


class Choice(NamedTuple):
    """How a search ended."""

    template: int
    claims: bool
    """Whether it claims that this template is better than the first."""


Search = Callable[[Game], Choice]


class PlayedTrials(Trials):
    """Rollouts out of a game."""

    def __init__(self, game: Game, prompt: PromptTemplate) -> None:
        super().__init__(InMemoryLightningStore(), {"prompt": prompt}, search_key="", timeout_seconds=None)
        self._game = game

    async def enter(self, texts: Texts, parent: Candidate | None = None) -> Candidate:
        """Return a candidate."""
        return Candidate(texts=texts, resources_id=texts["prompt"])

    async def run(self, candidate: Candidate, dataset: Any, samples: Sequence[int], *, mode: Any, step: str) -> Batch:
        """Play the samples."""
        self.asked += len(samples)
        rewards = self._game.call(int(candidate.texts["prompt"]), [dataset[sample] for sample in samples])
        rollout = Rollout(rollout_id="played", input="", status="succeeded", start_time=0.0)
        return Batch([RolloutOutcome(rollout, [], reward) for reward in rewards])


class Unsaved(SavedSearch):
    """Keeps nothing: a game is not continued."""

    async def once(self, name: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask."""
        return await ask()


class PlayedCritic(PromptModel):
    """Says nothing."""

    def __init__(self) -> None:
        pass

    async def write(self, *, seed: int, **about: Any) -> Answer:
        """Return a critique that an edit does not depend on."""
        return Answer("-")


class PlayedEditor(PromptModel):
    """Draws a template near the one that it edits."""

    def __init__(self, game: Game) -> None:
        self._game = game

    async def write(self, *, seed: int, **about: Any) -> Answer:
        """Return the template's number."""
        return Answer(
            str(self._game.edit(int(about["prompt"].template), random.Random(f"{seed}/{self._game.chance.random()}")))
        )


def apo(game: Game) -> Choice:
    """Play `BeamSearch` of lightning-apo."""
    return asyncio.run(_apo(game, APO_SIZES.get(game.limit, {})))


def apo_as_it_comes(game: Game) -> Choice:
    """Play it with its defaults."""
    return asyncio.run(_apo(game, {}))


@cache
def apo_defaults() -> dict[str, Any]:
    """Return the defaults of the search of `APO`."""
    parameters = inspect.signature(APO).parameters
    return {name: parameters[name].default for name in Options.model_fields}


async def _apo(game: Game, sizes: Mapping[str, int]) -> Choice:
    prompt = PromptTemplate(template=str(game.landscape.first))
    own = apo_defaults() | {"max_rollouts": game.limit, "seed": game.chance.randrange(2**31)}
    own |= sizes if game.beam_rounds is None else {"beam_rounds": game.beam_rounds}
    trials = PlayedTrials(game, prompt)
    tools = Tools(
        options=Options(**own),
        prompts={"prompt": prompt},
        trials=trials,
        critic=PlayedCritic(),
        editor=PlayedEditor(game),
        adapter=TraceToMessages(),
        saved=Unsaved(InMemoryLightningStore(), {}, key="", counts_calls=False),
        train=range(N_VAL, N_VAL + N_TRAIN),
        val=range(N_VAL),
    )
    search = BeamSearch(tools)
    await search.begin()
    while search.goes_on:
        await search.advance()
    await search.conclude()
    assert game.limit is None or game.used <= game.limit
    return Choice(int(search.best.texts["prompt"]), search.result.is_proven)


class GepaAdapter:
    """Lets the package gepa play. Its own proposer takes the place of a model."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def evaluate(self, batch: list[int], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """Play the samples."""
        scores = self._game.call(int(candidate["prompt"]), batch)
        nothing: list[None] = [None] * len(batch)
        return EvaluationBatch(outputs=nothing, scores=scores, trajectories=nothing if capture_traces else None)

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components_to_update: list[str]) -> Any:
        """Return records that an edit does not depend on."""
        return {name: [{}] for name in components_to_update}

    def propose_new_texts(self, candidate: dict[str, str], *args: Any, **kwargs: Any) -> dict[str, str]:
        """Return an edit."""
        return {"prompt": str(self._game.edit(int(candidate["prompt"])))}


def play_gepa(game: Game) -> Choice:
    """Play gepa with its defaults. Its budget is soft: it finishes the step that goes beyond it."""
    found = gepa.optimize(
        seed_candidate={"prompt": str(game.landscape.first)},
        trainset=list(range(N_VAL, N_VAL + N_TRAIN)),
        valset=list(range(GEPA_VALIDATES_ON[game.limit])),
        adapter=GepaAdapter(game),
        max_metric_calls=game.calls,
        logger=SimpleNamespace(log=lambda message: None),
        seed=game.chance.randrange(2**31),
    )
    first, best = found.val_subscores[0], found.val_subscores[found.best_idx]
    return game.end(int(found.candidates[found.best_idx]["prompt"]), list(first.values()), list(best.values()))


def random_search(game: Game) -> Choice:
    """Try edits of the first template on the same samples."""
    first = game.landscape.first
    edits = game.calls // RANDOM_TRIES_ON[game.limit]
    arms = list(dict.fromkeys([first, *(game.edit(first) for _ in range(edits))]))
    each = range(min(game.n_val, game.calls // len(arms)))
    rewards = {arm: game.call(arm, each) for arm in arms}
    best = max(arms, key=lambda arm: math.fsum(rewards[arm]))
    return game.end(best, rewards[first], rewards[best])


def halve(game: Game, drawn: Iterable[int]) -> Choice:
    """Play sequential halving (Karnin, Koren and Somekh 2013, algorithm 3), which keeps what it has seen."""
    first = game.landscape.first
    arms = list(dict.fromkeys([first, *drawn]))
    rewards: dict[int, list[float]] = {arm: [] for arm in arms}
    steps = max(1, math.ceil(math.log2(len(arms))))
    for step in range(steps):
        each = max(1, (game.calls - game.used) // (steps - step) // len(arms))
        for arm in arms:
            done = len(rewards[arm])
            rewards[arm] += game.call(arm, range(done, min(done + each, game.n_val, done + game.calls - game.used)))
        arms = sorted(arms, key=lambda arm: -statistics.fmean(rewards[arm] or [0.0]))[: math.ceil(len(arms) / 2)]
    both = min(len(rewards[first]), len(rewards[arms[0]]))
    return game.end(arms[0], rewards[first][:both], rewards[arms[0]][:both])


def halving(game: Game) -> Choice:
    """Halve edits of the first template."""
    return halve(game, [game.edit(game.landscape.first) for _ in range(HALVING_BEGINS_WITH)])


def halving_of_walks(game: Game) -> Choice:
    """Halve templates that are up to so many edits in a row away from the first, chosen without looking."""
    ends = []
    for _ in range(WALKS):
        template = game.landscape.first
        for _ in range(game.chance.randint(1, LONGEST_WALK)):
            template = game.edit(template)
        ends.append(template)
    return halve(game, ends)


def halving_from_pool(game: Game) -> Choice:
    """Halve templates of the whole task, as if they had been written beforehand."""
    pool = range(len(game.landscape.accuracies))
    return halve(game, [game.chance.choice(pool) for _ in range(HALVING_BEGINS_WITH)])


SEARCHES: Mapping[str, Search] = {
    "apo": apo,
    "apo, its defaults": apo_as_it_comes,
    "gepa": play_gepa,
    "random": random_search,
    "halving": halving,
    "halving of walks": halving_of_walks,
    "halving from the pool": halving_from_pool,
}


class Entry(NamedTuple):
    """What one search did on one landscape: means over its runs."""

    task: str
    regret: float
    loses: float
    """The share of runs whose regret is over 0.05."""
    claims: float
    """The share of runs that claim a gain."""
    used: float
    edits: float


class Part(NamedTuple):
    """What one process does: everything on the landscapes of one task."""

    task: str
    calls: Sequence[int]
    searches: Sequence[str]
    every: int = 1
    seeds: int = 1


Key = tuple[str, int | None, str]
"""What is played; how many calls there are, or rounds without a limit of calls; and the search."""
Played = dict[Key, list[Entry]]
MEDIAN, BEST, NOTHING, ROUNDS = "from the median", "from the best", "nothing to find", "nothing to find, by rounds"


def play(search: str, games: Sequence[Game]) -> Entry:
    """Play games on one landscape."""
    landscape, choices = games[0].landscape, [SEARCHES[search](game) for game in games]
    regrets = [
        max(landscape.accuracies) - game.accuracy(choice.template) for game, choice in zip(games, choices, strict=True)
    ]
    return Entry(
        landscape.task,
        statistics.fmean(regrets),
        statistics.fmean(regret > 0.05 for regret in regrets),
        statistics.fmean(choice.claims for choice in choices),
        statistics.fmean(game.used for game in games),
        statistics.fmean(game.edits for game in games),
    )


def play_part(part: Part) -> Played:
    """Play each landscape from its median and its best template, and where nothing is to be found."""
    found: Played = defaultdict(list)
    for number, landscape in enumerate(landscapes([part.task])[:: part.every]):
        place = f"{landscape.task}/{landscape.model}"
        starts = ((MEDIAN, landscape, CORRELATIONS), (BEST, landscape.from_the_best(), CORRELATIONS[1:2]))
        for start, of, correlations in starts:
            answers = [
                Answers(of, correlation=each, seed=f"{place}/{each}/{seed}")
                for each in correlations
                for seed in range(FIRST_SEED, FIRST_SEED + part.seeds)
            ]
            for calls in part.calls:
                for search in part.searches:
                    found[start, calls, search].append(play(search, [Game(each, calls=calls) for each in answers]))
        if 0.05 <= landscape.accuracies[landscape.first] <= 0.95:
            # Each run has answers of its own, so that they are independent.
            for calls in part.calls:
                for seed in range(FIRST_SEED, FIRST_SEED + part.seeds):
                    null = NothingToFind(landscape, correlation=0.3, seed=f"{place}/{calls} calls/{seed}")
                    for search in part.searches:
                        if search != "halving from the pool":
                            found[NOTHING, calls, search].append(play(search, [Game(null, calls=calls)]))
            for rounds in ROUND_NUMBERS if number % 3 == 0 else ():
                null = NothingToFind(landscape, correlation=0.3, seed=f"{place}/{rounds} rounds")
                found[ROUNDS, rounds, "apo"].append(play("apo", [Game(null, calls=None, beam_rounds=rounds)]))
    return dict(found)


def play_all(parts: Sequence[Part], *, processes: int) -> Played:
    """Play all parts, some at once."""
    found: Played = defaultdict(list)
    with ProcessPoolExecutor(processes) as pool:
        for key, entries in (item for part in pool.map(play_part, parts) for item in part.items()):
            found[key] += entries
    return found


def by_task(entries: Sequence[Entry], field: str) -> dict[str, float]:
    """Return the mean of each task: the landscapes of one have the same templates, so they are not independent."""
    of_task = defaultdict(list)
    for entry in entries:
        of_task[entry.task].append(getattr(entry, field))
    return {task: statistics.fmean(each) for task, each in of_task.items()}


def interval(of: Estimate | None, *, percent: bool = False) -> str:
    """Return a mean with its 95% interval; nothing where there is none."""
    if of is None:
        return ""
    form = ".1%" if percent else ".3f"
    return f"{of.mean:{form}}" + ("" if of.low is None else f" ({of.low:{form}}..{of.high:{form}})")


def report(found: Played) -> None:
    """Print the tables."""
    played = {key for key in found if key[0] == MEDIAN}
    budgets = sorted({calls for _, calls, _ in played if calls})
    searches = [search for search in SEARCHES if any(search == key[2] for key in played)]
    groups = (list(tasks()), list(tasks())[0::2], list(tasks())[1::2])
    for start in (MEDIAN, BEST):
        print(f"\n{start.capitalize()} template; regret less that of apo, with 95% intervals over tasks\n")
        print(
            "| calls | search | regret | less that of apo | where sizes were chosen | kept back | above 0.05 "
            "| gain claimed | calls used | edits |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for calls in budgets:
            own = by_task(found[start, calls, "apo"], "regret")
            for search in searches:
                entries = found[start, calls, search]
                regret = by_task(entries, "regret")
                loses, claimed, used, edits = (
                    statistics.fmean(by_task(entries, of).values()) for of in Entry._fields[2:]
                )
                differences = (
                    estimate([regret[task] - own[task] for task in group if task in own], scale=(-1.0, 1.0))
                    for group in groups
                )
                cells = [
                    f"{calls:,}",
                    search,
                    f"{statistics.fmean(regret.values()):.3f}",
                    *("" if search == "apo" else interval(each) for each in differences),
                    *(f"{share:.0%}" for share in (loses, claimed)),
                    *(f"{number:,.0f}" for number in (used, edits)),
                ]
                print(f"| {' | '.join(cells)} |")
    print("\nNothing to find\n\n| search | runs | that claim a gain (95%) |\n|---|---|---|")
    for search in searches:
        claims = [entry.claims for calls in budgets for entry in found.get((NOTHING, calls, search), ())]
        if claims:
            print(f"| {search} | {len(claims):,} | {interval(estimate(claims), percent=True)} |")
    for rounds in ROUND_NUMBERS:
        claims = [entry.claims for entry in found[ROUNDS, rounds, "apo"]]
        print(f"| apo, {rounds} rounds | {len(claims):,} | {interval(estimate(claims), percent=True)} |")


def main() -> None:
    """Play, and print the tables."""
    parser = argparse.ArgumentParser(description="Measures which search finds the better prompt with as many calls.")
    parser.add_argument("--every", type=int, default=1, help="2 for every second landscape of a task, and so on")
    parser.add_argument("--seeds", type=int, default=1, help="how often each is played, every time with other answers")
    parser.add_argument("--calls", type=int, nargs="+", choices=BUDGETS, default=BUDGETS, help="how many there may be")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many tasks are played at once")
    options = parser.parse_args()
    parts = [Part(task, options.calls, list(SEARCHES), every=options.every, seeds=options.seeds) for task in tasks()]
    logging.disable()  # apo warns where a search ends early
    report(play_all(parts, processes=options.processes))


if __name__ == "__main__":
    main()
