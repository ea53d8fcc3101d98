"""What runs in the containers, and the manifests for it. Runs in the guest, so it is cheap: dash, under two names.

A shared container wants more CPUs than it will get, in every way there is to get onto one: tasks that never sleep, tasks that wake
each other, and tasks newly forked. So each CPU of the shared pool is wanted at every moment by somebody.
"""

import json
import os
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
EXCLUSIVE = "exclusive"
SHARED = "shared-busy"

_GRACE_SECONDS = 10
"""Every program ends on SIGTERM: none is killed, unless nobody has asked it to end."""
# Built-ins only, up to the marker: the first thing that the process does is to say which CPUs it may use. Then it keeps what the agent has
# promised: the state file says so from before the start until after the end, whenever the agent dies. Its log may have lost it.
_TELL = f"""
while read -r key cpus; do [ "$key" = Cpus_allowed_list: ] && break; done </proc/self/status
[ $# -eq 2 ] || cpus="${{NODEAGENT_EXCLUSIVE_CPUS:--}} $cpus"
echo "{TOLD} $1 $cpus" >{INSTANCE}/trace_marker
/bin/cp {STATE_FILE} "$2.{_STATE}"
: >"$2"
"""
# One task more than there are CPUs, so that one always looks for another CPU; then a sign of life now and then.
_EXCLUSIVE_LOOP = """
burst() { n=0; while [ $n -lt 1000 ]; do n=$((n+1)); done; }
i=0; while [ $i -le $1 ]; do burst & i=$((i+1)); done
wait
while :; do sleep 10; burst; done
"""
_EXCLUSIVE_ONCE = """
n=0; while [ $n -lt 1000 ]; do n=$((n+1)); done
"""
_SHARED_LOOP = """
: >"$1"
while :; do :; done &
while :; do :; done &
while :; do echo; done | while read -r line; do :; done &
while :; do ( : ); done
"""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod as the churn wants it. `cpus`: of each exclusive app container; none: a shared pod."""

    number: int
    cpus: tuple[int, ...] = ()
    init_cpus: int | None = None
    """Exclusive CPUs of an init container, which comes and goes first."""
    is_mixed: bool = False
    """Its app containers have the shared pool beside their exclusive CPUs; a pod with an even number is Burstable then."""
    is_short: bool = False
    """Its containers end by themselves, and its CPUs come back while the manifest is still there."""

    @property
    def name(self) -> str:
        return f"overlap-{self.number:05}"

    @property
    def exclusive_cpus(self) -> int:
        return max(sum(self.cpus), self.init_cpus or 0)

    def containers(self) -> tuple[str, ...]:
        return tuple(f"app{index}" for index in range(len(self.cpus) or 1))

    def ready_files(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{container}" for container in self.containers())


def install() -> None:
    """Put the programs in place."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    READY.mkdir(parents=True)
    for name in (EXCLUSIVE, SHARED):
        (DIRECTORY / name).symlink_to(os.path.realpath("/bin/dash"))


def promised(plan: PodPlan, directory: Path = READY) -> dict[str, str]:
    """The CPUs of each exclusive container, init containers included, as the agent had saved them when the container's process started.

    To be called once the pod is ready: all of them have started then.
    """
    found: dict[str, str] = {}
    for copy in directory.glob(f"{plan.name}-*.{_STATE}"):
        container = copy.stem.removeprefix(f"{plan.name}-")
        _header, state, *_ = copy.read_text().split("\n")
        # What it says of others may have changed by the time they start: an agent that comes back replaces CPUs that have gone meanwhile
        # wherever no process runs on them.
        cpus = json.loads(state)["promises"]["pods"].get(plan.name, {}).get("cpus", {})
        if container in cpus:
            found[container] = cpus[container]
    return found


def manifest(plan: PodPlan) -> str:
    spec: dict[str, object] = {"terminationGracePeriodSeconds": _GRACE_SECONDS}
    if plan.cpus:
        script = _TELL + (_EXCLUSIVE_ONCE if plan.is_short else _EXCLUSIVE_LOOP)
        spec["containers"] = [
            _mixed(plan, name, cpus, script) if plan.is_mixed else _exclusive(plan, name, cpus, script)
            for name, cpus in zip(plan.containers(), plan.cpus, strict=True)
        ]
    else:
        (name,) = plan.containers()
        requests = {"requests": {"cpu": "10m", "memory": "4Mi"}, "limits": {"cpu": "50m", "memory": "64Mi"}}
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


def _exclusive(plan: PodPlan, name: str, cpus: int, script: str) -> dict[str, object]:
    limits = {"limits": {"cpu": str(cpus), "memory": "16Mi"}}
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
