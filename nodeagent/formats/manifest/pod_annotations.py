"""Readers of the pod annotations that are the same for manifests and container runtimes. Invalid text becomes a finding."""

import re

from nodeagent.core.model.config import CORE_CLASS_CHOICES
from nodeagent.core.model.topology import CORE_CLASSES
from nodeagent.formats.manifest import pod_schema
from nodeagent.formats.syntax.fields import Fields

_CPU_COUNT = re.compile(r"[1-9][0-9]{0,6}")


def read_exclusive_cpu_count(annotations: Fields, key: str) -> int | None:
    text = annotations.string(key)
    if text is None or _CPU_COUNT.fullmatch(text):
        return None if text is None else int(text)
    annotations.report(key, 'must be a whole number of CPUs, such as "2"', text)
    return None


def read_interrupts(annotations: Fields, key: str) -> tuple[str, ...]:
    text = annotations.string(key)
    if text is None:
        return ()
    devices = _split_list(text)
    if not all(pod_schema.DEVICE.fullmatch(device) for device in devices):
        rule = "must list network interfaces or PCI addresses, such as eth0, 0000:3b:00.0"
        annotations.report(key, rule, text)
    return devices


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def read_near(annotations: Fields, key: str = pod_schema.NEAR) -> tuple[str, ...]:
    text = annotations.string(key)
    if text is None:
        return ()
    names = _split_list(text)
    if not all(pod_schema.NEAR_NAME.fullmatch(name) for name in names):
        rule = "must list devices or kinds of devices, such as eth0, 0000:3b:00.0, nvme0 or network"
        annotations.report(key, rule, text)
        return ()
    return names


def read_is_isolated(annotations: Fields) -> bool:
    return annotations.one_of(pod_schema.PARTITION, pod_schema.PARTITIONS) == pod_schema.ISOLATED


def read_numa_node(annotations: Fields) -> int | None:
    text = annotations.string(pod_schema.NUMA_NODE)
    if text is None or pod_schema.NODE_NUMBER.fullmatch(text):
        return None if text is None else int(text)
    annotations.report(pod_schema.NUMA_NODE, 'must be the number of a NUMA node, such as "0"', text)
    return None


def read_gives_back(annotations: Fields) -> bool:
    chosen = annotations.one_of(pod_schema.WHILE_INACTIVE, pod_schema.WHILE_INACTIVE_CHOICES)
    return chosen == pod_schema.GIVE_BACK


def read_core_class(annotations: Fields) -> tuple[str | None, str | None]:
    """Return the required and the preferred class of cores."""
    required = annotations.one_of(pod_schema.CORE_CLASS, CORE_CLASSES)
    preferred = annotations.one_of(pod_schema.PREFERRED_CORE_CLASS, CORE_CLASS_CHOICES)
    if required is not None and preferred is not None:
        rule = f"has no effect together with {pod_schema.CORE_CLASS}: remove one of the two"
        annotations.report(pod_schema.PREFERRED_CORE_CLASS, rule)
    return required, preferred


def read_unit(annotations: Fields, key: str) -> str:
    text = annotations.string(key)
    if text is None or pod_schema.UNIT_NAME.fullmatch(text):
        return text or ""
    rule = (
        "must be a systemd service, scope or slice, such as postgresql.service, "
        "but not a template, init.scope, -.slice or a unit of the agent"
    )
    annotations.report(key, rule, text)
    return ""
