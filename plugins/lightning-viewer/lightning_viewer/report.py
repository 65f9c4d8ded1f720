"""The report of a run, written at its end: one HTML file with the data, the client and its styles in it."""

import asyncio
import base64
import functools
import hashlib
import html
import json
import logging
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_core.adapter.dialects import MODELS
from lightning_core.errors import LightningError
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.manifest import write_atomically
from lightning_core.store import LightningStore

if TYPE_CHECKING:
    from lightning_viewer.collect import RunData

logger = logging.getLogger(__name__)

MAX_ROLLOUTS = 200_000
"""For a run with more rollouts the report is not written at its end, since that takes a minute."""

MAX_SECONDS = 300.0
"""How long a run waits for its report at most, such as on a store that does not answer."""

REPORT_FILE = "report.html"
"""The name of the report in the folder of its run."""

SCRIPTS = ("htm-preact.js", "format.js", "charts.js", "source.js", "pages.js", "trace.js", "app.js")
"""The client's scripts in the order in which they are run. Each is a classic script: a file that is opened from disk
cannot import modules."""


class ReportWriter:
    """The plugin."""

    stays_with_algorithm = True
    """Runner processes do without it."""

    async def lightning_run_recorded(self, folder: RunFolder, store: LightningStore) -> None:
        """Write the report into the folder of the run. What goes wrong is logged: the run itself is kept."""
        try:
            async with asyncio.timeout(MAX_SECONDS):
                why = await _write(folder, store)
        except TimeoutError:
            why = f"its store took more than {MAX_SECONDS:g} s"
        except (OSError, LightningError) as exc:  # such as a full disk
            why = str(exc)
        except Exception as exc:  # such as a span that cannot be read
            logger.warning("lightning.report_not_written run_id=%s", folder.run_id, exc_info=exc)
            return
        if why is not None:
            words = "lightning.report_not_written run_id=%s: %s; write it with: agl report %s"
            logger.warning(words, folder.run_id, why, folder.run_id)


async def _write(folder: RunFolder, store: LightningStore) -> str | None:
    """Write the report; return why not, where it is too large to wait for."""
    count = (await store.query_rollouts(limit=0)).total
    if count > MAX_ROLLOUTS:
        return f"it has {count:,} rollouts"
    from lightning_viewer.collect import collect  # late: a run that starts does not wait for it

    write_report(await collect(folder, store), folder.path / REPORT_FILE)
    return None


def write_report(data: "RunData", path: Path) -> None:
    """Write a report that only its owner can read. A report that is there already is replaced as a whole.

    Args:
        data: What `collect` returned.
        path: The file.

    Raises:
        RunFolderError: When it cannot be written.
    """
    write_atomically(path, render(data))


def render(data: "RunData") -> str:
    """Return the report as HTML. It loads nothing, and runs no script but its own."""
    return page_of(data, title=f"{data['run']['id']} · {data['run']['algorithm']}")


def page_of(data: "RunData | None", *, title: str) -> str:
    """Return the page as HTML.

    Args:
        data: What the page shows; None for a page that asks the server which it comes from.
        title: Its title.
    """
    from lightning_core.cli.console import to_json  # late, as above

    client = _client()
    # "<" cannot end the element, or open another one, when it is written as JSON's escape.
    embedded = json.dumps(to_json(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    embedded = embedded.replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy_of(is_live=data is None)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{client.style}</style>
</head>
<body>
<div id="app"><noscript>This page needs JavaScript, which it has with it.</noscript></div>
<script type="application/json" id="data">{embedded}</script>
<script>{client.script}</script>
</body>
</html>
"""


def policy_of(*, is_live: bool) -> str:
    """Return the page's content security policy: its own script and styles; a live one may ask its own server."""
    client = _client()
    policy = (
        f"default-src 'none'; script-src {_source(client.script)}; style-src {_source(client.style)}; img-src data:"
    )
    return f"{policy}; base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if is_live else "")


class _Client(NamedTuple):
    script: str
    style: str


@functools.cache
def _client() -> _Client:
    folder = files("lightning_viewer") / "client"
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return _Client(script, (folder / "style.css").read_text(encoding="utf-8"))


def _source(text: str) -> str:
    """Return the source expression that lets exactly this text pass."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Without what was said, for readers who may see the numbers only

_NAMES = frozenset(
    {
        *("after_rollouts", "algorithm", "before_rollouts", "example", "finish", "id", "kind", "label", "mode"),
        *("model", "name", "now", "old", "outcome", "parent", "purpose", "python", "role", "run", "span", "status"),
        "type",
    }
)
"""What is left as it is: names, ids and statuses. Texts under all other names are replaced."""

_BOOLEANS = ("true", "false")


def redacted(data: "RunData") -> "RunData":
    """Return a report's data with each text replaced by its length.

    Inputs, prompts, messages, tokens, failures, and texts of the config and of attributes are replaced. Numbers, ids,
    statuses, rewards, and the names of spans, tools, models, attributes and resources stay.

    Args:
        data: What `collect` returned.
    """
    return {**{name: _redacted(name, value) for name, value in data.items()}, "is_redacted": True}


def _redacted(name: str, value: Any) -> Any:
    match name, value:
        case _, str():
            return value if name in _NAMES else _length(value)
        case "versions", Mapping():
            return value
        case "tokens", Mapping():  # their ids are the text
            return None
        case (("input" | "task"), _):
            return _length(value)
        case "inputs", Mapping():
            return {key: _length(each) for key, each in value.items()}
        case "inputs", list():
            return [_length(each) for each in value]
        case (("texts" | "config"), Mapping()):
            return _without_texts(value)
        case "attributes", Mapping():
            return {
                key: each if key in MODELS or each in _BOOLEANS else _without_texts(each) for key, each in value.items()
            }
        case _, Mapping():
            return {key: _redacted(key, each) for key, each in value.items()}
        case _, list() | tuple():
            return [_redacted(name, each) for each in value]
    return value


def _without_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_texts(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_texts(each) for each in value]
    return _length(value) if isinstance(value, str) else value


def _length(value: Any) -> Any:
    if value is None or value == "":
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"[{len(text):,} characters]"
