"""Keeps keys and passwords out of logs and records.

A secret is recognised by the name of its field, by its looks, or because it was seen before in a config, in resources
or in the environment. Prompts are what a run is for: only secrets of the config and of resources are hidden in them.
"""

import functools
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from lightning_core.types.text import ATTEMPT_KEY

_HIDDEN = "***"

_KEYS_OF = (
    "access|account|admin|api|attempt|auth|client|encryption|functions|license|licence|master|private|report|runner|"
    "secret|service|shared|signing|storage|subscription|virtual"
)
_KEY = rf"(?:{_KEYS_OF})[_-]?key"
"""Not every name that ends so: `prompt_key` and `search_key` say where to look."""

_NAMES = re.compile(
    rf"secret|({_KEY}s?|^key|private[_-]?key[_-]?pem|passwords?|passphrase|authorization|credentials?|"
    r"(^|[_-])(auth|bearer|pwd|cookies?|jwt)|(^|[_-]|access|auth|session)token)$",
    re.IGNORECASE,
)

_FIELD = (
    r"(?:(?:api|access|auth|private|secret)[_-]?key|pass(?:word|wd|phrase)|client[_-]?secret|"
    r"(?:access|auth|refresh)[_-]?token)"
)
"""Names of fields whose values are secrets in any data. Others of `_NAMES`, as `token`, may be what a task is about."""

_NAMED_KEYS = re.compile(
    rf"(^|[_.-]){_FIELD}s?$|"
    r"headers?\.([\w-]*[_-])?(authorization|cookie|key|secret|token)$",
    re.IGNORECASE,
)
"""Names of such fields, and of headers, behind the name of what has them."""

_KEY_FIELD = re.compile(rf"{_FIELD}|headers?\\*\"", re.IGNORECASE)

_HEADERS = re.compile(r"(^|[_-])headers$", re.IGNORECASE)
"""Each service has its own name for the header that has its key, so none of them is shown."""

_ENVIRONMENT = re.compile(r"(^|[_-])(env|environ|environment)([_-]?var(s|iables?))?$", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""What a program is given in its environment is not shown, either. The environment that an agent acts in is something
else: the names in it are not those of variables."""

_SECRET_VARIABLE = re.compile(r"(^|_)(key|token|pass|passwd|pat)$", re.IGNORECASE)
"""Names of environment variables that are secret besides those of `_NAMES`."""

_PLAIN_HEADER = re.compile(r"^(accept|content|host$|http-referer$|user-agent$|x-title$)|version|beta", re.IGNORECASE)
"""Headers whose values stand in other texts, too, and are not hidden there."""

_TYPE = "resource_type"
"""A mapping with this key is a resource, and its name is the user's own."""

_REFERENCE = "os.environ/"
_SHORT = 64
"""How many characters a text may have that is remembered with what is hidden in it."""

_SHORTEST = 8
"""What is shorter stands for no key, such as `EMPTY`, and may be a part of any text."""

_URL_SHAPES = (
    (re.compile(r"(\w://)[^\s/@:]*:[^\s/@]+@"), rf"\1{_HIDDEN}@"),
    (re.compile(rf"(?i)([?&](?:key|{_KEY}|(?:[\w-]*[_-])?token)=)[^\s&#\"'<>]+"), rf"\1{_HIDDEN}"),
)
"""Where a URL has its secrets."""

_SHAPES = (
    (
        re.compile(
            r"(?i)(authorization(?:[\\\"']*\s*[:=]|[\\\"']+,)\s*b?[\\\"']*(?:bearer|basic|token)\s+)[\w.~+/=-]{6,}"
        ),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"(?i)(\bcookie[\"']*:\s*[\"']?)[\w.-]+=[^\r\n\"'\\]+"), rf"\1{_HIDDEN}"),
    (
        re.compile(
            r"(?:(?<![\w-])|(?<=\\[nrt]))((?:sk|pk|rk)(?:-|_(?:live|test)_)|hf_|xai-|gsk_|glpat-|nvapi-)"
            r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{16,}"
        ),
        rf"\1{_HIDDEN}",
    ),
    (
        re.compile(
            rf"(?is)({_FIELD}(\\*)[\"']\s*:\s*\2([\"']))"
            r"(?!\2\3|os\.environ/).*?(?:(?<!\\)(?=\2\3)|\Z)"
        ),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"(?s)(-----BEGIN ([A-Z ]*PRIVATE KEY[A-Z ]*)-----).*?(?:-----END \2-----|\Z)"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(AIza)[\w-]{30,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(gh[opsur]_|github_pat_)\w{20,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(xox[a-z]-)[\w-]{10,}"), rf"\1{_HIDDEN}"),
    (re.compile(r"\b(eyJ)[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?"), rf"\1{_HIDDEN}"),
    (ATTEMPT_KEY, rf"\1{_HIDDEN}"),
    *_URL_SHAPES,
)

_ASSIGNS = re.compile(r"(?:[:=](?<=[DENTYdenty\"' \t][:=])|(--[\w-]+)(?=[ \t]))([ \t]*)[\"']?")
"""Names are looked for before these, or are options: both are rarer than letters, so a long text takes less time."""
_ASSIGNED = re.compile(
    r"(?i)(?![$<*%/~.=]|(?:os\.environ|none|null|true|false|value)\b)[^\s\"'`&,;<>(){}\[\]\\]++(?![(\[{])"
)
"""Neither a placeholder nor a path nor a call."""
_ANY_ASSIGNED = re.compile(r"(?i)(?!<|\.\.\.|(?:os\.environ|none|null|true|false|value)\b)[^\s\"'`&,;]+")
"""In a message, in which a secret may begin like one of these."""
_ASSIGNED_TO = (
    *(f"{kind}key" for kind in _KEYS_OF.split("|")),
    *("password", "passwd", "passphrase", "pwd", "secret", "accesstoken", "authtoken", "refreshtoken", "authorization"),
)
_OWN_HEADER = re.compile(r"x-[\w-]*$", re.IGNORECASE)


def _hide_assigned(text: str, *, is_message: bool = False) -> str:
    """Replace what stands behind `password=`, `X-Api-Key:`, `--password` and the like.

    In a message that is any value. In other texts, and behind an option, a value behind a space may be prose: it has a
    digit and at least six characters, and behind `token` at least 16.
    """
    assigned = _ANY_ASSIGNED if is_message else _ASSIGNED
    parts, end = [], 0
    for assigns in _ASSIGNS.finditer(text):
        (start, at), option = assigns.span(), assigns[1]
        before = option or text[max(end, start - 64) : start].rstrip("\"' \t")
        name = before.lower().replace("-", "").replace("_", "")
        is_field = name.endswith(_ASSIGNED_TO)
        if not is_field and not name.endswith(("key", "token", "secret")):
            continue
        value = assigned.match(text, at, at + 256)
        is_quoted = text[at - 1] in "\"'"
        if not value or before.endswith(value[0]) or (option and value[0].startswith("-")):
            continue
        if not (option or is_quoted) and text[start - 1] in "\"'":
            continue  # of JSON's values only texts can be replaced
        is_any = is_field and (is_quoted if option else is_message or (text[start] == "=" and not assigns[2]))
        is_long = len(value[0]) >= (6 if is_field else 16) and (is_field or name.endswith("token"))
        if is_any or (is_long and re.search(r"\d", value[0])) or (text[start] == ":" and _OWN_HEADER.search(before)):
            parts += [text[end:at], _HIDDEN]
            end = (assigned.match(text, at) or value).end()
            if is_quoted:  # it may have spaces
                end = max(end, text.find(text[at - 1], end, at + 256))
    return "".join([*parts, text[end:]])


class _Known:
    """Secrets that were seen. They are made a pattern of when a text is looked through, and not before."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # Python may collect garbage in the midst of it, and run a `__del__` that logs
        self._texts: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._made_of = 0
        """Of how many texts the pattern is made."""

    def add(self, texts: Iterable[str]) -> None:
        self._texts.update(text for text in texts if len(text) >= _SHORTEST)

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """Matches each of them; None while there is none."""
        if self._made_of != len(self._texts):
            with self._lock:
                texts = self._texts.copy()
                longest_first = sorted({form for text in texts for form in _written(text)}, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))
                self._made_of = len(texts)
        return self._pattern

    def hide(self, text: str) -> str:
        pattern = self.pattern
        return text if pattern is None else pattern.sub(_HIDDEN, text)


def _written(text: str) -> set[str]:
    """Return a text as it is, and as it stands in JSON, and in JSON within JSON."""
    forms = {text}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=is_ascii)[1:-1] for form in forms for is_ascii in (True, False)}
    return forms


_given = _Known()
"""Secrets of configs and of resources."""
_known = _Known()
"""These, and secrets of the environment."""
_environment: dict[str, str] = {}
"""The environment as it was remembered last."""


def remember_secrets(name: str, value: Any) -> None:
    """Hide the secrets of a value from now on, in whichever text they appear.

    Args:
        name: What the value is called; it says whether the whole value is a secret.
        value: A text, a model, or a mapping or list of such. Of `os.environ/NAME` the variable's value is hidden.
    """
    texts = list(_secrets_in(name, value))
    _given.add(texts)
    _known.add(texts)


def remember_environment() -> None:
    """Hide the values of environment variables that are named as a secret is.

    Not the path of a file, nor what may be a word: fewer than 12 characters, and letters alone or no letters.
    """
    environment = os.environ.copy()
    if environment != _environment:
        _environment.clear()
        _environment.update(environment)
        _known.add(
            value
            for name, value in environment.items()
            if _is_secret_variable(name) and not _may_be_a_word(value) and not os.path.exists(value)
        )


def hide_in_prompt(text: str) -> str:
    """Replace secrets of the config and of resources in a prompt, and nothing else."""
    return _given.hide(text)


def hide_keys(text: str) -> str:
    """Replace secrets that are remembered, and what has the form of a key, in a text that is somebody's data."""
    if len(text) > _SHORT:
        return _hide_assigned(_replace(_SHAPES, _known.hide(text)))
    return _without_keys(text, _known.pattern)


@functools.lru_cache(maxsize=10_000)
def _without_keys(text: str, known: re.Pattern[str] | None) -> str:
    """Do what `hide_keys` does. Most short texts are names that come again and again."""
    return _hide_assigned(_replace(_SHAPES, text if known is None else known.sub(_HIDDEN, text)))


def hide_keys_in(value: Any, name: str = "") -> Any:
    """Copy a value of mappings and lists, with `hide_keys` done to each text, and `hide_in_prompt` to prompts.

    Fields such as `api_key` are hidden, too, and headers such as `Authorization` in a field whose name ends in
    `headers`; also in a text that is JSON.

    Args:
        value: What has them.
        name: What the value is called.
    """
    if isinstance(value, Mapping):
        return {
            key: _hide_in_prompt_of(value, key)
            or (_hidden(item) if _NAMED_KEYS.search(f"{name}.{key}") else hide_keys_in(item, str(key)))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [hide_keys_in(item, name) for item in value]
    return hide_keys(_hide_in_json(value, name)) if isinstance(value, str) else value


def _hide_in_json(text: str, name: str) -> str:
    """Do what `hide_keys_in` does to the fields of a text that is JSON; one with none to hide stays as it is."""
    if not text.lstrip().startswith(("[", "{")) or _KEY_FIELD.search(f'{name}"{text}') is None:
        return text
    try:
        document = json.loads(text)
        hidden = hide_keys_in(document, name)
        return text if hidden == document else json.dumps(hidden, ensure_ascii=text.isascii())
    except (ValueError, RecursionError):  # it only looks so
        return text


def hide_in_text(text: str) -> str:
    """Replace what `hide_keys` does, and what stands behind a word such as `password=`, in a message."""
    return _hide_assigned(hide_keys(text), is_message=True)


def hide_in_field(name: str, value: Any) -> Any:
    """Replace the value of a field that is named as a secret is, and what looks like one in any text."""
    if _NAMES.search(name):
        return _HIDDEN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return hide_in_text(str(value))


def without_secrets(name: str, value: Any) -> Any:
    """Return a value as something that YAML and JSON can say, with what is a secret replaced, however deep it lies.

    A secret is recognised by its name, by its place in a URL, or because it was seen before; not by its looks.
    References to variables, `os.environ/NAME`, stay.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        if _is_named_as_secret(name) and _TYPE not in value:
            return _HIDDEN
        return {
            str(key): _hide_in_prompt_of(value, key)
            or (_hidden(item) if _is_hidden_in(name, str(key)) else without_secrets(str(key), item))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(name, each) for each in value]
    if _is_named_as_secret(name):
        return _hidden(value)
    return _replace(_URL_SHAPES, _known.hide(value)) if isinstance(value, str) else value


def _hidden(value: Any) -> Any:
    """Return what stands for a value that is a secret: itself where it tells nothing."""
    tells_nothing = value is None or value == "" or isinstance(value, bool)
    return value if tells_nothing or (isinstance(value, str) and value.startswith(_REFERENCE)) else _HIDDEN


def _is_named_as_secret(name: str) -> bool:
    return _NAMES.search(name.replace("-", "_")) is not None


def _is_hidden_in(name: str, key: str) -> bool:
    """Whether what a mapping has under a key is hidden because of what the mapping is."""
    is_variable = _ENVIRONMENT.search(name) and _VARIABLE.fullmatch(key)
    return bool(_HEADERS.search(name) or is_variable)


def _hide_in_prompt_of(resource: Mapping[Any, Any], key: Any) -> str | None:
    """Return what can be shown of a template in a resource; None where it is something else."""
    item = resource[key]
    is_prompt = key == "template" and resource.get(_TYPE) == "prompt_template" and isinstance(item, str)
    return hide_in_prompt(item) if is_prompt else None


def _replace(shapes: Iterable[tuple[re.Pattern[str], str]], text: str) -> str:
    for pattern, replacement in shapes:
        text = pattern.sub(replacement, text)
    return text


def _secrets_in(name: str, value: Any) -> Iterator[str]:
    """Yield the texts that `without_secrets` hides as a whole, and the values of variables that they refer to."""
    value = value.model_dump() if isinstance(value, BaseModel) else value
    if _is_named_as_secret(name) and not (isinstance(value, Mapping) and _TYPE in value):
        yield from _texts_in(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if _HEADERS.search(name):
                yield from () if _PLAIN_HEADER.search(str(key)) else _texts_in(item)
            elif _is_hidden_in(name, str(key)):
                yield from _texts_in(item) if _is_secret_variable(str(key)) else ()
            else:
                yield from _secrets_in(str(key), item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets_in(name, item)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        text = os.environ.get(value.removeprefix(_REFERENCE), "") if value.startswith(_REFERENCE) else value
        yield text
        if scheme := re.fullmatch(r"\w+ +(\S+)", text):
            yield scheme[1]  # without `Bearer`
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(item)


def _is_secret_variable(name: str) -> bool:
    return _NAMES.search(name) is not None or _SECRET_VARIABLE.search(name) is not None


def _may_be_a_word(value: str) -> bool:
    return len(value) < 12 and len({character.isalpha() for character in value}) == 1
