"""Whose CPUs get a device's interrupts."""

from nodeagent.core.host.irq_owners import InterruptOwners, InterruptRequest, assign_interrupts, interrupt_requests
from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.pod_sources import new_entry
from tests.support.pods import app, manifests, pod

IRQS = {name: Setting(SettingKind.IRQ, name) for name in ("24", "25", "26")}
DEVICES = {"eth0": ("24", "25"), "0000:03:00.0": ("24", "25"), "eth1": ("25", "26")}
WEB, FORWARDER = (CpuSet.parse(text) for text in ("2-3", "4-5"))


def interrupts_of(device: str) -> list[Setting]:
    return [IRQS[name] for name in DEVICES.get(device, ())]


def test_each_interrupt_goes_to_the_first_that_asks_for_it() -> None:
    first, late = InterruptRequest("eth0", "web", WEB), InterruptRequest("eth1", "forwarder", FORWARDER)
    assert assign_interrupts((first, late), interrupts_of) == InterruptOwners(
        {IRQS["24"]: first, IRQS["25"]: first, IRQS["26"]: late}, late=((late, first),)
    )


def test_a_container_may_name_a_device_twice() -> None:
    names = tuple(InterruptRequest(device, "web", WEB) for device in ("eth0", "0000:03:00.0", "eth0"))
    assert assign_interrupts(names, interrupts_of) == InterruptOwners(dict.fromkeys((IRQS["24"], IRQS["25"]), names[0]))


def test_a_container_without_cpus_of_its_own_has_none() -> None:
    void, next_one = InterruptRequest("eth0", "web", CpuSet()), InterruptRequest("eth0", "forwarder", FORWARDER)
    assert assign_interrupts((void, next_one), interrupts_of).holders == dict.fromkeys(
        (IRQS["24"], IRQS["25"]), next_one
    )


def test_what_has_no_interrupts_is_named_once() -> None:
    asked = (
        InterruptRequest("eth7", "web", WEB),
        InterruptRequest("eth7", "forwarder", FORWARDER),
        InterruptRequest("eth8", "void", CpuSet()),
    )
    assert assign_interrupts(asked, interrupts_of) == InterruptOwners({}, unknown=("eth7",))


def test_interrupts_of_network_devices_come_to_whose_they_are_after_what_is_asked_for() -> None:
    """A disk's can't be moved, and a container without CPUs of its own gets none."""
    owner = pod("owner", app(cpu="2"), app("shares"))
    other = pod("other", app(cpu="2", interrupts=("eth0",)))
    entries = [new_entry(manifest, 1, pod_level_resources=True) for manifest in manifests(owner, other)]
    card = HeldDevice("x.com/nic", "0000:03:00.0", NumaSet.of(0), "network", ("eth0",))
    disk = HeldDevice("x.com/disk", "0000:04:00.0", NumaSet.of(0), "nvme")
    held = NOTHING.having(
        CpuHoldings(cpus=(("app", WEB),)), DeviceHoldings(devices=(("app", (card, disk)), ("shares", (card,))))
    )
    pods: PodMap[PodPromises] = PodMap()
    pods = pods.put(owner.uid, held).put(other.uid, NOTHING.having(CpuHoldings(cpus=(("app", FORWARDER),))))
    asked = interrupt_requests(NodeState(Promises(pods=pods), tuple(entries)))
    assert [(one.device, one.cpus, one.is_asked) for one in asked] == [
        ("eth0", FORWARDER, True),
        ("0000:03:00.0", WEB, False),
    ]
    found = assign_interrupts(asked, interrupts_of)
    assert found == InterruptOwners(dict.fromkeys((IRQS["24"], IRQS["25"]), asked[0])), (
        "nobody has asked for it, so nobody is told"
    )
    gone = assign_interrupts((InterruptRequest("0000:07:00.0", "owner", WEB, is_asked=False),), interrupts_of)
    assert gone == InterruptOwners({})
