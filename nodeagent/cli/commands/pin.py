"""`nodeagent pin`: installs the manifest of a pod that pins a systemd unit."""

import argparse
from contextlib import suppress

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.manifest_arguments import add_wait_arguments, check_timeout
from nodeagent.cli.support.node.arguments import add_agent_arguments
from nodeagent.cli.support.pod_amounts import add_amount_arguments, find_wrong_option, read_amounts
from nodeagent.core.model.pod import Pod
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_schema import GIVE_BACK, KEEP, WHILE_INACTIVE_CHOICES


class PinError(NodeAgentError):
    """A unit can't be pinned."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("unit", metavar="UNIT", help="a service, scope or slice; without a suffix it is a service")
    add_amount_arguments(parser)
    parser.add_argument(
        "--while-inactive",
        choices=WHILE_INACTIVE_CHOICES,
        default=KEEP,
        help="while the unit is inactive, keep its CPUs and memory (default), or let other pods use them",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="install the pod even if it would be refused; a pinned unit keeps its present CPUs then",
    )
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="also pin a unit that systemd doesn't know yet, such as a scope that starts later",
    )
    add_wait_arguments(parser, "given the unit its CPUs")
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = """\
exit status: 0: installed; 4: the pod would be refused, so nothing was installed, or is refused; 1: failure, or no such unit;
3: the agent doesn't answer, so nothing is decided (--wait), or the configuration can't be used either; 64: wrong arguments

examples:
  nodeagent pin postgresql.service --cpus 4 --memory 8Gi --wait
  nodeagent pin nginx --cpus 500m --memory 1Gi
  nodeagent pin backup.service --cpus 8 --memory 4Gi --while-inactive give-back
  nodeagent pin forwarder --cpus 4 --memory 8Gi --near eth0
  nodeagent pin machine-qemu\\x2d1\\x2dvm.scope --cpus 8 --memory 32Gi --numa 1

Needs root. Installs the manifest of a pod, units/UNIT, which pins the unit. The agent decides on it as on any pod, and has systemd set
AllowedCPUs= and AllowedMemoryNodes= of the unit at run time. The unit's other settings stay as they are, so --memory chooses its memory
nodes, but limits nothing. With --wait, the command returns once all other tasks have left the CPUs. A unit that starts later is on them
from its first instruction. Pin again to change the amounts. The unit keeps its CPUs while it is inactive. With --while-inactive give-back,
other pods may use them meanwhile. The unit then starts in the shared pool, and gets exclusive CPUs once the agent has noticed it, if there
is room.
next: nodeagent inspect shows its CPUs, nodeagent unpin UNIT releases them"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Install the pod that pins the unit, and print the result.

    Raises:
        NodeAgentError: the pod would be refused, or can't be installed.
    """
    check_timeout(options)
    if wrong := find_wrong_option(options, "pod"):
        options.parser.error(f"{wrong.message}; {wrong.hint}")
    from nodeagent.cli.commands.apply_manifests import install
    from nodeagent.cli.support.pod_files import PodFile, parse_pods
    from nodeagent.formats.manifest.unit_pod import unit_manifest, unit_pod_name

    unit = _find_main_name(options)
    gives_back = options.while_inactive == GIVE_BACK
    content = unit_manifest(
        unit, read_amounts(options), options.numa, options.core_class, near=options.near, gives_back=gives_back
    )
    path = f"{unit_pod_name(unit)}.yaml"
    file = PodFile(path, content, parse_pods(path, content))
    status = install(options, (file,), ("pin", options.unit))
    if options.wait and not status:
        _wait_until_pinned(options, file.pods[0].pod)
    return status


def _wait_until_pinned(options: argparse.Namespace, pod: Pod) -> None:
    """Wait until other tasks have left the allocated CPUs, and the unit runs on them."""
    from nodeagent.cli.support.entering import EntryError, find_placement
    from nodeagent.cli.support.manifest_changes import read_manifest_node
    from nodeagent.cli.support.manifest_decisions import wait_for_agent
    from nodeagent.cli.support.node.this_node import read_this_node_for_display
    from nodeagent.formats.manifest.pod_names import find_pod

    def why_not() -> EntryError | None:
        known = read_this_node_for_display(options.config, options.socket)
        try:
            find_placement(known, find_pod(known.state, pod.full_name), pod.containers[0].name)
        except EntryError as err:
            return err
        return None

    place, _ = read_manifest_node(options)
    wait_for_agent(options, place, (), lambda _: why_not() is None)
    if (why := why_not()) is not None:
        raise PinError(
            f"{pod.full_name} is admitted, but does not have its CPUs yet: {why.message}",
            hint=f"{why.hint}; the agent keeps trying, and with --timeout SECONDS, the command waits longer",
        )


def _find_main_name(options: argparse.Namespace) -> str:
    """Return the unit's main name, because the given name may be an alias. For a unit that systemd doesn't know, return the given name if
    `--allow-missing` is given.

    Raises:
        PinError: systemd doesn't know the unit, and --allow-missing isn't given.
    """
    from nodeagent.edge.systemd.units import UnitsError, list_unit_names, show_units
    from nodeagent.formats.kernel.unit_properties import LOADED, NOT_FOUND
    from nodeagent.formats.manifest.pod_schema import UNIT_NAME
    from nodeagent.formats.manifest.unit_pod import full_unit_name

    unit = full_unit_name(options.unit)
    if not UNIT_NAME.fullmatch(unit):
        options.parser.error(
            f"'{unit}' can't be pinned: name a service, scope or slice (`systemctl list-units`), "
            "not a template, init.scope, -.slice, or one of the agent's own"
        )
    found = show_units((unit,))[unit]
    if found.load_state == NOT_FOUND and not options.allow_missing:
        from nodeagent.formats.syntax.fields import suggest_nearest

        known: list[str] = []
        with suppress(UnitsError):
            # Names are compared without the suffix, which would make any two services similar.
            known = [name.removesuffix(".service") for name in list_unit_names() if UNIT_NAME.fullmatch(name)]
        raise PinError(
            f"there is no unit {unit}{suggest_nearest(unit.removesuffix('.service'), known)}",
            hint="`systemctl list-unit-files` lists the units; --allow-missing pins a unit that systemd doesn't know yet",
        )
    return found.id if found.load_state == LOADED else unit
