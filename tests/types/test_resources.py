"""What an agent is given: prompt templates, models, models behind the proxy."""

from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from pydantic import TypeAdapter, ValidationError

from lightning_core.types import (
    LLM,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    ResourcesUpdate,
)


def fstring(template: str) -> PromptTemplate:
    return PromptTemplate(template=template)


def jinja(template: str) -> PromptTemplate:
    return PromptTemplate(template=template, engine="jinja")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (fstring("Answer {question} in {words} words."), "Answer why? in 3 words."),
        (fstring("{{not a field}} {question}{words}"), "{not a field} why?3"),
        (jinja("Answer {{ question }}{% if words %} in {{ words }} words{% endif %}.\n"), "Answer why? in 3 words.\n"),
        (jinja("{% for i in range(words) %}{{ i }}{% endfor %}{{ question | upper }}"), "012WHY?"),
    ],
    ids=str,
)
def test_placeholders_are_filled_in(template: PromptTemplate, expected: str) -> None:
    assert template.placeholders() == {"question", "words"}
    assert template.format(question="why?", words=3) == expected


@pytest.mark.parametrize("make", [fstring, jinja])
def test_a_template_without_placeholders_is_its_own_text(make: Any) -> None:
    assert make("Think first.\n").format() == "Think first.\n"


@pytest.mark.parametrize("template", [fstring("{self} {class}"), jinja("{{ engine }} {{ class }}")], ids=str)
def test_any_plain_name_can_be_a_placeholder(template: PromptTemplate) -> None:
    values = dict.fromkeys(template.placeholders(), 1)
    assert template.format(**values) == "1 1"


@pytest.mark.parametrize("template", [fstring("{a} {b}"), jinja("{{ a }} {{ b }}")], ids=str)
def test_a_missing_value_is_named(template: PromptTemplate) -> None:
    with pytest.raises(
        ValueError, match=r"no value for placeholder 'b'; the template has \['a', 'b'\], .* \['a', 'c'\]"
    ):
        template.format(a=1, c=3)
    with pytest.raises(ValueError, match="no value for placeholders 'a', 'b'; "):
        template.format(c=3)


@pytest.mark.parametrize("template", [fstring("{a} {b}"), jinja("{{ a }} {{ range(b) | first }}")], ids=str)
def test_values_without_a_placeholder_are_ignored(template: PromptTemplate) -> None:
    task = {"a": 0, "b": 1, "answer": 2, "range": "hides nothing"}
    assert template.format(**task) in ("0 1", "0 0")


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ("{a.b}", "{a.b}"),
        ("{a.__class__.__init__.__globals__}", "{a.__class__.__init__.__globals__}"),
        ("{a[0]}", "{a[0]}"),
        ("{a!r}", "{a!r}"),
        ("{a:>10}", "{a:>10}"),
        ("{a:{b}}", "{a:{b}}"),
        ("{}", "{}"),
        ("{0}", "{0}"),
        ("{a b}", "{a b}"),
        ('{"json": 1}', '{"json": 1}'),
    ],
)
def test_an_fstring_field_is_a_plain_name_and_nothing_else(template: str, field: str) -> None:
    with pytest.raises(ValueError, match="is not a plain name; attributes, indexes") as refused:
        fstring(template).format(a="x", b="y")
    assert f"template field {field} is" in str(refused.value)


@pytest.mark.parametrize("template", ["{a", "a}", "{a!}", "{a]"])
def test_a_malformed_fstring_says_how_to_write_a_brace(template: str) -> None:
    with pytest.raises(ValueError, match=r"malformed f-string template: .*'\{\{' or '\}\}'"):
        fstring(template).format(a=1)


@pytest.mark.parametrize("template", ["{{ a", "{% if a %}", "{{ a | no_such_filter }}", "{% no_such_tag %}"])
def test_malformed_jinja_says_where(template: str) -> None:
    with pytest.raises(ValueError, match="malformed jinja template, line 1: "):
        jinja(template).format(a=1)


@pytest.mark.parametrize(
    "template",
    [
        "{{ a.__class__ }}",
        "{{ a['__class__'] }}",
        "{{ a | attr('__class__') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ joiner.__init__.__globals__['os'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(a) }}",
        "{{ '{x.__class__}'.format_map({'x': a}) }}",
        "{{ self._TemplateReference__context }}",
        "{% set x = a.append(1) %}{{ x }}",
        "{{ range(10 ** 9) | list }}",
        "{% include 'secrets.txt' %}",
    ],
)
def test_a_jinja_template_cannot_leave_the_sandbox(template: str) -> None:
    value: list[int] = []
    values = dict.fromkeys(jinja(template).placeholders(), value)
    with pytest.raises(ValueError, match="jinja template failed with "):
        jinja(template).format(**values)
    assert value == []


def test_what_went_wrong_in_a_jinja_template_is_chained() -> None:
    with pytest.raises(ValueError, match="failed with SecurityError") as failed:
        jinja("{{ a.__class__ }}").format(a=1)
    assert isinstance(failed.value.__cause__, SecurityError)
    with pytest.raises(ValueError, match="failed with ZeroDivisionError: division by zero"):
        jinja("{{ 1 / a }}").format(a=0)


def test_values_are_not_templates_themselves() -> None:
    assert fstring("{a}").format(a="{b} {{c}}") == "{b} {{c}}"
    assert jinja("{{ a }}").format(a="{{ b }}<i>") == "{{ b }}<i>"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("http://host:1/v1", "http://host:1/rollout/ro-1/attempt/at-1/v1"),
        ("http://host:1/v1/", "http://host:1/rollout/ro-1/attempt/at-1/v1"),
        ("http://host:1", "http://host:1/rollout/ro-1/attempt/at-1"),
        ("http://host:1/base/v1", "http://host:1/base/rollout/ro-1/attempt/at-1/v1"),
        ("http://host:1/prev1", "http://host:1/prev1/rollout/ro-1/attempt/at-1"),
    ],
)
def test_a_proxied_models_url_names_the_attempt(endpoint: str, expected: str) -> None:
    assert ProxyLLM(endpoint=endpoint, model="m").get_base_url("ro-1", "at-1") == expected


def test_a_proxied_model_without_ids_has_its_own_url_and_one_id_is_too_few() -> None:
    proxy = ProxyLLM(endpoint="http://host/v1", model="m")
    assert proxy.get_base_url() == "http://host/v1"
    assert LLM(endpoint="http://host/v1", model="m").get_base_url("ro-1", "at-1") == "http://host/v1"  # everybody's
    of_another = ProxyLLM(endpoint="http://host/p/rollout/ro-0/attempt/at-0/v1", model="m")
    assert of_another.get_base_url("ro-1", "at-1") == "http://host/p/rollout/ro-1/attempt/at-1/v1"
    with pytest.raises(ValueError, match="go together; got rollout_id='ro-1', attempt_id=None"):
        proxy.get_base_url("ro-1")
    with pytest.raises(ValueError, match="go together; got rollout_id=None, attempt_id='at-1'"):
        proxy.get_base_url(None, "at-1")


def test_a_key_does_not_show() -> None:
    assert "secret" not in repr(LLM(endpoint="http://host", model="m", api_key="secret"))


def test_a_bundle_keeps_its_types_through_json() -> None:
    bundle: NamedResources = {
        "prompt": jinja("{{ a }}"),
        "model": LLM(endpoint="http://host", model="m", sampling_parameters={"stop": ["x"]}),
        "proxy": ProxyLLM(endpoint="http://host", model="m"),
    }
    update = ResourcesUpdate(resources_id="rs-1", create_time=1.0, update_time=2.0, version=1, resources=bundle)
    again = ResourcesUpdate.model_validate_json(update.model_dump_json())
    assert again == update
    assert [type(resource) for resource in again.resources.values()] == [PromptTemplate, LLM, ProxyLLM]


def test_an_unknown_kind_or_field_of_a_resource_is_refused() -> None:
    adapter: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)
    with pytest.raises(ValidationError, match="does not match any of the expected tags"):
        adapter.validate_python({"a": {"resource_type": "weights"}})
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        LLM(endpoint="http://host", model="m", temperature=1)  # type: ignore[call-arg]
