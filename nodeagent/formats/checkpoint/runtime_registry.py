"""What is known of a container runtime's containers ↔ JSON values: a part of `nodeagent_state`, unless there are none."""

from typing import Any

from nodeagent.core.model.kubelet_pod import KubeletContainer, KubeletPod
from nodeagent.core.model.nri import HugepageLimit, NriResources
from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
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
_LEAST = -(2**63)
_AMOUNTS = {
    "cpuShares": "cpu_shares",
    "cpuQuotaMicroseconds": "cpu_quota_us",
    "cpuPeriodMicroseconds": "cpu_period_us",
    "memoryLimitBytes": "memory_limit_bytes",
}


def registry_document(registry: Registry) -> Document:
    pods = {"pods": [_pod_document(pod) for pod in registry.pods]} if registry.pods else {}
    return {
        **pods,
        "sandboxes": [[one.id, one.pod_uid, one.is_stopped] for one in registry.sandboxes],
        "containers": [_entry_document(entry) for entry in registry.entries],
        "refused": [
            {"key": _key_document(one.key), "asked": _asked_document(one.asked), "reason": one.reason}
            for one in registry.refused
        ],
    }


def registry_from_document(document: JsonValue) -> Registry:
    """Raises MisfitError."""
    return Registry(
        sandboxes=document.field("sandboxes").each(_sandbox),
        entries=document.field("containers").each(_entry),
        refused=document.field("refused").each(_refused),
        pods=() if (pods := document.optional("pods")) is None else pods.each(_pod),
    )


def _sandbox(item: JsonValue) -> KnownSandbox:
    id_, pod_uid, is_stopped = item.row(3)
    return KnownSandbox(id_.text(), pod_uid.text(), is_stopped.flag())


def _pod_document(pod: KubeletPod) -> Document:
    containers = [
        {"name": one.name, "kind": one.kind.value, **_requirements_document(one.resources)} for one in pod.containers
    ]
    resources = {} if pod.resources is None else {"resources": _requirements_document(pod.resources)}
    overhead = {"overhead": _amounts_document(pod.overhead)} if pod.overhead else {}
    return {"uid": pod.uid, "containers": containers, **resources, **overhead}


def _pod(document: JsonValue) -> KubeletPod:
    resources, overhead = document.optional("resources"), document.optional("overhead")
    return KubeletPod(
        document.field("uid").text(),
        document.field("containers").each(_container),
        None if resources is None else _requirements(resources),
        Resources() if overhead is None else _amounts(overhead),
    )


def _container(document: JsonValue) -> KubeletContainer:
    return KubeletContainer(
        document.field("name").text(), document.field("kind").one_of(ContainerKind), _requirements(document)
    )


def _requirements_document(requirements: ResourceRequirements) -> Document:
    return {"requests": _amounts_document(requirements.requests), "limits": _amounts_document(requirements.limits)}


def _requirements(document: JsonValue) -> ResourceRequirements:
    return ResourceRequirements(_amounts(document.field("requests")), _amounts(document.field("limits")))


def _amounts_document(resources: Resources) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources}


def _amounts(document: JsonValue) -> Resources:
    return Resources(document.by_name(_quantity))


def _quantity(value: JsonValue) -> Quantity:
    try:
        return Quantity.parse(value.text())
    except QuantitySyntaxError:
        raise value.misfit("a quantity") from None


def _key_document(key: ContainerKey) -> list[str]:
    return [key.pod_uid, key.name]


def _key(item: JsonValue) -> ContainerKey:
    pod_uid, name = item.row(2)
    return ContainerKey(pod_uid.text(), name.text())


def _entry_document(entry: KeyEntry) -> Document:
    return {
        "key": _key_document(entry.key),
        "made": [_made_document(made) for made in entry.made],
        "held": entry.is_held,
        "asked": None if entry.asked is None else _asked_document(entry.asked),
    }


def _entry(document: JsonValue) -> KeyEntry:
    asked = document.optional("asked")
    return KeyEntry(
        _key(document.field("key")),
        document.field("made").each(_made),
        document.field("held").flag(),
        None if asked is None else _asked(asked),
    )


def _made_document(made: MadeContainer) -> Document:
    return {
        "id": made.id,
        "sandbox": made.sandbox_id,
        "stage": made.stage.name.lower(),
        "asked": _asked_document(made.asked),
        "placed": made.is_placed,
        "cgroup": made.cgroup,
    }


def _made(document: JsonValue) -> MadeContainer:
    stages = {stage.name.lower(): stage for stage in Stage}
    return MadeContainer(
        document.field("id").text(),
        document.field("sandbox").text(),
        stages[document.field("stage").among(stages)],
        _asked(document.field("asked")),
        document.field("placed").flag(),
        document.field("cgroup").text(),
    )


def _refused(document: JsonValue) -> RefusedKey:
    return RefusedKey(_key(document.field("key")), _asked(document.field("asked")), document.field("reason").text())


def _asked_document(asked: Asked) -> Document:
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


def _asked(document: JsonValue) -> Asked:
    found = {field: document.optional(name) for name, field in _AMOUNTS.items()}
    limits, score = document.optional("hugepageLimits"), document.optional("oomScoreAdj")
    annotations = document.optional("annotations")
    amounts: dict[str, Any] = {field: None if value is None else value.whole(_LEAST) for field, value in found.items()}
    return Asked(
        NriResources(**amounts, hugepage_limits=() if limits is None else limits.each(_limit)),
        None if score is None else score.whole(_LEAST),
        document.field("cgroupParent").text(),
        () if annotations is None else annotations.by_name(JsonValue.text),
    )


def _limit(item: JsonValue) -> HugepageLimit:
    page_size, limit_bytes = item.row(2)
    return HugepageLimit(page_size.text(), limit_bytes.whole())
