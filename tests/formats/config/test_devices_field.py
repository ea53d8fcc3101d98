"""`devices`: what it may hold, and that it is spelled as it was read."""

import pytest

from nodeagent.core.model.config import Config
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import DeviceKind
from nodeagent.formats.config.config_text import config_fields, config_text
from nodeagent.formats.config.config_yaml import judge_config, parse_config
from nodeagent.formats.config.effective_config import config_document, config_from_document
from nodeagent.formats.syntax.json_values import JsonValue

EVERYTHING = """
devices:
- resource: example.com/nic
  select:
  - {kind: network, device: "15b3:101d", driver: mlx5_core, name: "ens*", numaNode: 1}
  - {address: "0000:3b:*", device: "8086:*"}
- resource: example.com/vf
  select: [{virtualFunctionsOf: ens2f0, driver: vfio-pci}]
"""


def test_selectors_are_read_in_their_order_and_written_back() -> None:
    config = parse_config(EVERYTHING.encode(), "f")
    assert config.placement.devices == (
        DeviceSelection(
            "example.com/nic",
            (
                DeviceSelector(DeviceKind.NETWORK, "", 0x15B3, 0x101D, "mlx5_core", "ens*", 1),
                DeviceSelector(address="0000:3b:*", vendor=0x8086),
            ),
        ),
        DeviceSelection("example.com/vf", (DeviceSelector(virtual_functions_of="ens2f0", driver="vfio-pci"),)),
    )
    assert parse_config(config_text(config_fields(config)).encode(), "f").placement == config.placement
    assert config_from_document(JsonValue(config_document(config))).placement.devices == config.placement.devices


def test_without_devices_there_is_nothing_to_capture() -> None:
    assert "devices" not in config_document(Config())
    assert config_from_document(JsonValue(config_document(Config()))).placement.devices == ()
    assert config_fields(Config())["devices"] == []


def entry(text: str, resource: str = "x.com/nic") -> str:
    return f"devices:\n- resource: {resource}\n  select: [{text}]\n"


OTHER = "- resource: {}\n  select: [{{kind: nvme}}]\n"


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        ("devices: nic", "devices", "must be a list of objects"),
        ("devices: [{select: [{kind: gpu}]}]", "devices[0].resource", "is required"),
        ("devices: [{resource: x.com/nic}]", "devices[0].select", "is required"),
        (entry("{kind: gpu}", "nic"), "devices[0].resource", "must be DOMAIN/NAME"),
        (entry("{kind: gpu}", "kubernetes.io/nic"), "devices[0].resource", "must be DOMAIN/NAME"),
        (entry("{kind: gpu}", "cpu"), "devices[0].resource", "must be DOMAIN/NAME"),
        (f"{entry('{kind: gpu}')}{OTHER.format('x.com/nic')}", "devices[1].resource", "is listed twice"),
        (f"{entry('{kind: gpu}')}{OTHER.format('x-com/nic')}", "devices[1].resource", "has the same name as x.com/nic in a"),
        (entry("{}"), "devices[0].select[0].kind", "or another field is required"),
        (entry("{kind: keyboard}"), "devices[0].select[0].kind", "must be one of"),
        (entry("{address: 3B}"), "devices[0].select[0].address", "must be a PCI address"),
        (entry("{device: mellanox}"), "devices[0].select[0].device", "must be VENDOR:DEVICE in hexadecimal"),
        (entry("{driver: a b}"), "devices[0].select[0].driver", "must be the name of a driver"),
        (entry("{name: a/b}"), "devices[0].select[0].name", "must be the name of a device"),
        (entry("{numaNode: -1}"), "devices[0].select[0].numaNode", "must be between 0"),
        (entry("{kind: gpu, colour: red}"), "devices[0].select[0].colour", "unknown field"),
        (entry("{kinds: gpu}"), "devices[0].select[0].kinds", "unknown field, did you mean kind?"),
        (entry('{driver: ""}'), "devices[0].select[0].driver", "must be the name of a driver"),
        (entry('{address: ""}'), "devices[0].select[0].address", "must be a PCI address"),
        (entry('{name: ""}'), "devices[0].select[0].name", "must be the name of a device"),
        (entry('{virtualFunctionsOf: ""}'), "devices[0].select[0].virtualFunctionsOf", "must be the address"),
        (entry(", ".join(["{kind: gpu}"] * 257)), "devices[0].select", "has more than 256 entries"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_place(text: str, field: str, allowed: str) -> None:
    _, findings = judge_config(text.encode(), "f")
    assert [(found.field, allowed in str(found)) for found in findings] == [(field, True)]
