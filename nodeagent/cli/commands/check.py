"""`nodeagent check`: checks whether the node is fit for pinning, and prints the verdict, reason and fix of each check."""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from nodeagent.cli.support.colour import add_color_argument, text_width, wants_colour
from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.documents import add_output_argument, render_document
from nodeagent.cli.support.exit_status import EXIT_WRONG
from nodeagent.cli.support.help_text import find_documents
from nodeagent.cli.support.node.arguments import add_node_arguments, find_own_config, is_elsewhere
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import is_unconfigured, read_machine_file, read_topology
from nodeagent.cli.support.printable_output import write_coloured
from nodeagent.core.admission.node_rules import KnownNode
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.node_builder import node_of
from nodeagent.daemon.start.startup import StartError
from nodeagent.edge.files import state_files
from nodeagent.edge.kernel.sysfs import read_settings, write_setting
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.settings import SETTINGS, Settings
from nodeagent.views.check.node_check import describe_checks, is_fit, render_node_check, run_checks
from nodeagent.views.check.verdicts import CheckResult, NodeFacts, Purpose

_RECORD = "run/nodeagent-check.json"
"""File, relative to the root directory, in which `--fix` records the original values of the settings that it changes. A reboot removes the
file and resets the settings.
"""
_MAX_RECORD_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output_argument(parser)
    parser.add_argument("--strict", action="store_true", help="also treat warnings and unknown results as unfit")
    parser.add_argument(
        "--for",
        dest="purpose",
        choices=tuple(Purpose),
        default=Purpose.SERVICE.value,
        help="what the node is for: a benchmark also needs results that are the same in every run (default: service)",
    )
    writes = parser.add_mutually_exclusive_group()
    writes.add_argument(
        "--fix",
        action="store_true",
        help="first apply fixes of warnings that move no process and last until the next boot, and record the former values",
    )
    writes.add_argument(
        "--undo", action="store_true", help="first restore the values that --fix has recorded since the boot"
    )
    add_color_argument(parser)
    add_node_arguments(parser)
    parser.epilog = """\
exit status: 0: fit, as far as known; 2: not fit (a failure; with --strict also a warning or unknown result); 1: could not be determined;
64: wrong arguments

examples:
  nodeagent check
  nodeagent check --strict -o json | jq -r '.checks[] | select(.level != "ok") | .fix'
  nodeagent check --root /mnt/copy
  nodeagent check --for benchmark
  sudo nodeagent check --for benchmark --fix
  sudo nodeagent check --undo

Levels: ok; note: worth knowing; warning: pods run less well, or less isolated, than they could; failure: the agent cannot work;
unknown: the source cannot be read.
next: nodeagent topology draws the machine, nodeagent config validate judges the configuration"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Check the node and print the results. On request, apply or undo fixes first.

    Raises:
        NodeAgentError: the machine can't be read, or a setting can't be written.
    """
    if (options.fix or options.undo) and is_elsewhere(options):
        option = "--fix" if options.fix else "--undo"
        options.parser.error(
            f"only this node can be fixed, not a copy: leave out {option}, or run it on the node itself"
        )
    if options.undo:
        undo_fixes()
    found = run_checks(_find_facts(options))
    if options.fix:
        apply_fixes(found)
        found = run_checks(_find_facts(options))
    colours = options.output == "text" and wants_colour(options.color)
    text = render_document(
        describe_checks(found), options.output, lambda d: render_node_check(d, coloured=colours, width=text_width())
    )
    (write_coloured if colours else sys.stdout.write)(text)
    return 0 if is_fit(found, strict=options.strict) else EXIT_WRONG


def apply_fixes(found: tuple[CheckResult, ...], root: str = "/") -> None:
    """Write the settings that the checks propose, and print each change. The original values are recorded first, so that they can be
    restored.

    Raises:
        SysfsError: a write failed.
        StateFileError: the record can't be read or written.
    """
    record = _read_record(root)
    before = record.copy()
    for verdict in found:
        for write in verdict.writes:
            record.setdefault(write.path, write.before)
    if record != before:
        content = json.dumps(record, sort_keys=True).encode()
        state_files.write_atomically(_find_record(root), content, mode=0o600)
    for verdict in found:
        for write in verdict.writes:
            write_setting(write.path, write.text, root)
        if verdict.writes:
            count = len(verdict.writes)
            written = f"/{verdict.writes[0].path}" if count == 1 else f"{count} files such as /{verdict.writes[0].path}"
            print(f"fixed {verdict.check}: wrote {verdict.writes[0].text} to {written}", file=sys.stderr)


def undo_fixes(root: str = "/") -> None:
    """Restore the recorded values, print each restored setting, and remove the record.

    Raises:
        SysfsError: a write failed. The record stays.
        StateFileError: the record can't be read or removed.
    """
    record = _read_record(root)
    for path, text in record.items():
        write_setting(path, text, root)
        print(f"undone: wrote {text} to /{path}", file=sys.stderr)
    if record:
        state_files.remove(_find_record(root))
    else:
        print("nothing to undo: --fix has recorded nothing since the boot", file=sys.stderr)


def _find_record(root: str) -> str:
    return f"{root.rstrip('/')}/{_RECORD}"


def _read_record(root: str) -> dict[str, str]:
    """Return the recorded original values by path. An invalid record counts as missing."""
    content = state_files.read(_find_record(root), max_bytes=_MAX_RECORD_BYTES)
    try:
        record = json.loads(content or b"{}")
    except ValueError:
        return {}
    return {path: text for path, text in record.items() if isinstance(text, str)} if isinstance(record, dict) else {}


def _find_facts(options: argparse.Namespace) -> NodeFacts:
    topology = read_topology(options)
    settings = _read_selected_settings(options)
    purpose = Purpose(options.purpose)
    try:
        node = _find_node(options, topology)
    except NodeAgentError as err:
        is_missing = is_unconfigured(options)
        return NodeFacts(
            topology,
            settings,
            config_problem=err.message,
            config_is_missing=is_missing,
            config_command=_format_start_command(options) if is_missing else _format_validate_command(options),
            purpose=purpose,
        )
    file = options.config or "the configuration"
    facts = NodeFacts(topology, settings, node.config, node.rules, config_file=file, purpose=purpose)
    if node.config.placement.devices:
        from nodeagent.cli.support.node.devices import read_selected_devices
        from nodeagent.core.model.devices import PlacedDevices

        try:
            devices = PlacedDevices.of(read_selected_devices(options), topology)
        except NodeAgentError as err:
            devices = PlacedDevices(problem=err.message)
        facts = replace(facts, devices=devices)
    if not node.config.nri_socket or options.machine is not None:
        return facts
    from nodeagent.daemon.domains.runtime.beside_kubelet import kubelet_problem
    from nodeagent.daemon.domains.runtime.runtime_facts import runtime_facts

    root = Path(options.root or "/")
    runtime = runtime_facts(
        node.config.nri_socket, root, pods_socket=node.config.kubelet_pods_socket, is_elsewhere=is_elsewhere(options)
    )
    return replace(facts, runtime=runtime, kubelet_problem=kubelet_problem(root) or "")


def _format_start_command(options: argparse.Namespace) -> str:
    """Return the next step for a user who has no configuration yet. For this node, it is a command, followed by the command that undoes it.
    For a copied or captured node, it is a hint.
    """
    if options.machine is not None:
        return "name a configuration with --config FILE"
    path = find_own_config(options)
    if is_elsewhere(options):
        return f"copy the node's own to {shlex.quote(path)}, or name one with --config FILE"
    sample, directory = f"{find_documents()}/examples/config.yaml", Path(path).parent
    back = f"sudo rm {path}" + ("" if os.access(directory, os.F_OK) else f" && sudo rmdir {directory}")
    return f"sudo install -D -m 644 {shlex.quote(sample)} {path} # undo: {back}"


def _format_validate_command(options: argparse.Namespace) -> str:
    """Return the command that validates the configuration on the selected machine. The result is empty for a captured configuration,
    because there is no file to validate.
    """
    if options.config is None and options.machine is not None:
        return ""
    words = ["nodeagent", "config", "validate", options.config or find_own_config(options)]
    if options.machine is not None:
        words += ["--machine", options.machine]
    elif options.root is not None:
        words += ["--root", options.root]
    return shlex.join(words)


def _read_selected_settings(options: argparse.Namespace) -> Settings:
    if options.machine is None:
        return read_settings(options.root or "/")
    capture = read_machine_file(options.machine)[1]
    if capture is None:
        return Settings()
    taken = capture.settings
    # newer captures contain some of these settings among the machine's files, older captures only in the part `settings`
    files = {path: text for path, text in capture.sample.files.items() if path in SETTINGS} | dict(taken.sample.files)
    return replace(taken, sample=replace(taken.sample, files=MappingProxyType(files)))


def _find_node(options: argparse.Namespace, topology: Topology) -> KnownNode:
    """Return the selected node. Its configuration is the file named with `--config`, or else the running agent's configuration, or else the
    node's configuration file.
    """
    if options.config is not None:
        return node_of(load_config(options.config), topology, options.config)
    try:
        return read_node(options).node
    except StartError:
        raise
    except NodeAgentError:
        if options.machine is not None:
            raise
        return node_of(load_config(find_own_config(options)), topology, find_own_config(options))
