"""The values of core/model/nri.py under the name that daemon/domains/runtime/runtime_link.py knows them by."""

from nodeagent.core.model.nri import Answer, Call, Event, Runtime, Synchronized, Update

__all__ = ["Answer", "Call", "Event", "Runtime", "Synchronized", "Update"]
