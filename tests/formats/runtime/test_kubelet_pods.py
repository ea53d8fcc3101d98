"""kubelet's answers, made by protobuf's own code with upstream's numbers, as they are read here."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeagent.core.model.kubelet_pod import KubeletContainer, KubeletPod
from nodeagent.core.model.pod import ContainerKind, Pod, Resources
from nodeagent.formats.runtime import kubelet_pods
from nodeagent.formats.runtime.kubelet_pods import METADATA, KubeletPodError, encode_get_pod, read_pod
from nodeagent.formats.wire.protobuf import Kind, MessageType
from tests.support.kubelet import CORE, MASK, MESSAGES, v1_pod
from tests.support.pods import amounts, app, burstable, exclusive, init, pod, shared, sidecar
from tests.support.runtime_pods import kubelets

TABLES = [one for one in vars(kubelet_pods).values() if isinstance(one, MessageType) and one.name != "Amount"]
WEB = pod("web", sidecar("proxy", "500m"), init("setup", "3"), app("main", "2", hugepages_2Mi="64Mi"))


@pytest.mark.parametrize("table", TABLES, ids=lambda one: one.name)
def test_a_table_has_upstreams_numbers_names_and_types(table: MessageType) -> None:
    messages = CORE.DESCRIPTOR.message_types_by_name
    theirs = messages[table.name] if table.name in messages else MESSAGES.DESCRIPTOR.message_types_by_name[table.name]
    for field in table.by_number.values():
        their = theirs.fields_by_number[field.number]
        assert (their.name, their.is_repeated) == (field.name, field.repeated)
        if isinstance(field.type, MessageType):
            is_map = their.message_type.GetOptions().map_entry
            assert field.type.name == ("Amount" if is_map else their.message_type.name)
            assert not is_map or {one.name: one.number for one in their.message_type.fields} == {"key": 1, "value": 2}
        else:
            assert field.type is {their.TYPE_STRING: Kind.STRING, their.TYPE_BYTES: Kind.BYTES}[their.type]


def test_the_mask_names_fields_of_a_pod_and_all_that_is_read() -> None:
    """Paths as kubelet's server follows them: through lists, to a message's field by the name that YAML has."""
    ((key, mask),) = METADATA
    assert key == MASK
    inline = {"EphemeralContainer": "ephemeralContainerCommon"}
    for path in mask.split(","):
        message = CORE.Pod.DESCRIPTOR
        for part in path.split("."):
            if message.name in inline:
                message = message.fields_by_name[inline[message.name]].message_type
            field = message.fields_by_name[part]
            message = field.message_type
    assert "env" not in mask


def answer(found: Any) -> bytes:
    said: bytes = MESSAGES.GetPodResponse(pod=found.SerializeToString()).SerializeToString()
    return said


@pytest.mark.parametrize(
    "of",
    [
        WEB,
        pod("plain", app("main")),
        pod("burstable", app("main", resources=burstable("1500m", "2")), shared("side")),
        pod("whole", app("main"), resources=exclusive("2", "1Gi"), overhead=amounts("250m", "120Mi")),
    ],
    ids=lambda one: one.name,
)
def test_a_pod_is_read_as_kubelet_has_it(of: Pod) -> None:
    assert read_pod(answer(v1_pod(of)), of.uid) == kubelets(of)


def test_what_was_added_to_a_running_pod_belongs_to_it_and_asks_for_nothing() -> None:
    found = read_pod(answer(v1_pod(WEB, debuggers=("debugger",))), WEB.uid)
    assert found.containers[-1] == KubeletContainer("debugger", ContainerKind.APP)


def test_devices_are_nobodys_business_here() -> None:
    found = v1_pod(WEB)
    for part in ("requests", "limits"):
        getattr(found.spec.containers[0].resources, part)["example.com/gpu"].string = "1"
        getattr(found.spec.containers[0].resources, part)["ephemeral-storage"].string = "1Gi"
    assert read_pod(answer(found), WEB.uid) == kubelets(WEB)


def test_amounts_are_whole_thousandths() -> None:
    found = v1_pod(WEB)
    found.spec.containers[0].resources.requests["cpu"].string = "100u"
    cpu = read_pod(answer(found), WEB.uid).containers[-1].resources.requests.get("cpu")
    assert cpu is not None
    assert str(cpu) == "1m"


def changed(change: Callable[[Any], object]) -> Callable[[], bytes]:
    def made() -> bytes:
        found = v1_pod(WEB)
        change(found)
        return answer(found)

    return made


def cpu_of(found: Any, text: str) -> None:
    found.spec.containers[0].resources.requests["cpu"].string = text


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: b"nonsense", "no wire type"),
        (lambda: b"\x0a\x04text", "Pod: at byte 0"),
        (lambda: b"", "metadata.uid: must be 'uid-web', as requested, not ''"),
        (lambda: b"\x0a" + b"\xff" * 11, "more than 64 bits"),
        (changed(lambda p: setattr(p.metadata, "uid", "uid-other\x1b[2J")), r"not 'uid-other\\x1b[2J'"),
        (changed(lambda p: p.ClearField("spec")), "spec.containers: must have at least one container"),
        (changed(lambda p: p.spec.ClearField("containers")), "spec.containers: must have at least one container"),
        (changed(lambda p: p.spec.containers.add(name="main")), "the same name"),
        (changed(lambda p: p.spec.ephemeralContainers.add()), "spec.ephemeralContainers[0].name: '' is not a valid container name"),
        (changed(lambda p: p.spec.containers.add(name="Odd\nname")), "spec.containers[1].name: "),
        (changed(lambda p: cpu_of(p, "lots")), "spec.containers[0].resources.requests[cpu]: 'lots' is not a quantity"),
        (changed(lambda p: cpu_of(p, "-1")), "'-1' is negative"),
        (changed(lambda p: [p.spec.containers.add(name=f"c{n}") for n in range(256)]), "at most 256 containers"),
        (changed(lambda p: setattr(p.spec.containers[0], "name", "x" * 300_000)), "more than the limit of 262144"),
    ],
)  # fmt: skip
def test_what_is_no_pod_is_told_apart(made: Callable[[], bytes], why: str) -> None:
    with pytest.raises(KubeletPodError) as caught:
        read_pod(made(), WEB.uid)
    assert why in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_nobody_is_asked_about_a_pod_that_kubelet_cant_have() -> None:
    assert encode_get_pod("") is None
    assert encode_get_pod("u" * 1000) is None
    assert encode_get_pod("uid\n") is None
    asked = encode_get_pod(WEB.uid)
    assert asked is not None
    assert MESSAGES.GetPodRequest.FromString(asked).podUID == WEB.uid


def test_a_pod_without_resources_of_its_own_has_none() -> None:
    assert read_pod(answer(v1_pod(pod("plain", app("main")))), "uid-plain") == KubeletPod(
        "uid-plain", (KubeletContainer("main"),), None, Resources()
    )
