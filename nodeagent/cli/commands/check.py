"""`nodeagent check`: checks whether the node is fit for pinning, with verdict, reason and fix of each check."""

import argparse
import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nodeagent.cli.support.colour import add_color_argument, wants_colour
from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.documents import add_output_argument, render_document
from nodeagent.cli.support.exit_status import EXIT_WRONG
from nodeagent.cli.support.node.arguments import add_node_arguments, find_own_config, is_elsewhere
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import is_unconfigured, read_machine_file, read_topology
from nodeagent.cli.support.printable_output import write_coloured
from nodeagent.core.admission.node_rules import KnownNode
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.node_builder import node_of
from nodeagent.daemon.start.startup import StartError
from nodeagent.edge.kernel.sysfs import read_settings, write_setting
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.settings import SETTINGS, Settings
from nodeagent.views.check.node_check import describe_checks, is_fit, render_node_check, run_checks
from nodeagent.views.check.verdicts import CheckResult, NodeFacts

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output_argument(parser)
    parser.add_argument("--strict", action="store_true", help="also treat warnings and unknown results as unfit")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="first apply fixes that move no process and last until the next boot: kernel.numa_balancing and the governors",
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
  sudo nodeagent check --fix

Levels: ok; note: worth knowing; warning: pods run less well, or less isolated, than they could; failure: the agent cannot work;
unknown: the source cannot be read.
next: nodeagent topology draws the machine, nodeagent config validate judges the configuration"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Check the node, and apply fixes on request.

    Raises:
        NodeAgentError: the machine can't be read, or a setting can't be written.
    """
    if options.fix and is_elsewhere(options):
        options.parser.error("only this node can be fixed, not a copy: leave out --fix, or run it on the node itself")
    found = run_checks(_find_facts(options))
    if options.fix:
        apply_fixes(found)
        found = run_checks(_find_facts(options))
    colours = options.output == "text" and wants_colour(options.color)
    text = render_document(describe_checks(found), options.output, lambda d: render_node_check(d, coloured=colours))
    (write_coloured if colours else sys.stdout.write)(text)
    return 0 if is_fit(found, strict=options.strict) else EXIT_WRONG


def apply_fixes(found: tuple[CheckResult, ...], root: str = "/") -> None:
    """Apply the writes that the verdicts allow, and report them.

    Raises:
        SysfsError: a write failed.
    """
    for verdict in found:
        for write in verdict.writes:
            write_setting(write.path, write.text, root)
        if verdict.writes:
            count = len(verdict.writes)
            written = f"/{verdict.writes[0].path}" if count == 1 else f"{count} files such as /{verdict.writes[0].path}"
            print(f"fixed {verdict.check}: wrote {verdict.writes[0].text} to {written}", file=sys.stderr)


def _find_facts(options: argparse.Namespace) -> NodeFacts:
    topology = read_topology(options)
    settings = _read_selected_settings(options)
    try:
        node = _find_node(options, topology)
    except NodeAgentError as err:
        return NodeFacts(
            topology,
            settings,
            config_problem=err.message,
            config_is_missing=is_unconfigured(options),
            config_command=_format_validate_command(options),
        )
    facts = NodeFacts(topology, settings, node.config, node.rules, config_file=options.config or "the configuration")
    if node.config.placement.devices:
        facts = replace(facts, devices=_find_devices(options, topology))
    return facts if not node.config.nri_socket or options.machine is not None else _add_runtime(facts, options)


def _find_devices(options: argparse.Namespace, topology: Topology) -> "PlacedDevices":
    from nodeagent.cli.support.node.devices import read_selected_devices
    from nodeagent.core.model.devices import PlacedDevices

    try:
        return PlacedDevices.of(read_selected_devices(options), topology)
    except NodeAgentError as err:
        return PlacedDevices(problem=err.message)


def _add_runtime(facts: NodeFacts, options: argparse.Namespace) -> NodeFacts:
    from nodeagent.daemon.domains.runtime.beside_kubelet import kubelet_problem
    from nodeagent.daemon.domains.runtime.runtime_facts import runtime_facts

    assert facts.config is not None
    root = Path(options.root or "/")
    config = facts.config
    found = runtime_facts(
        config.nri_socket, root, pods_socket=config.kubelet_pods_socket, is_elsewhere=is_elsewhere(options)
    )
    return replace(facts, runtime=found, kubelet_problem=kubelet_problem(root) or "")


def _format_validate_command(options: argparse.Namespace) -> str:
    """Return the command that validates the configuration on this machine. Empty for the configuration in a capture, which has no file."""
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
    # older captures have these settings outside the machine
    files = {path: text for path, text in capture.sample.files.items() if path in SETTINGS} | dict(taken.sample.files)
    return replace(taken, sample=replace(taken.sample, files=MappingProxyType(files)))


def _find_node(options: argparse.Namespace, topology: Topology) -> KnownNode:
    """Return the node under `--config`, or else under the running agent's configuration, or else under its configuration file."""
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
