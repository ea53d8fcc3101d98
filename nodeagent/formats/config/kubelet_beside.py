"""Check of kubelet's configuration and state for conflicts with nodeagent. It finds the changes that are needed before kubelet may run on
the same node.

On a node where nodeagent places containers, kubelet's own managers have to be off. Otherwise two programs would write the same cpusets,
and would allocate the same CPUs.
"""

from msgspec import Struct

from nodeagent.formats.config.kubelet_flags import pair_flags
from nodeagent.formats.syntax.documents import read_documents
from nodeagent.formats.syntax.fields import Fields
from nodeagent.formats.syntax.findings import Finding, Findings, shown
from nodeagent.formats.syntax.go_json import GoJsonError, decode_json, fields, string
from nodeagent.formats.syntax.tree import MapNode

COMMAND_LINE = "kubelet's command line"


class _Manager(Struct, frozen=True):
    field: str
    flag: str
    off: str
    """Name of the policy with which the manager allocates nothing. This policy is kubelet's default."""
    state_file: str


_CPU = _Manager("cpuManagerPolicy", "--cpu-manager-policy", "none", "cpu_manager_state")
_MEMORY = _Manager("memoryManagerPolicy", "--memory-manager-policy", "None", "memory_manager_state")


class KubeletFiles(Struct, frozen=True):
    documents: tuple[tuple[str, bytes], ...] = ()
    """Paths and contents of kubelet's configuration file and of the files in its `--config-dir`, which follow sorted by name. There may
    be no files.
    """
    arguments: tuple[str, ...] = ()
    """Command line of kubelet, which overrides the documents. It is empty if it is unknown or kubelet isn't running."""
    state_directory: str = "/var/lib/kubelet"
    cpu_state: str | None = None
    """Content of cpu_manager_state. None means that the file doesn't exist."""
    memory_state: str | None = None
    """Content of memory_manager_state. None means that the file doesn't exist."""


def find_kubelet_conflicts(files: KubeletFiles) -> tuple[Finding, ...]:
    """Return the required changes, each with its file and line. If the result is empty, kubelet may run. An unreadable file counts as a
    required change.
    """
    found: list[Finding] = []
    read = []
    for source, content in files.documents:
        findings = Findings(source)
        documents = read_documents(content, findings)
        found += findings.all()
        if documents and isinstance(documents[0], MapNode):
            read.append((Fields(documents[0], "", findings), findings))
        elif documents:
            found.append(Finding(source, documents[0].line, "", "", "must be an object with kubelet's fields"))
    for manager, state in ((_CPU, files.cpu_state), (_MEMORY, files.memory_state)):
        found += _check_policy(manager, files, read)
        if state is not None:
            found += _check_state_file(manager, f"{files.state_directory}/{manager.state_file}", state)
    return tuple(dict.fromkeys(found))


def _check_policy(manager: _Manager, files: KubeletFiles, read: list[tuple[Fields, Findings]]) -> tuple[Finding, ...]:
    restart = f"drain the node, stop kubelet, `rm {files.state_directory}/{manager.state_file}`, start it again"
    given = [flag.value for flag in pair_flags(files.arguments) if f"--{flag.name}" == manager.flag]
    flagged = given[-1] if given else None
    if flagged is not None:
        if flagged in {"", manager.off}:
            return ()
        problem = f"{_format_rule(manager)}: remove the flag, {restart}"
        return (Finding(COMMAND_LINE, None, manager.flag, shown(flagged), problem),)
    # Later documents override earlier ones.
    for document, findings in reversed(read):
        if document.has(manager.field):
            policy = document.string(manager.field)
            if policy is not None and policy not in {"", manager.off}:
                problem = f"{_format_rule(manager)}: write {manager.field}: {manager.off}, {restart}"
                document.report(manager.field, problem, policy)
            return findings.all()
    return ()


def _check_state_file(manager: _Manager, path: str, text: str) -> tuple[Finding, ...]:
    remedy = f"stop kubelet, `rm {path}`, start it again"
    try:
        outer = fields(decode_json(text), ("policyName", "data"))
        data = string(outer["data"])
        # kubelet 1.37 nests the content in a string.
        policy = string((fields(decode_json(data), ("policyName",)) if data else outer)["policyName"])
    except GoJsonError:
        policy = ""
    if not policy:
        return (Finding(path, None, "", "", f"is damaged, so its policy is unknown: {remedy}"),)
    if policy == manager.off:
        return ()
    problem = f"{_format_rule(manager)}: once {manager.field} is {manager.off}, drain the node, {remedy}"
    return (Finding(path, None, "policyName", shown(policy), problem),)


def _format_rule(manager: _Manager) -> str:
    return f"must be {manager.off} where nodeagent places containers"
