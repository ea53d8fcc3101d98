"""Whose CPUs get a device's interrupts."""

from nodeagent.core.host.claims import Claimed, DeviceClaim, claimed
from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.idset import CpuSet

IRQS = {name: Setting(SettingKind.IRQ, name) for name in ("24", "25", "26")}
DEVICES = {"eth0": ("24", "25"), "0000:03:00.0": ("24", "25"), "eth1": ("25", "26")}
WEB, FORWARDER = (CpuSet.parse(text) for text in ("2-3", "4-5"))


def interrupts_of(device: str) -> list[Setting]:
    return [IRQS[name] for name in DEVICES.get(device, ())]


def test_each_interrupt_goes_to_the_first_that_asks_for_it() -> None:
    first, late = DeviceClaim("eth0", "web", WEB), DeviceClaim("eth1", "forwarder", FORWARDER)
    assert claimed((first, late), interrupts_of) == Claimed(
        {IRQS["24"]: first, IRQS["25"]: first, IRQS["26"]: late}, late=((late, first),)
    )


def test_a_container_may_name_a_device_twice() -> None:
    names = tuple(DeviceClaim(device, "web", WEB) for device in ("eth0", "0000:03:00.0", "eth0"))
    assert claimed(names, interrupts_of) == Claimed(dict.fromkeys((IRQS["24"], IRQS["25"]), names[0]))


def test_a_container_without_cpus_of_its_own_has_none() -> None:
    void, next_one = DeviceClaim("eth0", "web", CpuSet()), DeviceClaim("eth0", "forwarder", FORWARDER)
    assert claimed((void, next_one), interrupts_of).holders == dict.fromkeys((IRQS["24"], IRQS["25"]), next_one)


def test_what_has_no_interrupts_is_named_once() -> None:
    asked = (
        DeviceClaim("eth7", "web", WEB),
        DeviceClaim("eth7", "forwarder", FORWARDER),
        DeviceClaim("eth8", "void", CpuSet()),
    )
    assert claimed(asked, interrupts_of) == Claimed({}, unknown=("eth7",))
