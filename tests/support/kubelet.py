"""kubelet's pods API as a server of grpcio's, on a unix socket, with v1.Pod messages made by protobuf's own code."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from nodeagent.core.model.pod import ContainerKind, Pod, Resources
from tests.support.protos import generated

MESSAGES, STUBS = generated("kubelet_pods")
CORE = generated("core_v1")[0]
MASK = "x-kubernetes-fieldmask"


def v1_pod(of: Pod, *, debuggers: tuple[str, ...] = ()) -> Any:
    """A pod as kubelet has it, with much that nobody asks for."""
    pod = CORE.Pod()
    pod.metadata.uid, pod.metadata.name, pod.metadata.namespace = of.uid, of.name, of.namespace
    pod.metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"] = "{}" * 50
    pod.status.phase = "Pending"
    pod.spec.restartPolicy = "Always"
    pod.spec.terminationGracePeriodSeconds = 30
    for container in of.containers:
        is_app = container.kind is ContainerKind.APP
        one = (pod.spec.containers if is_app else pod.spec.initContainers).add()
        one.name, one.image, one.tty = container.name, "registry.example/image", True
        one.env.add(name="PASSWORD", value="secret")
        put(one.resources.requests, container.resources.requests)
        put(one.resources.limits, container.resources.limits)
        if container.kind is ContainerKind.SIDECAR:
            one.restartPolicy = "Always"
    for name in debuggers:
        pod.spec.ephemeralContainers.add().ephemeralContainerCommon.name = name
    if of.resources is not None:
        put(pod.spec.resources.requests, of.resources.requests)
        put(pod.spec.resources.limits, of.resources.limits)
    put(pod.spec.overhead, of.overhead)
    return pod


def put(into: Any, amounts: Resources) -> None:
    for name, amount in amounts:
        into[name].string = str(amount)


class Kubelet:
    """Has pods, and what else it is told to answer."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.asked: list[str] = []
        self.masks: list[list[str]] = []
        self.raw: bytes | None = None
        """What it answers instead of a pod."""
        self.refusal: tuple[Any, str] | None = None

    def has(self, of: Pod, **more: Any) -> None:
        self.pods[of.uid] = v1_pod(of, **more)

    def GetPod(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        self.asked.append(request.podUID)
        self.masks.append([value for key, value in context.invocation_metadata() if key == MASK])
        if self.refusal is not None:
            context.abort(*self.refusal)
        if self.raw is not None:
            return MESSAGES.GetPodResponse(pod=self.raw)
        if request.podUID not in self.pods:
            context.abort(grpc.StatusCode.NOT_FOUND, f"pod with UID {request.podUID} not found")
        return MESSAGES.GetPodResponse(pod=self.pods[request.podUID].SerializeToString())


@contextmanager
def serving(path: Path, kubelet: Kubelet | None = None) -> Iterator[Kubelet]:
    kubelet = kubelet or Kubelet()
    server = grpc.server(ThreadPoolExecutor(4))
    STUBS.add_PodsServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield kubelet
    finally:
        server.stop(None).wait()
