"""What is probably a mistake in a valid manifest: fields that have no effect here, bytes without a unit."""

import re
from collections.abc import Iterator

from nodeagent.core.model.pod import MEMORY, Container, Pod, ResourceRequirements
from nodeagent.formats.manifest.pod_schema import IMAGE_ALONE, MISLEADING

_MOST_PATHS = 3
"""Per note. Further items are only counted: a pod may have 256 containers."""
_LEAST_BYTES = 1 << 20
"""No process can run with less: an amount below it lacks its unit."""


def notes_of(pod: Pod, unused_fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the author may not expect, one line for each kind of thing.

    Args:
        pod: as read, with defaults applied.
        unused_fields: paths of its fields that are set without effect; those of a list item begin with its place there.
    """
    found: dict[str, list[str]] = {}
    for path in unused_fields:
        why = _of_field(path, pod)
        if why is not None:
            found.setdefault(why, []).append(path)
    notes = [f"{_listed(paths)}: no effect here: {why}" for why, paths in found.items()]
    amounts: dict[str, list[str]] = {}
    for path, why in _tiny_amounts(pod):
        amounts.setdefault(why, []).append(path)
    return (*notes, *(f"{_listed(paths)}: {why}" for why, paths in amounts.items()))


def _listed(paths: list[str]) -> str:
    further = len(paths) - _MOST_PATHS
    return ", ".join(paths[:_MOST_PATHS]) + (f" and {further} more" if further > 0 else "")


def _of_field(path: str, pod: Pod) -> str | None:
    if path.endswith("[ephemeral-storage]"):
        return MISLEADING["ephemeral-storage"]
    inner = re.search(r"spec\.(containers|initContainers)\[(\d+)\]\.image$", path)
    if inner is not None:
        return None if _numbered(pod)[inner[1]][int(inner[2])].command else IMAGE_ALONE
    return MISLEADING.get(path.rpartition(".")[2])


def _numbered(pod: Pod) -> dict[str, tuple[Container, ...]]:
    return {"initContainers": tuple(pod.inits()), "containers": tuple(pod.apps())}


def _tiny_amounts(pod: Pod) -> Iterator[tuple[str, str]]:
    if pod.resources is not None:
        yield from _tiny_of("spec.resources", pod.resources)
    for key, containers in _numbered(pod).items():
        for index, container in enumerate(containers):
            yield from _tiny_of(f"spec.{key}[{index}].resources", container.resources)


def _tiny_of(path: str, resources: ResourceRequirements) -> Iterator[tuple[str, str]]:
    # a request equal to a limit may be nobody's choice: defaults come from limits and sums
    limit, request = (part.get(MEMORY) for part in (resources.limits, resources.requests))
    key, amount = ("requests", request) if limit is None else ("limits", limit)
    if amount is None or not 0 < amount.value() < _LEAST_BYTES:
        return
    text = str(amount)
    digits = re.match(r"\d+", text)
    count = "1 byte" if amount.value() == 1 else f"{amount.value()} bytes"
    yield f"{path}.{key}[{MEMORY}]", f"{text} is {count}: is {digits[0] if digits else text}Mi meant?"
