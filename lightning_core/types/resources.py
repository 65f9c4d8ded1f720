"""What an algorithm tunes and an agent is given: a versioned, named bundle of these."""

import re
import string
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from lightning_core.types.rollout import AttemptedRollout

MAX_CHARACTERS = 1_000_000
"""The longest prompt that a jinja template may make."""


class Resource(BaseModel):
    """Something that an algorithm tunes and an agent depends on."""

    model_config = ConfigDict(extra="forbid")

    resource_type: Any
    """Tells the kinds of resources apart where they are stored."""


class LLM(Resource):
    """A model behind an OpenAI-compatible endpoint."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str
    """Its base URL, `/v1` included."""
    model: str
    """The model's name at that endpoint."""
    api_key: str | None = Field(default=None, repr=False)
    """Sent as a bearer token; None where the endpoint needs none."""
    sampling_parameters: dict[str, Any] = Field(default_factory=dict)
    """Further fields of a request, such as `temperature` and `max_tokens`."""

    def get_base_url(self, *args: Any, **kwargs: Any) -> str:
        """Return the base URL for a client; a `ProxyLLM` wants the rollout's and the attempt's id."""
        return self.endpoint


_ATTEMPT = re.compile(r"/rollout/[^/]+/attempt/[^/]+$")


class ProxyLLM(LLM):
    """A model behind the proxy, which tells from the URL which attempt calls it."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # type: ignore[assignment]

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None, /) -> str:
        """Return the base URL for one attempt: `.../rollout/{rollout_id}/attempt/{attempt_id}/v1`.

        An agent has it as `endpoint` already: a runner gives each attempt its own.

        Raises:
            ValueError: When only one of the two ids is given.
        """
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if rollout_id is None or attempt_id is None:
            raise ValueError(
                f"rollout_id and attempt_id go together; got rollout_id={rollout_id!r}, attempt_id={attempt_id!r}"
            )
        root = self.without_attempt().endpoint
        version = "/v1" if root.endswith("/v1") else ""
        return f"{root.removesuffix('/v1')}/rollout/{rollout_id}/attempt/{attempt_id}{version}"

    def without_attempt(self) -> Self:
        """Return it with the URL that all attempts share, for clients that say by a header which one calls."""
        root = self.endpoint.rstrip("/")
        version = "/v1" if root.endswith("/v1") else ""
        return self.model_copy(update={"endpoint": _ATTEMPT.sub("", root.removesuffix("/v1")) + version})

    def with_attempted_rollout(self, rollout: AttemptedRollout) -> LLM:
        """Return the plain `LLM` that an agent of this attempt calls."""
        return LLM(
            endpoint=self.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=self.sampling_parameters,
        )


class PromptTemplate(Resource):
    """A text with placeholders.

    A template may have been written by a model, so it is data, never code: an `f-string` field is a plain name
    (no attribute, index, conversion or format), and `jinja` runs in a sandbox, which bounds the memory that it takes,
    but not the time. There it has no macros, blocks and recursive loops, and no methods that make texts longer.
    """

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    """The text."""
    engine: Literal["jinja", "f-string"] = "f-string"
    """How placeholders are written: `{name}` for `f-string`, `{{ name }}` for `jinja`."""

    def placeholders(self) -> frozenset[str]:
        """Return the names that `format` needs.

        Raises:
            ValueError: When the template is malformed, or a field of it is more than a plain name.
        """
        return _jinja_names(self.template) if self.engine == "jinja" else _fstring_names(self.template)

    def format(self, /, **values: Any) -> str:
        """Fill in the placeholders. Values without a placeholder are ignored, so `format(**task)` is fine.

        Raises:
            ValueError: Names the placeholder that is missing from `values`; or says, with the cause chained, why a
                jinja template could not be carried out.
        """
        names = self.placeholders()
        if missing := sorted(names - values.keys()):
            raise ValueError(
                f"no value for placeholder{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}; "
                f"the template has {sorted(names)}, the values are {sorted(values)}"
            )
        if self.engine == "jinja":
            from lightning_core.types.jinja_sandbox import Sandbox

            try:
                sandbox = Sandbox()
                used = {name: values[name] for name in names}  # a value must not hide one of jinja's own names
                return _bounded(sandbox.from_string(sandbox.parsed(self.template)).generate(used))
            except Exception as exc:
                raise ValueError(f"jinja template failed with {type(exc).__name__}: {exc}") from exc
        return "".join(
            text + (str(values[name]) if name is not None else "")
            for text, name, _, _ in string.Formatter().parse(self.template)
        )


def _fstring_names(template: str) -> frozenset[str]:
    names = set()
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as exc:
        raise ValueError(f"malformed f-string template: {exc}; write a literal brace as '{{{{' or '}}}}'") from exc
    for _, name, spec, conversion in fields:
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            field = name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ValueError(
                f"template field {{{field}}} is not a plain name; attributes, indexes, conversions and formats are "
                "not allowed. Write a literal brace as '{{' or '}}'"
            )
        names.add(name)
    return frozenset(names)


def _jinja_names(template: str) -> frozenset[str]:
    from jinja2 import TemplateSyntaxError, meta

    from lightning_core.types.jinja_sandbox import Sandbox

    try:
        return frozenset(meta.find_undeclared_variables(Sandbox().parsed(template)))
    except TemplateSyntaxError as exc:
        raise ValueError(f"malformed jinja template, line {exc.lineno}: {exc.message}") from exc


def _bounded(pieces: Iterable[str]) -> str:
    """Join a text that is made piece by piece.

    Raises:
        ValueError: When it grows over `MAX_CHARACTERS`.
    """
    text, size = [], 0
    for piece in pieces:
        text.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise ValueError(f"the prompt is longer than {MAX_CHARACTERS:,} characters")
    return "".join(text)


ResourceUnion = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources = dict[str, ResourceUnion]
"""Resource name -> resource, as in `{"main_prompt": PromptTemplate(template="Answer {question}")}`."""


class ResourcesUpdate(BaseModel):
    """One version of the resources. Times are in seconds since the epoch."""

    resources_id: str
    """Identifies this version."""
    create_time: float
    """When it was added."""
    update_time: float
    """When it was last changed."""
    version: int
    """Counts the changes of this version, from 1."""
    resources: NamedResources
    """The bundle."""
    parent_id: str | None = None
    """The version that it was made from; None where that is not known, or there was none."""
