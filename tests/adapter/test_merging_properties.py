"""Merging against a plain reference, with random calls of few tokens, so that prefixes are shared often."""

from hypothesis import given, strategies

from lightning_core.adapter import TraceToTrajectories, Trajectory
from lightning_core.testing.adapter import TraceBuilder

tokens = strategies.lists(strategies.integers(0, 2), min_size=1, max_size=4)


@strategies.composite
def calls(draw: strategies.DrawFn) -> list[tuple[list[int], list[list[int]]]]:
    """Draw calls, each a prompt and its answers; most prompts continue something that was said before."""
    made: list[tuple[list[int], list[list[int]]]] = []
    said: list[list[int]] = []
    for _ in range(draw(strategies.integers(1, 12))):
        prompt = draw(tokens)
        if said and draw(strategies.integers(0, 3)):
            prompt = [*draw(strategies.sampled_from(said)), *draw(strategies.one_of(strategies.just([]), tokens))]
        answers = draw(strategies.lists(tokens, min_size=1, max_size=3))
        made.append((prompt, answers))
        said += [[*prompt, *answer] for answer in answers]
    return made


def reference(made: list[tuple[list[int], list[list[int]]]]) -> list[tuple[list[int], list[int], list[int]]]:
    """Compare each prompt with every row, token by token."""
    rows: list[tuple[list[int], list[int], list[int]]] = []
    ages: list[int] = []
    answers = ((prompt, answer) for prompt, of_call in made for answer in of_call)
    for age, (prompt, answer) in enumerate(answers):
        fitting = [
            (len(row[0]) + len(row[1]), ages[place], place)
            for place, row in enumerate(rows)
            if prompt[: len(row[0]) + len(row[1])] == row[0] + row[1]
        ]
        if fitting:
            length, _, place = max(fitting)
            between = prompt[length:]
        else:
            rows.append((prompt, [], []))
            ages.append(age)
            place, between = len(rows) - 1, []
        rows[place][1].extend(between + answer)
        rows[place][2].extend([0] * len(between) + [1] * len(answer))
        ages[place] = age
    return rows


def merged(made: list[tuple[list[int], list[list[int]]]]) -> tuple[Trajectory, ...]:
    trace = TraceBuilder()
    for prompt, answers in made:
        trace.call(prompt, answers)
    return TraceToTrajectories().adapt(trace.spans).rows


@given(calls())
def test_rows_are_those_of_the_plain_reference(made):
    assert [(row.prompt_ids, row.response_ids, row.mask) for row in merged(made)] == reference(made)


@given(calls())
def test_every_produced_token_is_trained_once_and_each_answer_had_its_own_prompt_before_it(made):
    rows = merged(made)
    produced = [token for _, answers in made for answer in answers for token in answer]
    assert sum(sum(row.mask) for row in rows) == len(produced)
    kept = [token for row in rows for token, trained in zip(row.response_ids, row.mask, strict=True) if trained]
    assert sorted(kept) == sorted(produced)
    for row in rows:
        assert len(row.response_ids) == len(row.mask) == len(row.logprobs)
        for part in row.calls:
            assert row.prompt_ids + row.response_ids[: part.start] == list(part.call.prompt_token_ids or ())
            answer = list(part.call.choices[part.choice].token_ids or ())
            assert row.response_ids[part.start : part.stop] == answer
