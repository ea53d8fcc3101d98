"""What `inspect` says of devices that are a container's own."""

from msgspec.structs import replace

from nodeagent.core.model.config import Placement
from nodeagent.core.model.device_pools import DevicePool
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.devices.resource import DeviceResource
from nodeagent.formats.node_view import NodeView
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render_in_full
from tests.support import json_schema
from tests.support.inspected_nodes import World
from tests.support.pods import app, pod

NIC = "example.com/nic"
CARDS = tuple(
    Device(f"0000:0{n}:00.0", DeviceKind.NETWORK, 0, names=(f"eth{n}",), numa_node=node)
    for n, node in enumerate((1, None))
)


def seen(count: int = 2) -> NodeView:
    gives = (DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),)
    world = World(placement=Placement("static", reserved_system_cpus=CpuSet.of(0), devices=gives))
    world.managers = world.managers.knowing(PlacedDevices.of(CARDS, world.managers.topology))
    world.add(pod("owner", app(cpu="1", devices={NIC: count})))
    owned = world.managers.providers.find(DeviceResource)
    assert owned is not None
    return replace(world.view(), pools=owned.manager.pools)


def test_each_device_has_a_line() -> None:
    document = inspect_node(seen())
    json_schema.check(document, "inspection")
    text = render_in_full(document)
    assert f"0000:00:00.0 eth0 ({NIC}, NUMA 1)\n" in text
    assert f"0000:01:00.0 eth1 ({NIC})\n" in text
    assert document["node"]["devices"] == [{"resource": NIC, "count": 2, "free": 0, "unhealthy": 0}]


def test_one_that_is_gone_is_said_to_be() -> None:
    view = seen()
    (pool,) = view.pools
    document = inspect_node(replace(view, pools=(DevicePool(NIC, pool.devices[1:]),)))
    assert [one["isThere"] for one in document["pods"][0]["containers"][0]["devices"]] == [False, True]
    assert f"0000:00:00.0 eth0 ({NIC}, NUMA 1); it is missing or unhealthy" in " ".join(
        render_in_full(document).split()
    )
    unknown = inspect_node(replace(view, pools=()))["pods"][0]["containers"][0]["devices"]
    assert [one["isThere"] for one in unknown] == [None, None]
