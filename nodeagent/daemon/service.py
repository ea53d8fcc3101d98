"""The agent process: start, threads that wake the deciding thread, signals, reload and stop."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent import __version__
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.model.config import Config
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.pod_sources import Manifest
from nodeagent.daemon.domains.all import make_domains
from nodeagent.daemon.domains.jobs.jobs import Jobs, job_directory
from nodeagent.daemon.domains.jobs.reservations import Reservations
from nodeagent.daemon.host.host_edges import HostEdges
from nodeagent.daemon.host.host_settings import HostSettings
from nodeagent.daemon.reports.logs import Log, make_log
from nodeagent.daemon.reports.publisher import Publisher
from nodeagent.daemon.reports.status import format_status
from nodeagent.daemon.sources.kept_manifests import KeptManifests
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.start.config_file import ConfigFile
from nodeagent.daemon.start.recovery import Evidence, Start, log_recovery, read_evidence, start_state
from nodeagent.daemon.start.startup import EX_CONFIG, StartError
from nodeagent.daemon.start.strict_recovery import load_state
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.claim_statuses import ClaimStatuses
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.heartbeat import Heartbeat
from nodeagent.daemon.turn.machine import Machine, remove_withheld_cpus
from nodeagent.daemon.turn.placements import Placements, placement_directory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.records import Recorder
from nodeagent.daemon.turn.runs import Runner
from nodeagent.daemon.turn.wakeups import Rescans, WakeUpReason, Wakeups
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.cgroups.cgroupfs.watch import CgroupWatch, CgroupWatchError
from nodeagent.edge.files import state_files
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.files.placement_files import PlacementFiles
from nodeagent.edge.kernel.host_settings import read_boot_id
from nodeagent.edge.kernel.uevents import UeventError, Uevents, open_uevent_socket
from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.edge.systemd.service_manager import ServiceManager

if TYPE_CHECKING:
    from nodeagent.daemon.domains.runtime.containers import RuntimeDomain
    from nodeagent.daemon.plugins.device_plugins import DevicePlugins

_KUBEPODS = frozenset({"kubepods.slice"})
"""kubelet's top cgroup. While the agent serves a container runtime, it places the processes in this cgroup itself, so they aren't host
processes.
"""
_RESTART = "then: systemctl restart nodeagent"
_LAUNCHER_WAIT_SECONDS = 0.5
_LAUNCHER_RECONNECT_SECONDS = 2.0
_CGROUPS_SETTLE_SECONDS = 0.03
_UEVENTS_RECONNECT_SECONDS = 60.0
THREAD_AGAIN_SECONDS = 1.0


def serve(config_path: str) -> int:
    """Run the agent until SIGTERM.

    Returns:
        The exit status: 0 after SIGTERM, 78 for an error that a restart can't fix.
    """
    log = make_log()
    # Threads inherit this signal mask, so that only the thread that waits for signals receives them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    manager = ServiceManager(os.environ)
    wakeups = Wakeups()
    _start_thread("signals", log, lambda: _wait_for_signals(wakeups))
    try:
        config_file = ConfigFile(config_path, log)
        node = config_file.load()
        with state_files.lock_directory(node.config.state_directory):
            return _serve(config_file, node, log=log, manager=manager, wakeups=wakeups)
    except (StartError, state_files.StateFileError) as err:
        log.error("start_refused", problem=err.message, hint=err.hint)  # noqa: TRY400 - not a bug of ours: no traceback
        manager.set_status(f"refused to start: {err.message.splitlines()[0]}")
        return EX_CONFIG


def _serve(config_file: ConfigFile, node: NodeSetup, *, log: Log, manager: ServiceManager, wakeups: Wakeups) -> int:
    config = node.config
    heart = Heartbeat(manager)
    manifests = ManifestList(
        config.static_pod_path,
        ManifestWatch(config.static_pod_path, lambda: wakeups.wake(WakeUpReason.MANIFESTS)),
        patience_seconds=config.file_check_frequency_ms / 1000,
        alive=heart.beat,
        kept=KeptManifests(config),
    )
    reservations = Reservations(config.state_directory, lambda: wakeups.wake(WakeUpReason.JOBS), log)
    jobs = Jobs(PlacementFiles(job_directory(config)), reservations, reservations.wake)
    sources = (manifests, jobs)
    pods = tuple(pod for source in sources for pod in source.look(rescan=True).pods)
    now_ms = time.time_ns() // 1_000_000
    is_strict = config.state_recovery == "strict"
    start = Start(load_state(node, pods, now_ms)) if is_strict else None
    client = LauncherClient(Path(config.launcher_socket))
    root = config.cgroup_root or _find_pods_cgroup(client, wakeups, manager, log)
    if root is None:
        return 0  # the agent was asked to stop before the launcher answered
    plugins = _make_device_plugins(config, wakeups, log)
    machine = Machine()
    watch = CgroupWatch(root, lambda: wakeups.wake(WakeUpReason.CGROUPS))
    tree = CgroupTree(root, client.begin_partition, client.gather, watch)
    runner = Runner(client) if plugins is None else Runner(client, plugins.prepare)
    if start is None:
        node, _ = remove_withheld_cpus(node, tree)
        look = partial(_read_running_pods, config, tree, runner, pods, wakeups, manager, log)
        start = start_state(node, pods, now_ms, look, heart.beat, machine.devices)
    if start is None:
        return 0  # the agent was asked to stop before running pods could be read
    if start.recovery is not None:
        log_recovery(start.recovery, log)
    state = start.state
    containers = _make_runtime_domain(config, state, tree, wakeups, log, machine, plugins)
    places = HostEdges(client.write_host, root, beside=frozenset() if containers is None else _KUBEPODS)
    unusable = () if start.recovery is None else start.recovery.unusable
    edges = Edges(
        log=log,
        machine=machine,
        domains=make_domains(config, tree, readers=(manifests,), jobs=jobs, runtime=containers, tell=client.tell),
        runner=runner,
        tree=tree,
        recorder=Recorder(config.state_directory, log, unusable=unusable),
        host_settings=HostSettings(places, config.state_directory, read_boot_id(), log),
        placements=Placements(PlacementFiles(placement_directory(config))),
        claim_statuses=ClaimStatuses(config),
        plugins=plugins,
        alive=heart.beat,
    )
    agent = Agent(node, state, edges, wakeups, start.recovery)
    if plugins is not None:
        plugins.configured = lambda: frozenset(rule.resource for rule in agent.node.config.placement.devices)
    jobs.retry = agent.retry
    with Publisher(agent, config, log, jobs, plugins) as publisher:
        _start_thread("jobs", log, jobs.follow_owners)
        standing = () if containers is None else _serve_runtime(containers, config, log)
        _start_thread("launcher-events", log, lambda: _follow_launcher(client, wakeups))
        _start_thread("hotplug", log, partial(follow_hotplug, wakeups, log, open_uevents()))
        log.info("started", version=__version__, config=config_file.path, cgroup_root=root, pods=len(state.entries))
        config_file.keep(config)
        try:
            run_turns(agent, publisher, watch, config_file, manager, heart, standing)
        finally:
            manager.notify_stopping(format_status(agent.view))
            watch.stop()
            manifests.close()
    log.info("stopped", pods=len(agent.state.entries))
    return 0


def _make_runtime_domain(
    config: Config,
    state: NodeState,
    tree: CgroupTree,
    wakeups: Wakeups,
    log: Log,
    machine: Machine,
    plugins: "DevicePlugins | None",
) -> "RuntimeDomain | None":
    """Return the domain of the configured container runtime. The domain also exists if no runtime is configured any more, but containers of
    an earlier one hold CPUs.
    """
    if not config.nri_socket and state.runtime == Registry():
        return None
    from nodeagent.daemon.domains.runtime.containers import RuntimeDomain  # noqa: PLC0415 - most agents serve no runtime

    path, default = config.kubelet_pods_socket, Config().kubelet_pods_socket
    pods = None
    if path:
        from nodeagent.daemon.domains.runtime.kubelet_pods import PodsApi  # noqa: PLC0415 - as above

        pods = PodsApi(Path(path), log, is_expected=path != default)
        pods.known = frozenset(pod.uid for pod in state.runtime.pods)
    containers = RuntimeDomain(Path(config.nri_socket), tree, wakeups, log, machine.devices, pods)
    if plugins is not None:
        containers.prepare = plugins.prepare
    return containers


def _make_device_plugins(config: Config, wakeups: Wakeups, log: Log) -> "DevicePlugins | None":
    """Create the registry of device plugins, or return None if device plugins aren't configured."""
    if not config.device_plugin_socket:
        return None
    from nodeagent.daemon.plugins.device_plugins import DevicePlugins  # noqa: PLC0415 - most agents have no device plugins

    return DevicePlugins(Path(config.device_plugin_socket), lambda: wakeups.wake(WakeUpReason.DEVICES), log)


def _serve_runtime(containers: "RuntimeDomain", config: Config, log: Log) -> tuple[Problem, ...]:
    """Start to serve the container runtime. Return a problem instead if this node's kubelet also manages CPUs or memory."""
    problem = None
    if config.nri_socket:
        from nodeagent.daemon.domains.runtime.beside_kubelet import kubelet_problem  # noqa: PLC0415 - as above

        problem = kubelet_problem()
    containers.is_served = bool(config.nri_socket) and problem is None
    if containers.is_served:
        _start_thread("nri", log, containers.link.run)
    if problem is None:
        return ()
    log.error("runtime_not_served", problem=problem, hint=_RESTART)
    text = f"the container runtime is not served: {problem} ({_RESTART})"
    return (Problem(text, kind=ProblemKind.SERVICE),)


def run_turns(
    agent: Agent,
    publisher: Publisher,
    watch: CgroupWatch,
    config_file: ConfigFile,
    manager: ServiceManager,
    heart: Heartbeat,
    standing: tuple[Problem, ...] = (),
) -> None:
    """Run turns until SIGTERM, and notify systemd's watchdog after each of them. The first turn starts the garbage collector, which passes
    over all earlier objects.

    Args:
        agent: the agent.
        publisher: the server of the agent's sockets.
        watch: watch that reports changed cgroups.
        config_file: the configuration file, which may be reloaded.
        manager: interface to systemd.
        heart: notifier of the watchdog during long turns.
        standing: problems that last until the process ends.
    """
    ping_seconds = manager.watchdog_period_seconds() or float("inf")
    # the first turn also handles all earlier reasons to wake up
    reasons = agent.wakeups.wait(0.0) - {WakeUpReason.TIMER} | {WakeUpReason.START}
    due, rescans = time.monotonic(), Rescans()
    unwatched = ""
    while WakeUpReason.STOP not in reasons:
        if WakeUpReason.RELOAD in reasons:
            manager.notify_reloading()
            config_file.reload(agent)
        if reasons != {WakeUpReason.TIMER} or time.monotonic() >= due:
            unserved, unwatched = publisher.listen(), _renew_watch(watch, agent, unwatched)
            reasons = rescans.add_timer(reasons, agent.node.config.rescan_period_ms / 1000)
            if reasons & {WakeUpReason.TIMER, WakeUpReason.CONFIGURATION}:
                config_file.look(agent)
            agent.metrics.config_refused_at_seconds = config_file.refused_at_seconds
            problems = (
                *((config_file.problem,) if config_file.problem is not None else ()),
                *standing,
                *unserved,
                *((Problem(unwatched, kind=ProblemKind.CGROUP),) if unwatched else ()),
            )
            due = time.monotonic() + agent.turn(reasons, problems)
            if not gc.isenabled():
                gc.freeze()
                gc.enable()
            is_first = agent.memory.has_reconciled and not heart.is_ready
            if is_first or WakeUpReason.RELOAD in reasons:
                manager.notify_ready(format_status(agent.view))
            else:
                manager.set_status(format_status(agent.view))
            if is_first:
                agent.edges.log.info("ready")
                heart.is_ready = True
        manager.ping_watchdog()
        reasons = agent.wakeups.wait(max(0.0, min(due - time.monotonic(), ping_seconds)))
        # if the last turn has already read all changed cgroups, no other turn is needed
        while reasons == {WakeUpReason.CGROUPS} and not watch.has_changes:
            reasons = agent.wakeups.wait(max(0.0, min(due - time.monotonic(), ping_seconds)))
        if reasons == {WakeUpReason.CGROUPS}:
            # If another program undoes each write of the agent, the agent must not loop without a pause.
            reasons |= agent.wakeups.wait(_CGROUPS_SETTLE_SECONDS) - {WakeUpReason.TIMER}


def _renew_watch(watch: CgroupWatch, agent: Agent, known: str) -> str:
    """Watch the cgroups that exist now. Return the problem, or an empty text. A problem is logged only if `known`, the last result, is
    empty.
    """
    try:
        watch.renew(agent.unit_directories)
    except CgroupWatchError as err:
        if not known:
            agent.edges.log.warning("cgroups_unwatched", problem=err.message, hint=err.hint)
        return f"{err.message} ({err.hint})"
    return ""


def _find_pods_cgroup(client: LauncherClient, wakeups: Wakeups, manager: ServiceManager, log: Log) -> str | None:
    """Ask the launcher for the path of the pods' cgroup, until it answers. None means that the agent was asked to stop meanwhile."""
    has_logged = False
    while True:
        try:
            cgroup = client.hello().cgroup
        except LauncherError as err:
            if not has_logged:
                log.warning("waiting_for_launcher", problem=err.message, hint=err.hint)
                manager.set_status("waiting for nodeagent-pods.service")
                has_logged = True
        else:
            if cgroup is None:
                raise StartError(
                    "the launcher reports no cgroup for pods, and cgroupRoot is not configured",
                    hint="start the launcher with --cgroup DIR, or by systemd (nodeagent-pods.service), or set cgroupRoot",
                )
            return cgroup
        manager.ping_watchdog()
        if WakeUpReason.STOP in wakeups.wait(_LAUNCHER_WAIT_SECONDS):
            return None


def _read_running_pods(
    config: Config,
    tree: CgroupTree,
    runner: Runner,
    manifests: Sequence[Manifest],
    wakeups: Wakeups,
    manager: ServiceManager,
    log: Log,
) -> Evidence | None:
    """Read the running pods for a recovery of the state, and retry until all can be read. None means that the agent was asked to stop
    meanwhile.
    """
    logged: tuple[Problem, ...] = ()
    while True:
        evidence = read_evidence(config, tree, runner, manifests)
        if isinstance(evidence, Evidence):
            return evidence
        if evidence != logged:
            log.warning("waiting_to_recover", problems=list(evidence))
            manager.set_status("waiting: the state is rebuilt from running pods, which cannot be read yet")
            logged = evidence
        manager.ping_watchdog()
        if WakeUpReason.STOP in wakeups.wait(_LAUNCHER_WAIT_SECONDS):
            return None


def _follow_launcher(client: LauncherClient, wakeups: Wakeups) -> None:
    """Wake the agent whenever the launcher reports that a container's process has exited. After a lost connection, wake it too, so that a
    turn finds the exits that weren't reported.
    """
    while True:
        try:
            for _ in client.events():
                wakeups.wake(WakeUpReason.RUNS)
        except LauncherError:
            time.sleep(_LAUNCHER_RECONNECT_SECONDS)  # the deciding thread reports the lost connection
        wakeups.wake(WakeUpReason.RUNS)


def open_uevents() -> list[Uevents]:
    """Subscribe to the kernel's uevents. Called before the first turn, so that the turn can't miss an event.

    An empty list means that the subscription failed. `follow_hotplug` then tries again.
    """
    try:
        return [Uevents(open_uevent_socket())]
    except UeventError:
        return []


def follow_hotplug(wakeups: Wakeups, log: Log, opened: list[Uevents]) -> None:
    """Wake the agent when CPUs or memory are added or removed. After a reconnect, wake it once, because events may have been missed.

    `opened` contains the subscription from before the first turn, if there is one.
    """
    logged = ""
    while True:
        try:
            if opened:
                uevents = opened.pop()
            else:
                uevents = Uevents(open_uevent_socket())
                wakeups.wake(WakeUpReason.HOTPLUG)
            for _ in uevents:
                wakeups.wake(WakeUpReason.HOTPLUG)
        except UeventError as err:
            if err.message != logged:
                log.warning("hotplug_unwatched", problem=err.message, hint=err.hint)
                logged = err.message
        time.sleep(_UEVENTS_RECONNECT_SECONDS)


def _wait_for_signals(wakeups: Wakeups) -> None:
    while True:
        number = signal.sigwait({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        wakeups.wake(WakeUpReason.RELOAD if number == signal.SIGHUP else WakeUpReason.STOP)


def _start_thread(name: str, log: Log, work: Callable[[], None]) -> None:
    threading.Thread(target=keep_working, args=(name, log, work), name=name, daemon=True).start()


def keep_working(name: str, log: Log, work: Callable[[], None]) -> None:
    """Run `work`, and after an unexpected error log the error and run `work` again. Meant as the main function of a thread."""
    while True:
        try:
            work()
        except Exception as err:  # noqa: BLE001 - without the thread, the agent would no longer notice what it looks for
            problem = f"{type(err).__name__}: {err}; it begins again"
        else:
            return
        log.error("thread_failed", thread=name, problem=problem)
        time.sleep(THREAD_AGAIN_SECONDS)
