"""A device plugin of the tests' own, with grpcio's server: it tells what it is told to tell, and remembers what it was asked."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.support.protos import generated

MESSAGES, STUBS = generated("device_plugins")
PATIENCE_SECONDS = 60.0


class DevicePlugin:
    """One process of it, as long as it isn't stopped.

    Args:
        directory: of the registration's socket.
        resource: that it gives.
        name: of its socket.
    """

    def __init__(self, directory: Path, resource: str, name: str = "plugin.sock") -> None:
        self._directory, self._resource, self._name = directory, resource, name
        self._lists: queue.Queue[Any] = queue.Queue()
        self.asked: list[tuple[str, list[str]]] = []
        self.preferred: list[str] = []
        self.envs: dict[str, str] = {}
        self.refuses = ""
        self.status = grpc.StatusCode.UNKNOWN
        """Of a refusal."""
        self.answers = threading.Event()
        """Clear it, and whoever has devices allocated waits."""
        self.answers.set()
        self.options = MESSAGES.DevicePluginOptions()
        (directory / name).unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(8))
        STUBS.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{directory / name}")
        self._server.start()

    def register(self, version: str = "v1beta1", endpoint: str | None = None) -> None:
        """Raises grpc.RpcError if it is refused."""
        with grpc.insecure_channel(f"unix:{self._directory / 'kubelet.sock'}") as channel:
            asked = MESSAGES.RegisterRequest(
                version=version, endpoint=self._name if endpoint is None else endpoint, resource_name=self._resource
            )
            STUBS.RegistrationStub(channel).Register(asked, timeout=PATIENCE_SECONDS)

    def tell(self, *devices: tuple[str, bool, int | None]) -> None:
        """Tell its devices: id, whether it is healthy, NUMA node."""
        self.tell_all(
            *(
                MESSAGES.Device(
                    ID=id_,
                    health="Healthy" if is_healthy else "Unhealthy",
                    topology=None if node is None else MESSAGES.TopologyInfo(nodes=[MESSAGES.NUMANode(ID=node)]),
                )
                for id_, is_healthy, node in devices
            )
        )

    def tell_all(self, *devices: Any) -> None:
        """Tell its devices as the protocol has them."""
        self._lists.put(list(devices))

    def stop(self) -> None:
        self.answers.set()
        self._lists.put(None)
        self._server.stop(None).wait(PATIENCE_SECONDS)

    # The service

    def GetDevicePluginOptions(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - the protocol's name
        return self.options

    def ListAndWatch(self, _request: Any, _context: Any) -> Iterator[Any]:  # noqa: N802 - as above
        while (devices := self._lists.get()) is not None:
            yield MESSAGES.ListAndWatchResponse(devices=devices)

    def GetPreferredAllocation(self, request: Any, _context: Any) -> Any:  # noqa: N802 - as above
        self.asked.append(("preferred", list(request.container_requests[0].available_deviceIDs)))
        one = MESSAGES.ContainerPreferredAllocationResponse(deviceIDs=self.preferred)
        return MESSAGES.PreferredAllocationResponse(container_responses=[one])

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802 - as above
        self.asked.append(("allocate", list(request.container_requests[0].devices_ids)))
        self.answers.wait(PATIENCE_SECONDS)
        if self.refuses:
            context.abort(self.status, self.refuses)
        one = MESSAGES.ContainerAllocateResponse(envs=self.envs)
        return MESSAGES.AllocateResponse(container_responses=[one])

    def PreStartContainer(self, request: Any, _context: Any) -> Any:  # noqa: N802 - as above
        self.asked.append(("prepare", list(request.devices_ids)))
        return MESSAGES.PreStartContainerResponse()
