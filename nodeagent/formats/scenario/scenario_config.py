"""Reads the `config` object of a scenario into a Placement. Some of its amounts have other names than in
KubeletConfiguration.
"""

from collections.abc import Mapping

from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.pod import Resources
from nodeagent.core.model.quantity import Quantity
from nodeagent.formats.config.placement_fields import PlacementReader
from nodeagent.formats.syntax.fields import fields_of
from nodeagent.formats.syntax.findings import DocumentError, Findings


def placement_from_scenario(document: Mapping[str, object], source: str = "config") -> Placement:
    """Read a scenario's configuration: KubeletConfiguration's fields and `numReservedCPUs`, `reservedCPU` and `errata`.

    The node's memory reservation is the sum of `reservedMemory`.

    Args:
        document: the configuration.
        source: the configuration's name in findings.

    Raises:
        DocumentError: fields are unknown, have the wrong type or are not quantities or ID sets. The message names every such field.
    """
    findings = Findings(source)
    fields = fields_of(document, findings)
    reader = PlacementReader(fields)
    reserved_memory = reader.reserved_memory()
    errata = fields.one_of("errata", tuple(item.value for item in Errata))
    whole = fields.integer("numReservedCPUs", 0, 2**31)
    amount = fields.quantity("reservedCPU")
    reserved_milli = None if whole is None else whole * 1000
    if amount is not None:
        reserved_milli = amount.milli()
    placement = reader.placement(
        reserved_cpu_milli=reserved_milli,
        memory_reservation=_sum([entry.limits for entry in reserved_memory]),
        errata=Errata(errata or Errata.KUBELET_1_36.value),
    )
    fields.close()
    if findings:
        raise DocumentError(findings.all())
    return placement


def _sum(lists: list[Resources]) -> Resources:
    total: dict[str, Quantity] = {}
    for resources in lists:
        for name, amount in resources:
            total[name] = total[name] + amount if name in total else amount
    return Resources.of(total)
