"""`nodeagent unpin`: removes the manifest of the pod that pins a systemd unit."""

import argparse
from collections.abc import Sequence
from contextlib import suppress

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.manifest_arguments import add_wait_arguments, check_timeout
from nodeagent.cli.support.node.arguments import add_agent_arguments
from nodeagent.errors import NodeAgentError


class UnpinError(NodeAgentError):
    """The unit is not pinned by nodeagent."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("units", nargs="+", metavar="UNIT", help="pinned units; without a suffix it is a service")
    add_wait_arguments(parser, "restored the units")
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = """\
exit status: 0: removed; 1: a manifest is left, or a unit is not restored;
3: the agent doesn't answer (--wait), or the configuration can't be used either; 64: wrong arguments

examples:
  nodeagent unpin postgresql.service --wait
  nodeagent unpin nginx -o json | jq -r '.files[].file'

Needs root. Removes the manifest of the pod that pins the unit. The unit's previous AllowedCPUs= and AllowedMemoryNodes= are restored at
once, and its processes keep running.
next: nodeagent inspect no longer lists it; systemctl show -p AllowedCPUs UNIT"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Remove the manifests, and print the removed files.

    Raises:
        NodeAgentError: a unit isn't pinned, its manifest contains other pods, or it can't be removed.
    """
    check_timeout(options)
    from nodeagent.cli.commands.delete_manifests import uninstall
    from nodeagent.cli.support.manifest_changes import InstalledFile, ManifestPlace
    from nodeagent.cli.support.named_files import NamedFile
    from nodeagent.edge.systemd.units import UnitsError, show_units
    from nodeagent.formats.manifest.pod_schema import UNIT_NAME
    from nodeagent.formats.manifest.unit_pod import full_unit_name

    def pods_of(held: Sequence[InstalledFile], place: ManifestPlace) -> Sequence[NamedFile]:
        by_unit = {unit: name for file in held for name, pod in file.pods.items() for unit in pod.units}
        named = [full_unit_name(unit) for unit in options.units]
        main_names: dict[str, str] = {}
        if asked := [unit for unit in named if unit not in by_unit and UNIT_NAME.fullmatch(unit)]:
            with suppress(UnitsError):  # a manifest can be removed even if systemd doesn't answer
                main_names = {unit: found.id for unit, found in show_units(asked).items()}
        wanted = [main_names.get(unit, unit) for unit in named]
        for unit in wanted:
            if unit not in by_unit:
                pinned = ", ".join(sorted(by_unit)) or "none"
                raise UnpinError(
                    f"no manifest in {place.directory} pins unit {unit}",
                    hint=f"name a pinned unit, as `nodeagent inspect` lists them: {pinned}",
                )
        return [NamedFile(by_unit[unit]) for unit in wanted]

    return uninstall(options, pods_of, ("unpin", *options.units))
