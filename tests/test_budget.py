"""A hard limit for a run: when it is reached, no further call starts."""

import threading
from typing import Any

import pytest

from lightning_core.budget import Budget, Reserve
from lightning_core.errors import BudgetExhausted, ConfigError


def test_no_call_starts_beyond_the_limit_of_calls() -> None:
    budget = Budget(calls=2)
    budget.start_call()
    budget.start_call()
    assert budget.reached == "calls"
    with pytest.raises(BudgetExhausted, match=r"the run's budget of 2 calls is used up \(2 calls by now\)"):
        budget.start_call()
    assert budget.used["calls"] == 2


def test_tokens_and_money_count_when_a_call_ends() -> None:
    budget = Budget(tokens=100, usd=1.0)
    budget.start_call()
    budget.end_call(tokens=60, usd=0.2)
    budget.start_call()
    assert budget.reached is None
    budget.end_call(tokens=40, usd=None)
    assert budget.reached == "tokens"
    assert budget.unpriced_calls == 1
    assert budget.used["usd"] == pytest.approx(0.2)


def test_time_runs_from_the_start() -> None:
    now = [0.0]
    budget = Budget(seconds=60, clock=lambda: now[0])
    now[0] = 100
    budget.start()
    now[0] = 159
    budget.start_call()
    now[0] = 160
    with pytest.raises(BudgetExhausted, match="60 seconds"):
        budget.start_call()


def test_the_time_is_over_also_where_another_limit_was_reached_before() -> None:
    now = [0.0]
    budget = Budget(calls=1, seconds=60, clock=lambda: now[0])
    budget.start_call()
    assert (budget.reached, budget.is_time_over) == ("calls", False)
    now[0] = 60.0
    assert (budget.reached, budget.is_time_over) == ("calls", True)
    assert not Budget(calls=1).is_time_over


def test_threads_share_it_exactly() -> None:
    budget = Budget(calls=1000)
    started: list[int] = []

    def work() -> None:
        count = 0
        try:
            while True:
                budget.start_call()
                count += 1
        except BudgetExhausted:
            started.append(count)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(started) == 1000


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"dollars": 5}, "budget has no option 'dollars'; it takes: usd, tokens, calls, seconds"),
        ({"usd": -1}, "usd is -1"),
        ({"calls": True}, "calls is true"),
        (5, "budget is of type int"),
    ],
)
def test_a_wrong_budget_is_named(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Budget.of(spec)


def test_a_call_that_other_calls_leave_too_little_waits_for_them() -> None:
    budget, told = Budget(tokens=100), list[str]()
    reserve = Reserve(tokens=60)
    assert budget.start_call(reserve)
    assert not budget.start_call(reserve, on_room=lambda: told.append("room"))
    assert told == []
    budget.end_call(reserve, tokens=30)
    assert told == ["room"]
    assert budget.start_call(reserve, on_room=lambda: told.append("again"))
    budget.end_call(reserve, tokens=30)
    with pytest.raises(BudgetExhausted, match=r"of 100 tokens leaves too little for another call \(60 tokens by now\)"):
        budget.start_call(reserve, on_room=lambda: told.append("never"))
    assert (told, budget.reached, budget.refusals) == (["room"], "tokens", 1)
