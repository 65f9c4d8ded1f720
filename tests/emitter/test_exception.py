import pytest

from lightning_core.emitter import emit_exception
from lightning_core.errors import NoActiveTracer
from lightning_core.semconv import AGL_EXCEPTION


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def caught(error: Exception) -> Exception:
    try:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise error from cause
    except Exception as exc:
        return exc


def test_exception_has_type_message_and_a_stack_trace_with_its_cause() -> None:
    span = emit_exception(caught(ValueError("bad input")), attributes={"phase": {"name": "act"}}, propagate=False)
    assert span.name == AGL_EXCEPTION
    assert span.status.status_code == "OK"
    stacktrace = span.attributes.pop("exception.stacktrace")
    assert span.attributes == {
        "exception.type": "ValueError",
        "exception.message": "bad input",
        "phase.name": "act",
    }
    assert "KeyError: 'the cause'" in stacktrace
    assert stacktrace.rstrip().endswith("ValueError: bad input")
    assert "in caught" in stacktrace


def test_type_of_an_exception_is_its_qualified_name() -> None:
    span = emit_exception(NoActiveTracer("x"), propagate=False)
    assert span.attributes["exception.type"] == "lightning_core.errors.NoActiveTracer"


def test_exception_that_cannot_be_printed_is_recorded_all_the_same() -> None:
    span = emit_exception(caught(Unprintable()), propagate=False)
    assert span.attributes["exception.message"] == "<no text: str() raised RuntimeError>"
    assert span.attributes["exception.type"].endswith("Unprintable")


def test_only_exceptions_are_taken() -> None:
    with pytest.raises(TypeError, match="takes an exception, got str; use emit_message for text"):
        emit_exception("oops", propagate=False)  # type: ignore[arg-type]
