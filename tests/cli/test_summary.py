"""What came of a run, as it is printed and written."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lightning_core.adapter.usage import Usage
from lightning_core.algorithm.estimates import estimate, paired_difference
from lightning_core.cli.display import result_record, write_result
from lightning_core.runs import BudgetUse, Comparison, FailedHook, Failure, FitResult, RolloutCounts, RunUsage
from lightning_core.runs.result import more_budget, print_summary
from lightning_core.types import LLM, NamedResources, PromptTemplate

FIRST: NamedResources = {"main_prompt": PromptTemplate(template="Answer.\n\n{question}")}
BEST: NamedResources = {"main_prompt": PromptTemplate(template="Answer.\n[b]Think[/b] first :smile:\n\n{question}")}


def result_with(**fields: object) -> FitResult:
    return FitResult(run_id="run-1", status="succeeded", **fields)  # type: ignore[arg-type]


def printed(result: FitResult, initial: NamedResources | None = None) -> list[str]:
    """Return the lines of a summary but for the last two: an empty one, and where the run is kept."""
    file = io.StringIO()
    console = Console(file=file, markup=False, emoji=False, highlight=False, soft_wrap=True)
    print_summary(console, replace(result, initial_resources=initial))
    return file.getvalue().splitlines()[:-2]


DIFFERENCE = paired_difference([0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("mode", "options", "line"),
    [
        ("test", {}, f"reward on held-out samples: {DIFFERENCE}"),
        (
            "val",
            {},
            f"reward on validation samples: {DIFFERENCE}; the best was chosen on these, so there is no interval",
        ),
        (
            "val",
            {"kept_back": True},
            f"reward on validation samples that the search did not use: {DIFFERENCE}",
        ),
    ],
)
def test_reward_before_and_after_says_on_which_samples(mode: str, options: dict[str, bool], line: str) -> None:
    comparison = Comparison(mode, estimate([0.25] * 4), estimate([0.75] * 4), DIFFERENCE, **options)  # type: ignore[arg-type]
    assert printed(result_with(comparison=comparison))[2] == f"  {line}"


def test_rewards_on_different_samples_are_not_subtracted() -> None:
    comparison = Comparison("train", estimate([0.0]), estimate([1.0]))
    assert printed(result_with(comparison=comparison))[2] == (
        f"  reward on different training samples: {estimate([0.0])} → {estimate([1.0])}"
        "; the best was chosen on these, so there is no interval"
    )


def test_best_prompt_is_a_diff_against_the_first_to_the_letter() -> None:
    assert printed(result_with(best_resources=BEST), FIRST)[2:] == [
        "",
        "main_prompt, the best found (+), against the first (-):",
        "  Answer.",
        "+ [b]Think[/b] first :smile:",
        "",
        "  {question}",
    ]


def test_prompt_that_did_not_change_is_said_to_be_unchanged() -> None:
    assert printed(result_with(best_resources=FIRST), FIRST)[3:5] == ["main_prompt (unchanged)", "Answer."]


def test_failures_are_grouped_with_one_example_each() -> None:
    failures = [
        Failure("ValueError: no price for …", 3, "ro-1", "ValueError: no price for 'tea'", {"q": "tea " * 40}),
        Failure("KeyError: 'x'", 1, "ro-2", "KeyError: 'x'", 7),
    ]
    lines = printed(result_with(failures=failures))[2:]
    assert lines[0] == "  failed 3x: ValueError: no price for …"
    assert lines[1].startswith('    for one, ro-1 with {"q": "tea tea ')
    assert lines[1].endswith("…: ValueError: no price for 'tea'")
    assert lines[2:] == ["  failed 1x: KeyError: 'x'", "    for one, ro-2 with 7"]


def test_long_error_is_shortened_and_cannot_speak_to_the_terminal() -> None:
    failures = [Failure("E: \x1b[2J" + "x" * 2_000_000, 2, "ro-1", "E: \x1b[2J" + "y" * 2_000_000, 1)]
    lines = printed(result_with(failures=failures))[2:]
    assert lines[0].startswith("  failed 2x: E: \\x1b[2Jxxx")
    assert lines[1].startswith("    for one, ro-1 with 1: E: \\x1b[2Jyyy")
    assert all(len(line) < 350 and line.endswith("…") for line in lines)


def test_plugins_that_failed_are_shown() -> None:
    failed = [
        FailedHook("Clumsy", "lightning_rollout_end", "ZeroDivisionError: rollout", 2),
        FailedHook("gone", None, "ImportError: no", 1),
    ]
    assert printed(result_with(failed_hooks=failed))[2:] == [
        "  plugin 'Clumsy' failed 2x in lightning_rollout_end: ZeroDivisionError: rollout",
        "  plugin 'gone' could not be loaded: ImportError: no",
    ]


def test_use_of_models_and_where_everything_is_kept_are_told_where_they_are_known() -> None:
    usage = RunUsage(Usage(1, 1200, 30, 2.5), Usage(4, 10, 20))
    result = result_with(usage=usage, metrics=usage.metrics)
    assert replace(result, is_in_memory=True).summary().splitlines()[1:] == [
        "  the agent made 1 model call, 1,200 tokens in, 30 out, $2.50",
        "  the algorithm itself made 4 model calls, 10 tokens in, 20 out",
        "",
        "run run-1 was kept in memory, and is gone when this process ends",
    ]
    assert usage.metrics == {"model_calls": 5, "input_tokens": 1210, "output_tokens": 50, "cost_usd": 2.5}
    assert printed(result_with(usage=RunUsage())) == printed(result_with())


def test_which_limit_ended_a_run_is_told() -> None:
    used = {"usd": 5.02, "calls": 7.0, "tokens": 0.0, "seconds": 60.0}
    limits = {"usd": 5.0, "seconds": 100.0}
    ended = BudgetUse(limits, used, ended_by="usd", unpriced_calls=2)
    assert printed(result_with(budget=ended))[2] == (
        "  the run's budget of 5 usd is used up (5.02 usd by now); 2 calls had no price, and count nothing in usd"
    )
    assert more_budget(ended, {"budget": limits}) == " --set budget.usd=MORE (more than 5)"
    in_proxy = {"budget": None, "llm_proxy": {"budget": limits}}
    assert more_budget(ended, in_proxy) == " --set llm_proxy.budget.usd=MORE (more than 5)"
    left = BudgetUse(limits, used)
    assert printed(result_with(budget=left))[2] == "  used of the run's budget: 5.02 of 5 usd, 60 of 100 seconds"
    assert more_budget(left, {}) == more_budget(None, {}) == ""
    assert result_record(result_with(budget=ended))["budget"]["ended_by"] == "usd"


def test_reward_by_which_the_best_was_chosen_is_not_taken_for_that_on_held_out_samples() -> None:
    before, after = [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]
    comparison = Comparison("test", estimate(before), estimate(after), paired_difference(before, after))
    metrics = {"test_reward": 0.75, "val_reward_initial": 0.5, "val_reward": 1.0, "val_gain": 0.5, "val_samples": 9.0}
    assert printed(result_with(comparison=comparison, metrics=metrics))[3:] == [
        "  val_reward: 0.500 → 1.000 (+0.500) (of validation samples; the held-out samples tell how good it is)",
        "  val_samples: 9",
    ]


def test_interrupted_run_tells_what_was_left() -> None:
    result = FitResult(
        run_id="run-1",
        status="interrupted",
        rollouts=RolloutCounts(succeeded=5, unrewarded=4, failed=1, cancelled=2, unfinished=3, retried=1),
        failures=[Failure(f"ValueError: {number}", 1, f"ro-{number}") for number in range(7)],
        duration_seconds=12.34,
        abandoned_agents=2,
        dropped_spans=9,
    )
    lines = printed(result)
    assert lines[:2] == [
        "",
        "interrupted in 12.3 s: 5 rollouts succeeded, 4 without a reward, 1 failed, 1 retried, 2 cancelled, "
        "3 unfinished",
    ]
    assert lines[-2:] == [
        "  and 2 more causes",
        "  2 agents could not be stopped when their time was over or the run ended; 9 spans that they emitted later "
        "were dropped",
    ]
    assert sum(line.startswith("  failed ") for line in lines) == 5


def test_record_has_the_comparison_and_whatever_a_task_is() -> None:
    result = result_with(comparison=Comparison("val", estimate([0.5])), failures=[Failure("x", 1, "ro-1", "x", {1, 2})])
    record = json.loads(json.dumps(result_record(result), allow_nan=False))
    assert record["comparison"]["before"]["mean"] == 0.5
    assert record["failures"][0]["task"] == "{1, 2}"


def test_api_key_is_left_out_without_changing_the_result(tmp_path: Path) -> None:
    llm = LLM(endpoint="http://localhost/v1", model="small", api_key="sk-secret")
    write_result(tmp_path / "result.json", result_with(best_resources={"main_llm": llm}))
    assert "api_key" not in (tmp_path / "result.json").read_text()
    assert llm.api_key == "sk-secret"
