"""Search for the fields of a KubeletConfiguration in a text. The text is either a configuration document, or another file with such fields
or with kubelet flags, such as kubeadm's.

As in kubelet, a flag overrides the corresponding field.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches

from msgspec import Struct

from nodeagent.formats.config.kubelet_flags import (
    FLAGS,
    Flag,
    flag_fields,
    is_command_line,
    join_entries,
    read_argument,
    split_command_line,
)
from nodeagent.formats.syntax.documents import read_documents
from nodeagent.formats.syntax.findings import Findings, list_names, shown
from nodeagent.formats.syntax.tree import ListNode, MapEntry, MapNode, Number, Scalar, TreeNode, kind_of

_USER_DATA = re.compile(r"(MIME-Version|Content-Type):.*\n", re.IGNORECASE)
_CONTENT_TYPE = re.compile("^Content-Type:", re.IGNORECASE | re.MULTILINE)
_NODE_CONFIG_TYPE = "application/node.eks.aws"
_MOST_PARTS = 64
OWN_KINDS = KUBELET_KIND, AGENT_KIND = "KubeletConfiguration", "NodeAgentConfiguration"
_Path = tuple[str, ...]


class _Form(Struct, frozen=True):
    """Kind of document that contains fields of KubeletConfiguration or kubelet flags, such as a ClusterConfiguration of kubeadm."""

    name: str
    group: str = ""
    """First part of `apiVersion`. It is empty for documents without `apiVersion` and `kind`, which are recognized by their fields or
    flags.
    """
    kinds: tuple[str, ...] = ()
    fields: _Path = ()
    """Path of the object that contains the fields."""
    flags: _Path = ()
    """Path of the flags: a list of `name=value`, an object of values by name, or a list of objects with name and value."""


_K3S = "the configuration of k3s or RKE2"
_FORMS = (
    _Form(
        "kubeadm's node registration",
        "kubeadm.k8s.io/",
        ("InitConfiguration", "JoinConfiguration"),
        flags=("nodeRegistration", "kubeletExtraArgs"),
    ),
    _Form(
        "OpenShift's KubeletConfig",
        "machineconfiguration.openshift.io/",
        ("KubeletConfig",),
        fields=("spec", "kubeletConfig"),
    ),
    _Form(
        "nodeadm's NodeConfig",
        "node.eks.aws/",
        ("NodeConfig",),
        fields=("spec", "kubelet", "config"),
        flags=("spec", "kubelet", "flags"),
    ),
    _Form(
        "the machine configuration of Talos",
        fields=("machine", "kubelet", "extraConfig"),
        flags=("machine", "kubelet", "extraArgs"),
    ),
    _Form(_K3S, flags=("kubelet-arg",)),
    _Form(_K3S, flags=("kubelet-arg+",)),
    _Form("kubeadm's ConfigMap", kinds=("ConfigMap",), fields=("data", "kubelet")),
    _Form("the answer of kubelet's /configz", fields=("kubeletconfig",)),
)


class ConfigurationFields(Struct, frozen=True):
    """The fields of a configuration that were found in a text."""

    root: TreeNode
    notes: tuple[str, ...] = ()
    """Notes on the used and unused parts of a file that contains more than a configuration."""
    is_document: bool = True
    """Whether all fields are in one document, whose lines can then be edited."""


class _Part(Struct, frozen=True):
    """Kubelet fields or flags found in a document that isn't itself a KubeletConfiguration."""

    place: str
    line: int | None = None
    entries: tuple[MapEntry, ...] = ()
    flags: tuple[Flag, ...] = ()


def read_configuration(content: bytes, findings: Findings) -> ConfigurationFields | None:
    """Find the configuration in a text, which may be YAML, JSON or a command line.

    Returns:
        The fields of the configuration. None means that nothing is readable. The findings give the reasons.
    """
    text = content.decode("utf-8", "replace")
    if is_command_line(text):
        try:
            flags = split_command_line(text)
        except ValueError as err:
            findings.add(1, "", "", f"can't be split into flags: {err}")
            return None
        return _join_parts(None, [_Part("kubelet's command line", flags=flags)], [], findings)
    if _USER_DATA.match(text):
        text = _keep_node_configs(text.replace("\r\n", "\n").replace("\r", "\n"), findings)
        content = text.encode()
    documents = read_documents(content, findings)
    if documents is None:
        return None
    documents = tuple(one for document in documents for one in _unwrap(document))
    parts_of = [tuple(_find_parts(document, findings)) for document in documents]
    parts = [part for found in parts_of for part in found]
    rest = [document for document, found in zip(documents, parts_of, strict=True) if not found]
    places = [part.place for part in parts]
    for number, part in enumerate(parts):
        if part.place in places[:number]:
            findings.add(part.line, "", "", f"a second {part.place}: leave only the one that applies to this node")
    own = [document for document in rest if _find_kind(document) in {None, *OWN_KINDS}]
    if not parts and not any(_find_kind(document) in OWN_KINDS for document in rest):
        lacking = [(document.line, text) for document in rest if (text := _explain_without_part(document))]
        for line, text in lacking:
            findings.add(line, "", "", text)
        if lacking:
            return None
    if not own and not parts:
        own = rest  # without a known kind, the text is read as a configuration, so that its errors are reported field by field
    for further in own[1:]:
        findings.add(further.line, "", "", "a configuration must be one document, but a second one starts here")
    root = own[0] if own else None
    others = [_find_kind(document) or "" for document in rest if document not in own]
    if root is not None and (not isinstance(root, MapNode) or (not parts and not others)):
        return ConfigurationFields(root)
    return _join_parts(root, parts, others, findings) if documents else ConfigurationFields(MapNode())


def _keep_node_configs(text: str, findings: Findings) -> str:
    """Return only the NodeConfig documents from the user data (MIME parts) of an EKS node. Each document keeps its line numbers, so that
    findings name the lines of the file.
    """
    from email import message_from_string  # noqa: PLC0415 - only for user data

    # The parser recurses into parts of parts. Each part has a line with its content type, so the number of these
    # lines limits the recursion.
    if len(_CONTENT_TYPE.findall(text)) > _MOST_PARTS:
        findings.add(1, "", "", f"user data must have at most {_MOST_PARTS} parts")
        return ""
    parts = [part for part in message_from_string(text).walk() if part.get_content_type() == _NODE_CONFIG_TYPE]
    if not parts:
        findings.add(1, "", "", f"user data must have a part of type {_NODE_CONFIG_TYPE}")
    kept = ""
    for part in parts:
        payload = str(part.get_payload())
        before = text.count("\n", 0, text.find(payload, len(kept)))
        if part.get("Content-Transfer-Encoding", "7bit").lower() in {"base64", "quoted-printable"}:
            findings.add(before + 1, "", "", f"a part of type {_NODE_CONFIG_TYPE} must be plain text: decode it first")
        else:
            kept += "\n" * (before - kept.count("\n") - 1) + f"---\n{payload}\n"
    return kept


def _unwrap(document: TreeNode) -> tuple[TreeNode, ...]:
    """Return the items of a List, which kubectl and oc print for several objects. A document of another kind is returned unchanged, as the
    only item.
    """
    items = _find_node(document, ("items",))
    return items.items if (_find_kind(document) or "").endswith("List") and isinstance(items, ListNode) else (document,)


def _join_parts(root: MapNode | None, parts: list[_Part], others: list[str], findings: Findings) -> ConfigurationFields:
    """Join the configuration document, if there is one, with the fields and flags found in other documents."""
    entries = {entry.key: entry for entry in root or ()}
    entries.setdefault("kind", MapEntry("kind", Scalar(KUBELET_KIND)))
    for part in parts:
        entries |= {entry.key: entry for entry in part.entries}
    fields, unused = flag_fields(flag for part in parts for flag in part.flags)
    for entry in fields:
        # kubelet merges the gates of its file and its flags. For all other fields, the flag overrides the file.
        before = entries.get(entry.key) if entry.key == "featureGates" else None
        entries[entry.key] = entry if before is None else join_entries(before, entry)
    used = [f"the document {_find_kind(root) or KUBELET_KIND}"] if root is not None else []
    notes = [f"uses {' and '.join((*used, *(part.place for part in parts)))}"]
    if others:
        notes.append(f"documents of other kinds are not used: {list_names(others)}")
    for flag in unused:
        if flag.name == "config":
            notes.append(f"--config names another file, which is not read: {shown(flag.value)}")
        elif meant := get_close_matches(flag.name, FLAGS, n=1, cutoff=0.9):
            findings.add(flag.line, f"--{flag.name}", "", f"unknown flag, did you mean --{meant[0]}?")
    if without := [f"--{flag.name}" for flag in unused if flag.name != "config"]:
        notes.append(f"flags without effect here: {list_names(without)}")
    return ConfigurationFields(
        MapNode(tuple(entries.values()), None if root is None else root.line), tuple(notes), is_document=not parts
    )


def _find_parts(document: TreeNode, findings: Findings) -> Iterator[_Part]:
    """Yield the parts with kubelet fields or flags in a document that isn't a KubeletConfiguration."""
    kind, group = _find_kind(document), _find_text(document, "apiVersion") or ""
    for form in _FORMS:
        if (kind in form.kinds and group.startswith(form.group)) if form.kinds else kind is None:
            for path, read in ((form.fields, _read_fields), (form.flags, _read_flags)):
                node = _find_node(document, path)
                if path and node is not None:
                    yield read(f"{'.'.join(path)} of {form.name}", ".".join(path), node, findings)


def _explain_without_part(document: TreeNode) -> str:
    """Explain that a document of a known kind, such as kubeadm's, lacks the part with kubelet's fields. The text is empty for an unknown
    kind.
    """
    kind, group = _find_kind(document), _find_text(document, "apiVersion") or ""
    for form in _FORMS:
        paths = [path for path in (form.fields, form.flags) if path]
        is_outer = any(len(path) > 1 and _find_node(document, path[:1]) is not None for path in paths)
        if (kind in form.kinds and group.startswith(form.group)) if form.kinds else kind is None and is_outer:
            places = " and no ".join(map(".".join, paths))
            return (
                f"{form.name} has no {places} here, so kubelet's defaults hold on its nodes: write kubelet's fields there, or use what "
                "the node's kubelet has, `kubectl get --raw /api/v1/nodes/NODE/proxy/configz`"
            )
    return ""


def _read_fields(place: str, path: str, node: TreeNode, findings: Findings) -> _Part:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        # the text is a block of a larger file: findings give line numbers of the whole file
        lines = "\n" * (node.line or 0)
        node = next(iter(read_documents(f"{lines}{node.value}".encode(), findings) or ()), MapNode())
    if isinstance(node, MapNode):
        return _Part(place, node.line, entries=node.entries)
    findings.add(node.line, path, "", f"must be an object of kubelet's fields, not {kind_of(node)}")
    return _Part(place)


def _read_flags(place: str, path: str, node: TreeNode, findings: Findings) -> _Part:
    """Read flags from a list of `name=value`, an object, or a list of objects with name and value."""
    flags: list[Flag] = []
    items = node.items if isinstance(node, ListNode) else (node,)
    for item in items:
        match item:
            case Scalar(value=str(text)):
                flags.append(read_argument(text, item.line))
            case MapNode(entries=entries) if _find_text(item, "name") is not None and node is not item:
                flags.append(Flag(_find_text(item, "name") or "", _find_text(item, "value") or "", item.line))
            case MapNode(entries=entries) if node is item:
                for entry in entries:
                    values = entry.value.items if isinstance(entry.value, ListNode) else (entry.value,)
                    flags += [Flag(entry.key, _plain(value), entry.line) for value in values]
            case _:
                findings.add(item.line, path, "", f"must have kubelet's flags, not {kind_of(item)}")
    return _Part(place, node.line, flags=tuple(flags))


def _find_kind(document: TreeNode) -> str | None:
    return _find_text(document, "kind")


def _find_text(document: TreeNode, key: str) -> str | None:
    node = document.get(key) if isinstance(document, MapNode) else None
    return _plain(node) if isinstance(node, Scalar) and node.value is not None else None


def _plain(node: TreeNode) -> str:
    match node:
        case Scalar(value=bool(flag)):
            return "true" if flag else "false"
        case Scalar(value=Number(text=text)):
            return text
        case Scalar(value=value):
            return "" if value is None else str(value)
        case _:
            return ""


def _find_node(document: TreeNode, path: _Path) -> TreeNode | None:
    node: TreeNode | None = document
    for key in path:
        node = node.get(key) if isinstance(node, MapNode) else None
    return None if isinstance(node, Scalar) and node.value is None else node
