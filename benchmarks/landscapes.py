"""Which search finds the better prompt with the same number of agent runs, on measured prompts.

    python benchmarks/landscapes.py           # the table of docs/landscapes.md
    python benchmarks/landscapes.py --quick   # a small share of it, in about a minute

A landscape is one task and one model: up to 255 templates with the accuracy that each was measured to have (`data/`).
It is played. A sample has a latent difficulty, a template a threshold, and the answer is right where difficulty and
noise together stay below the threshold (a one-factor Gaussian copula). So each template has exactly its measured
accuracy over all samples, and `correlation` says how much templates share what they find hard. An edit of a template
is one of the 20 that are nearest to it in text. A call is one run of the agent on one sample.

Four searches play: `apo` with the plugin's own search and all its decisions, where only rollouts, critic and editor
are played; the package `gepa`; random search; and successive halving. The last two edit the first prompt only. With
`from the pool` they draw from all templates instead, which no editor could do. The first prompt is the template with
the median accuracy. Printed are the regret, which is the best template's accuracy less that of the chosen one, and on
landscapes where all templates are equally good, the share of runs that claim a gain.
"""

import argparse
import asyncio
import gzip
import json
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
from typing import Any, NamedTuple

import gepa
from gepa.core.adapter import EvaluationBatch
from lightning_apo.candidate import Candidate, Texts
from lightning_apo.messages import ShownPrompt
from lightning_apo.models import Answer, Critic, Editor
from lightning_apo.plan import Options
from lightning_apo.saved import SavedSearch
from lightning_apo.search import BeamSearch
from lightning_apo.tools import Tools, Trials

from lightning_core import InMemoryLightningStore, PromptTemplate
from lightning_core.adapter import TraceToMessages
from lightning_core.algorithm import Batch, RolloutOutcome
from lightning_core.algorithm.estimates import estimate, paired_difference
from lightning_core.types import Rollout

DATA = Path(__file__).resolve().parent / "data" / "templates.jsonl.gz"
BUDGETS = (200, 500, 1000)
CORRELATIONS = (0.0, 0.3, 0.6)
NEAR = 20
"""An edit draws from this many templates, those nearest to its parent in text."""
N_VAL, N_TRAIN = 100, 100
SEEDS = 2
"""Runs for each landscape, budget and correlation; a landscape counts with their mean."""

APO_OPTIONS = {200: (4, 4, 3), 500: (4, 6, 4), 1000: (4, 6, 4)}
"""Beam width, branch factor and rounds."""
GEPA_VALIDATES_ON = {200: 20, 500: 20, 1000: 50}
RANDOM_TRIES_ON = {200: 10, 500: 25, 1000: 25}
HALVING_BEGINS_WITH = 64
"""Those of random search and halving were chosen in their favour, on every second task, the first, third, and so on.
There the constants of the search of lightning-apo were chosen, too. The other tasks were kept back, and played when all
was chosen."""


@dataclass(frozen=True)
class Landscape:
    """One task and one model."""

    task: str
    model: str
    accuracies: tuple[float, ...]
    """Of each template."""
    near: tuple[tuple[int, ...], ...]
    """For each template those nearest to it in text, the nearest first."""

    @property
    def first(self) -> int:
        """The template with the median accuracy."""
        ranked = sorted(range(len(self.accuracies)), key=lambda template: self.accuracies[template])
        return ranked[len(ranked) // 2]

    def without_differences(self) -> "Landscape":
        """Return it with the median accuracy for every template."""
        return replace(self, accuracies=(self.accuracies[self.first],) * len(self.accuracies))


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
            found.append(Landscape(task, model, accuracies, tuple(near)))
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

    def rewards(self, template: int) -> list[float]:
        """Return the reward on each sample, validation samples first."""
        if template not in self._rewards:
            accuracy = self.landscape.accuracies[template]
            threshold = statistics.NormalDist().inv_cdf(accuracy) if 0 < accuracy < 1 else math.inf * (accuracy - 0.5)
            shared, own = math.sqrt(self._correlation), math.sqrt(1 - self._correlation)
            noise = random.Random(f"template/{template}/{self.seed}")
            self._rewards[template] = [
                float(shared * difficulty + own * noise.gauss() < threshold) for difficulty in self._difficulty
            ]
        return self._rewards[template]


class Game:
    """One run of one search.

    Args:
        answers: What is played.
        calls: How many calls there may be.
    """

    def __init__(self, answers: Answers, *, calls: int) -> None:
        self.landscape = answers.landscape
        self.calls = calls
        self.used = 0
        self.chance = random.Random(f"search/{answers.seed}")
        self._answers = answers

    def call(self, template: int, samples: Sequence[int]) -> list[float]:
        """Run the agent once on each sample."""
        self.used += len(samples)
        rewards = self._answers.rewards(template)
        return [rewards[sample] for sample in samples]

    def edit(self, template: int, chance: random.Random) -> int:
        """Draw an edit."""
        return chance.choice(self.landscape.near[template])


class Choice(NamedTuple):
    """How a search ended."""

    template: int
    claims: bool
    """Whether it claims that this template is better than the first."""
    edits: int
    """How many edits it asked for."""


Search = Callable[[Game], Choice]


def naive_claim(first: Sequence[float], best: Sequence[float]) -> bool:
    """Whether the 95% interval of the paired gain lies above zero, which is what one looks at without a correction."""
    difference = paired_difference(first, best)
    return difference is not None and difference.is_gain


class PlayedTrials(Trials):
    """Rollouts out of a game."""

    def __init__(self, game: Game, prompt: PromptTemplate) -> None:
        super().__init__(InMemoryLightningStore(), {"prompt": prompt}, search_key="", timeout_seconds=None)
        self._game = game

    async def enter(self, texts: Texts, parent: Candidate | None = None) -> Candidate:
        """Return a candidate."""
        return Candidate(texts=texts, resources={}, resources_id=texts["prompt"])

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


class PlayedCritic(Critic):
    """Says nothing."""

    def __init__(self) -> None:
        pass

    async def criticise(self, *args: Any, **kwargs: Any) -> Answer:
        """Return a critique that an edit does not depend on."""
        return Answer("-")


class PlayedEditor(Editor):
    """Draws a template near the one that it edits."""

    def __init__(self, game: Game) -> None:
        self._game = game

    async def rewrite(self, prompt: ShownPrompt, critique: str, *, other_prompts: Any = (), seed: int) -> Answer:
        """Return the template's number."""
        return Answer(str(self._game.edit(int(prompt.template), random.Random(f"{seed}/{self._game.chance.random()}"))))


def apo(game: Game) -> Choice:
    """Play `BeamSearch` of lightning-apo."""
    return asyncio.run(_apo(game))


async def _apo(game: Game) -> Choice:
    prompt = PromptTemplate(template=str(game.landscape.first))
    beam_width, branch_factor, beam_rounds = APO_OPTIONS[game.calls]
    options = Options(
        gradient_model="critic",
        apply_edit_model="editor",
        diversity_temperature=1.0,
        gradient_batch_size=4,
        val_batch_size=16,
        rollout_batch_timeout=1.0,
        run_initial_validation=False,
        max_rollouts=game.calls,
        seed=game.chance.randrange(2**31),
        beam_width=beam_width,
        branch_factor=branch_factor,
        beam_rounds=beam_rounds,
    )
    trials = PlayedTrials(game, prompt)
    tools = Tools(
        options=options,
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
    assert game.used <= game.calls
    result = search.result
    return Choice(int(search.best.texts["prompt"]), result.is_proven, tools.counts["editor_calls"])


class GepaAdapter:
    """Lets the package gepa play. Its own proposer takes the place of a model."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self.edits = 0

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
        self.edits += 1
        return {"prompt": str(self._game.edit(int(candidate["prompt"]), self._game.chance))}


class Silent:
    """A logger that says nothing."""

    def log(self, message: str) -> None:
        """Say nothing."""


def play_gepa(game: Game) -> Choice:
    """Play gepa with its defaults. Its budget is soft: it finishes the step that goes beyond it."""
    adapter = GepaAdapter(game)
    found = gepa.optimize(
        seed_candidate={"prompt": str(game.landscape.first)},
        trainset=list(range(N_VAL, N_VAL + N_TRAIN)),
        valset=list(range(GEPA_VALIDATES_ON[game.calls])),
        adapter=adapter,
        max_metric_calls=game.calls,
        logger=Silent(),
        seed=game.chance.randrange(2**31),
    )
    first, best = found.val_subscores[0], found.val_subscores[found.best_idx]
    both = sorted(first.keys() & best.keys())
    claims = naive_claim([first[sample] for sample in both], [best[sample] for sample in both])
    return Choice(int(found.candidates[found.best_idx]["prompt"]), claims, adapter.edits)


def drawn(game: Game, number: int, *, from_pool: bool) -> list[int]:
    """Return the first template and so many edits of it, or templates of the whole pool; equal ones are one."""
    first = game.landscape.first
    near = game.landscape.near[first]
    drawn_from = range(len(game.landscape.accuracies)) if from_pool else near
    return list(dict.fromkeys([first, *(game.chance.choice(drawn_from) for _ in range(number))]))


def chosen(game: Game, rewards: Mapping[int, Sequence[float]], edits: int) -> Choice:
    """Choose the best mean of those that were tried most."""
    most = max(map(len, rewards.values()))
    best = max(
        (each for each in rewards if len(rewards[each]) == most), key=lambda each: statistics.fmean(rewards[each])
    )
    first = rewards[game.landscape.first]
    return Choice(best, naive_claim(first, rewards[best][: len(first)]), edits)


def random_search(game: Game, *, from_pool: bool = False) -> Choice:
    """Try all draws on the same samples."""
    edits = game.calls // RANDOM_TRIES_ON[game.calls]
    arms = drawn(game, edits, from_pool=from_pool)
    each = min(N_VAL, game.calls // len(arms))
    return chosen(game, {arm: game.call(arm, range(each)) for arm in arms}, edits)


def halving(game: Game, *, from_pool: bool = False) -> Choice:
    """Play sequential halving (Karnin, Koren and Somekh 2013, algorithm 3), which keeps what it has seen."""
    arms = drawn(game, HALVING_BEGINS_WITH, from_pool=from_pool)
    rewards: dict[int, list[float]] = {arm: [] for arm in arms}
    steps = max(1, math.ceil(math.log2(len(arms))))
    for step in range(steps):
        each = max(1, (game.calls - game.used) // (steps - step) // len(arms))
        for arm in arms:
            done = len(rewards[arm])
            rewards[arm] += game.call(arm, range(done, min(done + each, N_VAL, done + game.calls - game.used)))
        arms = sorted(arms, key=lambda arm: -statistics.fmean(rewards[arm] or [0.0]))[: math.ceil(len(arms) / 2)]
    best, first = arms[0], rewards[game.landscape.first]
    return Choice(best, naive_claim(first, rewards[best][: len(first)]), HALVING_BEGINS_WITH)


def random_from_pool(game: Game) -> Choice:
    """Random search that draws from all templates."""
    return random_search(game, from_pool=True)


def halving_from_pool(game: Game) -> Choice:
    """Halving that draws from all templates."""
    return halving(game, from_pool=True)


SEARCHES: Mapping[str, Search] = {
    "apo": apo,
    "gepa": play_gepa,
    "random": random_search,
    "halving": halving,
    "random from the pool": random_from_pool,
    "halving from the pool": halving_from_pool,
}


class Entry(NamedTuple):
    """What one search did on one landscape, over some seeds."""

    task: str
    regret: float
    claims: float
    """The share of runs that claim a gain."""
    edits: float


def entry_of(landscape: Landscape, choices: Sequence[Choice]) -> Entry:
    """Return the means."""
    best = max(landscape.accuracies)
    return Entry(
        landscape.task,
        statistics.fmean(best - landscape.accuracies[choice.template] for choice in choices),
        statistics.fmean(choice.claims for choice in choices),
        statistics.fmean(choice.edits for choice in choices),
    )


class Part(NamedTuple):
    """What one process does: everything on the landscapes of one task."""

    task: str
    settings: Sequence[tuple[int, float]]
    searches: Sequence[str]
    seeds: int
    every: int


Played = dict[tuple[str, int, float, str], list[Entry]]
"""`real` or `null`, calls, correlation and search -> an entry for each landscape."""


def play_part(part: Part) -> Played:
    """Play each landscape as it is, and without differences."""
    found: Played = defaultdict(list)
    for landscape in landscapes([part.task])[:: part.every]:
        for kind, played in (("real", landscape), ("null", landscape.without_differences())):
            for correlation in sorted({correlation for _, correlation in part.settings}):
                place = f"{landscape.task}/{landscape.model}/{correlation}"
                seeds = range(part.seeds if kind == "real" else 1)
                answers = [Answers(played, correlation=correlation, seed=f"{place}/{seed}") for seed in seeds]
                for calls in (calls for calls, of in part.settings if of == correlation):
                    for search in part.searches:
                        choices = [SEARCHES[search](Game(each, calls=calls)) for each in answers]
                        found[kind, calls, correlation, search].append(entry_of(played, choices))
    return dict(found)


def play_all(parts: Sequence[Part], *, processes: int) -> Played:
    """Play all parts, some at once."""
    found: Played = defaultdict(list)
    with ProcessPoolExecutor(processes) as pool:
        for part in pool.map(play_part, parts):
            for key, entries in part.items():
                found[key] += entries
    return found


def interval(mean: float, low: float | None, high: float | None) -> str:
    """Return a figure with its 95% interval."""
    return f"{mean:.3f}" if low is None or high is None else f"{mean:.3f} ({low:.3f}..{high:.3f})"


def report(found: Played, settings: Sequence[tuple[int, float]], searches: Sequence[str]) -> None:
    """Print the tables."""
    print("| calls | correlation | search | regret (95%) | regret less that of apo (95%) | edits |")
    print("|---|---|---|---|---|---|")
    for calls, correlation in settings:
        own = [entry.regret for entry in found["real", calls, correlation, "apo"]]
        for search in searches:
            entries = found["real", calls, correlation, search]
            regrets = [entry.regret for entry in entries]
            mean, difference = estimate(regrets), paired_difference(own, regrets)
            assert mean is not None
            assert difference is not None
            behind = interval(difference.difference, difference.low, difference.high) if search != "apo" else ""
            edits = statistics.fmean(entry.edits for entry in entries)
            print(
                f"| {calls:,} | {correlation} | {search} | {interval(mean.mean, mean.low, mean.high)} | {behind} "
                f"| {edits:.0f} |"
            )
    kept_back = list(tasks())[1::2]
    print()
    print("| calls | search | regret less that of apo (95%), tasks that were kept back, mean of the correlations |")
    print("|---|---|---|")
    for calls in dict.fromkeys(calls for calls, _ in settings):
        correlations = [correlation for of, correlation in settings if of == calls]
        for search in searches[1:]:
            own, other = (
                [
                    statistics.fmean(entry.regret for entry in entries)
                    for entries in zip(*(found["real", calls, each, name] for each in correlations), strict=True)
                    if entries[0].task in kept_back
                ]
                for name in ("apo", search)
            )
            if difference := paired_difference(own, other):
                print(f"| {calls:,} | {search} | {interval(difference.difference, difference.low, difference.high)} |")
    print()
    print("| search | runs that claim a gain where there is none |")
    print("|---|---|")
    for search in searches:
        entries = [entry for each in settings for entry in found["null", *each, search]]
        share = estimate([entry.claims for entry in entries])
        assert share is not None
        assert share.low is not None
        assert share.high is not None
        print(f"| {search} | {share.mean:.1%} ({share.low:.1%}..{share.high:.1%}, n={share.n:,}) |")


def main() -> None:
    """Play, and print the tables."""
    parser = argparse.ArgumentParser(description="Measures which search finds the better prompt with as many calls.")
    parser.add_argument("--quick", action="store_true", help="one seed on every eighth landscape")
    parser.add_argument("--tasks", nargs="*", help="on these tasks alone")
    parser.add_argument("--searches", nargs="*", choices=SEARCHES, default=list(SEARCHES), help="these alone")
    parser.add_argument("--calls", nargs="*", type=int, choices=BUDGETS, default=BUDGETS, help="these budgets alone")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs for each landscape, budget and correlation")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many tasks are played at once")
    options = parser.parse_args()
    settings = [(calls, correlation) for calls in options.calls for correlation in CORRELATIONS]
    searches = list(dict.fromkeys(["apo", *options.searches]))
    seeds, every = (1, 8) if options.quick else (options.seeds, 1)
    parts = [Part(task, settings, searches, seeds, every) for task in options.tasks or tasks()]
    report(play_all(parts, processes=options.processes), settings, searches)


if __name__ == "__main__":
    main()
