"""Reader of the fields that affect placement, which are named as in KubeletConfiguration. Configuration files and scenarios share this
reader.
"""

import re
from typing import TYPE_CHECKING

from nodeagent.core.model.config import CORE_CLASS_CHOICES, ISOLATED_CPUS, CpuPlugin, Errata, Placement, ReservedMemory
from nodeagent.core.model.idset import MAX_ID, CpuSet, IdSetSyntaxError
from nodeagent.core.model.pod import Resources
from nodeagent.formats.syntax.fields import Fields

if TYPE_CHECKING:
    from nodeagent.core.model.device_selection import DeviceSelection

_MAX_NUMA_ID = 2**31 - 1
MOST_PLUGINS = 16
_PLUGIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


class PlacementReader:
    """Reader of one object's placement fields. The managers, not this reader, check the names of policies and options."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._reserved_memory: tuple[ReservedMemory, ...] | None = None

    def reserved_system_cpus(self) -> CpuSet:
        text = self._fields.string("reservedSystemCPUs")
        if text is None:
            return CpuSet()
        try:
            return CpuSet.parse(text)
        except IdSetSyntaxError:
            allowed = f"must be CPU numbers and ranges such as 0-3,8 (lower number first, at most {MAX_ID})"
            self._fields.report("reservedSystemCPUs", allowed, text)
            return CpuSet()

    def reserved_memory(self) -> tuple[ReservedMemory, ...]:
        if self._reserved_memory is None:
            entries = []
            for item in self._fields.objects("reservedMemory"):
                node = item.integer("numaNode", 0, _MAX_NUMA_ID)
                entries.append(ReservedMemory(node or 0, item.quantities("limits")))
                if not item.has("limits"):
                    item.report("limits", "is required: memory or hugepages-<size>, with an amount")
                item.close()
            self._reserved_memory = tuple(entries)
        return self._reserved_memory

    def _read_cpu_plugins(self) -> tuple[CpuPlugin, ...]:
        found: dict[str, CpuPlugin] = {}
        items = self._fields.objects("cpuManagerPlugins")
        for item in items:
            name, options = item.string("name"), item.string_map("options")
            if not name:
                item.report("name", "is required: the name of an installed CPU plugin")
            elif not _PLUGIN_NAME.fullmatch(name):
                item.report(
                    "name", "must consist of at most 63 letters, digits and -_. (starting with a letter or digit)", name
                )
            elif name in found:
                item.report("name", "is listed twice: each CPU plugin is asked once", name)
            else:
                found[name] = CpuPlugin(name, options)
            item.close()
        if len(items) > MOST_PLUGINS:
            self._fields.report("cpuManagerPlugins", f"has more than {MOST_PLUGINS} entries")
        if items and self._fields.string("cpuManagerPolicy") != "static":
            self._fields.report("cpuManagerPlugins", "needs cpuManagerPolicy: static")
        return tuple(found.values())

    def placement(self, *, reserved_cpu_milli: int | None, memory_reservation: Resources, errata: Errata) -> Placement:
        default = Placement()
        fields = self._fields
        devices: tuple[DeviceSelection, ...] = ()
        if items := fields.objects("devices"):
            from nodeagent.formats.config.device_fields import read_devices  # noqa: PLC0415 - few nodes have devices

            devices = read_devices(items, fields)
        reserved_system_cpus = self.reserved_system_cpus()
        if reserved_system_cpus:
            # In kubelet, the list replaces the amounts, and systemReserved.cpu becomes the number of listed CPUs.
            reserved_cpu_milli = 1000 * len(reserved_system_cpus)
        return Placement(
            cpu_manager_policy=fields.string("cpuManagerPolicy") or default.cpu_manager_policy,
            cpu_manager_policy_options=fields.string_map("cpuManagerPolicyOptions"),
            cpu_plugins=self._read_cpu_plugins(),
            reserved_system_cpus=reserved_system_cpus,
            reserved_cpu_milli=reserved_cpu_milli,
            topology_manager_policy=fields.string("topologyManagerPolicy") or default.topology_manager_policy,
            topology_manager_scope=fields.string("topologyManagerScope") or default.topology_manager_scope,
            topology_manager_policy_options=fields.string_map("topologyManagerPolicyOptions"),
            memory_manager_policy=fields.string("memoryManagerPolicy") or default.memory_manager_policy,
            reserved_memory=self.reserved_memory(),
            memory_reservation=memory_reservation,
            isolated_cpus=fields.one_of("isolatedCPUs", ISOLATED_CPUS) or default.isolated_cpus,
            exclusive_core_class=fields.one_of("exclusiveCoreClass", CORE_CLASS_CHOICES)
            or default.exclusive_core_class,
            shared_core_class=fields.one_of("sharedCoreClass", CORE_CLASS_CHOICES) or default.shared_core_class,
            prefer_cpus_numa_node=fields.boolean("preferCPUsNumaNode") or default.prefer_cpus_numa_node,
            same_numa_nodes=fields.boolean("sameNumaNodes") or default.same_numa_nodes,
            spread_huge_pages=fields.boolean("spreadHugePages") or default.spread_huge_pages,
            resize_below_admitted_cpus=fields.boolean("resizeBelowAdmittedCPUs") or default.resize_below_admitted_cpus,
            feature_gates=fields.booleans("featureGates"),
            errata=errata,
            devices=devices,
        )
