"""A jinja template that would make a text of any size is refused before it takes the memory."""

import tracemalloc

import pytest

from lightning_core.types import PromptTemplate

GROW = (
    "{{% set ns = namespace(x={0}) %}}{{% for i in range(100) %}}{{% set ns.x = {1} %}}{{% endfor %}}{{{{ ns.x{2} }}}}"
)
N = 300_000_000

BOMBS = [
    f"{{{{ 'a' * {N} }}}}",
    "{{ 10 ** 99 }}",
    f"{{{{ '%{N}d' % 3 }}}}",
    f"{{{{ 'a'.center({N}) }}}}",
    f"{{{{ 'a'|center({N}) }}}}",
    f"{{{{ 'a'|attr('ljust')({N}) }}}}",
    f"{{{{ '7'.zfill({N}) }}}}",
    f"{{{{ '\t'.expandtabs({N}) }}}}",
    f"{{{{ 'a'.encode().rjust({N}) }}}}",
    f"{{{{ (1).to_bytes({N}, 'big') }}}}",
    f"{{{{ 'a'|indent({N}, true) }}}}",
    f"{{{{ '%{N}d'|format(1) }}}}",
    f"{{{{ '%*d'|format({N}, 1) }}}}",
    f"{{{{ '{{:{N}}}'.format(1) }}}}",
    f"{{{{ [1]|tojson(indent={N}) }}}}",
    f"{{{{ [1]|batch({N}, 'x')|list|length }}}}",
    "{{ range(100000)|map('center', 10000)|list|length }}",
    "{{ range(100000)|join('a'|center(10000)) }}",
    "{{ ('a'|center(100000))|replace(' ', 'b'|center(100000)) }}",
    "{{ ('a '|center(100000))|wordwrap(1, wrapstring='b'|center(100000)) }}",
    GROW.format("'aaaaaaaaaa'", "ns.x + ns.x", "|length"),
    GROW.format("'aaaaaaaaaa'", "ns.x ~ ns.x", "|length"),
    GROW.format("'aaaaaaaaaa'", "ns.x|replace('a', ns.x)", "|length"),
    GROW.format("'aaaaaaaaaa'", "[ns.x, ns.x]|join", "|length"),
    GROW.format("'aaaaaaaaaa'", "[ns.x, ns.x]", ""),
    GROW.format("'aaaaaaaaaa'", "{'a': ns.x, 'b': ns.x}", "|tojson"),
    GROW.format("[1]", "ns.x + ns.x", "|length"),
    GROW.format("3", "ns.x * ns.x", ""),
    "{% set x %}{% for i in range(100000) %}{% for i in range(1000) %}a{% endfor %}{% endfor %}{% endset %}{{ x }}",
    "{% macro m() %}{% for i in range(100000) %}{{ i|center(1000) }}{% endfor %}{% endmacro %}{{ m() }}",
    "{% block b %}a{% endblock %}{{ self.b() }}",
    f"{{% filter center({N}) %}}a{{% endfilter %}}",
    "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
]


@pytest.mark.parametrize("template", BOMBS)
def test_a_template_takes_no_memory_without_bound(template: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="jinja template") as refused:
            PromptTemplate(template=template, engine="jinja").format()
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()
    assert "MemoryError" not in str(refused.value)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ rows | map(attribute='name') | join(', ') }}", "Ada, Bo"),
        ("{% for row in rows | selectattr('age', 'gt', 40) %}{{ loop.index }}. {{ row.name }}{% endfor %}", "1. Bo"),
        ("{{ rows | tojson(indent=2) | length }}{{ rows | length }}", "852"),
        ("{{ document | replace('y', document) | length }}", "5000000"),
        ("{{ range(1000) | join(('a' | center(900))) | length }}", "901990"),
        ("{{ text | indent(2) }}", "one\n  two"),
        ("{{ 2 * 3 + 7 % 4 }}", "9"),
        ("{{ text.split('\\n')[0].upper() ~ '!' ~ 3 * 2 }}", "ONE!6"),
        ("{{ '%05.1f' | format(2.25) }} {{ rows[0].x | default(50000000) }}", "002.2 50000000"),
        (
            "{% set ns = namespace(n=0) %}{% for row in rows %}{% set ns.n = ns.n + row.age %}{% endfor %}{{ ns.n }}",
            "82",
        ),
        ("{{ text | replace('\\n', ' / ') | center(13) }}", "  one / two  "),
        ("{{ rows | sum(attribute='age') }} {{ document | truncate(5) }}", "82 xx..."),
    ],
)
def test_what_prompts_need_goes_on_to_work(template: str, expected: str) -> None:
    made = PromptTemplate(template=template, engine="jinja")
    values = {
        "rows": [{"name": "Ada", "age": 36}, {"name": "Bo", "age": 46}],
        "text": "one\ntwo",
        "document": "x" * 5_000_000,
    }
    assert made.format(**{name: values[name] for name in made.placeholders()}) == expected
