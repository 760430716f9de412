"""Templates in announcements of devices (reference 16.9): what is taken, and that each ends soon."""

from time import perf_counter
from typing import Any

import pytest

from broker.found.templates import Template, TemplateRefusedError
from config.limits import FOUND_TEMPLATE_NODES, FOUND_TEXT_CHARACTERS
from tests.rows import each_row

STATE: dict[str, Any] = {
    "temperature": 21.456,
    "battery": None,
    "state": "ON",
    "nested": {"a": [1, {"b": "x"}]},
    "linkquality": 87,
    "text": "a,b",
    "json": '{"a": 1}',
}


@each_row(
    ("source", "text"),
    [
        ("{{ value_json.temperature }}", "21.456"),
        ("{{ value_json['temperature'] | round(1) }}", "21.5"),
        ("{{ value_json.temperature | float | round }}", "21"),
        ("{{ (value_json.temperature * 9 / 5 + 32) | round(2) }}", "70.62"),
        ("{{ value_json.linkquality | int - 7 }}", "80"),
        ("{{ value_json.battery }}", "None"),
        ("{{ value_json.missing }}", ""),
        ("{{ value_json.missing | default(7) }}", "7"),
        ("{{ value_json.missing | is_defined }}", None),
        ("{{ value_json.missing.deeper }}", None),
        ("{{ value_json.nested.a[1].b | upper }}", "X"),
        ("{{ value_json.nested | tojson }}", '{"a":[1,{"b":"x"}]}'),
        ("{{ value_json.json | from_json }}", "{'a': 1}"),
        ("{% if value_json.state == 'ON' %}on{% else %}off{% endif %}", "on"),
        ("{{ 'yes' if value_json.get('state') in ['ON', 'on'] else 'no' }}", "yes"),
        ("{{ iif(value_json.state == 'ON', 1, 0) }}", "1"),
        ("{% set x = value_json.text.split(',') %}{{ x[0] ~ '-' ~ x | last }}", "a-b"),
        ("{{ value | replace('a', 'b') | trim }}", "bbc"),
        ("{{ float(value, 5) }}", "5"),
        ("{{ value | float }}", None),
        ("{{ 1 / 0 }}", None),
        ("{{ value % 5 }}", None),
        ("{{ '%s' % value }}", None),
        ("{{ value * 5 }}", None),
        ("{{ value_json.keys }}", ""),
        ("plain", "plain"),
    ],
)
def test_what_templates_make(source: str, text: str | None) -> None:
    found = Template(source).render(value="abc", value_json=STATE)
    assert (found.partition("<")[0] if found else found) == text


@each_row(
    ("source", "reason"),
    [
        ("{% for x in value %}{% endfor %}", "for is not taken"),
        ("{% macro a() %}{% endmacro %}", "macro is not taken"),
        ("{% include 'a' %}", "include is not taken"),
        ("{{ 2 ** 99999999 }}", r"\*\* is not taken"),
        ("{{ range(10) }}", "a call of range is not taken"),
        ("{{ states('sensor.a') }}", "a call of states is not taken"),
        ("{{ value.format(1) }}", "a call of format is not taken"),
        ("{{ value.replace('', 'aaa') }}", "a call of replace is not taken"),
        ("{{ ''.__class__ }}", "__class__ is not taken"),
        ("{{ value | attr('__class__') }}", "the filter attr is not taken"),
        ("{{ value | regex_replace('(a+)+b', '') }}", "the filter regex_replace is not taken"),
        ("{{ value | center(9999999999) }}", "the filter center is not taken"),
        ("{{ value is divisibleby(3) }}", "the test divisibleby is not taken"),
        ("{{ iif(*value) }}", r"\* and \*\* are not taken"),
        ("{{ 1e999 }}", "a number is too large"),
        ("{% set x = [value, value] %}{{ x }}", "a list or an object with names in set is not taken"),
        ("{% set x = 1 if value else {'a': (value,)} %}{{ x }}", "a list or an object with names in set"),
        ("{{ value", "unexpected"),
        ("{{ " + "(" * 900 + ")" * 900 + " }}", "template"),
        ("{{ " + "-" * 1_500 + "1 }}", "template"),
        ("{{ 1" + "+1" * FOUND_TEMPLATE_NODES + " }}", "at most 150 parts"),
        ("x" * 3_000, "at most 2048 characters"),
    ],
)
def test_what_is_refused(source: str, reason: str) -> None:
    with pytest.raises(TemplateRefusedError, match=reason):
        Template(source)


@each_row(
    "source",
    [
        "{% set x = value %}" + "{% set x = x ~ x %}" * 20 + "{{ x }}",
        "{% set x = value %}" + "{% set x = x + x %}" * 20 + "{{ x }}",
        "{% set x = 999999999 %}" + "{% set x = x * x %}" * 20 + "{{ x }}",
        "{{ value | replace('', value) }}",
        "{{ [value, value, value] | join(value) }}",
        "{{ value }}" * 20,
        "{{ value | tojson | tojson | tojson }}" * 5,
        "{{ " + "value ~ " * 100 + "value }}",
        "{{ (value ~ '9' * 1000) | int }}",
        "{{ '" + "9" * 1_900 + "' | int * 5 }}",
        "{{ " + " and ".join(["'ab' in value"] * 20) + " }}",
        "{{ [1e308 * 10, '1e308' | multiply(10)] | last }}",
    ],
)
def test_each_template_ends_soon(source: str) -> None:
    """Its result is bounded, and the time of all operations that are taken."""
    template, value = Template(source), "a" * FOUND_TEXT_CHARACTERS
    began = perf_counter()
    found = template.render(value=value, value_json={})
    assert perf_counter() - began < 0.1
    assert found is None or len(found) <= FOUND_TEXT_CHARACTERS
