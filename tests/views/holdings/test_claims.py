"""What commands say of claims: whose a card is, and what a claim has, in a line."""

from nodeagent.core.admission.managers import Admitted, admit, initial
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.state import NodeState, Origin, PodEntry, QosClass
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.views.holdings.claims import describe_claims, format_claim
from nodeagent.views.topology.devices import describe_device_sections, describe_devices, find_device_owners
from tests.support.builders import GIB, MACHINE_A, managers
from tests.support.claims import ETH0, claiming, request, template


def state() -> NodeState:
    here = managers(reserved_memory={0: "256Mi", 1: "256Mi"}, topology_manager_policy="restricted")
    here = here.knowing(PlacedDevices.of((ETH0,), MACHINE_A))
    claim = template(request("cpus", count=2), request("nic", "nodeagent.io"), request("zone", "dra.memory", size=GIB))
    one = claiming("a", "2", claim, memory="1Gi")
    decision = admit(here, initial(here), one)
    assert isinstance(decision, Admitted), decision.message
    return NodeState(decision.promises, (PodEntry(one, QosClass.GUARANTEED, Origin("a.yaml"), 0),))


def test_a_claim_in_a_line() -> None:
    (claim,) = describe_claims(state().promises.of_pod("a").of(ClaimHoldings).claims)
    cpus = own_set_of(state().promises, "a", "app")
    assert format_claim(claim) == f"default/a-own: cpus CPUs {cpus}, nic pci-0000-3b-00-0, zone memory-1 1Gi", (
        "where the card is"
    )


def test_whose_a_card_is() -> None:
    owners = find_device_owners(state())
    (section,) = describe_device_sections((ETH0,), MACHINE_A, owners)
    assert section.rows[0][-1].startswith("of default/a app by claim default/a-own")
    (document,) = describe_devices((ETH0,), MACHINE_A, owners)
    assert document["pcieRoot"] == "pci0000:3a"
    assert document["owners"] == [
        {"claim": "default/a-own", "container": "app", "pod": "default/a", "resource": "nodeagent.io"}
    ]
