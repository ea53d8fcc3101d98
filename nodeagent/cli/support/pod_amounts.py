"""Options for the resources of a pod with one container."""

import argparse

from nodeagent.core.model.topology import CORE_CLASSES

_PAGES = ("2Mi", "1Gi")


def add_amount_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for CPUs, memory and devices."""
    parser.add_argument(
        "--cpus", required=True, metavar="N", help="CPUs: a whole number for CPUs of its own, or such as 500m"
    )
    parser.add_argument("--memory", required=True, metavar="AMOUNT", help="memory, such as 4Gi")
    for size in _PAGES:
        parser.add_argument(
            f"--hugepages-{size}", metavar="AMOUNT", help=f"memory in huge pages of {size}, beside --memory"
        )
    parser.add_argument(
        "--numa", metavar="N", help="on this NUMA node: CPUs of its own and memory of no other node, or it is refused"
    )
    parser.add_argument(
        "--core-class",
        choices=CORE_CLASSES,
        metavar="CLASS",
        help="where cores are of several kinds: CPUs of its own of this kind, performance or efficiency, or it is refused",
    )
    parser.add_argument(
        "--near",
        metavar="DEVICES",
        help="near these: network interfaces, PCI addresses, NVMe disks, or kinds of devices (`nodeagent topology --devices` shows them), "
        "such as eth0 or eth0,nvme; topologyManagerPolicy decides what that means",
    )

    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="RESOURCE",
        help="a device of its own, of what the node gives (`devices` in its configuration), such as example.com/nic, or several, such as "
        "example.com/nic=2; may be repeated",
    )


def read_amounts(options: argparse.Namespace) -> dict[str, str]:
    """Return the container's resource limits."""
    pages = {f"hugepages-{size}": getattr(options, f"hugepages_{size}") for size in _PAGES}
    devices = (one.partition("=") for one in options.device)
    return (
        {"cpu": options.cpus, "memory": options.memory}
        | {name: given for name, given in pages.items() if given}
        | {name: count if equals else "1" for name, equals, count in devices}
    )
