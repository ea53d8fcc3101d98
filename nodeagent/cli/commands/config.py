"""`nodeagent config`: validates a configuration, applies it, shows its values, and migrates a configuration of kubelet."""

import argparse
import os
import shlex
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.cli.support.actions import add_actions
from nodeagent.cli.support.configurations import load_config, read_config
from nodeagent.cli.support.documents import add_out_argument, add_output_argument, render_document, write_out
from nodeagent.cli.support.exit_status import EXIT_WRONG
from nodeagent.cli.support.named_files import NamedFile, add_socket_argument, is_pipe, named_path
from nodeagent.cli.support.node.arguments import (
    add_machine_arguments,
    add_node_arguments,
    find_own_config,
    is_elsewhere,
)
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import SourceError, read_machine_file, read_topology
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET
from nodeagent.core.admission.node_setup import find_impossible
from nodeagent.core.model.config import Config
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.node_builder import find_unsuited, node_of
from nodeagent.daemon.start.startup import StartError
from nodeagent.edge.transport.local_api_client import TURN_CALL_SECONDS, ApiError, ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.config.config_text import KIND, config_fields, config_text
from nodeagent.formats.config.config_yaml import judge_config
from nodeagent.formats.config.kubelet_migration import migrate_config
from nodeagent.formats.syntax.findings import DocumentError, Finding
from nodeagent.views.check.placement import check_reserved_cpus
from nodeagent.views.check.verdicts import Level, NodeFacts

VERSION = 1
"""Version of the document that `nodeagent config validate` prints."""

_EPILOG = """\
exit status: 0: success, the configuration is valid; 2: `validate`, `reload`: it is invalid, or can't be applied;
1: FILE could not be read or used; 3: the agent doesn't answer (`reload`, `validate --running`;
`show` without FILE: and no state is saved, or the configuration can't be used either);
64: wrong arguments

examples:
  nodeagent config validate /etc/nodeagent/config.yaml
  nodeagent config validate new.yaml --machine node.json -o json
  nodeagent config validate --root /mnt/copy
  nodeagent config validate --running
  nodeagent config reload
  nodeagent config show
  nodeagent config show new.yaml
  nodeagent config migrate-from-kubelet /var/lib/kubelet/config.yaml --out config.yaml

next: nodeagent inspect"""


class InvalidConfigError(NodeAgentError):
    """The configuration is invalid."""

    exit_status = EXIT_WRONG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    helps = {
        "validate": "report every error in a configuration, on this machine or another one",
        "reload": "ask the running agent to apply its changed configuration file; if it can't, show the reason and change nothing",
        "show": "print every field with its value, from a file, or else from the running agent or a captured node",
        "migrate-from-kubelet": "convert a KubeletConfiguration; fields that nodeagent doesn't use become comments",
    }
    made = add_actions(parser, helps, epilog=_EPILOG)
    for name in ("validate", "show"):
        made[name].add_argument(
            "file",
            nargs="?",
            type=NamedFile,
            metavar="FILE|-",
            help="a configuration, - is stdin (default: the node's)",
        )
    made["validate"].add_argument("--config", type=NamedFile, metavar="FILE|-", help="same as FILE")
    add_machine_arguments(made["validate"])
    made["validate"].add_argument(
        "--alone", action="store_true", help="don't check the configuration against a machine"
    )
    made["validate"].add_argument(
        "--running",
        action="store_true",
        help="also ask the running agent whether it could apply the configuration with its pods",
    )
    made["reload"].add_argument(
        "file",
        nargs="?",
        type=named_path,
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help=f"the file that the agent was started with (default: {DEFAULT_CONFIG})",
    )
    for name, when in (("validate", "with --running: "), ("reload", "")):
        add_socket_argument(made[name], DEFAULT_SOCKET, f"{when}the agent's socket")
        made[name].add_argument(
            "-q",
            "--quiet",
            action="store_true",
            help="print nothing if the configuration is valid; only set the exit status",
        )
    add_node_arguments(made["show"])
    for name in ("validate", "show"):
        add_output_argument(made[name])
    migrate = made["migrate-from-kubelet"]
    migrate.add_argument(
        "file",
        type=NamedFile,
        metavar="FILE|-",
        help="kubelet's --config file, often /var/lib/kubelet/config.yaml, or a file that has its fields or flags: kubeadm's, "
        "OpenShift's, k3s's, RKE2's, Talos's or nodeadm's, or a command line",
    )
    add_out_argument(migrate)


def run(options: argparse.Namespace) -> int:
    """Validate, apply, show or migrate a configuration, as the chosen action says.

    Raises:
        NodeAgentError: a file can't be read or written, or is invalid.
    """
    if options.action in {"validate", "show"} and options.file is not None and options.config is not None:
        options.parser.error(f"{options.file} and --config {options.config} are two configurations: name one")
    match options.action:
        case "validate":
            return _validate(options)
        case "reload":
            return _reload(options)
        case "show":
            return _show(options)
        case _:
            return _migrate(options)


def _format_absent_hint(path: str) -> str:
    parents = (Path(path).parent, *Path(path).absolute().parents)
    directory = next(parent for parent in parents if os.access(parent, os.R_OK))
    return (
        f"name another file: `ls -l {shlex.quote(str(directory))}` shows what is there; "
        "examples/config.yaml is a good start (`nodeagent --help` says where it is)"
    )


def _validate(options: argparse.Namespace) -> int:
    judged = _find_candidate(options)
    if options.running and (options.alone or is_elsewhere(options) or is_pipe(judged.source)):
        options.parser.error(
            "--running asks this node's agent about a file: leave out --alone, --root, --machine and -"
        )
    topology = None if options.alone else read_topology(options)
    config, findings = judge_config(
        judged.content,
        judged.source,
        lambda config: find_impossible(config) if topology is None else find_unsuited(config, topology),
    )
    if not judged.is_text:
        findings = tuple(replace(finding, line=None) for finding in findings)
    hint = judged.hint
    if options.running:
        refused = None
        with suppress(StartError) if findings else nullcontext():
            refused = _ask_agent(options.socket, judged.source, apply=False)
        if refused is not None and not findings:
            findings, hint = (Finding(judged.source, None, "", "", "", refused.message),), refused.hint
    if findings and options.output == "text":
        raise InvalidConfigError("\n".join(map(str, findings)), hint=hint)
    document = {
        "kind": "ConfigValidation",
        "version": VERSION,
        "file": judged.source,
        "valid": not findings,
        "findings": [
            {"line": f.line, "field": f.field, "value": f.value, "allowed": f.allowed, "message": f.message}
            for f in findings
        ],
        "machine": topology is not None,
        "warnings": [] if config is None or topology is None or findings else _find_warnings(config, topology),
        "notes": [] if config is None else list(config.notes),
        "unusedFields": [] if config is None else list(config.reported_fields),
    }  # fmt: skip
    if findings or not options.quiet:
        sys.stdout.write(render_document(document, options.output, _render_validation))
    return EXIT_WRONG if findings else 0


def _reload(options: argparse.Namespace) -> int:
    refused = _ask_agent(options.socket, options.file, apply=True)
    if refused is not None:
        raise InvalidConfigError(refused.message, hint=refused.hint)
    if not options.quiet:
        print(f"{options.file} is in effect")
    return 0


def _find_warnings(config: Config, topology: Topology) -> list[str]:
    """Return warnings about a valid configuration, namely about reserved CPUs that make other CPUs of the machine unusable for pods."""
    node = node_of(config, topology, "the configuration")
    facts = NodeFacts(topology, config=node.config, rules=node.rules)
    verdict = check_reserved_cpus(facts)
    is_waste = facts.gives_whole_cores and verdict.level is Level.WARNING
    return [f"{verdict.reason}; {verdict.fix}"] if is_waste else []


def _ask_agent(socket: str, source: str, *, apply: bool) -> NodeAgentError | None:
    """Ask the running agent to validate or to apply the configuration, and return the agent's error. None means success."""
    try:
        call(
            socket,
            "judge",
            timeout_seconds=TURN_CALL_SECONDS,
            config=str(Path(source).absolute()),
            apply=apply,
        )
    except ApiUnavailable as err:
        raise StartError(
            f"the agent does not answer: {err.message}",
            hint="start it with `systemctl start nodeagent`" + ("" if apply else ", or leave out --running"),
        ) from err
    except ApiError as err:
        if isinstance(err.__cause__, PermissionError):
            raise
        return err
    return None


class _Candidate(Struct, frozen=True):
    """Configuration to validate."""

    source: str
    content: bytes
    hint: str
    """Next step for the user if the configuration is invalid."""
    is_text: bool = True
    """Whether errors contain line numbers. For a captured configuration, line numbers would mean nothing, because its text is generated."""


def _find_candidate(options: argparse.Namespace) -> _Candidate:
    """Return the configuration that the command line names, or else the configuration of the selected node."""
    given = options.file or options.config
    if given is None and options.machine is not None:
        capture = read_machine_file(options.machine)[1]
        if capture is None or capture.agent is None:
            raise SourceError(f"{options.machine} contains no configuration", hint="name one with --config FILE")
        fields = config_fields(capture.agent.node.config, with_places=False)
        again = f"nodeagent config show --machine {'-' if is_pipe(options.machine) else options.machine}"
        hint = f"fix the configuration on the node; `{again}` prints the captured one"
        return _Candidate(options.machine, config_text(fields).encode(), hint, is_text=False)
    path = given or find_own_config(options)
    content = read_config(
        path, absent_hint=_format_absent_hint(path) if given or not options.root else _NONE_COPIED_HINT
    )
    hint = (
        _PIPED_HINT
        if is_pipe(path)
        else f"fix {path}; once it is valid, `nodeagent config show {shlex.quote(path)}` prints it"
    )
    return _Candidate(path, content, hint)


_PIPED_HINT = "fix these lines of the input; examples/config.yaml is a good start (`nodeagent --help` says where it is)"
_NONE_COPIED_HINT = "copy the file there from the node, or name another one: nodeagent config validate FILE --root DIR"


def _render_validation(document: Any) -> str:
    suits = " for the machine" if document["machine"] else ""
    unused = ", ".join(document["unusedFields"])
    lines = [
        f"{document['file']} is valid{suits}",
        *(f"warning: {warning}" for warning in document["warnings"]),
        *(f"note: {note}" for note in document["notes"]),
        *([f"not used by nodeagent: {unused}"] if unused else []),
    ]
    return "\n".join(lines) + "\n"


def _show(options: argparse.Namespace) -> int:
    for option in ("root", "machine", "socket"):
        if options.file is not None and vars(options)[option] is not None:
            options.parser.error(f"--{option} selects a node and its configuration: leave out FILE")
    if options.file is not None:
        fields = config_fields(load_config(options.file, absent_hint=_format_absent_hint(options.file)))
    else:
        fields = config_fields(read_node(options).node.config, with_places=False)
    document = {"kind": KIND, **fields}
    sys.stdout.write(render_document(document, options.output, lambda _: config_text(fields)))
    return 0


def _migrate(options: argparse.Namespace) -> int:
    content = read_config(options.file, absent_hint=_format_absent_hint(options.file))
    try:
        migration = migrate_config(content, options.file)
    except DocumentError as err:
        what = "the input" if is_pipe(options.file) else options.file
        raise StartError(err.message, hint=f"fix these fields of {what}, then migrate it again") from err
    write_out(options.out, migration.text.encode(), mode=0o644)
    lines = [*migration.notes, f"kept: {', '.join(migration.kept) or 'nothing'}"]
    if migration.commented:
        lines.append(f"commented out: {', '.join(migration.commented)}")
    if migration.partly_used:
        lines.append(f"kept without effect: {', '.join(migration.partly_used)}")
    print("\n".join(lines), file=sys.stderr)
    return 0
