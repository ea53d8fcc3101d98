"""Search for the pod templates in workload documents, such as a Deployment or a CronJob.

Any object whose `spec` has a list of containers counts as a pod template. Every kind of workload is therefore understood, even a custom
resource.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.formats.syntax.tree import ListNode, MapEntry, MapNode, Scalar, TreeNode

_COUNTS = ("replicas", "parallelism")
"""Fields next to a pod template that contain the number of pods."""


class Template(Struct, frozen=True):
    """A pod's template in a workload."""

    pod: MapNode
    """The template as a pod, with the name and the namespace of the workload."""
    path: str
    """Path of the template, in Kubernetes' notation."""
    workload: str
    """Kind and name of the workload, and its number of pods unless that is 1."""


class _Owner(Struct, frozen=True):
    """Innermost named object around a pod template, such as the Deployment."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    count: int = 1
    is_foreign: bool = False
    """Whether the kind is defined by another project than Kubernetes. Containers of such an object may have no names, as in a Knative
    Service.
    """


def find_templates(root: TreeNode, path: str) -> Iterator[Template]:
    """Yield the pod templates in a document, in their order in the document. `path` is the document's path, the beginning of the templates'
    paths.
    """
    yield from _find_below(root, path, _Owner())


def named_by_generator(root: TreeNode) -> TreeNode:
    """Return the pod with a name made from `generateName`. A pod that has a name or lacks `generateName` is returned unchanged."""
    metadata = root.get("metadata") if isinstance(root, MapNode) else None
    name = _find_name(metadata)
    if not isinstance(root, MapNode) or not isinstance(metadata, MapNode) or metadata.get("name") or not name:
        return root
    return _with_metadata(root, metadata, name, "")


def _find_below(node: TreeNode, path: str, owner: _Owner) -> Iterator[Template]:
    if isinstance(node, ListNode):
        for index, item in enumerate(node.items):
            yield from _find_below(item, f"{path}[{index}]", owner)
        return
    if not isinstance(node, MapNode):
        return
    metadata, spec = node.get("metadata"), node.get("spec")
    name = _find_name(metadata)
    if isinstance(spec, MapNode) and isinstance(spec.get("containers"), ListNode):
        named = _with_metadata(node, metadata, name or owner.name or "pod", owner.namespace)
        if owner.is_foreign:
            named = _with_entry(named, "spec", _name_containers(spec))
        count = "" if owner.count == 1 else f" ({owner.count} pods)" if owner.count else " (asks for no pod)"
        yield Template(named, path, f"{owner.kind or 'template'} {owner.name or name}{count}")
        return
    kind = _find_text(node, "kind") or owner.kind
    namespace = _find_text(metadata, "namespace") or owner.namespace
    version = _find_text(node, "apiVersion")
    is_foreign = "." in version.partition("/")[0] if version else owner.is_foreign
    # no controller makes pods of a PodTemplate
    owner = _Owner(kind, name or owner.name, namespace, 0 if kind == "PodTemplate" else owner.count, is_foreign)
    for key in _COUNTS:
        given = node.get(key)
        if isinstance(given, Scalar) and type(given.value) is int:
            owner = replace(owner, count=given.value)
    for entry in node:
        yield from _find_below(entry.value, f"{path}.{entry.key}".lstrip("."), owner)


def _with_metadata(node: MapNode, metadata: TreeNode | None, name: str, namespace: str) -> MapNode:
    given = {entry.key: entry for entry in metadata} if isinstance(metadata, MapNode) else {}
    for key, text in (("name", name), ("namespace", namespace)):
        if text:
            given.setdefault(key, MapEntry(key, Scalar(text, node.line), node.line))
    return _with_entry(node, "metadata", MapNode(tuple(given.values()), node.line))


def _name_containers(spec: MapNode) -> MapNode:
    """Give the containers without a name numbered names, because a pod's containers need names."""
    containers = spec.get("containers")
    assert isinstance(containers, ListNode)
    named = tuple(
        _with_entry(one, "name", Scalar(f"container-{number}", one.line))
        if isinstance(one, MapNode) and one.get("name") is None
        else one
        for number, one in enumerate(containers.items, start=1)
    )
    return _with_entry(spec, "containers", ListNode(named, containers.line))


def _with_entry(node: MapNode, key: str, value: TreeNode) -> MapNode:
    entries = {entry.key: entry for entry in node}
    entries[key] = MapEntry(key, value, entries[key].line if key in entries else node.line)
    return MapNode(tuple(entries.values()), node.line)


def _find_name(metadata: TreeNode | None) -> str:
    return _find_text(metadata, "name") or _find_text(metadata, "generateName").rstrip("-.")


def _find_text(node: TreeNode | None, key: str) -> str:
    found = node.get(key) if isinstance(node, MapNode) else None
    return found.value if isinstance(found, Scalar) and isinstance(found.value, str) else ""
