"""May a kubelet run on this node while nodeagent places its containers? Its configuration and state files → what to change.

kubelet's own managers have to be off: two programs would write one cpuset, and each would take the other's CPUs for free.
"""

from msgspec import Struct

from nodeagent.formats.syntax.documents import read_documents
from nodeagent.formats.syntax.fields import Fields
from nodeagent.formats.syntax.findings import Finding, Findings, shown
from nodeagent.formats.syntax.go_json import GoJsonError, decoded, fields, string
from nodeagent.formats.syntax.tree import MapNode

COMMAND_LINE = "kubelet's command line"


class _Manager(Struct, frozen=True):
    field: str
    flag: str
    off: str
    """Its policy that assigns nothing, which is its default."""
    state_file: str


_CPU = _Manager("cpuManagerPolicy", "--cpu-manager-policy", "none", "cpu_manager_state")
_MEMORY = _Manager("memoryManagerPolicy", "--memory-manager-policy", "None", "memory_manager_state")


class KubeletFiles(Struct, frozen=True):
    documents: tuple[tuple[str, bytes], ...] = ()
    """Path and content: its configuration file, then those of its `--config-dir` in the order of their names. Empty: it has none."""
    arguments: tuple[str, ...] = ()
    """Of its command line, which count more than documents. Empty: unknown, or it doesn't run."""
    state_directory: str = "/var/lib/kubelet"
    cpu_state: str | None = None
    """The content of cpu_manager_state; None: there is no such file."""
    memory_state: str | None = None
    """Of memory_manager_state."""


def kubelet_conflicts(files: KubeletFiles) -> tuple[Finding, ...]:
    """Return what has to be changed, with its place; nothing: kubelet may run. What can't be read counts: nobody knows what it says."""
    found: list[Finding] = []
    read = []
    for source, content in files.documents:
        findings = Findings(source)
        documents = read_documents(content, findings)
        found += findings.all()
        if documents and isinstance(documents[0], MapNode):
            read.append((Fields(documents[0], "", findings), findings))
        elif documents:
            found.append(Finding(source, documents[0].line, "", "", "must be an object of kubelet's fields"))
    for manager, state in ((_CPU, files.cpu_state), (_MEMORY, files.memory_state)):
        found += _configured(manager, files, read)
        found += () if state is None else _kept(manager, f"{files.state_directory}/{manager.state_file}", state)
    return tuple(dict.fromkeys(found))


def _configured(manager: _Manager, files: KubeletFiles, read: list[tuple[Fields, Findings]]) -> tuple[Finding, ...]:
    flagged = _flag(manager.flag, files.arguments)
    if flagged is not None:
        if flagged in {"", manager.off}:
            return ()
        what = f"{_must_be(manager)}: remove the flag, {_then(manager, files.state_directory)}"
        return (Finding(COMMAND_LINE, None, manager.flag, shown(flagged), what),)
    # Later documents replace what earlier ones say.
    given = next(((one, findings) for one, findings in reversed(read) if one.has(manager.field)), None)
    if given is None:
        return ()
    one, findings = given
    policy = one.string(manager.field)
    if policy is not None and policy not in {"", manager.off}:
        what = f"{_must_be(manager)}: write {manager.field}: {manager.off}, {_then(manager, files.state_directory)}"
        one.report(manager.field, what, policy)
    return findings.all()


def _flag(name: str, arguments: tuple[str, ...]) -> str | None:
    """The last one counts. `--name=value` and `--name value`, as Go's pflag has it."""
    found = None
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == name:
            found = value if equals else "".join(arguments[index + 1 : index + 2])
    return found


def _kept(manager: _Manager, path: str, text: str) -> tuple[Finding, ...]:
    policy = _policy_name(text)
    remedy = f"stop kubelet, `rm {path}`, start it again"
    if policy is None:
        return (Finding(path, None, "", "", f"is damaged, and its policy cannot be told: {remedy}"),)
    if policy == manager.off:
        return ()
    what = f"{_must_be(manager)}: once {manager.field} is {manager.off}, drain the node, {remedy}"
    return (Finding(path, None, "policyName", shown(policy), what),)


def _policy_name(text: str) -> str | None:
    """None: it isn't a state file of kubelet's. Those of kubelet 1.37 have the contents once more, as a string."""
    try:
        outer = fields(decoded(text), ("policyName", "data"))
        data = string(outer["data"])
        named = fields(decoded(data), ("policyName",)) if data else outer
        return string(named["policyName"]) or None
    except GoJsonError:
        return None


def _must_be(manager: _Manager) -> str:
    return f"must be {manager.off} where nodeagent places containers"


def _then(manager: _Manager, directory: str) -> str:
    return f"drain the node, stop kubelet, `rm {directory}/{manager.state_file}`, start it again"
