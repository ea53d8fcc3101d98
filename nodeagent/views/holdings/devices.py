"""Documents about the devices of containers, pods and lost pods, and about the number of devices on the node."""

from collections.abc import Iterable

from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises, UnrecoveredPod
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices
from nodeagent.formats.node_view import NodeView
from nodeagent.views.holdings.holding_view import Document, HoldingView


def list_unrecovered(pods: Iterable[UnrecoveredPod]) -> list[str]:
    """List the IDs of the devices that are recorded as allocated to lost pods."""
    return sorted({device.id for pod in pods for _, own in pod.held.of(DeviceHoldings).devices for device in own})


def _describe_container(view: NodeView, held: PodPromises, container: str) -> Document:
    """Describe a container's devices. A device that was removed from the machine is included, and marked."""
    devices = held.of(DeviceHoldings).devices_of(container)
    pools = view.pools if devices else ()
    health_by_id = {(pool.resource, one.id): one.is_healthy for pool in pools for one in pool.devices}
    known = {pool.resource for pool in pools}
    return {
        "devices": [
            ({"claim": one.claim} if one.claim else {})
            | {
                "id": one.id,
                "isThere": health_by_id.get((one.resource, one.id), False) if one.resource in known else None,
                "names": list(one.names),
                "numaNodes": str(one.nodes),
                "resource": one.resource,
            }
            for one in devices
        ]
    }


def _describe_decided(_pod: Pod, held: PodPromises) -> Document:
    found = [
        {
            "container": name,
            "id": device.id,
            "names": list(device.names),
            "numaNodes": str(device.nodes) if device.nodes else None,
            "resource": device.claim or device.resource,
        }
        for name, own in held.of(DeviceHoldings).devices
        for device in own
    ]
    return {"devices": found} if found else {}


def _describe_node(view: NodeView) -> Document:
    """Count the free and unhealthy devices of each extended resource."""
    taken = taken_devices(view.state.promises)
    return {
        "devices": [
            {
                "resource": pool.resource,
                "count": len(pool.devices),
                "free": sum(1 for one in pool.healthy if one.held(pool.resource).key not in taken),
                "unhealthy": len(pool.devices) - len(pool.healthy),
            }
            for pool in view.pools
        ]
    }


VIEW = HoldingView(container=_describe_container, node=_describe_node, decided_pod=_describe_decided)
