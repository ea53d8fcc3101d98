"""What runs in the containers, and the manifests for it. Runs in the guest, so it is cheap: dash, under two names.

A shared container wants more CPUs than it will get, in every way there is to get onto one: tasks that never sleep, tasks that wake
each other, and tasks newly forked. So each CPU of the shared pool is wanted at every moment by somebody.
"""

import enum
import json
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from integration.overlap.events import TOLD
from integration.overlap.trace import INSTANCE

DIRECTORY = Path("/run/overlap")
READY = DIRECTORY / "ready"
STATE_FILE = Path("/var/lib/nodeagent/nodeagent_state")
_STATE = "state"
"""Suffix of a copy that a process made of the state file."""
_CGROUP = "cgroup"
"""Of what a process was told of its cgroup."""
EXCLUSIVE = "exclusive"
SHARED = "shared-busy"
IN_IMAGE = "busybox-exclusive"
"""The same where there is busybox alone, which takes its own name for that of a program, or one that begins like it."""
UNITS = Path("/run/systemd/system")
MARKER = INSTANCE / "trace_marker"

SHARED_CPU_MILLI = 50
"""The limit of who shares: enough to be everywhere, and little enough for the rest of an emulated machine."""
_GRACE_SECONDS = 10
"""Every program ends on SIGTERM: none is killed, unless nobody has asked it to end."""
# Built-ins only, up to the marker: the first thing that the process does is to say which CPUs it may use. Then it keeps what the agent has
# promised: the state file says so from before the start until after the end, whenever the agent dies. Its log may have lost it.
_TELL = f"""
while read -r key cpus; do [ "$key" = Cpus_allowed_list: ] && break; done </proc/self/status
[ $# -eq 2 ] || cpus="${{NODEAGENT_EXCLUSIVE_CPUS:--}} $cpus"
echo "{TOLD} $1 $cpus" >{MARKER}
/bin/cp {STATE_FILE} "$2.{_STATE}"
read -r cgroup </proc/self/cgroup
echo "$cgroup" >"$2.{_CGROUP}"
: >"$2"
"""
# One task more than there are CPUs, so that one always looks for another CPU; then a sign of life now and then.
_EXCLUSIVE_LOOP = """
burst() { n=0; while [ $n -lt 1000 ]; do n=$((n+1)); done; }
i=0; while [ $i -le $1 ]; do burst & i=$((i+1)); done
wait
while :; do sleep 10; burst; done
"""
# The same, for one whose CPUs change: it wants all that it may have.
_RESIZED_LOOP = """
burst() { n=0; while [ $n -lt 1000 ]; do n=$((n+1)); done; }
while :; do i=0; while [ $i -le $(($1+4)) ]; do burst & i=$((i+1)); done; wait; sleep 1; done
"""
_EXCLUSIVE_ONCE = """
n=0; while [ $n -lt 1000 ]; do n=$((n+1)); done
"""
_EXCLUSIVE_SCRIPT, _SHARED_SCRIPT = "exclusive.sh", "shared.sh"
_SHARED_LOOP = """
: >"$1"
while :; do :; done &
while :; do :; done &
while :; do echo; done | while read -r line; do :; done &
while :; do ( : ); done
"""


class Means(enum.Enum):
    """How a pod comes to be."""

    MANIFEST = ""
    JOB = "main"
    """By `nodeagent job`."""
    UNIT = "unit"
    """By `nodeagent pin`, which begins before its unit does."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod as the churn wants it. `cpus`: of each exclusive app container; none: a shared pod."""

    number: int
    cpus: tuple[int, ...] = ()
    means: Means = Means.MANIFEST
    init_cpus: int | None = None
    """Exclusive CPUs of an init container, which comes and goes first."""
    is_mixed: bool = False
    """Its app containers have the shared pool beside their exclusive CPUs; a pod with an even number is Burstable then."""
    is_short: bool = False
    """Its containers end by themselves, and its CPUs come back while the manifest is still there."""
    resized: tuple[int, ...] | None = None
    """The CPUs that its app containers are to have by now, if these may change while it runs."""

    @property
    def name(self) -> str:
        return f"overlap-{self.number:05}"

    @property
    def exclusive_cpus(self) -> int:
        return max(sum(self.resized or self.cpus), self.init_cpus or 0)

    @property
    def unit(self) -> str:
        """Systemd's; a job's is the one that asks for it."""
        return f"{self.name}.service" if self.means is Means.UNIT else f"asks-for-{self.name}.service"

    def containers(self) -> tuple[str, ...]:
        """Their names, which are given for all but manifests."""
        if self.means is not Means.MANIFEST:
            return (self.means.value,)
        return tuple(f"app{index}" for index in range(len(self.cpus) or 1))

    def ready_files(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{container}" for container in self.containers())


def install() -> None:
    """Put the programs in place."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    READY.mkdir(parents=True)
    for name in (EXCLUSIVE, SHARED):
        (DIRECTORY / name).symlink_to(os.path.realpath("/bin/dash"))
    (DIRECTORY / _EXCLUSIVE_SCRIPT).write_text(_TELL + _EXCLUSIVE_LOOP)
    (DIRECTORY / _SHARED_SCRIPT).write_text(_SHARED_LOOP)


def promised(plan: PodPlan, directory: Path = READY) -> dict[str, str]:
    """The CPUs of each exclusive container, init containers included, as the agent had saved them when the container's process started.

    To be called once the pod is ready: all of them have started then.
    """
    found: dict[str, str] = {}
    for copy in directory.glob(f"{plan.name}-*.{_STATE}"):
        container = copy.stem.removeprefix(f"{plan.name}-")
        # What it says of others may have changed by the time they start: an agent that comes back replaces CPUs that have gone meanwhile
        # wherever no process runs on them.
        for cpus in (promised_by(copy.read_bytes(), name) for name in (plan.name, plan.unit)):
            found |= {container: cpus[container]} if container in cpus else {}
    return found


def promised_by(state_file: bytes, pod: str) -> dict[str, str]:
    """The exclusive CPUs of a pod's containers, by a state file.

    Args:
        state_file: its content.
        pod: UID or name.
    """
    state = json.loads(state_file.split(b"\n")[1])
    pods = (entry["pod"]["metadata"] for entry in state.get("entries", ()))
    uid = next((one["uid"] for one in pods if one["name"] == pod), pod)
    found: dict[str, str] = state["promises"]["pods"].get(uid, {}).get("cpus", {})
    return found


def cgroups(plan: PodPlan) -> dict[str, str]:
    """Those of its exclusive containers, which their processes have told, by container."""
    found = {}
    for told in READY.glob(f"{plan.name}-*.{_CGROUP}"):
        path = told.read_text().strip().removeprefix("0::").removesuffix("/payload")
        found[told.stem.removeprefix(f"{plan.name}-")] = path
    return found


def begin(plan: PodPlan) -> str:
    """The commands, for a shell, by which a job or a unit begins."""
    words, name = shlex.join(_program(plan)), plan.name
    if plan.means is Means.JOB:
        job = f"nodeagent job --cpus {plan.cpus[0]} --memory 16Mi --name {name} -- {words}"
        asks = f"systemctl is-active --quiet {plan.unit} || systemd-run --quiet --collect --unit={plan.unit} {job}"
        # again if the agent died before it had answered
        (ready,) = plan.ready_files()
        return f"until [ -e {READY / ready} ]; do {asks}; sleep 1; done"
    cpus = f"{plan.cpus[0]}" if plan.cpus else "100m"
    # again if somebody who is going has not gone yet, for an agent that was killed meanwhile; and not before it has its CPUs
    pinned = f"until nodeagent pin {plan.unit} --allow-missing --cpus {cpus} --memory 16Mi --wait; do sleep 1; done"
    return f"{pinned}; systemctl start {plan.unit}"


def end(plan: PodPlan) -> str:
    """The commands by which it ends; they end when what they ask for is done."""
    if plan.means is Means.JOB:
        return f"systemctl stop {plan.unit}"
    unset = f"while systemctl show -P AllowedCPUs {plan.unit} | grep -q .; do sleep 0.5; done"
    return f"systemctl stop {plan.unit}; nodeagent unpin {plan.unit}; {unset}; rm {UNITS / plan.unit}"


def unit_file(plan: PodPlan) -> str:
    quota = "" if plan.cpus else f"CPUQuota={SHARED_CPU_MILLI // 10}%\n"
    return f"[Service]\nTimeoutStopSec={_GRACE_SECONDS}\n{quota}ExecStart={shlex.join(_program(plan))}\n"


def _program(plan: PodPlan) -> tuple[str, ...]:
    (ready,) = plan.ready_files()
    words = (
        (EXCLUSIVE, str(DIRECTORY / _EXCLUSIVE_SCRIPT), str(plan.cpus[0]))
        if plan.cpus
        else (SHARED, str(DIRECTORY / _SHARED_SCRIPT))
    )
    return (str(DIRECTORY / words[0]), *words[1:], str(READY / ready))


def image_command(cpus: int, ready: str) -> tuple[str, ...]:
    """The command of a container whose image has busybox alone, with what `image_mounts` has. No CPUs: a shared one."""
    shell = "/bin/busybox"
    words = (str(cpus), str(READY / ready)) if cpus else (str(READY / ready),)
    script = _TELL + _EXCLUSIVE_LOOP if cpus else _SHARED_LOOP
    script = (
        script.replace("/bin/cp", f"{shell} cp").replace("sleep ", f"{shell} sleep ").replace(str(MARKER), "/marker")
    )
    return (f"/bin/{IN_IMAGE}" if cpus else shell, "sh", "-c", script, "sh", *words)


IMAGE_MOUNTS = {str(MARKER): "/marker", str(STATE_FILE.parent): str(STATE_FILE.parent), str(READY): str(READY)}
"""Where in such a container, by what it is on the node."""


def manifest(plan: PodPlan) -> str:
    spec: dict[str, object] = {"terminationGracePeriodSeconds": _GRACE_SECONDS}
    if plan.cpus:
        loop = _EXCLUSIVE_LOOP if plan.resized is None else _RESIZED_LOOP
        script = _TELL + (_EXCLUSIVE_ONCE if plan.is_short else loop)
        amounts = zip(plan.containers(), plan.cpus, plan.resized or plan.cpus, strict=True)
        spec["containers"] = [
            _mixed(plan, name, cpus, script) if plan.is_mixed else _exclusive(plan, name, cpus, script, now)
            for name, cpus, now in amounts
        ]
    else:
        (name,) = plan.containers()
        limits = {"cpu": f"{SHARED_CPU_MILLI}m", "memory": "64Mi"}
        requests = {"requests": {"cpu": "10m", "memory": "4Mi"}, "limits": limits}
        spec["containers"] = [_container(name, SHARED, _SHARED_LOOP, [str(READY / f"{plan.name}-{name}")], requests)]
    if plan.init_cpus:
        spec["initContainers"] = [_exclusive(plan, "init", plan.init_cpus, _TELL + _EXCLUSIVE_ONCE)]
    if plan.is_short:
        spec["restartPolicy"] = "Never"
    metadata: dict[str, object] = {"name": plan.name, "uid": plan.name}
    if plan.is_mixed:
        counts = zip(plan.containers(), plan.cpus, strict=True)
        metadata["annotations"] = {f"exclusive-cpus.nodeagent.io/{name}": str(cpus) for name, cpus in counts}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _exclusive(plan: PodPlan, name: str, cpus: int, script: str, now: int | None = None) -> dict[str, object]:
    """Its command stays the same when its amounts are others: nothing is restarted."""
    limits = {"limits": {"cpu": str(now or cpus), "memory": "16Mi"}}
    return _container(name, EXCLUSIVE, script, [str(cpus), str(READY / f"{plan.name}-{name}")], limits)


def _mixed(plan: PodPlan, name: str, cpus: int, script: str) -> dict[str, object]:
    """Beside its own CPUs it wants a hundredth of one."""
    amounts = {"cpu": f"{cpus}010m", "memory": "16Mi"}
    resources = {"requests": amounts} if plan.number % 2 == 0 and plan.init_cpus is None else {"limits": amounts}
    words = [str(cpus), str(READY / f"{plan.name}-{name}"), "mixed"]
    return _container(name, EXCLUSIVE, script, words, resources)


def _container(name: str, program: str, script: str, words: list[str], resources: object) -> dict[str, object]:
    command = [str(DIRECTORY / program), "-c", script, program, *words]
    return {"name": name, "command": command, "resources": resources}
