"""A device plugin in the guest: it answers each method with the bytes of a file, and registers. Runs there, with the agent's own libraries.

The messages are made on this side, by protobuf's own code of upstream's protocol file. Of an answer that is a stream the call stays open.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from integration.node import Node
from tests.support.protos import generated

MESSAGES = generated("device_plugins")[0]
DIRECTORY = "/run/nodeagent"
KUBELET_SOCKET = f"{DIRECTORY}/kubelet.sock"
_ANSWERS = "/root/plugin-answers"
_PROGRAM = """
import socket, sys, threading, time
from pathlib import Path
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcServerKind
from nodeagent.formats.wire.device_plugins import LIST_AND_WATCH, REGISTER
from nodeagent.formats.wire.grpc_messages import CONTENT_TYPE, framed

directory, answers = map(Path, sys.argv[1:])

def serve(channel):
    h2, paths = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8")), {}
    h2.initiate_connection()
    while True:
        channel.sendall(h2.data_to_send())
        data = channel.recv(65536)
        if not data:
            return
        for event in h2.receive_data(data):
            if isinstance(event, RequestReceived):
                paths[event.stream_id] = dict(event.headers)[":path"]
            elif isinstance(event, StreamEnded):
                path = paths[event.stream_id]
                h2.send_headers(event.stream_id, [(":status", "200"), ("content-type", CONTENT_TYPE)])
                h2.send_data(event.stream_id, framed((answers / path.rpartition("/")[2]).read_bytes()))
                if path != LIST_AND_WATCH:
                    h2.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)

listener = socket.socket(socket.AF_UNIX)
listener.bind(str(directory / "plugin.sock"))
listener.listen()
agent = GrpcServerKind("the agent", hint="")
with GrpcClient(agent, directory / "kubelet.sock", time.monotonic() + 60, 4 << 20) as kubelet:
    kubelet.call(REGISTER, (answers / "Register").read_bytes())
while True:
    channel, _ = listener.accept()
    threading.Thread(target=serve, args=(channel,), daemon=True).start()
"""


@contextmanager
def device_plugin(node: Node, resource: str, devices: dict[str, int], answer: Any) -> Iterator[None]:
    """Have it run beside an agent whose `devicePluginSocket` is KUBELET_SOCKET.

    Args:
        node: the agent's.
        resource: that it gives.
        devices: the NUMA node of each, by id.
        answer: to Allocate, for whichever devices (a ContainerAllocateResponse).
    """
    listed = [
        MESSAGES.Device(ID=id_, health="Healthy", topology=MESSAGES.TopologyInfo(nodes=[MESSAGES.NUMANode(ID=place)]))
        for id_, place in devices.items()
    ]
    answers = {
        "Register": MESSAGES.RegisterRequest(version="v1beta1", endpoint="plugin.sock", resource_name=resource),
        "GetDevicePluginOptions": MESSAGES.DevicePluginOptions(pre_start_required=True),
        "ListAndWatch": MESSAGES.ListAndWatchResponse(devices=listed),
        "Allocate": MESSAGES.AllocateResponse(container_responses=[answer]),
        "PreStartContainer": MESSAGES.PreStartContainerResponse(),
    }
    for name, message in answers.items():
        node.guest.put(f"{_ANSWERS}/{name}", message.SerializeToString())
    node.guest.put("/root/plugin.py", _PROGRAM)
    cursor = node.cursor()
    argv = ["/opt/nodeagent/bin/python", "/root/plugin.py", DIRECTORY, _ANSWERS]
    plugin = node.guest.start(argv)

    def is_told() -> bool | None:
        plugin.wait(0.05)
        given = {one["resource"]: one["free"] for one in node.inspect()["node"]["devices"]}
        return given.get(resource) == len(devices) or None

    node.until(is_told, lambda: f"{bytes(plugin.stderr).decode()}, {node.log(cursor)}, {node.inspect()['node']}")
    yield
    plugin.signal(9)
    node.run(f"rm -rf {DIRECTORY}/plugin.sock {_ANSWERS}")
