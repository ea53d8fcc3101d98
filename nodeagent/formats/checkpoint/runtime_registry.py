"""Encoder and decoder of the registry, which lists the pods and containers of a container runtime. If it isn't empty, the registry is part
of `nodeagent_state`.
"""

from typing import Any

from nodeagent.core.model.kubelet_pod import KubeletContainer, KubeletPod
from nodeagent.core.model.nri import HugepageLimit, NriResources
from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources
from nodeagent.core.model.runtime_containers import (
    Asked,
    ContainerKey,
    KeyEntry,
    KnownSandbox,
    MadeContainer,
    RefusedKey,
    Registry,
    Stage,
)
from nodeagent.formats.syntax.json_values import JsonValue

Document = dict[str, Any]
_AMOUNTS = {
    "cpuShares": "cpu_shares",
    "cpuQuotaMicroseconds": "cpu_quota_us",
    "cpuPeriodMicroseconds": "cpu_period_us",
    "memoryLimitBytes": "memory_limit_bytes",
}


def registry_document(registry: Registry) -> Document:
    pods = {"pods": [_format_pod(pod) for pod in registry.pods]} if registry.pods else {}
    return {
        **pods,
        "sandboxes": [[sandbox.id, sandbox.pod_uid, sandbox.is_stopped] for sandbox in registry.sandboxes],
        "containers": [
            {
                "key": _format_key(entry.key),
                "made": [
                    {
                        "id": made.id,
                        "sandbox": made.sandbox_id,
                        "stage": made.stage.name.lower(),
                        "asked": _format_asked(made.asked),
                        "placed": made.is_placed,
                        "cgroup": made.cgroup,
                    }
                    for made in entry.made
                ],
                "held": entry.is_held,
                "asked": None if entry.asked is None else _format_asked(entry.asked),
            }
            for entry in registry.entries
        ],
        "refused": [
            {"key": _format_key(refused.key), "asked": _format_asked(refused.asked), "reason": refused.reason}
            for refused in registry.refused
        ],
    }


def registry_from_document(document: JsonValue) -> Registry:
    """Decode a registry.

    Raises:
        MisfitError: the document is malformed.
    """
    rows = document.field("sandboxes").each(lambda item: item.row(3))
    return Registry(
        sandboxes=tuple(KnownSandbox(id_.text(), pod.text(), is_stopped.flag()) for id_, pod, is_stopped in rows),
        entries=document.field("containers").each(
            lambda item: KeyEntry(
                _decode_key(item.field("key")),
                item.field("made").each(_decode_made),
                item.field("held").flag(),
                item.read_optional("asked", _decode_asked, None),
            )
        ),
        refused=document.field("refused").each(
            lambda item: RefusedKey(
                _decode_key(item.field("key")),
                _decode_asked(item.field("asked")),
                item.field("reason").text(),
            )
        ),
        pods=document.read_optional("pods", lambda pods: pods.each(_decode_pod), ()),
    )


def _format_pod(pod: KubeletPod) -> Document:
    containers = [
        {"name": container.name, "kind": container.kind.value, **_format_requirements(container.resources)}
        for container in pod.containers
    ]
    resources = {} if pod.resources is None else {"resources": _format_requirements(pod.resources)}
    overhead = {"overhead": _format_amounts(pod.overhead)} if pod.overhead else {}
    return {"uid": pod.uid, "containers": containers, **resources, **overhead}


def _decode_pod(document: JsonValue) -> KubeletPod:
    containers = document.field("containers").each(
        lambda item: KubeletContainer(
            item.field("name").text(), item.field("kind").one_of(ContainerKind), _decode_requirements(item)
        )
    )
    return KubeletPod(
        document.field("uid").text(),
        containers,
        document.read_optional("resources", _decode_requirements, None),
        document.read_optional("overhead", _decode_amounts, Resources()),
    )


def _format_requirements(requirements: ResourceRequirements) -> Document:
    return {"requests": _format_amounts(requirements.requests), "limits": _format_amounts(requirements.limits)}


def _decode_requirements(document: JsonValue) -> ResourceRequirements:
    return ResourceRequirements(_decode_amounts(document.field("requests")), _decode_amounts(document.field("limits")))


def _format_amounts(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources}


def _decode_amounts(document: JsonValue) -> Resources:
    return Resources(document.by_name(JsonValue.quantity))


def _format_key(key: ContainerKey) -> list[str]:
    return [key.pod_uid, key.name]


def _decode_key(item: JsonValue) -> ContainerKey:
    pod_uid, name = item.row(2)
    return ContainerKey(pod_uid.text(), name.text())


def _decode_made(document: JsonValue) -> MadeContainer:
    stages = {stage.name.lower(): stage for stage in Stage}
    return MadeContainer(
        document.field("id").text(),
        document.field("sandbox").text(),
        stages[document.field("stage").among(stages)],
        _decode_asked(document.field("asked")),
        document.field("placed").flag(),
        document.field("cgroup").text(),
    )


def _format_asked(asked: Asked) -> Document:
    resources = asked.resources
    amounts = {name: getattr(resources, field) for name, field in _AMOUNTS.items()}
    document: Document = {
        **amounts,
        "hugepageLimits": [[limit.page_size, limit.limit_bytes] for limit in resources.hugepage_limits] or None,
        "oomScoreAdj": asked.oom_score_adj,
        "cgroupParent": asked.cgroup_parent,
        "annotations": dict(asked.annotations) or None,
    }
    return {key: value for key, value in document.items() if value is not None}


def _decode_asked(document: JsonValue) -> Asked:
    amounts: dict[str, Any] = {
        field: document.read_optional(name, _decode_signed, None) for name, field in _AMOUNTS.items()
    }
    limits = document.read_optional("hugepageLimits", lambda listed: listed.each(lambda item: item.row(2)), ())
    return Asked(
        NriResources(
            **amounts, hugepage_limits=tuple(HugepageLimit(size.text(), limit.whole()) for size, limit in limits)
        ),
        document.read_optional("oomScoreAdj", _decode_signed, None),
        document.field("cgroupParent").text(),
        document.read_optional("annotations", lambda found: found.by_name(JsonValue.text), ()),
    )


def _decode_signed(value: JsonValue) -> int:
    return value.whole(-(2**63))
