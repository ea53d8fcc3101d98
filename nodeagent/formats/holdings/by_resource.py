"""Encoder and decoder of the allocations of all resources in the state file.

The modules for CPUs, memory, devices and claims each define a layout. Any other resource is stored in a field with the resource's name,
with the attributes of its Python type as keys.
"""

from typing import Any, TypeVar

import msgspec

from nodeagent.core.admission import resource_kinds
from nodeagent.core.admission.resource_kinds import ResourceKind
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import MemoryBooks, MemoryHoldings
from nodeagent.formats.holdings.claims import decode_claims, encode_claims
from nodeagent.formats.holdings.cpu import decode_cpu_books, decode_cpus, encode_cpu_books, encode_cpus
from nodeagent.formats.holdings.devices import decode_devices, encode_devices
from nodeagent.formats.holdings.memory import (
    decode_memory,
    decode_memory_books,
    encode_memory,
    encode_memory_books,
)
from nodeagent.formats.syntax.json_values import JsonValue

Document = dict[str, Any]
T = TypeVar("T")
_FIRST_VERSION_RESOURCES = (CpuHoldings, MemoryHoldings, DeviceHoldings, ClaimHoldings)


def encode_holdings(pod: PodPromises) -> Document:
    """Encode the allocations of a pod, for all resources."""
    document = {
        **encode_cpus(pod.of(CpuHoldings)),
        **encode_memory(pod.of(MemoryHoldings)),
        **encode_devices(pod.of(DeviceHoldings)),
        **encode_claims(pod.of(ClaimHoldings)),
    }
    for kind in _list_further_kinds():
        if (held := pod.of(kind.holdings)) != kind.holdings():
            document[kind.name] = msgspec.to_builtins(held)
    return document


def decode_holdings(document: JsonValue) -> PodPromises:
    """Decode the allocations of a pod, for all resources."""
    further = (
        _decode_further(kind, kind.holdings, found)
        for kind in _list_further_kinds()
        if (found := document.optional(kind.name)) is not None
    )
    return NOTHING.having(
        decode_cpus(document), decode_memory(document), decode_devices(document), decode_claims(document), *further
    )


def encode_books(promises: Promises) -> Document:
    """Encode the node-wide record of each resource, such as its free amounts."""
    document = {**encode_cpu_books(promises.of(CpuBooks)), **encode_memory_books(promises.of(MemoryBooks))}
    for kind in _list_further_kinds():
        if kind.books is not None and (books := promises.of(kind.books)) != kind.books():
            document[kind.name] = msgspec.to_builtins(books)
    return document


def decode_books(document: JsonValue, promises: Promises) -> Promises:
    """Decode the node-wide record of each resource, and return the allocations with these records added."""
    further = (
        _decode_further(kind, kind.books, found)
        for kind in _list_further_kinds()
        if kind.books is not None and (found := document.optional(kind.name)) is not None
    )
    return promises.having(decode_cpu_books(document), decode_memory_books(document), *further)


def _list_further_kinds() -> tuple[ResourceKind, ...]:
    return tuple(kind for kind in resource_kinds.RESOURCES if kind.holdings not in _FIRST_VERSION_RESOURCES)


def _decode_further(kind: ResourceKind, form: type[T], document: JsonValue) -> T:
    try:
        return msgspec.convert(document.value, form)
    except msgspec.ValidationError as err:
        raise document.misfit(f"the data of the resource {kind.name} ({err})") from err
