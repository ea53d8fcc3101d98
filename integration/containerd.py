"""containerd in a guest, asked as kubelet asks: pods with kubelet's cgroup parents on the host's network, of an image of busybox alone.

The CRI client is on this side: each of its connections is carried to the socket in the guest, where nothing but a relay runs.
"""

import hashlib
import io
import json
import socket
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import grpc

from integration.guest.base import base_of
from integration.guest.guest import Guest
from integration.guest.next_containerd import PROGRAMS
from integration.node import CONFIG, Node
from integration.overlap.workload import IN_IMAGE
from nodeagent.core.model.pod import Pod
from tests.support.kubelet import MESSAGES as KUBELET, v1_pod
from tests.support.protos import generated

CRI, SERVICES = generated("cri")
SOCKET = "/run/containerd/containerd.sock"
NRI_SOCKET = "/var/run/nri/nri.sock"
IMAGE = "nodeagent.test/busybox:1"
CALL_SECONDS = 120.0
"""Of ours: kubelet waits as long for a call."""
_ARCHIVE = "/root/busybox.tar"
_NEXT = "/opt/containerd-next"
_DROP_IN = "/run/systemd/system/containerd.service.d/next.conf"
_NEXT_UNIT = f"""\
[Service]
Environment=PATH={_NEXT}:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=
ExecStart={_NEXT}/containerd
"""
_NEXT_PLACES = """\
root = "/var/lib/containerd-next"
state = "/run/containerd-next"
"""
_CONFIGURATION = f"""\
version = 2
disabled_plugins = [
    "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."io.containerd.nri.v1.nri"]
disable = false
plugin_request_timeout = "10s"
"""
"""On an emulated machine 2 s, the usual limit, can pass without anybody's fault. 1.7 doesn't tell it: there the agent goes by those 2 s."""
_RELAY = """
import os, select, socket, sys
there = socket.socket(socket.AF_UNIX)
there.connect(sys.argv[1])
while True:
    ready, _, _ = select.select([0, there], [], [])
    if there in ready:
        data = there.recv(65536)
        if not data:
            break
        while data:
            data = data[os.write(1, data):]
    if 0 in ready:
        data = os.read(0, 65536)
        if not data:
            break
        there.sendall(data)
"""
EMPTY: Mapping[str, str] = MappingProxyType({})
FOR_EVER = ("/bin/busybox", "sleep", "1000000")


@dataclass(frozen=True, slots=True)
class CriPod:
    """A pod as kubelet makes it known to the runtime."""

    name: str
    qos: str = ""
    """Empty: Guaranteed; otherwise `burstable` or `besteffort`."""
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def parent(self) -> str:
        """The slice, whose name has no dash within a UID."""
        middle = f"-{self.qos}" if self.qos else ""
        return f"kubepods{middle}-pod{self.uid.replace('-', '_')}.slice"

    @property
    def cgroup(self) -> str:
        above = f"kubepods.slice/kubepods-{self.qos}.slice" if self.qos else "kubepods.slice"
        return f"/sys/fs/cgroup/{above}/{self.parent}"

    def container_cgroup(self, container_id: str) -> str:
        return f"{self.cgroup}/cri-containerd-{container_id}.scope"

    def config(self) -> Any:
        option = CRI.NamespaceOption(network=CRI.NODE, pid=CRI.CONTAINER)
        security = CRI.LinuxSandboxSecurityContext(namespace_options=option)
        return CRI.PodSandboxConfig(
            metadata=CRI.PodSandboxMetadata(name=self.name, uid=self.uid, namespace="default"),
            annotations=dict(self.annotations),
            linux=CRI.LinuxPodSandboxConfig(cgroup_parent=self.parent, security_context=security),
        )


def guaranteed(cpu_milli: int, memory_mib: int = 32) -> Any:
    """What kubelet asks for, for a container whose requests are its limits."""
    return CRI.LinuxContainerResources(
        cpu_shares=max(2, cpu_milli * 1024 // 1000),
        cpu_quota=cpu_milli * 100,
        cpu_period=100_000,
        memory_limit_in_bytes=memory_mib << 20,
        oom_score_adj=-997,
    )


def burstable(cpu_milli: int, limit_milli: int = 0) -> Any:
    """For a container that requests CPUs. Limit: 0 is none."""
    limit = {"cpu_quota": limit_milli * 100, "cpu_period": 100_000} if limit_milli else {}
    return CRI.LinuxContainerResources(cpu_shares=max(2, cpu_milli * 1024 // 1000), oom_score_adj=999, **limit)


class Containerd:
    """Started by `with`; at its end all pods are removed, and it doesn't run any more.

    Args:
        node: the guest.
        programs: a directory with those of another version. None: the guest's own.
    """

    def __init__(self, node: Node, programs: Path | None = None) -> None:
        self._node = node
        self._programs = programs
        self._directory = tempfile.TemporaryDirectory(prefix="nodeagent-cri-")
        path = Path(self._directory.name) / "cri.sock"
        self._relay = _Relay(node.guest, path)
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self.runtime = SERVICES.RuntimeServiceStub(self._channel)
        self._images = SERVICES.ImageServiceStub(self._channel)

    def __enter__(self) -> Self:
        node = self._node
        ctr = "ctr"
        node.guest.put("/etc/containerd/config.toml", _CONFIGURATION)
        if self._programs is not None:
            ctr = f"{_NEXT}/ctr"
            for name in PROGRAMS:
                node.guest.put(f"{_NEXT}/{name}", (self._programs / name).read_bytes(), mode=0o755)
            node.guest.put(_DROP_IN, _NEXT_UNIT)
            node.guest.put("/etc/containerd/config.toml", _NEXT_PLACES + _CONFIGURATION)
        node.guest.put(_ARCHIVE, image_archive(node.guest))
        node.run("systemctl unmask --quiet containerd && systemctl start containerd", timeout_seconds=60)
        node.run(f"{ctr} -n k8s.io images import --local=true {_ARCHIVE}", timeout_seconds=60)
        request = CRI.ImageStatusRequest(image=CRI.ImageSpec(image=IMAGE))
        node.until(
            lambda: self._images.ImageStatus(request, timeout=CALL_SECONDS).image.id or None,
            lambda: f"containerd does not show {IMAGE}",
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.remove_all()
            self._node.run(
                f"systemctl stop containerd; rm -f {_DROP_IN}; systemctl mask --quiet containerd",
                check=False,
                timeout_seconds=30,
            )
        finally:
            self._channel.close()
            self._relay.close()
            self._directory.cleanup()

    def run_pod(self, pod: CriPod) -> str:
        request = CRI.RunPodSandboxRequest(config=pod.config())
        found: str = self.runtime.RunPodSandbox(request, timeout=CALL_SECONDS).pod_sandbox_id
        return found

    def create(
        self,
        pod: CriPod,
        sandbox: str,
        name: str,
        resources: Any,
        command: tuple[str, ...] = FOR_EVER,
        *,
        mounts: Mapping[str, str] = EMPTY,
    ) -> str:
        """Create a container. Mounts: paths in it, by those on the node."""
        config = CRI.ContainerConfig(
            metadata=CRI.ContainerMetadata(name=name),
            mounts=[CRI.Mount(host_path=there, container_path=path) for there, path in mounts.items()],
            image=CRI.ImageSpec(image=IMAGE),
            command=list(command),
            linux=CRI.LinuxContainerConfig(
                resources=resources,
                security_context=CRI.LinuxContainerSecurityContext(
                    namespace_options=CRI.NamespaceOption(network=CRI.NODE, pid=CRI.CONTAINER)
                ),
            ),
        )
        request = CRI.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=pod.config())
        found: str = self.runtime.CreateContainer(request, timeout=CALL_SECONDS).container_id
        return found

    def start(self, container: str) -> None:
        self.runtime.StartContainer(CRI.StartContainerRequest(container_id=container), timeout=CALL_SECONDS)

    def run(self, pod: CriPod, sandbox: str, name: str, resources: Any, command: tuple[str, ...] = FOR_EVER) -> str:
        """Create a container and start it."""
        container = self.create(pod, sandbox, name, resources, command)
        self.start(container)
        return container

    def update(self, container: str, resources: Any) -> None:
        request = CRI.UpdateContainerResourcesRequest(container_id=container, linux=resources)
        self.runtime.UpdateContainerResources(request, timeout=CALL_SECONDS)

    def containers_of(self, pod: CriPod) -> tuple[str, ...]:
        """The ids of all that there are, of any state."""
        boxes = set(self.sandboxes_of(pod))
        found = self.runtime.ListContainers(CRI.ListContainersRequest(), timeout=CALL_SECONDS).containers
        return tuple(one.id for one in found if one.pod_sandbox_id in boxes)

    def sandboxes_of(self, pod: CriPod) -> tuple[str, ...]:
        found = self.runtime.ListPodSandbox(CRI.ListPodSandboxRequest(), timeout=CALL_SECONDS).items
        return tuple(one.id for one in found if one.metadata.uid == pod.uid)

    def stop(self, container: str) -> None:
        """End it at once."""
        self.runtime.StopContainer(CRI.StopContainerRequest(container_id=container), timeout=CALL_SECONDS)

    def remove(self, container: str) -> None:
        self.runtime.RemoveContainer(CRI.RemoveContainerRequest(container_id=container), timeout=CALL_SECONDS)

    def remove_pod(self, sandbox: str) -> None:
        self.runtime.StopPodSandbox(CRI.StopPodSandboxRequest(pod_sandbox_id=sandbox), timeout=CALL_SECONDS)
        self.runtime.RemovePodSandbox(CRI.RemovePodSandboxRequest(pod_sandbox_id=sandbox), timeout=CALL_SECONDS)

    def remove_all(self) -> None:
        for one in self.runtime.ListPodSandbox(CRI.ListPodSandboxRequest(), timeout=CALL_SECONDS).items:
            self.remove_pod(one.id)

    def restart(self) -> None:
        """Its containers run on."""
        self._node.run("systemctl restart containerd", timeout_seconds=60)
        self.version()

    def version(self) -> str:
        """Wait until it answers."""
        found: str = self.runtime.Version(
            CRI.VersionRequest(), timeout=CALL_SECONDS, wait_for_ready=True
        ).runtime_version
        return found


@contextmanager
def plugged_in(node: Node, containerd: Containerd) -> Iterator[None]:
    """The agent is its plugin meanwhile."""
    usual = node.guest.get(CONFIG)
    cursor = node.cursor()
    node.guest.put(CONFIG, usual.replace(b'nriSocket: ""', f"nriSocket: {NRI_SOCKET}".encode()))
    node.restart_agent()
    node.wait_log(cursor, "runtime_linked")
    yield
    containerd.remove_all()
    # After its own restart containerd 1.7.24 doesn't tell that pods from before are removed: it lists what there is to who comes anew.
    node.restart_agent()
    node.wait(lambda state: not state["entries"] and "runtime" not in state, "containerd's pods to be forgotten")
    node.guest.put(CONFIG, usual)
    node.restart_agent()


_KUBELET = """
import asyncio, sys
from pathlib import Path
from nodeagent.edge.transport.grpc_server import GrpcServer
from nodeagent.formats.runtime.kubelet_pods import GET_POD, GET_POD_REQUEST
from nodeagent.formats.wire.grpc_messages import CallError, Status
from nodeagent.formats.wire.protobuf import decode

def get_pod(message):
    answer = Path(sys.argv[2]) / decode(GET_POD_REQUEST, message)["podUID"]
    if not answer.is_file():
        raise CallError(Status.NOT_FOUND, "there is no such pod")
    return answer.read_bytes()

async def attend(reader, writer):
    try:
        await GrpcServer({GET_POD: get_pod}, lambda err: print(repr(err), flush=True)).attend(reader, writer)
    except OSError:
        pass
    finally:
        writer.close()

async def main():
    await asyncio.start_unix_server(attend, sys.argv[1])
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def kubelet_saying(node: Node, *pods: Pod) -> Iterator[None]:
    """kubelet's pods API at its usual place, by a program that answers with v1.Pod messages of protobuf's own code."""
    directory, answers = "/var/lib/kubelet/pods-api", "/root/kubelet-pods"
    node.run(f"mkdir -p {directory} {answers} && rm -f {directory}/pods-api.sock")
    for one in pods:
        answer = KUBELET.GetPodResponse(pod=v1_pod(one).SerializeToString())
        node.guest.put(f"{answers}/{one.uid}", answer.SerializeToString())
    node.guest.put("/root/kubelet.py", _KUBELET)
    argv = ["/opt/nodeagent/bin/python", "/root/kubelet.py", f"{directory}/pods-api.sock", answers]
    server = node.guest.start(argv)

    def is_ready() -> bool | None:
        server.wait(0.05)
        return b"ready" in bytes(server.stdout) or None

    node.until(is_ready, lambda: f"no kubelet: {bytes(server.stderr).decode()}")
    yield
    server.signal(9)
    node.run(f"rm -rf {directory} {answers}")


class _Relay:
    """Carries what connects to a socket here to containerd's in the guest."""

    def __init__(self, guest: Guest, path: Path) -> None:
        self._guest = guest
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, name="cri-relay", daemon=True).start()

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                end, _ = self._listener.accept()
                self._ends.append(end)
                threading.Thread(target=self._carry, args=(end,), name="cri-relay", daemon=True).start()

    def _carry(self, end: socket.socket) -> None:
        def finish() -> None:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

        def receive(data: bytes) -> None:
            with suppress(OSError):
                end.sendall(data)

        argv = ("/usr/bin/python3", "-E", "-S", "-s", "-c", _RELAY, SOCKET)
        request = self._guest.start(argv, on_output=receive, on_end=finish)
        with suppress(Exception):  # the guest, or the relay in it, is gone: the client sees the end of its connection
            while data := end.recv(65536):
                request.send(data)
            request.end_input()


def image_archive(guest: Guest) -> bytes:
    """An OCI archive (image-layout and image-spec) with busybox alone, under two names; a pod's pause container is made of it, too."""
    root = base_of(guest.image.release).root
    busybox = next(path for path in (root / "usr/bin/busybox", root / "bin/busybox") if path.exists()).read_bytes()
    layer = _tar({"bin/busybox": (0o755, busybox), f"bin/{IN_IMAGE}": (0o755, busybox)})
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(FOR_EVER)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    of_image = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{of_image}.manifest.v1+json",
            "config": _descriptor(f"{of_image}.config.v1+json", config),
            "layers": [_descriptor(f"{of_image}.layer.v1.tar", layer)],
        }
    )
    named = {"annotations": {"io.containerd.image.name": IMAGE}}
    index = {"schemaVersion": 2, "manifests": [_descriptor(f"{of_image}.manifest.v1+json", manifest) | named]}
    blobs = {f"blobs/sha256/{_digest(blob)[7:]}": (0o644, blob) for blob in (layer, config, manifest)}
    layout = (0o644, _json({"imageLayoutVersion": "1.0.0"}))
    return _tar({"oci-layout": layout, "index.json": (0o644, _json(index)), **blobs})


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _tar(files: dict[str, tuple[int, bytes]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, (mode, content) in files.items():
            row = tarfile.TarInfo(name)
            row.mode, row.size = mode, len(content)
            archive.addfile(row, io.BytesIO(content))
    return target.getvalue()
