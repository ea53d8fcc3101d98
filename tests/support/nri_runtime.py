"""The other side of NRI's socket: a container runtime, as strict as containerd where that matters, in the words of upstream's messages."""

import socket
import struct
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.protos import generated

NRI, TTRPC = generated("nri")[0], generated("ttrpc")[0]
PLUGIN, RUNTIME = "nri.pkg.api.v1alpha1.Plugin", "nri.pkg.api.v1alpha1.Runtime"
PATIENCE_SECONDS = 60.0
"""Nothing takes that long but a bug."""
_BUFFER_BYTES = 4096
_QUEUED_FRAMES = 256


class Gone(Exception):  # noqa: N818 - not an error of the runtime's
    """The plugin has closed the connection."""


class Refused(Exception):  # noqa: N818 - as above
    """The plugin's answer is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Version:
    """What differs from one to the next."""

    runtime: str
    nri: str
    tells_timeouts: bool = True
    tells_nri: bool = True
    last_event: int = 14
    has_method_per_event: bool = False


OLD = Version("1.7.24~ds1", "0.6.1", tells_timeouts=False, tells_nri=False, last_event=11)
DEBIAN_NEXT = Version("2.1.9", "0.8.0", tells_nri=False, last_event=11)
NEWER = Version("2.2.1", "v0.10.0")
NEWEST = Version("2.3.0", "v0.12.0", has_method_per_event=True)
VERSIONS = (OLD, DEBIAN_NEXT, NEWER, NEWEST)
OWN_METHODS = {
    1: "RunPodSandbox",
    2: "StopPodSandbox",
    3: "RemovePodSandbox",
    5: "PostCreateContainer",
    6: "StartContainer",
    7: "PostStartContainer",
    9: "PostUpdateContainer",
    11: "RemoveContainer",
    13: "PostUpdatePodSandbox",
}
"""Of the events that older versions tell by StateChange."""


class Runtime:
    """Listens; each connection is a `Connection`."""

    def __init__(self, path: Path, version: Version = DEBIAN_NEXT) -> None:
        self.path = path
        self.version = version
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_SECONDS)
        self._connections: list[Connection] = []

    def accept(self) -> "Connection":
        connection = Connection(self._listener.accept()[0], self.version)
        self._connections.append(connection)
        return connection

    def accept_plugin(self) -> "Connection":
        """Accept, and do all that comes before Synchronize."""
        connection = self.accept()
        connection.register()
        connection.configure()
        return connection

    def stop_listening(self) -> None:
        """Leave the socket's file behind."""
        self._listener.close()

    def close(self) -> None:
        """End as a stopped runtime does."""
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for connection in self._connections:
            connection.close()


class Connection:
    """One plugin, as the runtime sees it. Each call raises Refused, Gone, or an assertion where containerd would be lost."""

    def __init__(self, channel: socket.socket, version: Version) -> None:
        self._channel = channel
        self._channel.settimeout(PATIENCE_SECONDS)
        self._version = version
        self._stream = -1
        self._received: dict[int, bytes] = {1: b"", 2: b""}
        self._messages: dict[int, deque[tuple[int, int, bytes]]] = {1: deque(), 2: deque()}
        self.largest_frame = 0
        self.mask = 0

    def close(self) -> None:
        self._channel.close()

    # Registration.

    def registration(self) -> Any:
        """Read what the plugin registers as, without an answer."""
        stream, kind, data = self._message(2)
        assert (stream % 2, kind) == (1, 1)
        request = TTRPC.Request.FromString(data)
        assert (request.service, request.method) == (RUNTIME, "RegisterPlugin"), (
            "no other call of the runtime's is made"
        )
        return NRI.RegisterPluginRequest.FromString(request.payload)

    def answer_registration(self, *, code: int = 0, message: str = "", stream: int = 1) -> None:
        status = TTRPC.Status(code=code, message=message) if code else None
        self.send(2, ttrpc_frame(stream, 2, TTRPC.Response(status=status).SerializeToString()))

    def register(self) -> Any:
        found = self.registration()
        self.answer_registration()
        return found

    def configure(self) -> int:
        """Give the mask of what the plugin subscribes to."""
        version = self._version
        request = NRI.ConfigureRequest(runtime_name="containerd", runtime_version=version.runtime)
        if version.tells_timeouts:
            request.registration_timeout, request.request_timeout = 5000, 2000
        if version.tells_nri:
            request.NRI_version = version.nri
        self.mask = self.call("Configure", request, NRI.ConfigureResponse).events
        if self.mask & ~((1 << version.last_event) - 1):
            self.close()
            raise AssertionError(f"invalid plugin events: {self.mask:#x}")
        return self.mask

    def synchronize(self, pods: list[Any], containers: list[Any], *, parts: int = 1) -> list[Any]:
        """Say what runs, in so many parts, and give the updates."""
        for part in range(parts):
            has_more = part < parts - 1
            request = NRI.SynchronizeRequest(pods=pods[part::parts], containers=containers[part::parts], more=has_more)
            response = self.call("Synchronize", request, NRI.SynchronizeResponse)
            if has_more:
                assert response.more, "plugin does not handle split sync requests"
                assert not response.update, "plugin does not handle split sync requests"
        return list(response.update)

    # Calls.

    def call(self, method: str, request: Any, response: type[Any], *, timeout_ns: int = 2_000_000_000) -> Any:
        return self.answer(self.ask(method, request.SerializeToString(), timeout_ns=timeout_ns), response)

    def ask(
        self, method: str, payload: bytes, *, timeout_ns: int = 2_000_000_000, service: str = PLUGIN, flags: int = 0
    ) -> int:
        """Send a request, and give its stream."""
        request = TTRPC.Request(service=service, method=method, payload=payload, timeout_nano=timeout_ns)
        self._stream += 2
        self.send(1, ttrpc_frame(self._stream, 1, request.SerializeToString(), flags))
        return self._stream

    def answer(self, stream: int, response: Any) -> Any:
        found, kind, data = self._message(1)
        assert (found, kind) == (stream, 2)
        answered = TTRPC.Response.FromString(data)
        if answered.status.code:
            raise Refused(answered.status.code, answered.status.message)
        return response.FromString(answered.payload)

    def change(self, event: int, pod: Any, container: Any = None) -> None:
        """Tell of an event that nothing is answered to, by the method that this version has for it."""
        if self._version.has_method_per_event and event in OWN_METHODS:
            name = OWN_METHODS[event]
            fields = {"pod": pod} if container is None else {"pod": pod, "container": container}
            self.call(name, getattr(NRI, f"{name}Request")(**fields), getattr(NRI, f"{name}Response"))
            return
        self.call("StateChange", NRI.StateChangeEvent(event=event, pod=pod, container=container), NRI.Empty)

    # Bytes.

    def send(self, connection: int, message: bytes) -> None:
        """Send a frame of ttrpc as Go's buffered writer cuts it: what fills the buffer, then the rest in one."""
        for piece in (message[:_BUFFER_BYTES], message[_BUFFER_BYTES:]):
            if piece:
                self.send_bytes(mux_frame(connection, piece))

    def send_bytes(self, data: bytes) -> None:
        self._channel.sendall(data)

    def try_to_send(self, data: bytes, seconds: float) -> int:
        """Send as much as there is room for in so many seconds without any, and give how much."""
        self._channel.settimeout(seconds)
        sent = 0
        try:
            while sent < len(data):
                sent += self._channel.send(data[sent : sent + 65536])
        except TimeoutError:
            pass
        finally:
            self._channel.settimeout(PATIENCE_SECONDS)
        return sent

    def wait_for_end(self) -> None:
        """Read until the plugin has closed the connection."""
        try:
            while True:
                self._read_frame()
        except Gone:
            pass

    def _message(self, connection: int) -> tuple[int, int, bytes]:
        frames = 0
        while not self._messages[connection]:
            self._read_frame()
            frames += 1
            assert frames <= _QUEUED_FRAMES, "failed to queue payload for reading"
        return self._messages[connection].popleft()

    def _read_frame(self) -> None:
        connection, length = struct.unpack(">II", self._exactly(8))
        self.largest_frame = max(self.largest_frame, 8 + length)
        assert length <= _BUFFER_BYTES, "larger ones are never answered"
        self._received[connection] += self._exactly(length)
        data = self._received[connection]
        while len(data) >= 10:
            size, stream, kind, flags = struct.unpack_from(">IIBB", data)
            assert flags == 0
            if len(data) < 10 + size:
                break
            self._messages[connection].append((stream, kind, data[10 : 10 + size]))
            data = data[10 + size :]
        self._received[connection] = data

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self._channel.recv(count - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise Gone
            data += piece
        return data


def mux_frame(connection: int, payload: bytes) -> bytes:
    return struct.pack(">II", connection, len(payload)) + payload


def ttrpc_frame(stream: int, kind: int, data: bytes, flags: int = 0) -> bytes:
    return struct.pack(">IIBB", len(data), stream, kind, flags) + data


def pods_and_containers(count: int) -> tuple[list[Any], list[Any]]:
    """Give that many containers, as containerd lists them, and a pod for every two."""
    pods = [
        NRI.PodSandbox(
            id=f"{pod:064x}",
            name=f"web-{pod}",
            uid=f"00000000-0000-4000-8000-{pod:012}",
            namespace="default",
            annotations={"kubernetes.io/config.source": "api"},
            linux={"cgroup_parent": f"/kubepods.slice/kubepods-pod{pod}.slice"},
        )
        for pod in range((count + 1) // 2)
    ]
    return pods, [_container(number, pods[number // 2].id) for number in range(count)]


def _container(number: int, pod: str) -> Any:
    cpu = {"shares": {"value": 2048}, "quota": {"value": 200_000}, "period": {"value": 100_000}}
    return NRI.Container(
        id=f"{0xC000 + number:064x}",
        pod_sandbox_id=pod,
        name=f"container-{number % 2}",
        state="CONTAINER_RUNNING",
        args=["/bin/sleep", "inf"],
        env=[f"PATH_{n}=/usr/local/sbin:/usr/local/bin" for n in range(8)],
        mounts=[
            {"destination": f"/mnt/{n}", "type": "bind", "source": "/var/lib", "options": ["ro"]} for n in range(8)
        ],
        linux={
            "resources": {"cpu": cpu, "memory": {"limit": {"value": 1 << 30}}},
            "oom_score_adj": {"value": -997},
            "cgroups_path": f"kubepods-pod{number // 2}.slice:cri-containerd:{0xC000 + number:064x}",
        },
        pid=1000 + number,
    )
