"""Devices that plugins list with unusual nodes, as kubelet takes them, in both modes: each case has gone wrong once."""

import json

import pytest

from nodeagent.core.admission.managers import Admitted, Rejected, admit, initial
from nodeagent.core.model.config import Errata
from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.formats.scenario.scenario import scenario_from_text
from nodeagent.formats.wire import device_plugins as wire
from nodeagent.views.simulate.scenario_replay import replay
from tests.support.builders import machine, managers, pod
from tests.support.decision_vectors import vectors
from tests.support.device_plugin import MESSAGES
from tests.support.pods import app

GPU = "example.com/gpu"
BOTH = pytest.mark.parametrize("errata", list(Errata))
STRICT = pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])


def on(*ids: int) -> tuple[int, ...]:
    return ids


def listed(*topologies: tuple[int, ...] | None) -> tuple[PoolDevice, ...]:
    """What a plugin has sent, each device with the nodes of its topology. None: without a topology."""
    message = MESSAGES.ListAndWatchResponse()
    for number, ids in enumerate(topologies):
        device = message.devices.add(ID=f"d{number}", health=wire.HEALTHY)
        if ids is not None:
            device.topology.SetInParent()
            for id_ in ids:
                device.topology.nodes.add(ID=id_)
    return wire.decode_devices(message.SerializeToString())


def decided(
    devices: tuple[PoolDevice, ...], count: int, policy: str, errata: Errata, *, nodes: int = 2
) -> tuple[list[str], str]:
    """The devices that a pod gets, or the reason of its refusal."""
    node = managers(machine(nodes=nodes), reserved="0", errata=errata, topology_manager_policy=policy)
    node = node.knowing(None, (DevicePool(GPU, devices),))
    decision = admit(node, initial(node), pod("p", app(cpu="1", devices={GPU: count})))
    if isinstance(decision, Rejected):
        return [], decision.reason
    return [one.id for one in decision.promises.of_pod("p").of(DeviceHoldings).devices_of("app")], ""


@BOTH
@STRICT
def test_a_topology_without_nodes_is_no_preference(errata: Errata, policy: str) -> None:
    """Real plugins send it: `Topology{}`."""
    assert decided(listed(on(), on()), 2, policy, errata) == (["d0", "d1"], "")


@BOTH
def test_a_device_on_node_minus_one_is_kept_and_near_nothing(errata: Errata) -> None:
    """Real plugins send the kernel's NUMA_NO_NODE."""
    devices = listed(on(-1), on(-1, 1), on(70_000))
    assert [(one.id, one.nodes, one.has_topology) for one in devices] == [
        ("d0", 0, True),
        ("d1", 2, True),
        ("d2", 0, True),
    ]
    assert decided(devices, 1, "restricted", errata) == (["d1"], "")
    assert decided(devices, 2, "restricted", errata) == ([], "TopologyAffinityError")
    assert decided(devices, 2, "best-effort", errata) == (["d0", "d1"], "")
    (held,) = (one.held(GPU) for one in devices[1:2])
    assert (held.nodes, held.lists_minus_one) == (NumaSet.of(1), True)


@BOTH
@STRICT
def test_too_few_devices_without_nodes_are_no_matter_of_alignment(errata: Errata, policy: str) -> None:
    assert decided(listed(None, None), 3, policy, errata) == ([], "UnexpectedAdmissionError")


@BOTH
def test_what_plugins_listed_near_several_of_nine_nodes_is_aligned(errata: Errata) -> None:
    """One device is near nodes 0 and 8, another near 1 and 8: both are near node 8 alone."""
    node = managers(
        machine(nodes=9), reserved="0", errata=errata, topology_manager_policy="restricted",
        topology_manager_policy_options=(("max-allowable-numa-nodes", "9"),),
    )  # fmt: skip
    pool = DevicePool(GPU, (PoolDevice("a", NumaMask(1 | 256)), PoolDevice("b", NumaMask(2 | 256))))
    node = node.knowing(None, (pool,))
    decision = admit(node, initial(node), pod("p", app(cpu="1", devices={GPU: 2})))
    assert isinstance(decision, Admitted)
    assert decision.promises.hint("p", "app").mask == NumaSet.of(8)


def test_a_scenario_with_its_devices_is_the_same_each_time() -> None:
    vector = next(vector for vector in vectors("devices") if vector["scenario"]["id"] == "devices-restart-0000")
    scenario = scenario_from_text(json.dumps(vector["scenario"]), "devices")
    assert replay(scenario) == replay(scenario)
