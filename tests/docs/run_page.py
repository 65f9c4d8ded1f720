"""Runs the code blocks of one Markdown page, in order, in the current folder: `python run_page.py PAGE`.

- ```` ```python ````: run in the page's one namespace, like the cells of a notebook (`await` included).
- ```` ```yaml title="config.yaml" ````: a block of any language with a title is written to that file; a Python file
  is then run as a script.
- ```` ```bash ````: run, and must exit with 0. A `cd` in it holds for the rest of the page.
- `<!-- python` ... `-->`: a block that the reader does not see, for what the page takes for granted. It may call
  `simulate(answer)`, which serves a model whose answers come from a function.
- `<!-- not run: why -->` before a block: it is not run.
- `<!-- printed -->` before a block: it is not run; its lines, in this order, are among what the block before it
  printed. `...` stands for anything on a line.
- ```` ```text ```` and ```` ```mermaid ````: nothing to run. A language that nobody runs needs a title, or a reason.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w+-]*)(?P<rest>[^\n]*)$")
TITLE = re.compile(r'\btitle="([^"]+)"')
NOT_RUN = re.compile(r"^\s*<!-- not run: (\S.*) -->\s*$")
PRINTED = "<!-- printed -->"
SHOWN_ONLY = {"text", "mermaid"}
PARSERS = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    line: int
    """Where its first line of code stands in the page, from 1."""
    language: str
    title: str | None
    why_not_run: str | None
    code: str
    was_printed: bool = False
    """Whether it shows what the block before it printed."""
    is_shown: bool = True
    """Whether the reader sees it."""


def blocks(text: str) -> Iterator[Block]:
    """Find the blocks of a page, the invisible ones too."""
    lines = text.splitlines()
    reason: str | None = None
    was_printed = False
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.strip() == "<!-- python":
            end = lines.index("-->", number)
            yield Block(number + 1, "python", None, None, "\n".join(lines[number:end]), is_shown=False)
            number = end + 1
        elif match := FENCE.match(line):
            indent, fence = len(match["indent"]), match["fence"]
            end = next(at for at in range(number, len(lines)) if lines[at].strip() == fence)
            code = "\n".join(text[indent:] for text in lines[number:end])
            title = TITLE.search(match["rest"])
            yield Block(number + 1, match["language"], title and title[1], reason, code + "\n", was_printed)
            number = end + 1
        elif line.strip():
            why = NOT_RUN.match(line)
            reason, was_printed = why and why[1], line.strip() == PRINTED
            continue
        else:
            continue
        reason, was_printed = None, False


def simulate(answer: Callable[[Any], str]) -> str:
    """Serve a model until the page ends; `OPENAI_BASE_URL` leads there.

    Args:
        answer: Makes an answer of an `examples/local_endpoint.py:ChatRequest`.

    Returns:
        Its base URL.
    """
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    from local_endpoint import serve

    sys.path.pop()
    ready: Future[str] = Future()

    async def serving() -> None:
        async with serve(answer) as url:
            ready.set_result(url)
            await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(serving(),), daemon=True).start()
    os.environ.update(OPENAI_BASE_URL=ready.result(timeout=30), OPENAI_API_KEY="none")
    return ready.result()


def run(page: Path) -> None:
    """Run a page in the current folder.

    Raises:
        Exception: Whatever its code raises, with the page's lines in the traceback.
        SystemExit: When a command of the page fails.
    """
    namespace: dict[str, Any] = {"__name__": "__main__", "simulate": simulate}
    printed = ""
    with asyncio.Runner() as runner:
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}:{block.line}"
            if block.was_printed:
                _check(block, printed, where)
                continue
            if block.why_not_run or block.language in SHOWN_ONLY:
                continue
            if block.title is not None:
                printed = _write(block, where)
            elif block.language == "python":
                # Blank lines before it, so that a traceback names the line of the page.
                source = "\n" * (block.line - 1) + block.code
                code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    coroutine = eval(code, namespace)
                    if inspect.iscoroutine(coroutine):
                        runner.run(coroutine)
                printed = output.getvalue()
            elif block.language == "bash":
                printed = _bash(block.code, where)
            elif block.language in PARSERS:
                PARSERS[block.language](block.code)
            else:
                raise SystemExit(f"{where}: nothing runs {block.language!r}; give it a title, a reason, or say `text`")


def _check(block: Block, printed: str, where: str) -> None:
    at = 0
    for number, line in enumerate(block.code.splitlines()):
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        found = re.compile(pattern).search(printed, at)
        if found is None:
            raise SystemExit(f"{where}: line {number + 1} was not printed: {line}\nThis was:\n{printed}")
        at = found.end()


def _write(block: Block, where: str) -> str:
    assert block.title is not None
    file = Path(block.title)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.code, encoding="utf-8")
    if block.language in PARSERS:
        PARSERS[block.language](block.code)
    return _call(command_of(file, os.environ), where) if block.language == "python" else ""


def command_of(script: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the command that runs a script: by the process of `warm.py`, where the variables name one."""
    warm = ["-IS", str(Path(__file__).with_name("warm_client.py"))] if "WARM_SOCKET" in variables else ["-W", "error"]
    return [sys.executable, *warm, str(script)]


def _bash(code: str, where: str) -> str:
    folder = Path(os.environ["HOME"], ".folder")
    printed = _call(["bash", "-euo", "pipefail", "-c", f"{code}\npwd >{shlex.quote(str(folder))}"], where)
    os.chdir(folder.read_text(encoding="utf-8").rstrip("\n"))
    return printed


def _call(command: list[str], where: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{where}: exit status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.path.insert(0, "")  # as `python -c` and a notebook have it: the page's own files can be imported
    run(Path(sys.argv[1]).resolve())
