"""Options for the resources of a pod with one container. `job` loads this module at every start, so it imports little."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from nodeagent.formats.manifest.job_pod import PodOptionError

_PAGES = ("2Mi", "1Gi")


def add_amount_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for CPUs, memory and devices, and for their location."""
    from nodeagent.core.model.topology import CORE_CLASSES

    parser.add_argument(
        "--cpus",
        required=True,
        metavar="N",
        help="CPUs: a whole number for exclusive CPUs, or a fraction such as 500m",
    )
    parser.add_argument("--memory", required=True, metavar="AMOUNT", help="memory, such as 4Gi")
    for size in _PAGES:
        parser.add_argument(
            f"--hugepages-{size}",
            metavar="AMOUNT",
            help=f"memory in huge pages of {size}, in addition to --memory",
        )
    parser.add_argument(
        "--numa",
        metavar="N",
        help="exclusive CPUs and memory only of this NUMA node; refused if too little is free there",
    )
    parser.add_argument(
        "--core-class",
        choices=CORE_CLASSES,
        metavar="CLASS",
        help="exclusive CPUs only of this class of cores, performance or efficiency; refused if too few are free",
    )
    parser.add_argument(
        "--near",
        metavar="DEVICES",
        help="prefer the NUMA node of these devices: network interfaces, PCI addresses, NVMe disks, or kinds of devices, such as eth0 or "
        "eth0,nvme (`nodeagent topology --devices` lists them); topologyManagerPolicy decides how strictly",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="RESOURCE",
        help="an exclusive device of a resource that the node's configuration names (`devices`), such as example.com/nic, or several, such "
        "as example.com/nic=2; can be repeated",
    )


def read_amounts(options: Any) -> dict[str, str]:
    """Return the resource limits that the options request for the container, as quantities by resource name."""
    pages = {f"hugepages-{size}": getattr(options, f"hugepages_{size}") for size in _PAGES}
    devices = (one.partition("=") for one in options.device)
    return (
        {"cpu": options.cpus, "memory": options.memory}
        | {name: given for name, given in pages.items() if given}
        | {name: count if equals else "1" for name, equals, count in devices}
    )


def find_wrong_option(options: Any, name: str, quiet: str = "") -> PodOptionError | None:
    """Find the first option with an invalid value, and return the error about it. None means that the options describe a valid pod named
    `name`.
    """
    from nodeagent.formats.manifest.job_pod import PodOptionError, job_pod

    try:
        job_pod(name, name, read_amounts(options), options.numa, options.core_class, options.near, quiet or None)
    except PodOptionError as err:
        return err
    return None
