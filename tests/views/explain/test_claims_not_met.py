"""What would admit a pod whose claim can't be met: each change has been tried, and is the smallest of its kind."""

from typing import Any

from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.remedies import remedies
from nodeagent.core.explain.remedy import Remedy, RequestChange
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.pod import Pod
from nodeagent.views.explain.words import format_remedy
from tests.support.builders import MACHINE_A, admitted, managers
from tests.support.claims import ETH0, claiming, request, template

ON_ONE = 'device.attributes["dra.cpu"].numaNodeID == 1'


def what_if(*there: Pod, **placement: Any) -> WhatIf:
    here = managers(reserved="0", reserved_memory={0: "256Mi", 1: "256Mi"}, **placement)
    here = here.knowing(PlacedDevices.of((ETH0,), MACHINE_A))
    return WhatIf.of(here, admitted(here, *there), there, None)


def found(node: WhatIf, of: Pod) -> list[Remedy]:
    assert not isinstance(node.judge(of), Admitted)
    return list(remedies(node, of).found)


def cpus(uid: str, count: int) -> Pod:
    return claiming(uid, str(count), template(request("cpus", "dra.cpu", ON_ONE, count=count)))


def test_fewer_cpus_for_claim_and_container() -> None:
    node = what_if(cpus("there", 5))
    smaller, end = found(node, cpus("new", 6))
    assert format_remedy(smaller) == (
        "let request cpus of claim own be for 3 instead of 6, and container app request cpu 3 instead of 6"
    )
    assert isinstance(node.judge(cpus("new", 3)), Admitted)
    assert not isinstance(node.judge(cpus("new", 4)), Admitted)
    assert (end.change, end.subject) == (RequestChange.REMOVAL, ("default/there",))


def test_the_most_that_fit_are_named_however_many_are_asked_for() -> None:
    anywhere = template(request("cpus", "dra.cpu", count=40))
    (smaller,) = found(what_if(), claiming("new", "40", anywhere))
    assert smaller.after == "15"
    assert not isinstance(what_if().judge(claiming("new", "16", template(request("cpus", count=16)))), Admitted)
    many = claiming("new", "2", template(request("nic", "nodeagent.io", count=40)))
    assert [each.after for each in found(what_if(), many)] == ["1"]


def test_fewer_cards_change_no_amount() -> None:
    asking = claiming("new", "2", template(request("nic", "nodeagent.io", count=3)))
    (smaller,) = found(what_if(), asking)
    assert format_remedy(smaller) == "let request nic of claim own be for 1 instead of 3"


def test_one_cannot_be_fewer_and_alternatives_are_not_changed() -> None:
    holder = claiming("there", "2", template(request("nic", "nodeagent.io")))
    node = what_if(holder)
    one = claiming("new", "2", template(request("nic", "nodeagent.io")))
    assert [each.change for each in found(node, one)] == [RequestChange.REMOVAL]
    two = request("cpus", "dra.cpu", ON_ONE, count=9)
    either = replace(two, ways=(replace(two.ways[0], name="a"), replace(two.ways[0], name="b", count=10)))
    assert not [each for each in found(what_if(), claiming("new", "9", template(either))) if each.change == "claim"]
