"""`nodeagent probe`: shows on which NUMA nodes the memory of pods is, and on request measures the latency of CPUs."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from nodeagent.cli.support.colour import text_width
from nodeagent.cli.support.documents import add_output_argument, format_document
from nodeagent.cli.support.entering import check_container, find_expected_cpus
from nodeagent.cli.support.exit_status import EXIT_WRONG
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.arguments import add_agent_arguments
from nodeagent.cli.support.node.this_node import NeverSavedError, read_this_node_for_display
from nodeagent.cli.support.numeric_arguments import whole_number
from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.state import PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.kernel.usage import read_usage
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.usage import parse_container_usage
from nodeagent.formats.manifest.pod_names import find_pod, find_pods
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.syntax.json_values import MisfitError
from nodeagent.tools.probe.document import (
    ContainerMemory,
    Latency,
    ProbedCpus,
    describe_probe,
    find_container_memory,
    read_latency,
)
from nodeagent.tools.probe.latency import LONGEST_US, DelaysByCpu, LatencyReportError, parse_cyclictest, parse_oslat
from nodeagent.tools.probe.latency_tools import check_installed, run_tool, set_timer_slack, widen_affinity
from nodeagent.tools.probe.text import render_latency, render_memory
from nodeagent.views.interference.cpu_owners import find_exclusive_owners
from nodeagent.views.wording.words import format_count

_SECONDS = 10
_MOST_SECONDS = 86_400
_MOST_BYTES = 64 * 2**20
_BUCKETS = 1024
"""Number of buckets in oslat's histogram, each of 1 us. oslat accepts no larger number."""
_INTERVAL_US = 1000


class ProbeError(NodeAgentError):
    """The location of memory or the latency of CPUs can't be determined."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = """\
nodeagent probe [POD [--container C]] [-o text|json|yaml]
       nodeagent probe POD --latency [--force] [--seconds N] [--compare FILE|-]
       nodeagent probe --cpus LIST [--seconds N] [--compare FILE|-]"""
    parser.add_argument("pod", nargs="?", metavar="POD", help="only this pod: name, namespace/name or UID")
    parser.add_argument("--container", metavar="C", help="only this container of the pod")
    parser.add_argument(
        "--latency", action="store_true", help="measure the latency of the container's CPUs, from within its cgroup"
    )
    parser.add_argument(
        "--cpus", type=_parse_cpus, metavar="LIST", help="measure the latency of these CPUs, such as 2-3,8"
    )
    parser.add_argument(
        "--seconds", type=whole_number, metavar="N", help=f"how long each of the two tests takes (default: {_SECONDS})"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="measure even while the pod's processes use the CPUs; this takes CPU time from them, and their work counts as latency",
    )
    parser.add_argument(
        "--compare", type=NamedFile, metavar="FILE|-", help="an earlier result (-o json): show both side by side"
    )
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = """\
exit status: 0: success; 2: a container has memory outside its allocated NUMA nodes; 1: could not be determined;
3: the agent doesn't answer, and has saved no state; 64: wrong arguments

examples:
  nodeagent probe
  sudo nodeagent probe --cpus 2-3 -o json >before.json
  sudo nodeagent probe slot --latency --compare before.json
  nodeagent probe default/web -o json | jq -r '.memory[] | .container, .elsewhereBytes'

The location of memory is cheap to read, and always shown for pods. Latency is measured only on request: it needs root, and occupies the
CPUs with two tests of rt-tests. If processes of the pod use these CPUs, it also needs --force. To test a pod's CPUs before its program
runs, run the pod without a command. The tests use ordinary threads, as containers do, and no real-time threads.
next: nodeagent interference shows which tasks caused delays"""
    parser.set_defaults(parser=parser)


def _parse_cpus(text: str) -> CpuSet:
    try:
        cpus = CpuSet.parse(text)
    except IdSetSyntaxError as err:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of CPUs such as 2-3,8") from err
    if not cpus:
        raise argparse.ArgumentTypeError("'' is an empty list of CPUs")
    return cpus


def run(options: argparse.Namespace) -> int:
    """Find the location of pods' memory, or measure the latency of CPUs, and print the results.

    Raises:
        NodeAgentError: the memory or the latency can't be determined.
    """
    refuse: Callable[[str], object] = options.parser.error
    if options.cpus is not None and (options.pod is not None or options.latency):
        refuse("--cpus names the CPUs: leave out the pod and --latency")
    if options.pod is None and (options.container is not None or options.latency):
        refuse("--container and --latency need a pod: name it, too")
    if options.force and not options.latency:
        refuse("--force needs a pod and --latency")
    if options.cpus is None and not options.latency and (options.seconds or options.compare is not None):
        refuse("--seconds and --compare need --latency, or --cpus LIST")
    if options.seconds is not None and options.seconds > _MOST_SECONDS:
        refuse(f"--seconds can be at most {_MOST_SECONDS}")
    before = None if options.compare is None else read_earlier(options.compare)
    latency = None
    if options.cpus is not None or options.latency:
        if os.geteuid() != 0:
            words = f"{options.pod} --latency" if options.cpus is None else f"--cpus {options.cpus}"
            raise ProbeError("only root may measure latency", hint=f"sudo nodeagent probe {words}")
        check_installed(("oslat", "cyclictest"))
        latency = _measure_in_pod(options) if options.cpus is None else _measure_here(options)
    memory = None if options.cpus is not None else _find_memory(options)
    if options.output != "text":
        sys.stdout.write(format_document(describe_probe(memory, latency, before), options.output))
    else:
        width = text_width()
        parts = [] if memory is None else [render_memory(memory, width)]
        parts += [] if latency is None else [render_latency(latency, before, width)]
        sys.stdout.write("\n".join(parts))
    return find_exit_status(memory or ())


def find_exit_status(memory: Iterable[ContainerMemory]) -> int:
    """Return 0 if all of the containers' memory is on the allocated NUMA nodes, or EXIT_WRONG if some of it is on others.

    Raises:
        ProbeError: the NUMA placement of a container's memory is unknown.
    """
    memory = tuple(memory)
    if any(one.elsewhere for one in memory):
        return EXIT_WRONG
    unknown = [f"{one.pod} {one.container}" for one in memory if one.promised is not None and one.by_node is None]
    if unknown:
        raise ProbeError(
            f"cannot read the NUMA placement of the memory of {', '.join(unknown)}",
            hint="is the memory controller enabled? see memory.numa_stat in the container's cgroup, and `nodeagent inspect`",
        )
    return 0


def read_earlier(path: NamedFile) -> Latency:
    """Read an earlier measurement of latency, for a comparison.

    Raises:
        NodeAgentError: there is no such file, or it contains no latency measurement.
    """
    content = path.read(_MOST_BYTES)
    hint = "make one with `nodeagent probe --cpus LIST -o json >FILE`"
    if content is None:
        raise ProbeError(f"there is no file {path}", hint=hint)
    try:
        return read_latency(content)
    except MisfitError as err:
        raise ProbeError(f"{path} contains no latency results: {err}", hint=hint) from err


def _find_memory(options: argparse.Namespace) -> tuple[ContainerMemory, ...]:
    view = read_this_node_for_display(options.config, options.socket)
    uids = None
    if options.pod is not None:
        entries = find_pods(view.state, options.pod)
        uids = frozenset(entry.pod.uid for entry in entries)
        if options.container is not None:
            for entry in entries:
                check_container(entry, options.container)
    if view.cgroup_root is None:
        raise ProbeError(
            "the location of the pods' cgroups is unknown, so the NUMA placement of their memory can't be read",
            hint="start the pods' unit with `systemctl start nodeagent-pods`, or run this command as root",
        )
    paths = [entry.container_path(one.name) for entry in view.state.entries for one in entry.pod.containers]
    usage = {
        path: parse_container_usage(text.cpu_stat, text.numa_stat).memory_bytes
        for path, text in read_usage(view.cgroup_root, {path: view.cgroup_of(path) for path in paths}).items()
        if text.cpu_stat is not None  # a cgroup without a cpu.stat doesn't exist any more
    }
    return find_container_memory(view, uids, options.container, usage)


def _measure_here(options: argparse.Namespace) -> Latency:
    with suppress(NeverSavedError):  # this error means that no agent has ever run here
        check_free(read_this_node_for_display(options.config, options.socket), options.cpus)
    away = options.cpus - widen_affinity()
    if away:
        raise ProbeError(
            f"this process can't use CPUs {away}",
            hint="they are offline (`cat /sys/devices/system/cpu/online`), or a cgroup withholds them "
            "(`cat /sys/fs/cgroup/cpuset.cpus.effective`)",
        )
    return _measure(ProbedCpus(options.cpus), options.seconds or _SECONDS, ())


def check_free(view: NodeView, cpus: CpuSet) -> None:
    """Check that none of these CPUs belongs to a pod exclusively.

    Raises:
        ProbeError: a pod has one of these CPUs exclusively.
    """
    owners = [claim for claim in find_exclusive_owners(view) if not claim.cpus.isdisjoint(cpus)]
    if owners:
        first = owners[0]
        raise ProbeError(
            f"CPUs {first.cpus & cpus} are exclusive to {first.pod}",
            hint=f"to measure them from within the pod: nodeagent probe {first.pod} --latency",
        )


def _measure_in_pod(options: argparse.Namespace) -> Latency:
    view = read_this_node_for_display(options.config, options.socket)
    entry = find_pod(view.state, options.pod)
    container = find_measured_container(view, entry, options.container)
    cpus = find_expected_cpus(view, entry, container)
    tree = CgroupTree(view.cgroup_root or "")
    sharing = {
        cgroup
        for claim in find_exclusive_owners(view, frozenset({entry.pod.uid}))
        if not claim.cpus.isdisjoint(cpus)
        for cgroup in claim.cgroups
    }
    processes = len({pid for cgroup in sharing for pid in tree.processes.list_pids(cgroup)})
    if processes and not options.force:
        raise ProbeError(
            f"{format_count(processes, 'process', 'processes')} of {entry.pod.full_name} may run on CPUs {cpus}: "
            "the tests would slow them down, and measure their work, too",
            hint="measure before the program runs, in the same pod without `command`, or add --force",
        )
    where = [
        word for name in ("config", "socket") if (value := getattr(options, name)) for word in (f"--{name}", value)
    ]
    probed = ProbedCpus(cpus, entry.pod.full_name, container, processes)
    entering = ("exec", *where, entry.pod.uid, container, "--")
    return _measure(probed, options.seconds or _SECONDS, entering)


def find_measured_container(view: NodeView, entry: PodEntry, name: str | None) -> str:
    """Return the container whose CPUs are to be measured: the named container, or else the only one with exclusive CPUs.

    Raises:
        NodeAgentError: none of the containers has exclusive CPUs, or several have.
    """
    pod = entry.pod.full_name
    if name is not None:
        check_container(entry, name)
    own = [
        one.name
        for one in entry.pod.containers
        if own_set_of(view.state.promises, entry.pod.uid, one.name) is not None
        and (one.name == name or (name is None and one.kind is not ContainerKind.INIT))
    ]
    if not own:
        of = pod if name is None else f"{pod} {name}"
        raise ProbeError(
            f"{of} has no exclusive CPUs", hint=f"`nodeagent explain {pod}` says why; --cpus LIST measures other CPUs"
        )
    if len(own) > 1:
        raise ProbeError(
            f"{pod} has several containers with exclusive CPUs: {', '.join(own)}", hint="name one with --container"
        )
    return own[0]


def _measure(probed: ProbedCpus, seconds: int, entering: tuple[str, ...]) -> Latency:
    set_timer_slack()
    at_ms = time.time_ns() // 1_000_000
    cpus = probed.cpus
    oslat = (
        *("oslat", "--cpu-list", str(cpus), "--duration", str(seconds)),
        # The main thread may share a measured CPU, because it only sleeps, and the container has no other CPUs.
        *("--cpu-main-thread", str(min(cpus))),
        *("--bucket-size", str(_BUCKETS), "--zero-omit", "--quiet"),
    )
    cyclictest = (
        *("cyclictest", f"--affinity={cpus}", f"--threads={len(cpus)}", f"--duration={seconds}"),
        # Without --default-system, cyclictest would change some of the host's settings.
        *("--default-system", "--policy=other", f"--interval={_INTERVAL_US}"),
        *(f"--histogram={LONGEST_US}", "--mlockall", "--quiet"),
    )
    busy = parse_report(parse_oslat, run_tool(oslat, entering=entering, seconds=seconds), cpus, oslat[0])
    waking = parse_report(
        parse_cyclictest, run_tool(cyclictest, entering=entering, seconds=seconds), cpus, cyclictest[0]
    )
    return Latency(probed, at_ms, seconds, busy, waking)


def parse_report(parse: Callable[[bytes], DelaysByCpu], report: bytes, cpus: CpuSet, tool: str) -> DelaysByCpu:
    """Decode the report of a measuring tool, and check that it is about exactly the measured CPUs.

    Raises:
        ProbeError: the report has an unknown format, or contains other CPUs.
    """
    try:
        found = parse(report)
    except LatencyReportError as err:
        raise ProbeError(
            f"cannot understand the report of {tool}: {err}",
            hint="report this error of nodeagent, with the version of rt-tests (`dpkg -l rt-tests`)",
        ) from err
    if CpuSet.from_ids(found) != cpus:
        raise ProbeError(
            f"{tool} measured CPUs {CpuSet.from_ids(found)} instead of {cpus}",
            hint="did a CPU go offline meanwhile? see `nodeagent topology`, and try again",
        )
    return found
