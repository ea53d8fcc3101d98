"""Latest reports of a container runtime about its pods and containers, by the runtime's IDs."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from nodeagent.core.domains.runtime.instructions import Happening, Looked
from nodeagent.core.model.nri import Call, NriContainer, Sandbox, Synchronized
from nodeagent.core.model.runtime_containers import Registry


class RuntimeReport(Struct, frozen=True):
    """Pods and containers as the runtime last reported them, by ID. The value is immutable, so each turn of the agent uses a fixed
    version.
    """

    sandboxes: Mapping[str, Sandbox] = MappingProxyType({})
    containers: Mapping[str, NriContainer] = MappingProxyType({})

    @classmethod
    def of(cls, sandboxes: Mapping[str, Sandbox], containers: Mapping[str, NriContainer]) -> "RuntimeReport":
        return cls(MappingProxyType(dict(sandboxes)), MappingProxyType(dict(containers)))

    def after(self, what: Happening) -> "RuntimeReport":
        """Return the reports after an event. NRI's call Synchronize replaces all of them."""
        match what:
            case Synchronized(sandboxes, containers):
                return self.of({one.id: one for one in sandboxes}, {one.id: one for one in containers})
            case Looked(found):
                listed = RuntimeReport().after(found)
                return self.of({**self.sandboxes, **listed.sandboxes}, {**self.containers, **listed.containers})
            case Call(_, sandbox, container):
                new = {} if container is None else {container.id: container}
                return self.of({**self.sandboxes, sandbox.id: sandbox}, {**self.containers, **new})
            case _:
                return self

    def known_to(self, registry: Registry) -> "RuntimeReport":
        """Return a copy without the pods and containers that the registry has forgotten."""
        ids = {made.id for entry in registry.entries for made in entry.made}
        pods = {one.id for one in registry.sandboxes}
        if self.containers.keys() <= ids and self.sandboxes.keys() <= pods:
            return self
        return self.of(
            {id_: one for id_, one in self.sandboxes.items() if id_ in pods},
            {id_: one for id_, one in self.containers.items() if id_ in ids},
        )
