"""Whatever the standard library reads is read, by a library that is faster and stricter."""

import json

import pytest
from lightning_proxy import jsons


@pytest.mark.parametrize(
    "written",
    [
        b'{"a": [1, -2.5e-3, null, true, "\\u00e9\\n"]}',
        b"[]",
        b'"half of a pair: \\ud83d"',
        b'{"a": 1, "a": 2}',
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
