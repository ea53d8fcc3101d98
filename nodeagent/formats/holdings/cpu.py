"""Encoder and decoder of pods' CPUs, and of the CPU manager's node-wide record, in the state file."""

from typing import Any

from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, CpuReuse
from nodeagent.formats.syntax.json_values import JsonValue

Document = dict[str, Any]


def encode_cpus(held: CpuHoldings) -> Document:
    """Encode the exclusive CPUs that are allocated to a pod and its containers."""
    document: Document = {}
    if held.cpus:
        document["cpus"] = {name: str(cpus) for name, cpus in held.cpus}
    if held.first_cpus:
        document["firstCpus"] = {name: str(cpus) for name, cpus in held.first_cpus}
    if held.pod_cpus is not None:
        document["podCpus"] = str(held.pod_cpus)
    return document


def decode_cpus(document: JsonValue) -> CpuHoldings:
    """Decode the exclusive CPUs that are allocated to a pod and its containers."""
    cpus, whole, first = (document.optional(name) for name in ("cpus", "podCpus", "firstCpus"))
    return CpuHoldings(
        cpus=() if cpus is None else cpus.by_name(JsonValue.cpus),
        pod_cpus=None if whole is None else whole.cpus(),
        first_cpus=() if first is None else first.by_name(JsonValue.cpus),
    )


def encode_cpu_books(books: CpuBooks) -> Document:
    """Encode the CPU manager's node-wide record, which contains the CPUs that aren't allocated exclusively (kubelet's defaultCpuSet)."""
    reuse = books.reuse
    return {"default": str(books.default)} | (
        {} if reuse is None else {"cpuReuse": {"pod": reuse.pod_uid, "cpus": str(reuse.cpus)}}
    )


def decode_cpu_books(document: JsonValue) -> CpuBooks:
    """Decode the CPU manager's node-wide record, which contains the CPUs that aren't allocated exclusively (kubelet's defaultCpuSet)."""
    reuse = document.optional("cpuReuse")
    return CpuBooks(
        document.field("default").cpus(),
        None if reuse is None else CpuReuse(reuse.field("pod").text(), reuse.field("cpus").cpus()),
    )
