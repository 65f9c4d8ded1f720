"""Reading config files, and knowing where in them what stands."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st

from lightning_core.config.files import ConfigFile, read_config
from lightning_core.errors import ConfigError


def read(folder: Path, text: str | bytes, name: str = "config.yaml") -> ConfigFile:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_config(path)


def test_values_come_with_their_lines(tmp_path: Path) -> None:
    file = read(tmp_path, "# mine\nagent: a:b\nalgorithm:\n  name: apo\n  seeds: [1,\n    2]\n")
    assert file.values == {"agent": "a:b", "algorithm": {"name": "apo", "seeds": [1, 2]}}
    assert file.where(("agent",)) == f"{file.path}:2"
    assert file.where(("algorithm", "name")) == f"{file.path}:4"
    assert file.where(("algorithm", "seeds", 1)) == f"{file.path}:6"


def test_place_that_is_not_there_is_where_it_would_be(tmp_path: Path) -> None:
    file = read(tmp_path, "agent: a:b\nalgorithm:\n  name: apo\n")
    assert file.where(("algorithm", "beam_width", 0)) == f"{file.path}:2"
    assert file.where(("n_runners",)) == str(file.path)


def test_toml_is_read_as_well(tmp_path: Path) -> None:
    file = read(tmp_path, 'agent = "a:b"\n[algorithm]\nname = "apo"\n', "config.toml")
    assert file.values == {"agent": "a:b", "algorithm": {"name": "apo"}}
    assert file.where(("algorithm", "name")) == str(file.path)


@pytest.mark.parametrize(("name", "text"), [("config.yaml", "agent: ä"), ("config.toml", "agent = 'ä'")])
def test_byte_order_mark_in_front_is_no_part_of_it(tmp_path: Path, name: str, text: str) -> None:
    assert read(tmp_path, "\ufeff" + text, name).values == {"agent": "ä"}


@pytest.mark.parametrize("text", ["1e-6", "1E+3", "-2.5e2", "+.5e1", "1.e3", "1.0e-06"])
def test_number_with_an_exponent_is_a_number(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"rate: {text}").values == {"rate": float(text)}
    assert read(tmp_path, f"rate: '{text}'").values == {"rate": text}


def test_anchors_and_merged_mappings_are_taken_as_yaml_means_them(tmp_path: Path) -> None:
    file = read(tmp_path, "base: &base {name: apo, seed: 1}\nalgorithm:\n  <<: *base\n  seed: 2\nagain: *base\n")
    assert file.values["algorithm"] == {"name": "apo", "seed": 2}
    assert file.values["again"] == {"name": "apo", "seed": 1}
    assert file.where(("algorithm", "seed")) == f"{file.path}:4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent: a\nstore: m\nagent: b\n", ":3: the key 'agent' is there twice, first on line 1"),
        ("algorithm:\n  seed: 1\n  seed: 2\n", ":3: the key 'seed' is there twice, first on line 2"),
        ("samples: [{a: 1, a: 2}]\n", ":1: the key 'a' is there twice, first on line 1"),
        ("agent: a\n5: 6\n", ":2: a key is a string; put quotes around 5"),
        ("agent: a\non: 6\n", ":2: a key is a string; put quotes around on"),
        ("algorithm: {5: 6}\n", ":1: a key is a string; put quotes around 5"),
        ("? [a, b]\n: c\n", ":1: a key is a string; put quotes around it"),
        ("a: &loop\n  b: *loop\n", ":2: the alias stands inside of what it names"),
        ("agent: [1,\n  2\n", ":3: no valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("agent: a\n\tstore: m\n", ":2: no valid YAML: found character '\\t' that cannot start any token"),
        ("agent: !!python/name:os.system\n", ":1: no valid YAML: could not determine a constructor for the tag"),
        ("day: 2024-13-45\n", ": no valid YAML: month must be in 1..12"),
        ("a: 1\n---\nb: 2\n", ":2: no valid YAML: but found another document"),
        ("agent: \x00\n", ": no valid YAML: unacceptable character"),
        ("", ": a config file is a mapping of keys to values, as in: agent: my_agent:solve"),
        ("# nothing\n", ": a config file is a mapping of keys to values"),
        ("- agent: a\n", ": a config file is a mapping of keys to values"),
        ("my_agent\n", ": a config file is a mapping of keys to values"),
    ],
)
def test_malformed_yaml_says_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path / 'config.yaml'}{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent = a\n", ":1: no valid TOML: Invalid value (at line 1, column 9)"),
        ("agent = 'a'\nagent = 'b'\n", ":2: no valid TOML: Cannot overwrite a value (at line 2"),
        ("[algorithm\n", ":1: no valid TOML: Expected ']' at the end of a table declaration (at line 1"),
        ("agent = 'a'\nstore =", ":2: no valid TOML: Invalid value (at end of document)"),
    ],
)
def test_malformed_toml_says_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text, "config.toml")
    assert str(raised.value).startswith(f"{tmp_path / 'config.toml'}{message}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.yaml", None, "cannot read config file {folder}/none.yaml: No such file or directory"),
        ("", None, "cannot read config file {folder}: Is a directory"),
        ("a.yaml", "agent: ä".encode("latin-1"), "cannot read config file {folder}/a.yaml: it is not UTF-8 text: "),
        ("a.json", b"{}", "{folder}/a.json: a config file ends in .yaml, .yml or .toml, not in '.json'"),
    ],
)
def test_what_is_no_config_file_is_named(tmp_path: Path, name: str, text: bytes | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(ConfigError) as raised:
        read_config(tmp_path / name)
    assert str(raised.value).startswith(message.replace("{folder}", str(tmp_path)))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.recursive(
            st.integers(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
            max_leaves=10,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_every_value_has_a_line(tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]) -> None:
    file = read(tmp_path_factory.mktemp("config"), yaml.safe_dump(values))
    assert file.values == values

    def check(value: object, place: tuple[str | int, ...]) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            assert (*place, key) in file.lines
            check(inner, (*place, key))

    check(file.values, ())
