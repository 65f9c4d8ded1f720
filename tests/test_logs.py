import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning_http.auth import Keys

from lightning_core.logs import (
    JsonLinesFormatter,
    KeyValueFormatter,
    PlainFormatter,
    RolloutFilter,
    reset_logging,
    setup_logging,
    setup_module_logging,
)
from lightning_core.secrets import hide_in_field, hide_in_text, hide_keys_in, without_secrets
from lightning_core.store import InMemoryLightningStore
from lightning_core.tracer import OtelTracer

logger = logging.getLogger("lightning_core.some.part")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    reset_logging()


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def written(formatter: logging.Formatter, message: str, *args: Any, **attributes: Any) -> str:
    record = logging.LogRecord("lightning_core.part", logging.WARNING, "f.py", 1, message, args, None)
    record.created = 1_700_000_000.1234
    for name, value in attributes.items():
        setattr(record, name, value)
    return formatter.format(record)


def test_json_line_has_the_event_the_fields_with_their_types_and_the_text() -> None:
    line = written(
        JsonLinesFormatter(),
        "lightning.late_result rollout_id=%s spans=%d score=%.2f cause=%r kept=%s; %d of %s: too late",
        *("ro-1", 3, 0.5, ValueError("no"), None, 3, "4"),
    )
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "warning",
        "logger": "lightning_core.part",
        "event": "lightning.late_result",
        "rollout_id": "ro-1",
        "spans": 3,
        "score": 0.5,
        "cause": "no",
        "kept": None,
        "text": "3 of 4: too late",
    }


def test_key_value_line_quotes_what_needs_it() -> None:
    line = written(KeyValueFormatter(), "lightning.x a=%s b=%s c=%s d=%s", "plain", "two words", 'a="b"', "")
    assert line == (
        "time=2023-11-14T22:13:20.123Z level=warning logger=lightning_core.part event=lightning.x "
        r'a=plain b="two words" c="a=\"b\"" d=""'
    )
    assert "\n" not in written(KeyValueFormatter(), "two\nlines")


def test_people_get_a_line_that_says_what_happened_and_the_fields_behind_it() -> None:
    line = written(
        PlainFormatter(), "lightning.late_result rollout_id=%s why=%s: %s", "ro-1", "two words", "gone \x1b[2J"
    )
    assert line == r'warning: late result: gone \x1b[2J (rollout_id=ro-1 why="two words")'
    assert written(PlainFormatter(), "of another library") == "warning: of another library"


@pytest.mark.parametrize("message", ["lightning.x 100%", "lightning.x", "100% sure", "lightning. no event"])
def test_message_without_arguments_is_not_formatted(message: str) -> None:
    parts = json.loads(written(JsonLinesFormatter(), message))
    assert f"{parts.get('event', '')} {parts.get('text', '')}".strip() == message


def test_record_of_another_library_is_its_text() -> None:
    parts = json.loads(written(JsonLinesFormatter(), "%s: a=%d", "theirs", 5))
    assert (parts["text"], "event" in parts, "a" in parts) == ("theirs: a=5", False, False)
    parts = json.loads(written(JsonLinesFormatter(), "lightning.x a=%(a)s", {"a": 5}))
    assert parts["text"] == "lightning.x a=5"


def test_field_that_is_named_as_a_part_of_the_line_keeps_both() -> None:
    parts = json.loads(written(JsonLinesFormatter(), "lightning.x level=%s text=%s; words", "high", "t"))
    assert (parts["level"], parts["field_level"], parts["field_text"], parts["text"]) == (
        "warning",
        "high",
        "t",
        "words",
    )


def test_field_of_the_message_goes_before_the_rollout_of_the_context() -> None:
    parts = json.loads(
        written(JsonLinesFormatter(), "lightning.x rollout_id=%s", "ro-2", rollout_id="ro-1", attempt_id="at-1")
    )
    assert (parts["rollout_id"], parts["attempt_id"]) == ("ro-2", "at-1")


def test_traceback_is_a_field_of_json_and_follows_a_key_value_line() -> None:
    try:
        raise ValueError("the password=hunter2")
    except ValueError as exc:
        info = (type(exc), exc, exc.__traceback__)
    parts = json.loads(written(JsonLinesFormatter(), "lightning.x", exc_info=info))
    assert parts["exception"].startswith("Traceback")
    assert parts["exception"].endswith("ValueError: the password=***")
    line, *traceback = written(KeyValueFormatter(), "lightning.x", exc_info=info).splitlines()
    assert line.endswith("event=lightning.x")
    assert traceback[0].startswith("Traceback")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer zyx.wvu-987", "Authorization: *** ***"),
        ("{'authorization': 'Basic abcdef123456'}", "{'authorization': '***'}"),
        ("a basic understanding of bearer instruments", "a basic understanding of bearer instruments"),
        ("key sk-proj-abcdefghijklmnop1234 refused", "key sk-*** refused"),
        ("postgres://me:secret@db:5432/x", "postgres://***@db:5432/x"),
        ('{"api_key": "abc123", "n": 1}', '{"api_key": "***", "n": 1}'),
        ("https://h/v1?api_key=abc&n=1", "https://h/v1?api_key=***&n=1"),
        ('{"Ocp-Apim-Subscription-Key": "abc"}', '{"Ocp-Apim-Subscription-Key": "***"}'),
        ("aws_secret_access_key=abc region=eu", "aws_secret_access_key=*** region=eu"),
        ("wrong: AIzaSyA1234567890abcdefghijklmnopqrstuv.", "wrong: AIza***."),
        ("id AKIAIOSFODNN7EXAMPLE refused", "id AKIA*** refused"),
        ("ghp_1234567890abcdefghijklmnopqrstuvwxyz", "ghp_***"),
        ("github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz", "github_pat_***"),
        ("xoxb-1234567890-abcdefghij", "xoxb-***"),
        ("hf_abcdefghijklmnopqrstuvwxyz123456", "hf_***"),
        ("hf-internal-testing/tiny-random-gpt2", "hf-internal-testing/tiny-random-gpt2"),
        ("see task-sk-learn-pipelines-2, sk-learn-v2", "see task-sk-learn-pipelines-2, sk-learn-v2"),
        ("use sk-or-another-library-of-tools", "use sk-or-another-library-of-tools"),
        (r"\nsk-ant-api03-abcdefghijklmnop", r"\nsk-***"),
        ("sk_live_abcdefghij1234567", "sk_live_***"),
        ("gsk_abcdefghij1234567, xai-abcdefghij1234567", "gsk_***, xai-***"),
        ("glpat-abcdefghij1234567890 nvapi-abcdefghij_1234567890", "glpat-*** nvapi-***"),
        ("GET /v1?key=abc&n=1&token=def#top", "GET /v1?key=***&n=1&token=***#top"),
        (
            "got -----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY----- instead",
            "got -----BEGIN RSA PRIVATE KEY-----*** instead",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIEow", "-----BEGIN PRIVATE KEY-----***"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w!", "got eyJ***!"),
        ("prompt_key: question", "prompt_key: question"),
        ("5 tokens of task-1 at http://h:80/v1", "5 tokens of task-1 at http://h:80/v1"),
    ],
)
def test_what_looks_like_a_secret_is_not_shown(text: str, shown: str) -> None:
    assert hide_in_text(text) == shown


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("curl -H 'X-Api-Key: swordfish' https://h/", "swordfish"),
        ("x-goog-api-key: abc", "abc"),
        ("api-key: 4f9a8b7c", "4f9a8b7c"),
        ("API_KEY=swordfish", "swordfish"),
        ("export DB_PASSWORD='swordfish'", "swordfish"),
        ("login(user='bob', password='swordfish')", "swordfish"),
        ("mysql --password=hunter2 -u root", "hunter2"),
        ("mysql --password hunter2 -u root", "hunter2"),
        ('"tool --api-key 4f9a8b7c"', "4f9a8b7c"),
        ("curl --db-password 'blue fish' x", "blue fish"),
        ("connect(password='blue fish', user='bob')", "blue fish"),
        ('export API_KEY="sword, fish" x="y"', "sword, fish"),
        ("Pwd=hunter2;Database=x", "hunter2"),
        ("passwd=swordfish&n=1", "swordfish"),
        ("Password : hunter2", "hunter2"),
        ("secret=s3cr3t", "s3cr3t"),
        ("token: 'ya29.a0AfH6SMB12345678'", "ya29.a0AfH6SMB12345678"),
        ("Authorization: Token 4f9a8b7c", "4f9a8b7c"),
        ("Cookie: session=abc; theme=dark", "session=abc; theme=dark"),
        (r"{\"password\": \"sword fish\", \"n\": 1}", "sword fish"),
    ],
)
def test_what_stands_behind_the_name_of_a_secret_is_shown_in_no_text(text: str, secret: str) -> None:
    assert hide_keys_in({"said": [text]}) == {"said": [text.replace(secret, "***")]}
    assert secret not in hide_in_text(text)


@pytest.mark.parametrize("secret", ["$ecret99x", "/aB3+dEf9", "(abc1x", "~Tilde9!", ".hidden1", "abc(9x"])
def test_a_password_in_a_message_is_hidden_whatever_it_begins_with(secret: str) -> None:
    assert hide_in_text(f"refused: password={secret}") == "refused: password=***"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "max_tokens=200",
            "token=the",
            "a token = the smallest unit",
            "eos_token=50256",
            "tokenizer=gpt2tokenizerfast123",
        ),
        *(
            "Password: must have 8 characters",
            "password: reset",
            "What is the secret: never give up",
            "a secret: 3 eggs",
        ),
        *("password={password}", "password=$PASSWORD", "password=<yours>", "password=None", "password=getpass()"),
        *("f(password=password)", "if password == stored1:", "api_key=os.environ['KEY']", "api_key=os.environ/KEY"),
        *("PWD=/root/project", "passwords=3", "password_rounds=120000", "key=value", "prompt_key: question1"),
        *(
            "use --password to log in",
            "--password is required",
            "[--password PASSWORD] [--n 2]",
            "--password --n=200000",
        ),
        *("a cookie: 12 grams of sugar", "Authorization: required", "def f(api_key: str | None = None):"),
        *('{"secret": 1234567, "tokens": 12}', '{"token": " the", "logprob": -0.5}'),
    ],
)
def test_prose_and_code_that_only_name_a_secret_stay(text: str) -> None:
    assert hide_keys_in({"said": [text]}) == {"said": [text]}


def test_key_of_an_attempt_is_not_shown() -> None:
    key = Keys("secret").mint("run-1", "ro-1", "at-1", 1.0)
    assert hide_in_text(f"the key {key}.") == "the key agl-at-***."
    assert hide_in_text(rf"\n{key}\n") == r"\nagl-at-***\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"aws_secret_access_key": "abc", "region": "eu"}, {"aws_secret_access_key": "***", "region": "eu"}),
        ({"headers": {"Team": "a", "n": 5}}, {"headers": {"Team": "***", "n": "***"}}),
        (
            {"extra_headers": {"X-Pass": "abc"}, "header": "Team"},
            {"extra_headers": {"X-Pass": "***"}, "header": "Team"},
        ),
        ({"env": {"MY_PASS": "abc", "N": 5}, "x": "y"}, {"env": {"MY_PASS": "***", "N": "***"}, "x": "y"}),
        (
            {"runtime_env": {"env_vars": {"WHATEVER": "abc"}, "working_dir": "."}},
            {"runtime_env": {"env_vars": {"WHATEVER": "***"}, "working_dir": "."}},
        ),
        (  # one that an agent acts in
            {"env": {"name": "maze", "max_steps": 5, "api_key": "abc"}, "environment": "maze"},
            {"env": {"name": "maze", "max_steps": 5, "api_key": "***"}, "environment": "maze"},
        ),
        ([{"params": [{"subscription-key": "abc"}]}], [{"params": [{"subscription-key": "***"}]}]),
        (
            {"key": "abc", "private_key": "abc", "auth-token": "abc"},
            dict.fromkeys(("key", "private_key", "auth-token"), "***"),
        ),
        ({"prompt_key": "question", "keys": 2, "n_tokens": 3}, {"prompt_key": "question", "keys": 2, "n_tokens": 3}),
        (
            {"api_keys": ["abc"], "auth": {"user": "abc"}, "cookies": {"session": "abc"}, "cookie": "abc"},
            {"api_keys": ["***"], "auth": "***", "cookies": "***", "cookie": "***"},
        ),
        (
            dict.fromkeys(("bearer", "pwd", "passphrase", "jwt", "private_key_pem", "client_secret", "id_jwt"), "abc"),
            dict.fromkeys(("bearer", "pwd", "passphrase", "jwt", "private_key_pem", "client_secret", "id_jwt"), "***"),
        ),
        ({"tokens": 5, "author": "me", "auth": False}, {"tokens": 5, "author": "me", "auth": False}),
        ({"api_base": "https://h/v1?api_key=abc&n=1"}, {"api_base": "https://h/v1?api_key=***&n=1"}),
        ({"model": "sk-proj-abcdefghijklmnop1234"}, {"model": "sk-proj-abcdefghijklmnop1234"}),  # not by its looks
        ({"api_key": "os.environ/MODEL_KEY"}, {"api_key": "os.environ/MODEL_KEY"}),
    ],
)
def test_what_a_record_keeps_has_no_secrets(value: Any, shown: Any) -> None:
    assert without_secrets("litellm_params", value) == shown


def test_field_that_is_named_as_a_secret_is_not_shown() -> None:
    assert hide_in_field("api_key", "abc") == hide_in_field("access_token", 5) == "***"
    assert hide_in_field("prompt_tokens", 5) == 5
    assert hide_in_field("url", "http://me:pw@h/") == "http://***@h/"


async def test_every_record_of_a_rollout_says_which_one_it_belongs_to(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "run.jsonl"
    setup_logging(format="json", console=False, files=file, apply_to=["an.agent"])
    store = InMemoryLightningStore(run_id="run-7")
    rollout = await store.start_rollout("task")
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    tracer = OtelTracer(instrument=())
    with tracer.lifespan():
        async with tracer.trace_context(store=store, **ids):
            logging.getLogger("an.agent").info("thinking")
        async with tracer.trace_context():
            logger.info("lightning.no_rollout")
    logger.info("lightning.outside")
    inside, *others = json_lines(file.read_text())
    assert (inside["text"], inside["run_id"], inside["rollout_id"], inside["attempt_id"]) == (
        "thinking",
        "run-7",
        rollout.rollout_id,
        rollout.attempt.attempt_id,
    )
    assert all("rollout_id" not in other for other in others)


def test_filter_gives_any_handler_the_attributes() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(rollout_id)s %(message)s"))
    handler.addFilter(RolloutFilter())
    own = logging.getLogger("somebody.elses")
    own.addHandler(handler)
    own.warning("hello")
    own.removeHandler(handler)
    assert stream.getvalue() == "None hello\n"


def test_console_shows_our_records_from_the_level_on_and_nobody_elses(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("WARNING", submodule_levels={"lightning_core.loud": "debug"})
    logger.info("lightning.quiet")
    logger.warning("lightning.shown n=%d", 1)
    logging.getLogger("lightning_core.loud").debug("lightning.loud")
    logging.getLogger("somebody.elses").warning("theirs")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition("event=")[2] for line in err.splitlines()] == ["lightning.shown n=1", "lightning.loud"]


def test_second_setup_replaces_the_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    setup_logging(files=str(tmp_path / "first.log"))
    setup_logging(files={"lightning_core.some": tmp_path / "second.log"}, format="json")
    logger.info("lightning.once")
    assert [line["event"] for line in json_lines(capsys.readouterr().err)] == ["lightning.once"]
    assert (tmp_path / "first.log").read_text() == ""
    assert [line["event"] for line in json_lines((tmp_path / "second.log").read_text())] == ["lightning.once"]


def test_second_setup_and_reset_take_back_levels_and_warnings() -> None:
    shown = warnings.showwarning
    loud = logging.getLogger("lightning_core.loud")
    setup_logging(submodule_levels={"lightning_core.loud": "debug"}, capture_warnings=True)
    assert warnings.showwarning is not shown
    setup_logging("ERROR")
    assert (loud.level, loud.getEffectiveLevel()) == (logging.NOTSET, logging.ERROR)
    assert warnings.showwarning is shown
    setup_logging(submodule_levels={"lightning_core.loud": "debug"}, capture_warnings=True)
    reset_logging()
    assert loud.level == logging.NOTSET
    assert warnings.showwarning is shown


def test_handlers_of_ones_own_keep_their_formatter(tmp_path: Path) -> None:
    stream, plain = io.StringIO(), logging.StreamHandler(io.StringIO())
    mine = logging.StreamHandler(stream)
    mine.setFormatter(logging.Formatter("mine: %(message)s"))
    setup_logging(console=False, extra_handlers=[mine, plain], formatter=logging.Formatter("given: %(message)s"))
    logger.info("hello")
    assert stream.getvalue() == "mine: hello\n"
    assert plain.stream.getvalue() == "given: hello\n"


def test_one_logger_can_be_set_up_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert setup_module_logging("INFO", name="lightning_core.some") is logging.getLogger("lightning_core.some")
    logger.info("lightning.shown")
    logging.getLogger("lightning_core.other").info("lightning.not_shown")
    assert capsys.readouterr().err.count("event=") == 1


def test_levels_have_colours_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[33mlevel=warning\x1b[0m" in written(KeyValueFormatter(color=True), "lightning.x")
    setup_logging()
    logger.warning("lightning.x")
    assert "\x1b" not in capsys.readouterr().err


def test_wrong_level_and_wrong_format_are_errors_and_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("INFO")
    with pytest.raises(ValueError, match=r"no log level named 'WARNIN'; it is one of: .*\. Did you mean 'WARNING'\?"):
        setup_logging("WARNIN")
    with pytest.raises(ValueError, match="no log format named 'xml'; it is one of: key=value, json"):
        setup_logging(format="xml")  # type: ignore[arg-type]
    logger.info("lightning.still_shown")
    assert "lightning.still_shown" in capsys.readouterr().err


def test_python_warnings_can_be_shown_as_records(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(capture_warnings=True)
    try:
        logging.getLogger("py.warnings").warning("a warning")
        assert 'text="a warning"' in capsys.readouterr().err
    finally:
        logging.captureWarnings(False)
