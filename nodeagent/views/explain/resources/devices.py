"""Devices in an explanation: the allocated devices. A shortage of devices is explained by the refusal's message."""

from collections.abc import Iterable

from nodeagent.core.resources.devices.explainer import DeviceStep
from nodeagent.core.resources.explainer import AllocationStep
from nodeagent.views.explain.lacking import Document, ExplanationView, RefusedDecision


def _describe_step(step: AllocationStep) -> Document | None:
    if not isinstance(step, DeviceStep):
        return None
    return {
        "container": step.container,
        "devices": [
            {"id": one.id, "names": list(one.names), "numaNodes": str(one.nodes), "resource": one.resource}
            for one in step.devices
        ],
        "refused": step.refused,
        "step": "devices",
    }


def _explain_step(_pod: RefusedDecision, step: AllocationStep) -> Iterable[str] | None:
    return ["see the message"] if isinstance(step, DeviceStep) else None


VIEW = ExplanationView(step=_describe_step, explain_step=_explain_step)
