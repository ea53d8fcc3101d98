"""`nodeagent topology`: shows the topology of a machine as the agent sees it. If the owners of CPUs are known, they are shown, too."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from nodeagent.cli.support.colour import add_color_argument, text_width, wants_colour
from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.documents import format_document, format_xml
from nodeagent.cli.support.node.arguments import add_node_arguments
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import SourceError, is_without_agent, read_topology
from nodeagent.cli.support.node.this_node import NeverSavedError
from nodeagent.cli.support.printable_output import write_coloured
from nodeagent.core.admission.managers import initial
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.node_builder import node_of
from nodeagent.daemon.start.startup import StartError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.topology.topology_json import topology_document
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.views.topology.cpu_owners import label_cpus
from nodeagent.views.topology.text import make_terminal_paint, render_topology

if TYPE_CHECKING:
    from nodeagent.core.model.devices import Device
    from nodeagent.views.topology.devices import OwnersByAddress
    from nodeagent.views.topology.parts import DeviceSection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml", "svg", "hwloc-xml", "nrt", "resourceslice"),
        default="text",
        metavar="FORMAT",
        help="output format: text, json, yaml, svg (a picture), hwloc-xml (for lstopo), nrt or resourceslice (for Kubernetes' "
        "schedulers) (default: text)",
    )
    parser.add_argument(
        "--devices",
        action="store_true",
        help="also show network, InfiniBand and NVMe cards, GPUs, accelerators and CXL memory, with their NUMA nodes",
    )
    add_color_argument(parser)
    add_node_arguments(parser, described=True)
    parser.epilog = """\
exit status: 0: shown; 1: the machine could not be read, or the configuration of --config doesn't suit it; 64: wrong arguments

examples:
  nodeagent topology
  nodeagent topology --devices
  nodeagent topology -o svg >node.svg
  nodeagent topology -o hwloc-xml >node.xml && lstopo -i node.xml
  nodeagent topology --root /mnt/copy -o json
  nodeagent topology --topology 2s.2n.8c.2t
  nodeagent topology -o nrt | kubectl apply -f -

The owners of CPUs come from the agent or its saved state, and are shown in text, svg and hwloc-xml. If neither can be read, the
machine is shown without owners, and stderr says why.
-o nrt prints a NodeResourceTopology, in YAML: the total and free resources of each NUMA node. It needs the agent or its saved state.
-o resourceslice prints ResourceSlices, in YAML: CPUs, memory and cards, as drivers of dynamic resource allocation list them.
next: nodeagent inspect"""
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print the machine in the requested format.

    Raises:
        NodeAgentError: the machine's description or the named configuration can't be read.
    """
    if args.devices and (args.topology is not None or args.output in {"hwloc-xml", "nrt", "resourceslice"}):
        args.parser.error("--devices needs a node, not --topology, and -o text, json, yaml or svg")
    topology = read_topology(args) if args.topology is None else topology_from_spec(args.topology)
    if args.config is not None:
        # a configuration that doesn't suit the machine is refused in every output format
        node_of(load_config(args.config), topology, args.config)
    if args.output in {"nrt", "resourceslice"}:
        sys.stdout.write(
            _format_node_resource_topology(args) if args.output == "nrt" else _format_resource_slices(args)
        )
        return 0
    devices: tuple[Device, ...] | None = None
    if args.devices:
        from nodeagent.cli.support.node.devices import read_selected_devices

        devices = read_selected_devices(args)
    match args.output:
        case "json" | "yaml":
            text = format_document(_describe_machine(args, topology, devices), args.output)
        case "svg":
            from nodeagent.tools.export.svg import render_svg

            text = format_xml(
                render_svg(
                    topology, _find_cpu_owners(args, topology), devices=_find_device_sections(args, topology, devices)
                )
            )
        case "hwloc-xml":
            from nodeagent.tools.export.hwloc_xml import render_hwloc_xml

            text = format_xml(render_hwloc_xml(topology, _find_cpu_owners(args, topology)))
        case _:
            owner = _find_cpu_owners(args, topology)
            sections = _find_device_sections(args, topology, devices)
            width = max(40, text_width())
            if owner and wants_colour(args.color):
                write_coloured(render_topology(topology, owner, width, make_terminal_paint(owner), sections))
                return 0
            text = render_topology(topology, owner, width, devices=sections)
    sys.stdout.write(text)
    return 0


def _find_device_owners(args: argparse.Namespace) -> "OwnersByAddress":
    """Return the owners of devices by PCI address. If the owners are unknown, the result is empty, and `_find_cpu_owners` reports the
    reason.
    """
    from nodeagent.views.topology.devices import find_device_owners

    try:
        return find_device_owners(read_node(args).state)
    except NodeAgentError:
        return {}


def _describe_machine(
    args: argparse.Namespace, topology: Topology, devices: "tuple[Device, ...] | None"
) -> dict[str, Any]:
    document = topology_document(topology)
    if devices is None:
        return document
    from nodeagent.views.topology.devices import describe_devices

    return document | {"devices": describe_devices(devices, topology, _find_device_owners(args))}


def _find_device_sections(
    args: argparse.Namespace, topology: Topology, devices: "tuple[Device, ...] | None"
) -> "tuple[DeviceSection, ...] | None":
    if devices is None:
        return None
    from nodeagent.views.topology.devices import describe_device_sections

    return describe_device_sections(devices, topology, _find_device_owners(args))


def _format_node_resource_topology(args: argparse.Namespace) -> str:
    """Format the selected node as a NodeResourceTopology, in YAML."""
    from nodeagent.tools.export.node_resource_topology import node_resource_topology

    if args.topology is not None:
        args.parser.error("-o nrt describes a node, not a machine: leave out --topology")
    known = read_node(args)
    name = _find_node_name(known, "a NodeResourceTopology needs it")
    return format_document(
        node_resource_topology(name, known.node.topology, known.node.rules, known.state.promises), "yaml"
    )


def _format_resource_slices(args: argparse.Namespace) -> str:
    """Format the ResourceSlices of the selected node, in YAML."""
    from nodeagent.cli.support.node.devices import read_selected_devices
    from nodeagent.tools.export.resource_slices import resource_slices

    if args.topology is not None:
        args.parser.error("-o resourceslice describes a node, not a machine: leave out --topology")
    known = read_node(args)
    name = _find_node_name(known, "ResourceSlices need it")
    placement = known.node.config.placement
    slices = resource_slices(
        name,
        known.node.topology,
        known.node.reserved,
        read_selected_devices(args),
        has_lists=placement.gate("DRAListTypeAttributes"),
        maps_cpus=placement.gate("DRANodeAllocatableResources"),
    )
    return "---\n".join(format_document(one, "yaml") for one in slices)


def _find_node_name(known: NodeView, why: str) -> str:
    """Return the name under which kubelet would register the node. If the name is unknown, the error contains `why`, which says what needs
    the name.
    """
    if not known.hostname:
        raise SourceError(
            f"the node's name is unknown, but {why}",
            hint="take a capture on the node: nodeagent capture --out node.json, then give --machine node.json",
        )
    return known.hostname.lower()


def _find_cpu_owners(args: argparse.Namespace, topology: Topology) -> dict[int, str] | None:
    """Return the label of each CPU's owner. None means that the owners are unknown. The reason is then printed to stderr, unless the node
    has no agent, no saved state and no configuration.
    """
    if args.topology is None:
        try:
            known = read_node(args)
        except NodeAgentError as err:
            # If no agent ever ran, a named configuration defines the reserved CPUs. If an agent's state can't be read, the machine is shown
            # without the CPUs' owners.
            if args.config is None or not isinstance(err, NeverSavedError | StartError):
                if args.config is not None or not is_without_agent(args):
                    print(f"nodeagent: CPU owners are left out: {err.message}\nhint: {err.hint}", file=sys.stderr)
                return None
        else:
            return label_cpus(known.node.rules, known.state.promises, known.state.holding_pods())
    if args.config is None:
        return None
    managers = node_of(load_config(args.config), topology, args.config).managers
    return label_cpus(managers, initial(managers), ())
