"""`agl export RUN --to jsonl|parquet|hf`: what the rows are, and that others read the files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lightning_export.attempts import redacted
from pyarrow import parquet

from lightning_core.cli import agl
from lightning_core.types import Span

RAIN, SUN = {"question": "Rain in Bern?"}, {"question": "Sun in Bern?"}
ROLLOUTS = (
    (RAIN, "train", "Yes.", {"quality": 0.5, "speed": 1.0}),
    (RAIN, "train", "Yes, it rains.", {"quality": 0.75, "speed": 0.0}),
    (SUN, "val", "No.", {"quality": 0.25}),
    (SUN, "val", "", {}),  # it failed
)


def export(*arguments: str) -> str:
    done = CliRunner().invoke(agl, ["export", "x1", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def lines(*arguments: str) -> list[dict[str, Any]]:
    export("--to", "jsonl", "-o", "rows.jsonl", *arguments)
    found = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    Path("rows.jsonl").unlink()
    return found


def test_trajectories_have_the_tokens_of_the_engine_and_the_loss_mask(make_run: Any) -> None:
    make_run(*ROLLOUTS)
    [first, second, third] = lines("--rows", "trajectories")
    assert (first["prompt_ids"], first["response_ids"]) == ([1, 2], [3, 4, 5, 6])
    assert first["loss_mask"] == [1, 1, 0, 1]
    assert first["logprobs"] == [-0.5, -0.25, None, -1.0]
    assert first["call_rewards"] == [None, 0.5]
    assert [row["reward"] for row in (first, second, third)] == [0.5, 0.75, 0.25]
    assert [row["mode"] for row in (first, second, third)] == ["train", "train", "val"]
    assert json.loads(first["input"]) == RAIN
    assert (first["run_id"], first["model"]) == ("run-x1", "small")


def test_trajectories_are_of_the_calls_that_the_adapter_of_the_run_takes(make_run: Any) -> None:
    make_run(*ROLLOUTS, adapter={"name": "triplet", "agent_match": "nobody"})
    assert len(lines("--rows", "messages")) == 6
    done = CliRunner().invoke(agl, ["export", "x1", "--to", "jsonl", "--rows", "trajectories"])
    assert "run run-x1 has no trajectories to write" in done.output


def test_calls_without_an_answer_and_failed_ones_are_not_learned_from(make_run: Any) -> None:
    said = {"gen_ai.operation.name": "chat", "gen_ai.prompt": json.dumps([{"role": "user", "content": "hi"}])}
    half = {**said, "gen_ai.completion": json.dumps([{"role": "assistant", "content": "I"}]), "error.type": "timeout"}
    empty = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small"}  # as without its content
    more = [
        Span.from_attributes(attributes=each, name="a span", start_time=20.0 + place, end_time=21.0 + place)
        for place, each in enumerate([said, half, empty])
    ]
    make_run((RAIN, "train", None, {"quality": 0.5}), (RAIN, "train", "Yes.", {"quality": 0.25}), more=more)
    assert {row["reward"] for row in lines("--rows", "messages")} == {0.25}
    assert {row["reward"] for row in lines("--rows", "sft")} == {0.25}
    assert [row["error"] for row in lines("--rows", "triplets")] == [None, "timeout", None, None]


def test_numbers_that_are_not_finite_are_null(make_run: Any) -> None:
    tokens = {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4, 5], "response_logprobs": [0, -math.inf, -0.5]}
    call = {"gen_ai.operation.name": "chat", **tokens}
    make_run(*ROLLOUTS, more=[Span.from_attributes(attributes=call, name="a", start_time=20.0, end_time=21.0)])
    export("--to", "jsonl", "-o", "rows.jsonl", "--rows", "triplets")
    text = Path("rows.jsonl").read_text()
    assert '"logprobs":[0,null,-0.5]' in text
    assert "Infinity" not in text


def test_answers_that_are_in_no_trajectory_are_counted(make_run: Any) -> None:
    call = Span.from_attributes(attributes={"gen_ai.operation.name": "chat"}, name="a", start_time=20.0, end_time=21.0)
    make_run(*ROLLOUTS, more=[call])
    said = export("--to", "jsonl", "--rows", "trajectories", "-o", "out")
    assert said.endswith(": 3 rows of 3 rollouts; answers in no row: 1 no_token_ids\n")


def test_sft_rows_are_of_the_best_rollouts_of_each_input(make_run: Any) -> None:
    make_run(*ROLLOUTS)
    rows = lines("--rows", "sft")
    assert [row["completion"][0]["content"] for row in rows] == [None, "Yes, it rains.", None, "No."]
    assert [message["role"] for message in rows[1]["prompt"]] == ["system", "user", "assistant", "tool"]
    assert rows[0]["tools"][0]["function"]["name"] == "weather"
    assert len(lines("--rows", "sft", "--best", "2")) == 6
    assert {row["reward"] for row in lines("--rows", "sft", "--min-reward", "0.5")} == {0.75}
    assert {row["reward"] for row in lines("--rows", "messages", "--mode", "val")} == {0.25}


def test_the_best_rollout_is_one_that_gives_rows(make_run: Any) -> None:
    worse = [(RAIN, "train", answer, {"quality": reward}) for answer, reward in (("B.", 0.5), ("C.", 0.5), ("D.", 0.1))]
    make_run((RAIN, "train", None, {"quality": 1.0}), *worse)
    for kind in ("sft", "trajectories"):
        assert {row["reward"] for row in lines("--rows", kind, "--best", "1")} == {0.5}
    assert "2 rows of 1 rollouts" in export("--to", "jsonl", "--rows", "sft", "-o", "out")
    assert "C." not in Path("out").read_text()


def test_parquet_has_the_rows_of_jsonl(make_run: Any) -> None:
    make_run(*ROLLOUTS)
    for kind in ("messages", "sft", "trajectories", "triplets"):
        output = export("--to", "parquet", "--rows", kind, "-o", f"{kind}.parquet")
        assert output.endswith(
            f"{kind}.parquet: {4 if kind == 'sft' else 3 if kind == 'trajectories' else 6} rows of "
            f"{2 if kind == 'sft' else 3} rollouts\n"
        )
        rows = [plain(row) for row in parquet.read_table(f"{kind}.parquet").to_pylist()]
        assert rows == [plain(row) for row in lines("--rows", kind)]


def plain(value: Any) -> Any:
    """Return a row without what is null, and with the tools as JSON."""
    if isinstance(value, dict):
        kept = {name: plain(each) for name, each in value.items() if each is not None}
        return kept | ({"tools": json.dumps(kept["tools"])} if isinstance(kept.get("tools"), list) else {})
    return [plain(each) for each in value] if isinstance(value, list) else value


def test_redacting_replaces_keys_and_leaves_out_tokens(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "of-this-machine-42")
    escaped = 'a "quoted" \\ k\u00f6y 42'
    monkeypatch.setenv("RAIN_API_KEY", escaped)
    form = "sk-abcdefgh12345678abcdefgh"
    make_run(
        ({"question": f"use {form}"}, "train", f"I use {form} and of-this-machine-42, {escaped}.", {"quality": 1.0})
    )
    rows = lines("--rows", "triplets", "--redact")
    text = json.dumps(rows)
    assert form not in text
    assert "of-this-machine-42" not in text
    assert rows[1]["response"]["content"] == "I use sk-*** and ***, ***."
    assert rows[1]["reward"] == 1.0
    assert [rows[1][name] for name in ("prompt_ids", "response_ids", "logprobs")] == [None, None, None]
    choices = {"choices": [{"token_ids": [7, 8], "logprobs": {"content": [{"token": "hun"}, {"token": "ter2"}]}}]}
    hidden = redacted(Span.from_attributes(attributes={"output": json.dumps(choices)}, name="a span"))
    assert hidden.attributes["output"] == '{"choices": [{}]}'
    keys = {"api_key": "ab\\", "secret_key": 1234567890, "x": [{"access_keys": ["hunter2"], "key": "E"}]}
    nested = json.dumps({"arguments": json.dumps(keys)})
    hidden = redacted(Span.from_attributes(attributes={"input": nested, "plain": '{"api_key":null}'}, name="a span"))
    assert hidden.attributes["plain"] == '{"api_key":null}'
    assert json.loads(json.loads(str(hidden.attributes["input"]))["arguments"]) == {
        "api_key": "***",
        "secret_key": "***",
        "x": [{"access_keys": "***", "key": "E"}],
    }
    headers = {"Authorization": "plainhunter22", "Accept": "text/html", "x-api-key": ["hunter3"]}
    asked = {
        "request.headers": json.dumps(headers),
        "call": json.dumps([json.dumps({"headers": headers, "cookie": "oats"})]),
    }
    hidden = redacted(Span.from_attributes(attributes=asked, name="a span"))
    shown = {"Authorization": "***", "Accept": "text/html", "x-api-key": "***"}
    assert json.loads(str(hidden.attributes["request.headers"])) == shown
    assert json.loads(json.loads(str(hidden.attributes["call"]))[0]) == {"headers": shown, "cookie": "oats"}
    done = CliRunner().invoke(agl, ["export", "x1", "--to", "jsonl", "--rows", "trajectories", "--redact"])
    assert "--redact leaves out token ids" in done.output
    assert not Path("run-x1-jsonl").exists()


def test_what_a_form_does_not_take_and_what_a_run_does_not_have_are_said(make_run: Any) -> None:
    make_run((RAIN, "train", "", {}))
    done = CliRunner().invoke(agl, ["export", "x1", "--to", "jsonl", "--endpoint", "http://x"])
    assert "--to jsonl has no option 'endpoint'; it takes: rows, best, min_reward, mode, redact" in done.output
    done = CliRunner().invoke(agl, ["export", "x1", "--to", "parquet"])
    assert "run run-x1 has no messages to write: none of its rollouts is wanted" in done.output


@pytest.mark.parametrize("form", [["jsonl", "--rows", "triplets"], ["jsonl", "--rows", "trajectories"]])
def test_a_rollout_with_a_broken_reward_is_left_out_alone(make_run: Any, form: list[str]) -> None:
    broken = {"agentlightning.reward.0.name": "r", "agentlightning.reward.0.value": "x"}
    more = [Span.from_attributes(attributes=broken, name="a span", start_time=20.0, end_time=20.0)]
    make_run(*ROLLOUTS[:2], more=more)
    said = export("--to", *form, "-o", "out")
    assert "of 2 rollouts; 1 left out, such as ro-" in said
    assert "broken reward" in said


@pytest.mark.parametrize("form", ["jsonl", "parquet", "hf", "atif"])
def test_odd_parts_of_a_message_cost_nothing(make_run: Any, form: str) -> None:
    content = [{"type": "image_url", "image_url": "https://x/y.png"}, {"type": "image_url"}]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.prompt": json.dumps([{"role": "user", "content": content}]),
        "gen_ai.completion": json.dumps(
            [{"role": "assistant", "content": "A.", "reasoning_content": [{"text": "B."}]}]
        ),
    }
    more = [Span.from_attributes(attributes=attributes, name="a span", start_time=20.0, end_time=20.0)]
    make_run(*ROLLOUTS[:2], more=more)
    assert f"{2 if form == 'atif' else 5} " in (said := export("--to", form, "-o", "out"))
    assert said.endswith("of 2 rollouts\n")


def test_a_rollout_of_which_nothing_can_be_made_costs_no_other(make_run: Any) -> None:
    calls = [{"id": {"a": 1}, "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.prompt": json.dumps([{"role": "tool", "content": "wet", "tool_call_id": 1}]),
        "gen_ai.completion": json.dumps([{"role": "assistant", "content": "A.", "tool_calls": calls}]),
    }
    more = [Span.from_attributes(attributes=attributes, name="a span", start_time=20.0, end_time=20.0)]
    make_run(*ROLLOUTS[:2], more=more)
    assert "1 trajectories of 2 rollouts; 1 left out, such as ro-" in export("--to", "atif", "-o", "out")
    assert len(list(Path("out").glob("ro-*"))) == 1


def test_long_texts_are_written_group_by_group(make_run: Any) -> None:
    make_run(*[("rain " * 1_000_000, "train", "Yes.", {"quality": 0.5})] * 4)
    export("--to", "parquet", "-o", "rows.parquet")
    assert parquet.ParquetFile("rows.parquet").num_row_groups == 2


def test_datasets_loads_a_folder_with_a_split_for_each_mode(make_run: Any, tmp_path: Path) -> None:
    make_run(*ROLLOUTS)
    export("--to", "hf", "--rows", "trajectories", "-o", "rows")
    assert sorted(path.name for path in Path("rows/data").iterdir()) == ["train.parquet", "validation.parquet"]
    datasets = pytest.importorskip("datasets", reason="it is in the environment of lightning-verl")
    loaded = datasets.load_dataset("rows", cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {"train": 2, "validation": 1}
    assert loaded["train"][0]["loss_mask"] == [1, 1, 0, 1]
