"""Device plugins of the tests' own: one with grpcio's server, which tells what it is told to tell and remembers what it was asked, and one
that sends any bytes.
"""

import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded

from nodeagent.formats.wire.grpc_messages import add_frame
from tests.support.protos import generated

MESSAGES, STUBS = generated("device_plugins")
PATIENCE_SECONDS = 60.0
HOSTILE_STATUSES = ("", "zero", "²", "٠", "０", "-1", "+0", "0x0", "1e3", " ", "0_0", "0000", "9" * 5000, "\xff")
"""Values of `grpc-status` that are no plain small number."""


def register(directory: Path, resource: str, endpoint: str, version: str = "v1beta1") -> None:
    """Register a plugin. Raises grpc.RpcError if it is refused."""
    with grpc.insecure_channel(f"unix:{directory / 'kubelet.sock'}") as channel:
        asked = MESSAGES.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        STUBS.RegistrationStub(channel).Register(asked, timeout=PATIENCE_SECONDS)


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
        register(self._directory, self._resource, self._name if endpoint is None else endpoint, version)

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


class RawPlugin:
    """A plugin that ends its calls with any trailers. Its list is one healthy device, `a`.

    Args:
        directory: of the registration's socket.
        resource: that it gives.
    """

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory, self._resource = directory, resource
        self.trailers: dict[str, tuple[tuple[str, str], ...]] = {}
        """By method. OK if there are none."""
        self.ends_list = threading.Event()
        self._messages = {
            "GetDevicePluginOptions": b"",
            "ListAndWatch": MESSAGES.ListAndWatchResponse(devices=[MESSAGES.Device(ID="a", health="Healthy")]),
            "Allocate": MESSAGES.AllocateResponse(container_responses=[MESSAGES.ContainerAllocateResponse()]),
        }
        (directory / "raw.sock").unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "raw.sock"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def register(self) -> None:
        register(self._directory, self._resource, "raw.sock")

    def stop(self) -> None:
        self.ends_list.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                channel, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(channel,), daemon=True).start()

    def _serve(self, channel: socket.socket) -> None:
        config = H2Configuration(
            client_side=False,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        h2, method = H2Connection(config), ""
        h2.initiate_connection()
        with channel, suppress(OSError):
            while True:
                channel.sendall(h2.data_to_send())
                if not (data := channel.recv(65536)):
                    return
                for event in h2.receive_data(data):
                    if isinstance(event, RequestReceived):
                        method = dict(event.headers)[":path"].rpartition("/")[2]
                    elif isinstance(event, StreamEnded):
                        self._answer(channel, h2, event.stream_id, method)

    def _answer(self, channel: socket.socket, h2: H2Connection, stream: int, method: str) -> None:
        message = self._messages[method]
        h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        h2.send_data(stream, add_frame(message if isinstance(message, bytes) else message.SerializeToString()))
        if method == "ListAndWatch":
            channel.sendall(h2.data_to_send())
            self.ends_list.wait(PATIENCE_SECONDS)
        h2.send_headers(stream, list(self.trailers.get(method, (("grpc-status", "0"),))), end_stream=True)
