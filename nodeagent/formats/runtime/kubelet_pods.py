"""kubelet's pods API: encoder of the request for one pod, and decoder of the answer as a KubeletPod.

The API (KEP-4188) is on by default in kubelet 1.37. Its messages are those of kubernetes/kubernetes,
staging/src/k8s.io/kubelet/pkg/apis/pods/v1alpha1/api.proto, where `bytes pod` is a v1.Pod in protobuf. The numbers of
the pod's fields are those of k8s.io/api/core/v1/generated.proto and k8s.io/apimachinery.

A field mask is a comma-separated list of paths in an entry of the call's metadata. A path goes through lists
(pkg/kubelet/pods, getFieldMaskFromContext and applySinglePath). The mask used here excludes the environment, which may
be secret.
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
_PATHS = (
    "metadata.uid",
    *(f"spec.{kind}.{field}" for kind in ("initContainers", "containers") for field in _OF_CONTAINERS),
    "spec.ephemeralContainers.name",
    "spec.resources",
    "spec.overhead",
)
METADATA = (("x-kubernetes-fieldmask", ",".join(_PATHS)),)
MAX_BYTES = 256 * 1024
"""Maximum size of an answer, because the runtime waits while the agent reads the answer. With the field mask, a container takes less than
1000 bytes.
"""
MAX_CONTAINERS = 256
_MAX_UID = 256
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_HUGEPAGES = re.compile(rf"{HUGEPAGES_PREFIX}[1-9][0-9]{{0,5}}[KMG]i")

GET_POD_REQUEST = MessageType("GetPodRequest", (Field(1, "podUID", Kind.STRING),))
GET_POD_RESPONSE = MessageType("GetPodResponse", (Field(1, "pod", Kind.BYTES),))
QUANTITY = MessageType("Quantity", (Field(1, "string", Kind.STRING),))
AMOUNT = MessageType("Amount", (Field(1, "key", Kind.STRING), Field(2, "value", QUANTITY)))
"""Message type of an entry in map<string, Quantity>."""
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
    """An answer of kubelet doesn't contain the requested pod, or is malformed. The message names the field."""


def encode_get_pod(uid: str) -> bytes | None:
    """Encode the request for a pod. None means that a pod of kubelet can't have this UID."""
    return encode(GET_POD_REQUEST, {"podUID": uid}) if 0 < len(uid) <= _MAX_UID and uid.isprintable() else None


def read_pod(answer: bytes, uid: str) -> KubeletPod:
    """Decode the answer with a pod.

    Raises:
        KubeletPodError: the answer is malformed, is about another pod, or has a pod that the API server would refuse.
    """
    try:
        response = decode(GET_POD_RESPONSE, answer, max_bytes=MAX_BYTES)
        pod = decode(POD, response["pod"], max_bytes=MAX_BYTES)
    except ProtobufError as err:
        raise KubeletPodError(str(err)) from err
    found = (pod["metadata"] or {}).get("uid", "")
    if found != uid:
        raise KubeletPodError(f"metadata.uid: must be {_quote(uid)}, as requested, not {_quote(found)}")
    spec = pod["spec"]
    if spec is None or not spec["containers"]:
        raise KubeletPodError("spec.containers: must have at least one container")
    containers = tuple(_read_containers(spec))
    if len({container.name for container in containers}) != len(containers):
        raise KubeletPodError("spec.containers: two containers have the same name")
    resources = None if spec["resources"] is None else _read_requirements(spec["resources"], "spec.resources")
    return KubeletPod(uid, containers, resources, _read_amounts(spec["overhead"], "spec.overhead"))


def _read_containers(spec: Message) -> Iterator[KubeletContainer]:
    count = sum(len(spec[key]) for key in ("initContainers", "containers", "ephemeralContainers"))
    if count > MAX_CONTAINERS:
        raise KubeletPodError(f"spec.containers: must have at most {MAX_CONTAINERS} containers")
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec[key]):
            path = f"spec.{key}[{index}]"
            kind = ContainerKind.APP
            if key == "initContainers":
                is_sidecar = container["restartPolicy"] == RestartPolicy.ALWAYS.value
                kind = ContainerKind.SIDECAR if is_sidecar else ContainerKind.INIT
            resources = container["resources"]
            yield KubeletContainer(
                _check_name(container["name"], path),
                kind,
                ResourceRequirements() if resources is None else _read_requirements(resources, f"{path}.resources"),
            )
    for index, container in enumerate(spec["ephemeralContainers"]):
        # Ephemeral containers have no resources (KEP-277).
        common = container["ephemeralContainerCommon"] or {}
        yield KubeletContainer(_check_name(common.get("name", ""), f"spec.ephemeralContainers[{index}]"))


def _check_name(name: str, path: str) -> str:
    if not _NAME.fullmatch(name):
        raise KubeletPodError(f"{path}.name: {_quote(name)} is not a valid container name")
    return name


def _read_requirements(found: Message, path: str) -> ResourceRequirements:
    requests, limits = (_read_amounts(found[part], f"{path}.{part}") for part in ("requests", "limits"))
    return ResourceRequirements(requests, limits)


def _read_amounts(entries: list[Message], path: str) -> Resources:
    """Read the amounts of the resources that this agent places. Devices and other resources are left out."""
    found: dict[str, Quantity] = {}
    for entry in entries:
        name = entry["key"]
        if name not in {CPU, MEMORY} and not _HUGEPAGES.fullmatch(name):
            continue
        text = (entry["value"] or {}).get("string", "")
        try:
            amount = Quantity.parse(text).rounded_up_to_milli()
        except QuantitySyntaxError:
            raise KubeletPodError(f"{path}[{name}]: {_quote(text)} is not a quantity") from None
        if amount.nano < 0:
            raise KubeletPodError(f"{path}[{name}]: {_quote(text)} is negative")
        # the amount is parsed from text, so that it has the same form as in a saved state
        found[name] = Quantity.parse(str(amount))
    return Resources.of(found)


def _quote(text: str) -> str:
    return repr(printable(text[:80]))
