"""CEL selectors see a device as Kubernetes shows it, and whatever is wrong with one is said of it."""

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.claims.inventory import ClaimableDevice, claimable
from nodeagent.core.resources.claims.selectors import LONGEST, SelectorError, check, meets
from tests.support.builders import GIB, MACHINE_B
from tests.support.claims import ETH0

THERE = {device.name: device for device in claimable(MACHINE_B, CpuSet.of(0), ((ETH0, 1),))}
MANY = "+".join(["[1]"] * 800)
CPU, MEMORY, CARD = THERE["cpudev005"], THERE["memory-1"], THERE["pci-0000-3b-00-0"]


@pytest.mark.parametrize(
    ("device", "expression"),
    [
        (CPU, 'device.driver == "dra.cpu"'),
        (CPU, 'device.attributes["dra.cpu"].numaNodeID == 1 && device.attributes["dra.cpu"].cacheL3ID in [2, 3]'),
        (CPU, "device.attributes['dra.cpu'].smtEnabled && device.attributes['dra.cpu'].coreType.startsWith('stand')"),
        (CPU, 'device.attributes["resource.kubernetes.io"].numaNode == 1'),
        (CPU, '!("vendor" in device.attributes["example.com"])'),
        (CPU, '!has(device.attributes["dra.cpu"].clock) || device.attributes["dra.cpu"].clock > 3'),
        (CPU, '[4, 5].exists(id, device.attributes["dra.cpu"].cpuID == id)'),
        (CPU, '[4, 5].existsOne(id, device.attributes["dra.cpu"].cpuID == id)'),
        (MEMORY, 'device.capacity["dra.memory"].size.compareTo(quantity("8Gi")) == 0'),
        (MEMORY, 'device.capacity["dra.memory"].size.isGreaterThan(quantity("7Gi"))'),
        (CARD, 'device.attributes["nodeagent.io"].interface.matches("^eth[0-9]$")'),
        (CARD, 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:3b:00.0"'),
    ],
)
def test_a_device_meets(device: ClaimableDevice, expression: str) -> None:
    check(expression)
    assert meets(device, (expression,))
    assert not meets(device, (f"!({expression})",))
    assert not meets(device, (expression, "false"))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("device.driver ==", "mismatched input"),
        ("", "mismatched input"),
        ("node.name == 'a'", "node is unknown"),
        (f'device.driver == "{"x" * LONGEST}"', "exceeds the limit"),
        ("(" * 65 + "true" + ")" * 65, "65 deep"),
        ("[1, 2, 3, 4, 5, 6, 7, 8, 9]" + ".map(x, [x, x, x])" * 6 + ".all(y, true)", "nested lists"),
        ("[1, 2, 3, 4]" + ".map//\n(x, [1, 2, 3, 4]" * 8 + ")" * 8 + ".size() == 4", "nested lists"),
        (f"({MANY}).all(x, ({MANY}).all(y, ({MANY}).all(z, true)))", "nested lists"),
        ("['a']" + f".map(s, {'+'.join(['s'] * 600)})" * 5 + ".size() == 1", "nested lists"),
    ],
)
def test_what_is_no_expression_is_told_before_any_device_is_known(expression: str, said: str) -> None:
    with pytest.raises(SelectorError, match=said):
        check(expression)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ('device.attributes["dra.cpu"].clock > 3', "clock is missing: .*, of cpudev005"),
        ('device.attributes["example.com"].clock > 3', "clock is missing: .*, of cpudev005"),
        ("device.driver", "true or false, not 'dra.cpu'"),
        ('quantity("many") == 3', "many"),
        ("device.cores > 1", "cores is missing: .*, of cpudev005"),
        (f"'{'x' * 9000}'", "^.{,700}$"),
        (f"device['{'x' * 9000}'] == 1", "^x{300}… is missing: .{,350}$"),
        ("device.cores\n  > 1 // \x1b[2J", r"cores is missing: `device.cores > 1 // [^\x1b]+`, of cpudev005$"),
        (
            f"device.cores > {'1' * 18} // {'x' * 9000}",
            r"cores is missing: `device.cores > 1{18} // x{,300}…`, of cpudev005$",
        ),
    ],
)
def test_an_expression_without_an_answer_is_an_error_and_not_a_no(expression: str, said: str) -> None:
    with pytest.raises(SelectorError, match=said):
        meets(CPU, (expression,))


def test_what_is_short_is_enough_for_the_machine() -> None:
    assert MEMORY.capacity == (("dra.memory/size", 8 * GIB),)
    assert "cpudev000" not in THERE, "it is reserved"


class PanicException(BaseException):
    """As the library raises when it breaks down."""


PanicException.__module__ = "pyo3_runtime"


@pytest.mark.parametrize(
    ("raised", "expected"), [(PanicException, SelectorError), (KeyboardInterrupt, KeyboardInterrupt)]
)
def test_a_library_that_breaks_down_refuses_a_pod_and_ends_no_agent(
    monkeypatch: pytest.MonkeyPatch, raised: type[BaseException], expected: type[BaseException]
) -> None:
    def breaks(_text: str) -> None:
        raise raised

    monkeypatch.setattr("nodeagent.core.resources.claims.selectors.cel.compile", breaks)
    with pytest.raises(expected):
        check(f"device.driver == '{raised.__name__}'")
