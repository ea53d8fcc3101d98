"""`cpuManagerPlugins`: what it may hold, and that it is spelled as it was read."""

import pytest

from nodeagent.core.model.config import Config, CpuPlugin, Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.config.config_text import config_fields, config_text
from nodeagent.formats.config.config_yaml import judge_config, parse_config
from nodeagent.formats.config.effective_config import config_document, config_from_document
from nodeagent.formats.config.placement_fields import MOST_PLUGINS
from nodeagent.formats.syntax.json_values import JsonValue

STATIC = 'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\ncpuManagerPlugins:'


def test_names_and_options_are_read_in_their_order_and_written_back() -> None:
    text = f'{STATIC}\n- name: spread-caches\n- name: b.2_x\n  options: {{z: "1", class: performance}}\n'
    config = parse_config(text.encode(), "f")
    plugins = (CpuPlugin("spread-caches"), CpuPlugin("b.2_x", (("class", "performance"), ("z", "1"))))
    assert config.placement.cpu_plugins == plugins
    assert parse_config(config_text(config_fields(config)).encode(), "f").placement == config.placement
    document = config_document(config)
    assert document["cpuManagerPlugins"][1] == {"name": "b.2_x", "options": {"class": "performance", "z": "1"}}
    assert config_from_document(JsonValue(document)).placement.cpu_plugins == plugins


def test_without_plugins_there_is_nothing_to_capture() -> None:
    config = Config(Placement("static", reserved_system_cpus=CpuSet.of(0)))
    assert "cpuManagerPlugins" not in config_document(config)
    assert config_from_document(JsonValue(config_document(config))).placement.cpu_plugins == ()


MANY = "".join(f"\n- name: p{number}" for number in range(MOST_PLUGINS + 1))


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        (f"{STATIC} spread-caches", "cpuManagerPlugins", "must be a list of objects"),
        (f"{STATIC} [spread-caches]", "cpuManagerPlugins[0]", "must be an object"),
        (f"{STATIC}\n- options: {{a: b}}", "cpuManagerPlugins[0].name", "is required"),
        (f"{STATIC}\n- name: ../x", "cpuManagerPlugins[0].name", "must consist of at most 63 letters, digits"),
        (f"{STATIC}\n- name: {'x' * 64}", "cpuManagerPlugins[0].name", "must consist of at most 63 letters, digits"),
        (f"{STATIC}\n- name: a\n- name: a", "cpuManagerPlugins[1].name", "is listed twice"),
        (f"{STATIC}\n- name: a\n  options: {{count: 1}}", "cpuManagerPlugins[0].options[count]", "must be a string"),
        (f"{STATIC}\n- name: a\n  option: {{}}", "cpuManagerPlugins[0].option", "unknown field"),
        (f"{STATIC}{MANY}", "cpuManagerPlugins", f"has more than {MOST_PLUGINS} entries"),
        ("cpuManagerPlugins:\n- name: a", "cpuManagerPlugins", "needs cpuManagerPolicy: static"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(text: str, field: str, allowed: str) -> None:
    _, findings = judge_config(text.encode(), "f")
    assert [(found.field, allowed in str(found)) for found in findings] == [(field, True)]
