"""Converted responses are kept for the attempt that got them, so that later calls can continue them."""

from lightning_proxy.apis.responses import StoredResponses


def test_a_long_conversation_counts_once_and_is_of_its_attempt_alone():
    stored = StoredResponses(max_bytes=1000)
    request = {"input": "0"}
    for turn in range(50):
        items = stored.resolve("a", request)
        assert len(items["input"]) == 2 * turn + 1 or turn == 0
        stored.keep("a", items, {"id": f"r-{turn}", "output": [{"id": f"m-{turn}"}]}, size=10 * (turn + 1))
        request = {"input": str(turn + 1), "previous_response_id": f"r-{turn}"}
    assert stored.resolve("b", request) is request


def test_those_that_were_not_used_for_longest_are_forgotten():
    stored = StoredResponses(max_bytes=25)
    for name in ("first", "second", "third"):
        stored.keep("a", {"input": name}, {"id": name, "output": []}, size=10)
    continued = {name: {"input": "x", "previous_response_id": name} for name in ("first", "second", "third")}
    assert [stored.resolve("a", each) is each for each in continued.values()] == [True, False, False]
