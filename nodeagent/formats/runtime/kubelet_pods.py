"""kubelet's pods API: the request for one pod, and its answer to a KubeletPod.

KEP-4188, on in kubelet 1.37 (its reference page "Kubelet Pods API"). The service and its messages are those of kubernetes/kubernetes,
staging/src/k8s.io/kubelet/pkg/apis/pods/v1alpha1/api.proto: `bytes pod` is a v1.Pod in protobuf. The numbers of its fields are those of
k8s.io/api/core/v1/generated.proto and k8s.io/apimachinery, as far as they are read here.

A field mask is a comma-separated list of paths, as a pod's YAML has them, in one entry of the call's metadata; the server goes through
lists (pkg/kubelet/pods, getFieldMaskFromContext and applySinglePath). So what a pod's environment may hold is never sent here.
"""

import re
from collections.abc import Iterator

from nodeagent.core.model.kubelet_pod import KubeletContainer, KubeletPod
from nodeagent.core.model.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    ContainerKind,
    ResourceRequirements,
    Resources,
    RestartPolicy,
)
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.errors import printable
from nodeagent.formats.wire.protobuf import Field, Kind, Message, MessageType, ProtobufError, decode, encode

GET_POD = "/v1alpha1.Pods/GetPod"
_OF_CONTAINERS = ("name", "resources", "restartPolicy")
METADATA = (
    (
        "x-kubernetes-fieldmask",
        ",".join(
            (
                "metadata.uid",
                *(f"spec.{kind}.{one}" for kind in ("initContainers", "containers") for one in _OF_CONTAINERS),
                "spec.ephemeralContainers.name",
                "spec.resources",
                "spec.overhead",
            )
        ),
    ),
)
MAX_BYTES = 256 * 1024
"""Of an answer: with the mask, a container takes less than a thousand. More would take too long to read while the runtime waits."""
MAX_CONTAINERS = 256
_MAX_UID = 256
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_HUGEPAGES = re.compile(rf"{HUGEPAGES_PREFIX}[1-9][0-9]{{0,5}}[KMG]i")

GET_POD_REQUEST = MessageType("GetPodRequest", (Field(1, "podUID", Kind.STRING),))
GET_POD_RESPONSE = MessageType("GetPodResponse", (Field(1, "pod", Kind.BYTES),))
QUANTITY = MessageType("Quantity", (Field(1, "string", Kind.STRING),))
AMOUNT = MessageType("Amount", (Field(1, "key", Kind.STRING), Field(2, "value", QUANTITY)))
"""An entry of map<string, Quantity>."""
RESOURCE_REQUIREMENTS = MessageType(
    "ResourceRequirements", (Field(1, "limits", AMOUNT, repeated=True), Field(2, "requests", AMOUNT, repeated=True))
)
CONTAINER = MessageType(
    "Container",
    (
        Field(1, "name", Kind.STRING),
        Field(8, "resources", RESOURCE_REQUIREMENTS),
        Field(24, "restartPolicy", Kind.STRING),
    ),
)
EPHEMERAL_CONTAINER_COMMON = MessageType("EphemeralContainerCommon", (Field(1, "name", Kind.STRING),))
EPHEMERAL_CONTAINER = MessageType(
    "EphemeralContainer", (Field(1, "ephemeralContainerCommon", EPHEMERAL_CONTAINER_COMMON),)
)
OBJECT_META = MessageType("ObjectMeta", (Field(5, "uid", Kind.STRING),))
POD_SPEC = MessageType(
    "PodSpec",
    (
        Field(2, "containers", CONTAINER, repeated=True),
        Field(20, "initContainers", CONTAINER, repeated=True),
        Field(32, "overhead", AMOUNT, repeated=True),
        Field(34, "ephemeralContainers", EPHEMERAL_CONTAINER, repeated=True),
        Field(40, "resources", RESOURCE_REQUIREMENTS),
    ),
)
POD = MessageType("Pod", (Field(1, "metadata", OBJECT_META), Field(2, "spec", POD_SPEC)))


class KubeletPodError(ValueError):
    """An answer can't be the pod that was asked for. The text names the field."""


def get_pod(uid: str) -> bytes | None:
    """Return the request for a pod; None: no pod of kubelet's has such a UID."""
    return encode(GET_POD_REQUEST, {"podUID": uid}) if 0 < len(uid) <= _MAX_UID and uid.isprintable() else None


def read_pod(answer: bytes, uid: str) -> KubeletPod:
    """Read what is known of a pod.

    Raises:
        KubeletPodError: it is no pod, another one than was asked for, or one that Kubernetes can't have.
    """
    try:
        response = decode(GET_POD_RESPONSE, answer, max_bytes=MAX_BYTES)
        pod = decode(POD, response["pod"], max_bytes=MAX_BYTES)
    except ProtobufError as err:
        raise KubeletPodError(str(err)) from err
    found = (pod["metadata"] or {}).get("uid", "")
    if found != uid:
        raise KubeletPodError(f"metadata.uid: it is {_shown(found)}, and {_shown(uid)} was asked for")
    spec = pod["spec"]
    if spec is None or not spec["containers"]:
        raise KubeletPodError("spec.containers: there are none")
    containers = tuple(_containers(spec))
    if len({one.name for one in containers}) != len(containers):
        raise KubeletPodError("spec.containers: two of its containers have one name")
    resources = None if spec["resources"] is None else _requirements(spec["resources"], "spec.resources")
    return KubeletPod(uid, containers, resources, _amounts(spec["overhead"], "spec.overhead"))


def _containers(spec: Message) -> Iterator[KubeletContainer]:
    count = sum(len(spec[kind]) for kind in ("initContainers", "containers", "ephemeralContainers"))
    if count > MAX_CONTAINERS:
        raise KubeletPodError(f"spec.containers: more than {MAX_CONTAINERS}")
    for kind in ("initContainers", "containers"):
        for index, one in enumerate(spec[kind]):
            path = f"spec.{kind}[{index}]"
            what = ContainerKind.APP
            if kind == "initContainers":
                is_sidecar = one["restartPolicy"] == RestartPolicy.ALWAYS.value
                what = ContainerKind.SIDECAR if is_sidecar else ContainerKind.INIT
            resources = one["resources"]
            yield KubeletContainer(
                _name(one["name"], path),
                what,
                ResourceRequirements() if resources is None else _requirements(resources, f"{path}.resources"),
            )
    for index, one in enumerate(spec["ephemeralContainers"]):
        # They have no resources (KEP-277).
        common = one["ephemeralContainerCommon"] or {}
        yield KubeletContainer(_name(common.get("name", ""), f"spec.ephemeralContainers[{index}]"))


def _name(name: str, path: str) -> str:
    if not _NAME.fullmatch(name):
        raise KubeletPodError(f"{path}.name: {_shown(name)} is no name of a container")
    return name


def _requirements(found: Message, path: str) -> ResourceRequirements:
    requests, limits = (_amounts(found[part], f"{path}.{part}") for part in ("requests", "limits"))
    return ResourceRequirements(requests, limits)


def _amounts(entries: list[Message], path: str) -> Resources:
    """What this agent places; devices and the like aren't its business."""
    found: dict[str, Quantity] = {}
    for entry in entries:
        name = entry["key"]
        if name in {CPU, MEMORY} or _HUGEPAGES.fullmatch(name):
            found[name] = _quantity((entry["value"] or {}).get("string", ""), f"{path}[{name}]")
    return Resources.of(found)


def _quantity(text: str, path: str) -> Quantity:
    try:
        amount = Quantity.parse(text).rounded_up_to_milli()
    except QuantitySyntaxError:
        raise KubeletPodError(f"{path}: {_shown(text)} is no quantity") from None
    if amount.nano < 0:
        raise KubeletPodError(f"{path}: {_shown(text)} is less than nothing")
    # As it is read again from a saved state.
    return Quantity.parse(str(amount))


def _shown(text: str) -> str:
    return repr(printable(text[:80]))
