"""Events are the same however the bytes come, and cost as much as they are long."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from lightning_proxy import jsons, sse
from lightning_proxy.sse import EventReader, NoEventStream, ServerEvent

_LINES = st.sampled_from(["data: a", "data: {}", "event: e", ": c", "data:", "", "", ""])
_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
_STREAMS = st.lists(st.tuples(_LINES, _ENDS), max_size=20)


def read(pieces: list[bytes]) -> list[ServerEvent]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)] + reader.finish()


@given(_STREAMS, st.lists(st.integers(0, 200), max_size=12))
def test_events_do_not_depend_on_where_a_stream_is_cut(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    stream = "".join(line + end for line, end in lines).encode()
    plain = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    at = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    pieces = [stream[start:end] for start, end in pairwise(at)]
    wanted = [(event.name, event.data) for event in read([plain])]
    assert [(event.name, event.data) for event in read(pieces)] == wanted
    assert [(event.name, event.data) for event in read([bytes([byte]) for byte in stream])] == wanted


def test_an_event_is_given_as_soon_as_it_ends() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert [event.data for event in reader.feed(b"\ndata: b")] == [b"a"]
    assert [event.data for event in reader.feed(b"\r\n\r")] == [b"b"]
    assert reader.feed(b"\n") == []


def test_a_large_event_in_small_pieces_takes_no_longer_than_its_bytes() -> None:
    reader = EventReader()
    piece = b"7" * 1024
    began = time.process_time()
    for _ in range(12 * 1024):
        assert reader.feed(piece) == []
    (event,) = reader.feed(b"\n\n")
    assert time.process_time() - began < 2  # with the whole joined each time it is 20 and more
    assert len(event.raw) == 12 * 1024 * 1024 + 2


def test_what_never_ends_is_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    reader.feed(b"x" * 60)
    with pytest.raises(NoEventStream, match="more than 100 bytes"):
        reader.feed(b"x" * 60)


@pytest.mark.parametrize(
    "written",
    [
        b'{"a": [1, -2.5e-3, null, true, "\\u00e9\\n"]}',
        b"[]",
        b'"half of a pair: \\ud83d"',
        b'{"a": 1, "a": 2}',
        b'{"wei": 123456789012345678901234}',
        b" 1 ",
    ],
)
def test_json_is_read_as_the_standard_library_reads_it(written: bytes) -> None:
    assert jsons.parse(written) == json.loads(written)


@pytest.mark.parametrize("written", [b"", b"{", b"<html>", b'{"a": }', b'"\xff"', b"[" * 100_000, b"\\u00"])
def test_what_is_no_json_is_a_value_error(written: bytes) -> None:
    with pytest.raises(ValueError, match=r"line 1|JSON|expected|EOF|invalid|Expecting"):
        jsons.parse(written)
    assert jsons.parse_object(written) is None
