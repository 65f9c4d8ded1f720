"""One task of `agl run`: what it is given, how it is run, and how it went."""

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from lightning_core.adapter import read_usage
from lightning_core.agent import LitAgent
from lightning_core.algorithm import FastAlgorithm, RolloutOutcome, run_batch
from lightning_core.cli import INTERRUPTED
from lightning_core.cli.console import plain_console, show_warnings, stdout_for_json
from lightning_core.config import load_job
from lightning_core.config.components import MAIN_PROMPT, import_path, load_agent, raised_at, search_first
from lightning_core.config.job import agent_label
from lightning_core.errors import ConfigError, MissingResource, RegistryError
from lightning_core.runs import FitResult
from lightning_core.runs.result import MAX_CAUSE_CHARACTERS, hook_lines
from lightning_core.texts import seconds, shortened, usage_words
from lightning_core.trainer import Trainer
from lightning_core.types import Dataset, NamedResources, PromptTemplate
from lightning_viewer.trace_tree import MAX_CHARACTERS, print_trace


class OneTask(FastAlgorithm):
    """Runs the agent on one task with the initial resources, and keeps the result.

    Args:
        task: The task.
    """

    outcome: RolloutOutcome | None = None
    """The result; None before the end."""

    def __init__(self, task: Any) -> None:
        self._task = task

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run it. The datasets are not looked at."""
        store, resources = self.get_store(), self.get_initial_resources()
        resources_id = None if resources is None else (await store.add_resources(resources)).resources_id
        batch = await run_batch(
            store, [self._task], mode="train", resources_id=resources_id, config=self.get_rollout_config()
        )
        (self.outcome,) = batch.outcomes


def run_one(
    context: click.Context,
    *,
    agent: str | None,
    task: str,
    config: Path | None,
    prompt: str | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run one task, as the options of `agl run` say, and show it; the command ends here where that fails.

    Raises:
        LightningError: When the agent, the task or the prompt is not what it has to be.
    """
    if agent is None and config is None:
        raise click.UsageError("Missing argument 'AGENT': name one, or a --config that does.", context)
    show_warnings(context, verbose=verbose)
    with ExitStack() as undo:
        lines = undo.enter_context(stdout_for_json()) if as_json else None
        one_task = OneTask(read_task(task))
        if config is not None:
            changes = ["algorithm=baseline", "train_dataset=null", "val_dataset=null", "test_dataset=null"]
            if agent is not None:
                search_first(Path.cwd())
                changes.append(f"agent={import_path(agent, Path.cwd())}")
            job = load_job(config, overrides=changes)
            trainer, loaded = job.trainer, job.agent
            agent = agent or agent_label(job.config.agent)
        else:
            assert agent is not None
            trainer, loaded = Trainer(), load_agent_here(agent)
        trainer.algorithm = one_task
        if prompt is not None:
            trainer.initial_resources = with_prompt(trainer.initial_resources, prompt)
        result = trainer.fit(loaded)
        if one_task.outcome is None:
            click.echo(f"{result.status} before the task was done", err=True)
            context.exit(INTERRUPTED if result.status == "interrupted" else 1)
        if lines is not None:
            lines.write(outcome_record(one_task.outcome, result))
        else:
            print_outcome(plain_console(), agent, one_task.outcome, result)
    if (one_task.outcome.failure or "").startswith(MissingResource.__name__):
        click.echo("Give the agent a prompt with --prompt, or all that it needs with a --config.", err=True)
    if one_task.outcome.rollout.status != "succeeded":
        context.exit(1)


def load_agent_here(path: str) -> LitAgent[Any]:
    """Load an agent; modules and files are looked for in the current folder first.

    Raises:
        ConfigError: When there is no such thing, it cannot be imported (says on which line), or is not an agent.
    """
    search_first(Path.cwd())
    try:
        return load_agent(path, Path.cwd())
    except RegistryError as exc:
        raise ConfigError(f"agent: {exc}{raised_at(Path.cwd(), exc)}") from exc


def read_task(given: str) -> Any:
    """Return the task that is given as JSON, as a plain text, or as `@file` of either.

    What begins as an object, a list or a string of JSON does has to be JSON, and so has a file that ends in `.json`.

    Raises:
        ConfigError: When it is not JSON, or the file cannot be read.
    """
    text = _text_of("--task", given)
    is_json = text.lstrip().startswith(("{", "[", '"')) or (given.startswith("@") and given.endswith(".json"))
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        if is_json:
            raise ConfigError(
                f"--task is not valid JSON: {exc.msg}, at line {exc.lineno}, column {exc.colno}; "
                """write it as in: --task '{"question": "..."}'"""
            ) from exc
        return text


def with_prompt(resources: NamedResources | None, given: str) -> NamedResources:
    """Return resources with another text in their one prompt; it is called `main_prompt` where there is none yet.

    Args:
        resources: Stay as they are.
        given: The text, or `@file`.

    Raises:
        ConfigError: When there are several prompts, or the text is malformed.
    """
    prompts = {name: each for name, each in (resources or {}).items() if isinstance(each, PromptTemplate)}
    if len(prompts) > 1:
        raise ConfigError(f"--prompt: there are several prompts ({', '.join(prompts)}); set them in a --config")
    name, before = next(iter(prompts.items()), (MAIN_PROMPT, PromptTemplate(template="")))
    prompt = before.model_copy(update={"template": _text_of("--prompt", given)})
    try:
        prompt.placeholders()
    except ValueError as exc:
        raise ConfigError(f"--prompt: {exc}") from exc
    return {**(resources or {}), name: prompt}


def _text_of(option: str, given: str) -> str:
    """Return the text itself, that of `@file`, or with `@-` that of stdin."""
    if not given.startswith("@"):
        return given
    if given == "@-":
        return sys.stdin.read()
    path = Path(given[1:])
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"{option}: cannot read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{option}: {path} is not UTF-8 text: {exc}") from exc


_SPAN_FIELDS = {"sequence_id", "trace_id", "span_id", "parent_id", "name", "start_time", "end_time"}
_SPAN_FIELDS |= {"status", "attributes", "events"}


def print_outcome(console: Console, agent: str, outcome: RolloutOutcome, result: FitResult) -> None:
    """Print the trace of a rollout, and below it how it went.

    Args:
        console: See `plain_console`.
        agent: What it is called.
        outcome: What is printed.
        result: Of the run that the rollout was all of.
    """
    title = Text(agent, style="bold").append(f"  {shortened(outcome.rollout.input, MAX_CHARACTERS)}", style="not bold")
    print_trace(console, title, outcome.spans)
    style = "bold green" if outcome.rollout.status == "succeeded" else "bold red"
    words = Text().append(outcome.rollout.status, style=style)
    duration, attempt = _duration_seconds(outcome), outcome.attempt
    if duration is not None:
        words.append(f" in {seconds(duration)}")
    if attempt is not None and attempt.sequence_id > 1:
        words.append(f", at attempt {attempt.sequence_id}")
    if outcome.reward is not None:
        words.append(f", reward {outcome.reward:g}")
    elif outcome.failure is not None:
        words.append(f": {shortened(outcome.failure, MAX_CAUSE_CHARACTERS)}")
    console.print(words)
    usage = read_usage(outcome.spans)
    if usage.calls:
        console.print(usage_words(usage))
    for line in hook_lines(result):
        console.print(Text(line, style="red"))


def outcome_record(outcome: RolloutOutcome, result: FitResult) -> dict[str, Any]:
    """Return how a rollout went, as `docs/command-line.md` has it."""
    rollout, attempt, duration = outcome.rollout, outcome.attempt, _duration_seconds(outcome)
    return {
        "event": "rollout",
        "rollout_id": rollout.rollout_id,
        "attempt": None if attempt is None else attempt.sequence_id,
        "task": rollout.input,
        "mode": rollout.mode,
        "status": rollout.status,
        "reward": outcome.reward,
        "failure": outcome.failure,
        "duration_seconds": None if duration is None else round(duration, 6),
        "usage": asdict(read_usage(outcome.spans)),
        "spans": [span.model_dump(include=_SPAN_FIELDS) for span in outcome.spans],
        "failed_hooks": [asdict(failed) for failed in result.failed_hooks],
    }


def _duration_seconds(outcome: RolloutOutcome) -> float | None:
    attempt = outcome.attempt
    return None if attempt is None or attempt.end_time is None else attempt.end_time - attempt.start_time
