"""Two runs, or two versions of one, sample by sample."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lightning_viewer.commands import compare, show
from lightning_viewer.compare import most_changed
from live_stores import trained

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.algorithm import Algorithm, run_batch
from lightning_core.algorithm.estimates import paired_difference
from lightning_core.errors import NoRewards
from lightning_core.types import Dataset, NamedResources

REWARDS = {"first": [1.0, 0.0, 0.0, 0.0], "second": [1.0, 1.0, 1.0, 0.0], "third": [0.0, 0.0, 0.0, 0.0]}


class TriesAll(Algorithm):
    """Tries these versions on the same samples; keeps the first back; names the last version but one as the best."""

    def __init__(self, *versions: str, kept_back: int = 0) -> None:
        super().__init__()
        self.versions = versions
        self.kept_back = kept_back

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        store = self.get_store()
        assert val_dataset is not None
        for step, template in enumerate(self.versions, start=1):
            resources: NamedResources = {"main_prompt": PromptTemplate(template=template)}
            resources_id = (await store.add_resources(resources)).resources_id
            best = resources if template == self.versions[-2:][0] else None
            samples = list(val_dataset)
            held, others = samples[: self.kept_back], samples[self.kept_back :]
            await run_batch(store, held, mode="val", resources_id=resources_id, kept_back=True)
            await run_batch(store, others, mode="val", resources_id=resources_id)
            self.report({}, step=step, best_resources=best)


@rollout
async def agent(task: dict[str, Any], prompt_template: PromptTemplate) -> float:
    if task["n"] == 4:
        raise ValueError("no such task")
    return REWARDS[prompt_template.template][task["n"]]


@rollout
async def looks_away(task: int) -> float:
    return 1.0


@rollout
async def writes_what_a_terminal_obeys(task: int) -> float:
    raise ValueError("no \x1b]0;owned\x07 tag \x1b[2J")


def run(root: Path, *versions: str, samples: int = 5, kept_back: int = 0) -> str:
    tasks = [{"n": number} for number in range(samples)]
    return asyncio.run(trained(agent, root, val=tasks, algorithm=TriesAll(*versions, kept_back=kept_back))).run_id


def compared(root: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(compare, [*arguments, "--json", "--runs-dir", str(root)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_versions_of_one_run_are_compared_on_the_samples_that_both_were_tried_on(tmp_path: Path) -> None:
    name = run(tmp_path, "first", "second", "third")
    found = compared(tmp_path, f"{name}:first", f"{name}:best")
    assert (found["before"]["label"], found["after"]["label"]) == (f"{name}:v1", f"{name}:v2")
    assert (found["before"]["is_best"], found["after"]["is_best"]) == (False, True)
    assert (found["mode"], found["better"], found["worse"], found["same"], found["unpaired"]) == ("val", 2, 0, 2, 1)
    assert found["difference"]["difference"] == 0.5
    assert (found["difference"]["n"], found["difference"]["lost"]) == (4, 1)
    # A search chose by them.
    measured = (found["before"]["estimate"], found["after"]["estimate"], found["difference"])
    assert [(each["low"], each["high"]) for each in measured] == [(None, None)] * 3
    assert [each["input"]["n"] for each in found["samples"]][-1] == 4
    assert found["samples"][-1]["difference"] is None
    assert len(found["samples"][0]["before_rollouts"]) == 1


def test_runs_are_compared_by_their_best_versions(tmp_path: Path) -> None:
    one = run(tmp_path, "first", "third", samples=4)
    other = run(tmp_path, "second", "third", samples=3)
    found = compared(tmp_path, other, one)
    assert (found["before"]["run"], found["after"]["run"]) == (other, one)
    assert (found["better"], found["worse"], found["same"], found["unpaired"]) == (0, 2, 1, 1)
    assert [each["difference"] for each in found["samples"]] == [-1.0, -1.0, 0.0]


def test_runs_that_tried_one_version_are_compared_with_their_interval(tmp_path: Path) -> None:
    found = compared(tmp_path, *(run(tmp_path, version, samples=4) for version in ("first", "second")))
    expected = paired_difference(REWARDS["first"], REWARDS["second"])
    assert expected is not None
    assert (found["difference"]["low"], found["difference"]["high"]) == (expected.low, expected.high)
    assert not found["is_chosen_on"]


@pytest.mark.parametrize("before", ["first", ""], ids=["of the same run", "of a run that kept none back"])
def test_samples_that_the_algorithm_kept_back_are_compared_alone(before: str, tmp_path: Path) -> None:
    other, name = run(tmp_path, "first"), run(tmp_path, "first", "second", "third", kept_back=3)
    found = compared(tmp_path, f"{name}:first" if before else other, f"{name}:best")
    assert sorted(each["input"]["n"] for each in found["samples"]) == [0, 1, 2]
    assert (found["mode"], found["kept_back"], found["is_chosen_on"]) == ("val", True, False)
    assert found["difference"]["low"] is not None


def test_people_see_the_samples_that_changed_with_the_greatest_loss_first(tmp_path: Path) -> None:
    name = run(tmp_path, "first", "second", "third")
    done = CliRunner().invoke(compare, [f"{name}:v2", f"{name}:v3", "-n", "2", "--runs-dir", str(tmp_path)])
    lines = done.output.splitlines()
    assert lines[0].startswith(f"before  {name}:v2 (best)  0.75 (n=4, 1 lost)")
    caveat = "; a search chose by these, so there is no interval"
    assert lines[2] == f"reward on validation samples: 0.75 → 0.00 (-0.75, n=4, 1 lost){caveat}"
    assert lines[3] == "0 better, 3 worse, 1 same, 1 without a reward on one side or both"
    worst = compared(tmp_path, f"{name}:v2", f"{name}:v3")["samples"][0]
    [rollout_id] = worst["after_rollouts"]
    assert lines[6] == f'    1.00    0.00   -1.00  {rollout_id}  {{"n": 0}}'
    assert lines[-2:] == ["and 1 more: --limit", f"why: agl show {name} {rollout_id}"]
    trace = CliRunner().invoke(show, [name, rollout_id, "--runs-dir", str(tmp_path)])
    assert trace.output.splitlines()[-1] == "succeeded, reward 0"


def breaking(root: Path, *failing: int) -> str:
    @rollout
    async def breaks(task: int) -> float:
        if task in failing:
            raise ValueError("broken")
        return 0.9 if failing and task == 0 else 1.0

    return asyncio.run(trained(breaks, root, [0, 1, 2, 3])).run_id


def test_samples_that_fail_now_are_the_greatest_losses(tmp_path: Path) -> None:
    sound, broken = breaking(tmp_path), breaking(tmp_path, 2, 3)
    found = compared(tmp_path, sound, broken)
    assert (found["better"], found["worse"], found["same"], found["unpaired"]) == (0, 3, 1, 2)
    assert [(each["input"], each["after"]) for each in found["samples"]] == [(2, None), (3, None), (0, 0.9), (1, 1.0)]
    shown = most_changed(found)
    assert (shown["changed"], [each["input"] for each in shown["samples"]]) == (3, [2, 3, 0])
    lines = CliRunner().invoke(compare, [sound, broken, "-n", "1", "--runs-dir", str(tmp_path)]).output.splitlines()
    [failed] = found["samples"][0]["after_rollouts"]
    assert lines[-3:] == [
        f"    1.00    none       -  {failed}  2",
        "and 2 more: --limit",
        f"why: agl show {broken} {failed}",
    ]
    assert [each["input"] for each in compared(tmp_path, broken, sound)["samples"]] == [1, 0, 2, 3]


def test_a_version_that_is_not_there_is_named(tmp_path: Path) -> None:
    name = run(tmp_path, "first", "second", samples=1)
    done = CliRunner().invoke(compare, [f"{name}:v3", name, "--runs-dir", str(tmp_path)])
    assert str(done.exception) == (
        f"run {name} has no version of its resources that 'v3' names; it has v1 to v2, first and, where it names one, "
        "best"
    )


def test_runs_without_a_sample_in_common_are_not_compared(tmp_path: Path) -> None:
    one, other = run(tmp_path, "first", samples=1), f"{run(tmp_path, 'first', 'second', samples=0)}:v2"
    found = compared(tmp_path, one, other)
    assert (found["samples"], found["difference"], found["after"]["estimate"]) == ([], None, None)


def shown(root: Path, *arguments: str) -> list[str]:
    done = CliRunner().invoke(show, [*arguments, "--runs-dir", str(root)])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_show_has_failed_rollouts_by_their_cause(tmp_path: Path) -> None:
    run(tmp_path, "first", "second", "third")
    lines = shown(tmp_path, "--failed", "--limit", "2")
    at = lines.index("rollouts without a reward, by their cause")
    assert re.fullmatch(r"3x ValueError: no such task \(.*test_compare\.py:\d+ in agent\)", lines[at + 1])
    assert all(line.endswith('{"n": 4}') for line in lines[at + 2 : at + 4])
    assert lines[at + 4 :] == ["  and 1 more: --limit"]


def test_show_names_the_report_or_says_how_to_write_it(tmp_path: Path) -> None:
    name = run(tmp_path, "first", samples=2)
    report = tmp_path / name / "report.html"
    assert f"  report     {report}" in shown(tmp_path)
    assert shown(tmp_path, "--failed")[-2:] == ["rollouts without a reward, by their cause", "  none"]
    record = json.loads("\n".join(shown(tmp_path, name, "--json")))
    assert (record["run_id"], record["standing"], record["algorithm"]) == (name, "succeeded", "TriesAll")
    report.unlink()
    assert f"it has no report yet; write it with: agl report {name}" in shown(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run-1", "ro-1", "--json"], "--json is about the run; leave ROLLOUT out"),
        (["run-1", "ro-1", "--failed"], "--failed is about the run; leave ROLLOUT out"),
        (["run-1", "--full"], "--full is about one rollout; give a RUN and a ROLLOUT"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(show, arguments)
    assert (done.exit_code, message in done.output) == (2, True)


def test_a_run_whose_store_is_elsewhere_says_how_to_look_into_it(tmp_path: Path) -> None:
    store = {"name": "sqlite", "path": tmp_path / "elsewhere.db"}
    name = asyncio.run(trained(looks_away, tmp_path, [1], store=store)).run_id
    look = f"look into its SqliteLightningStore with: agl serve store --backend ... --run {name}"
    assert shown(tmp_path)[-2:] == ["its rollouts are not known here: it has no store in its folder", look]


def test_why_a_rollout_failed_is_text_that_no_terminal_obeys(tmp_path: Path) -> None:
    trainer = Trainer(algorithm="baseline", run_dir=tmp_path)
    with pytest.raises(NoRewards):
        trainer.fit(writes_what_a_terminal_obeys, [1])
    asyncio.run(trainer.store.aclose())
    lines = shown(tmp_path, trainer.store.run_id, "ro-")
    assert lines[-1] == r"failed: ValueError: no \x1b]0;owned\x07 tag \x1b[2J"
    assert not [line for line in shown(tmp_path, "--failed") + lines if "\x1b" in line or "\x07" in line]


@pytest.mark.parametrize("given", ["", "run-none"])
def test_a_run_that_is_not_there_is_an_error(tmp_path: Path, given: str) -> None:
    done = CliRunner().invoke(compare, [given, given, "--runs-dir", str(tmp_path)])
    assert "there are no runs in" in str(done.exception)
