"""Conversion of a job to a pod with one container, which gets exactly the requested resources. The process of the job's owner then moves
into the container's cgroup.
"""

import re
from collections.abc import Mapping

from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Pod, RestartPolicy
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_manifest import checked_pod_from_document
from nodeagent.formats.manifest.pod_notes import explain_tiny_memory
from nodeagent.formats.manifest.pod_rules import MAX_BYTES
from nodeagent.formats.manifest.pod_schema import CORE_CLASS, NEAR, NUMA_NODE, QUIET
from nodeagent.formats.syntax.findings import DocumentError, Finding
from nodeagent.formats.syntax.quantity_words import find_meant

JOB_NAMESPACE = "jobs"
JOB_CONTAINER = "main"
_SMALL_MEMORY = "64Mi"
"""Amount of memory to suggest in an error, sufficient for a small program."""
GRACE_SECONDS = 10
"""Time between SIGTERM and SIGKILL for processes that outlive a job's command."""
_OPTIONS = {
    "metadata.name": ("--name", "build"),
    NUMA_NODE: ("--numa", "0"),
    CORE_CLASS: ("--core-class", "performance"),
    NEAR: ("--near", "eth0"),
}
"""Command-line option of `nodeagent job` and `nodeagent pin` for each pod field, with a valid example value. The key is a part of the
field's path.
"""
_QUIET_EXAMPLES = {
    "idleLatency": "5us",
    "governor": "performance",
    "minFrequency": "2400MHz",
    "maxFrequency": "2400MHz",
}
"""Example value of each option for quiet cores, by setting. Errors suggest this value."""
_LIMIT = re.compile(r"limits\[(.*)\]")
_OTHER_FREQUENCY = re.compile("maxFrequency, ([0-9]+MHz)$")
"""Pattern that finds the maximum frequency in the error about a minimum frequency above the maximum. The error's advice then suggests the
maximum as the new minimum.
"""


class PodOptionError(NodeAgentError):
    """The value of a command-line option that describes a pod is invalid."""


def job_pod(
    name: str,
    uid: str,
    amounts: Mapping[str, str],
    numa_node: str | None = None,
    core_class: str | None = None,
    near: str | None = None,
    quiet: str | None = None,
) -> Pod:
    """Create the pod of a job.

    Args:
        name: the pod's name in the namespace of all jobs.
        uid: the pod's UID.
        amounts: the limits, also used as requests.
        numa_node: the number of the required NUMA node. None means any.
        core_class: the required class of the pod's exclusive CPUs. None means any.
        near: the devices whose NUMA nodes are preferred. None means no preference.
        quiet: the quiet profile and settings for the job's cores, as in the pod annotation. None means that the cores keep their settings.

    Raises:
        PodOptionError: the API server would not accept such a pod, an amount is 0, or the memory is too little for any process. The error
            names the option.
    """
    asked = {NUMA_NODE: numa_node, CORE_CLASS: core_class, NEAR: near, QUIET: quiet}
    annotations = {key: value for key, value in asked.items() if value is not None}
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": JOB_NAMESPACE, "uid": uid, "annotations": annotations},
        "spec": {
            "restartPolicy": RestartPolicy.NEVER.value,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [{"name": JOB_CONTAINER, "resources": {"limits": dict(amounts)}}],
        },
    }
    try:
        pod = checked_pod_from_document(document, "job")
    except DocumentError as err:
        found = err.findings[0]
        option, example = _find_option(found, amounts)
        raise _refuse(option, _describe_wrong(found, amounts), example) from err
    for resource, amount in pod.containers[0].resources.limits:
        option, example = _find_amount_option(resource, amounts[resource])
        if not amount.nano:
            raise _refuse(option, f"{amount} must be above 0", example)
        if resource == MEMORY and (why := explain_tiny_memory(amount, amounts[MEMORY])):
            raise _refuse(option, why, example)
    return pod


def _refuse(option: str, wrong: str, example: str) -> PodOptionError:
    hint = f"for instance: {option} {example}" if example else "`nodeagent job --help` describes the options"
    return PodOptionError(f"{option} {wrong}", hint=hint)


def _describe_wrong(found: Finding, amounts: Mapping[str, str]) -> str:
    """Describe the error in an option's value in the command line's notation, not in the notation of the pod annotation."""
    limit = _LIMIT.search(found.field)
    if limit is not None and not found.value:
        return f"{limit[1]} {found.allowed}"
    if limit is not None and not found.value.startswith('"'):
        return f"{amounts[limit[1]]}: {found.allowed}"
    if QUIET not in found.field:
        return found.message
    value, wrong = re.sub('^"[A-Za-z]+=', '"', found.value), found.allowed
    for key in _QUIET_EXAMPLES:
        wrong = wrong.removeprefix(f"{key} ")
    return f"{value} " + _OTHER_FREQUENCY.sub(r"--max-frequency \1", wrong)


def _name_option(setting: str) -> str:
    """Return the command-line option for a quiet setting, such as `--max-frequency` for `maxFrequency`."""
    return "--" + re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", setting)


def _find_option(found: Finding, amounts: Mapping[str, str]) -> tuple[str, str]:
    """Return the command-line option that caused a finding about the pod, and a valid value for the option."""
    if QUIET in found.field:
        key = found.value.strip('"').partition("=")[0]
        if key not in _QUIET_EXAMPLES:
            return "--quiet", "quiet"
        limit = _OTHER_FREQUENCY.search(found.allowed)
        return _name_option(key), limit[1] if limit else _QUIET_EXAMPLES[key]
    if (limit := _LIMIT.search(found.field)) is not None:
        return _find_amount_option(limit[1], amounts.get(limit[1], ""))
    return next((pair for part, pair in _OPTIONS.items() if part in found.field), (found.field, ""))


def _find_amount_option(resource: str, text: str) -> tuple[str, str]:
    """Return the command-line option for the amount of a resource, and a valid amount close to the given text."""
    if resource == CPU:
        return "--cpus", "2"
    if resource != MEMORY and not resource.startswith(HUGEPAGES_PREFIX):
        from nodeagent.formats.syntax.resource_names import is_extended_resource  # noqa: PLC0415 - few jobs request devices

        return "--device", f"{resource}=1" if is_extended_resource(resource) else "example.com/nic=1"
    step = _parse_or_zero(resource.removeprefix(HUGEPAGES_PREFIX) if resource != MEMORY else _SMALL_MEMORY)
    amount = _parse_or_zero((find_meant(text) or (text,))[-1])
    count = max(1, -(-amount.nano // max(1, step.nano)))
    bytes_ = count * step.value()
    return f"--{resource}", str(Quantity.of_bytes(bytes_ if bytes_ <= MAX_BYTES.value() else step.value()))


def _parse_or_zero(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except QuantitySyntaxError:
        return Quantity.of(0)
