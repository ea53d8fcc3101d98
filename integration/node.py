"""A guest as the tests see it: manifests in, what the node shows out. Waits for states, with deadlines that suit an emulated machine.

Reading a node is refused while pods come or go that no wait has named: a test that forgets one fails every time, not occasionally.
"""

import json
import shlex
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from integration.guest.errors import CommandError
from integration.guest.guest import RUN_SECONDS, Completed, Guest
from nodeagent.core.model.cgroup_layout import pod_path
from nodeagent.core.model.pod import QosClass

CONFIG = "/etc/nodeagent/config.yaml"
MANIFESTS = "/etc/nodeagent/manifests"
STATE = "/var/lib/nodeagent"
ROOT = "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service"
POOL = f"{ROOT}/shared/pool"

WAIT_SECONDS = 10
_BETWEEN_LOOKS_SECONDS = 0.1
_SCRAPE = """
exec 3<>/dev/tcp/127.0.0.1/9753
printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3
while read -r header <&3 && [ ${#header} -gt 1 ]; do :; done
cat <&3
"""
"""The shell does what curl takes three times as long for on an emulated machine."""
READY = "systemctl start nodeagent"
"""A command that waits, without polling, until the agent that is being started is ready."""

Document = dict[str, Any]
T = TypeVar("T")


def container(
    name: str, command: list[str] | None, *, cpu: str | None = None, memory: str = "16Mi", limit_cpu: str | None = None
) -> Document:
    """A container whose request equals its limit; without `cpu` it asks for nothing."""
    made: Document = {"name": name}
    if command is not None:
        made["command"] = command
    if cpu is not None:
        made["resources"] = {
            "requests": {"cpu": cpu, "memory": memory},
            "limits": {"cpu": limit_cpu or cpu, "memory": memory},
        }
    return made


def pod(name: str, *containers: Document, init: tuple[Document, ...] = (), **spec: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "initContainers": list(init),
            "containers": list(containers),
            **spec,
        },
    }


class Node:
    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._under_way: set[str] = set()
        """Pods that come or go, and that no wait has named since."""

    def run(self, command: str, *, check: bool = True, timeout_seconds: float = RUN_SECONDS) -> Completed:
        return self.guest.run(command, check=check, timeout_seconds=timeout_seconds)

    def apply(self, *pods: Document) -> None:
        """Install manifests, each in its own file, renamed into place."""
        for one in pods:
            name = one["metadata"]["name"]
            self.put_manifest(f"{name}.json", json.dumps(one), name)

    def put_manifest(self, file: str, content: str | bytes, *names: str) -> None:
        """Write a file as it is, with the names of its pods."""
        self._under_way.update(names)
        self.guest.put(f"{MANIFESTS}/{file}", content)

    def delete(self, *names: str) -> None:
        self._under_way.update(names)
        self.run("rm " + " ".join(shlex.quote(f"{MANIFESTS}/{name}.json") for name in names))

    def clear(self) -> None:
        """Remove all pods and wait until they are gone, with the service running."""
        self.run(f"rm -rf {MANIFESTS}/* {MANIFESTS}/.??*; systemctl reset-failed; systemctl start nodeagent")
        self.wait(lambda state: not state["entries"], "no pod to be left", of=self._under_way)

    def state(self) -> Document:
        """The truth file's content: cheap to read, and durable before anything follows from it."""
        try:
            lines = self.guest.get(f"{STATE}/nodeagent_state").splitlines()
        except CommandError:  # there is none
            return {"entries": []}
        document: Document = json.loads(lines[1])
        return document

    def wait(
        self,
        holds: Callable[[Document], bool],
        what: str,
        *,
        of: Iterable[str] = (),
        seconds: float = WAIT_SECONDS,
    ) -> Document:
        """Wait until a condition holds for the saved state. `of`: the pods concerned, including all that come or go."""
        self._name(of)

        def look() -> Document | None:
            state = self.state()
            return state if holds(state) else None

        def problem() -> str:
            journal = self.run("journalctl -u 'nodeagent*' -n 60 --no-pager -o cat", check=False).stdout
            return f"waited in vain for {what}:\n{json.dumps(self.state(), indent=1)}\n{journal}"

        return self.until(look, problem, seconds)

    def _name(self, pods: Iterable[str]) -> None:
        self._under_way -= set(pods)
        self._settled()

    def _settled(self) -> None:
        """Make sure that no pod is coming or going: otherwise the result would depend on timing."""
        assert not self._under_way, f"{', '.join(sorted(self._under_way))}: come or go, and no wait names them"

    def wait_running(self, *names: str, refused: Iterable[str] = (), seconds: float = WAIT_SECONDS) -> Document:
        """Wait until these pods are complete, and the others are refused.

        Every container that has a command runs or has run, and one without has its cgroup.
        """
        others = set(refused)

        def all_are_there(state: Document) -> bool:
            return all(self._runs(state, name) for name in names) and others <= _refused(state)

        what = f"{', '.join(names)} to run" + (f" and {', '.join(sorted(others))} to be refused" if others else "")
        state = self.wait(all_are_there, what, of={*names, *others}, seconds=seconds)
        self._wait_told(state)
        return state

    def wait_refused(self, *names: str) -> Document:
        return self.wait_running(refused=names)

    def wait_decided(self) -> Document:
        """Wait until every manifest is a pod that runs or is refused, and there is no other pod; each manifest is one pod."""
        names = self.run(f"ls {MANIFESTS}").stdout.split()

        def decided(state: Document) -> bool:
            there = {e["source"]: e["pod"]["metadata"]["name"] for e in state["entries"]}
            return there.keys() == set(names) and all(
                "refusal" in entry or self._runs(state, entry["pod"]["metadata"]["name"]) for entry in state["entries"]
            )

        state = self.wait(decided, f"{names} to be decided", of=self._under_way)
        self._wait_told(state)
        return state

    def _runs(self, state: Document, name: str) -> bool:
        """Whether each of a pod's containers that has a command runs or has run.

        The saved state says that the agent tries a start. It says that the start is confirmed only once something else has changed, too.
        """
        entry = _entry(state, name)
        if entry is None:
            return False
        assert "refusal" not in entry, entry["refusal"]
        commanded = {one["name"] for one in _containers(entry) if "command" in one}
        return all(
            "startedAtMs" in status or ("attempt" in status and self._is_populated(entry, status["name"]))
            for status in entry["containers"]
            if status["name"] in commanded
        )

    def _is_populated(self, entry: Document, container_name: str) -> bool:
        uid, is_pooled = entry["pod"]["metadata"]["uid"], entry.get("pooled", False)
        path = f"{ROOT}/{pod_path(QosClass(entry['qos']), uid, is_pooled=is_pooled)}/{container_name}"
        try:
            return b"populated 1" in self.guest.get(f"{path}/cgroup.events")
        except CommandError:  # there is no such cgroup yet
            return False

    def wait_gone(self, *names: str) -> Document:
        return self.wait(
            lambda state: not set(names) & {e["pod"]["metadata"]["name"] for e in state["entries"]},
            f"{names} to go",
            of=names,
        )

    def entry(self, name: str) -> Document:
        found: Document = next(e for e in self.state()["entries"] if e["pod"]["metadata"]["name"] == name)
        return found

    def cgroup(self, name: str, container_name: str, *, qos: str = "") -> str:
        """Return the cgroup of a container. Pods that aren't Guaranteed are below the shared pool's cgroup."""
        return f"{POOL + '/payload/' + qos if qos else ROOT}/poduid-{name}/{container_name}"

    def value(self, cgroup: str, file: str) -> str:
        """Return the content of a cgroup's file. Below the shared pool's cgroup, the pool's cpuset applies."""
        self._settled()
        if file.startswith("cpuset.") and _is_pooled(cgroup):
            cgroup = POOL
        return self.guest.get(f"{cgroup}/{file}").decode().strip()

    def pids(self, cgroup: str) -> list[int]:
        """Return the processes of a container."""
        file = "cgroup.procs" if _is_pooled(cgroup) else "payload/cgroup.procs"
        return [int(line) for line in self.value(cgroup, file).split()]

    def inspect(self) -> Document:
        """Return the agent's view once it includes what is saved: saving comes first."""
        self._settled()
        saved = self.state().get("generation", 0)

        def look() -> Document | None:
            answer = self.run("nodeagent inspect -o json --no-host-processes", check=False)
            assert answer.returncode in {0, 2, 3}, answer.stderr
            document: Document = json.loads(answer.stdout)
            return document if document["node"]["generation"] >= saved else None

        return self.until(look, lambda: f"generation {saved} is saved and not told")

    def inspect_pod(self, name: str) -> str:
        """What `nodeagent inspect POD` prints of a pod that is saved."""
        self.inspect()
        return self.run(f"nodeagent inspect {name} --no-host-processes", check=False).stdout

    def metrics(self) -> dict[str, float]:
        """By series, as exposed: `name{label="value"}`; for the state that is saved now, which the metrics follow at the turn's end."""
        self._settled()
        return self._wait_told(self.state())

    def _wait_told(self, state: Document) -> dict[str, float]:
        """Wait until the agent publishes a saved state, which it does after everything that follows from it; return its metrics."""
        saved = state.get("generation", 0)

        def look() -> dict[str, float] | None:
            shown = self._scraped()
            return shown if shown.get("nodeagent_state_generation", -1) >= saved else None

        return self.until(look, lambda: f"the metrics do not come to state {saved}")

    def _scraped(self) -> dict[str, float]:
        text = self.run(_SCRAPE).stdout
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {series: float(value) for series, value in lines}

    def wait_metric(self, series: str, above: float) -> float:
        def look() -> float | None:
            value = self._scraped().get(series, 0.0)
            return value if value > above else None

        return self.until(look, lambda: f"{series} stays at {self._scraped().get(series)}")

    def wait_line(self, path: str) -> str:
        """Wait until a file has a complete first line."""
        script = f"until [ -s {path} ] && [ $(wc -l <{path}) -ge 1 ]; do sleep 0.05; done; head -n 1 {path}"
        return self.run(script).stdout.strip()

    def cursor(self) -> str:
        """The journal's end as of now."""
        return self.run("journalctl -n 0 --show-cursor -q").stdout.split("cursor:")[1].strip()

    def log(self, cursor: str) -> list[Document]:
        """The agent's log lines since then."""
        return [json.loads(line) for line in self.journal(cursor) if line.startswith("{")]

    def journal(self, cursor: str, unit: str = "nodeagent") -> list[str]:
        """What a unit has written since then.

        journalctl isn't asked for the unit: with a cursor of another unit's entry, systemd 252's version leaves out the first match.
        """
        fields = "--output-fields=MESSAGE,_SYSTEMD_UNIT"
        text = self.run(f"journalctl --after-cursor='{cursor}' -o json --all {fields} -q").stdout
        entries = (json.loads(line) for line in text.splitlines())
        return [entry["MESSAGE"] for entry in entries if entry.get("_SYSTEMD_UNIT") == f"{unit}.service"]

    def wait_log(self, cursor: str, *events: str, of: Iterable[str] = ()) -> Document:
        """Wait for the agent to write a line of one of these events. `of`: the pods whose coming or going it reports."""
        self._under_way -= set(of)

        def look() -> Document | None:
            return next((line for line in self.log(cursor) if line["event"] in events), None)

        return self.until(look, lambda: f"no {' or '.join(events)} in the log: {self.log(cursor)}")

    def until(
        self,
        look: Callable[[], T | None],
        problem: Callable[[], str],
        seconds: float = WAIT_SECONDS,
        *,
        least_looks: int = 1,
    ) -> T:
        """Look until there is a result, and pause as long as a look took: looking takes processor time from what is waited for.

        A look that does something, and waits for that itself, has to be tried `least_looks` times before all of them were in vain.
        """
        wait, looks = self.guest.wait(seconds), 0
        while True:
            began = time.monotonic()
            if (found := look()) is not None:
                return found
            took, looks = time.monotonic() - began, looks + 1
            if looks >= least_looks and self.guest.is_over(wait):
                raise self.guest.in_vain(f"in vain, for {wait}: {problem()}")
            time.sleep(max(_BETWEEN_LOOKS_SECONDS, took))

    def main_pid(self, unit: str = "nodeagent") -> int:
        return int(self.run(f"systemctl show -P MainPID {unit}").stdout)

    def configure(self, text: str) -> None:
        """Run the agent, without pods, on another configuration, unless that is its own. The next test finds the usual one again."""
        config = text.encode()
        if self.guest.get(CONFIG) == config:
            self.clear()
            return
        if self.run("systemctl is-active --quiet nodeagent", check=False).returncode != 0:
            self.guest.put(CONFIG, config)  # with the one of before it may not start
        self.clear()
        self.guest.put(CONFIG, config)
        self.reload()

    def reload(self) -> None:
        """Make the agent apply its changed configuration. `systemctl reload` starts a command that checks it before: that has a test of its
        own (test_manifests_live.py), and takes an emulated machine as long again.
        """
        cursor = self.cursor()
        self.run("systemctl kill -s HUP nodeagent")
        told = self.wait_log(cursor, "configuration_reloaded", "reload_refused")
        assert told["event"] == "configuration_reloaded", told

    def unit(self, *properties: str, name: str = "nodeagent") -> dict[str, str]:
        """The properties of a unit, from systemd."""
        options = " ".join(f"-p {one}" for one in properties)
        return dict(line.split("=", 1) for line in self.run(f"systemctl show {name} {options}").stdout.splitlines())

    def restart_agent(self) -> None:
        """Restart the agent as an upgrade does; returns when it is ready."""
        self.run("systemctl restart nodeagent")

    def kill_agent(self) -> None:
        """`kill -9`, and wait until systemd has a successor ready."""
        before = self.main_pid()
        self.run(f"kill -9 {before}; {until_replaced(before)}; {READY}")

    def allowed(self, pid: int) -> tuple[str, str]:
        """CPUs and memory nodes that the kernel lets a process use."""
        text = self.run(f"awk '/^(Cpus|Mems)_allowed_list/ {{print $2}}' /proc/{pid}/status").stdout.split()
        return text[0], text[1]

    def footprint(self) -> str:
        """Every process of the pods and every value that the agent writes, on a node whose agent has done everything that follows from its
        state.
        """
        self._settled()
        self._wait_told(self.state())
        files = [
            "cgroup.procs",
            "cpuset.cpus",
            "cpuset.mems",
            "cpu.max",
            "cpu.weight",
            "memory.max",
            "memory.swap.max",
            "pids.max",
            "memory.oom.group",
        ]
        names = " -o ".join(f"-name {name}" for name in files)
        return self.run(f"cd {ROOT} && find . -path '*pod*' \\( {names} \\) -exec grep -H . {{}} + | sort").stdout


def until_replaced(pid: int) -> str:
    """Return the script that waits until another process is the agent."""
    procs = "/sys/fs/cgroup/system.slice/nodeagent.service/cgroup.procs"
    return f"until read -r pid <{procs} && [ $pid -ne {pid} ]; do sleep 0.2; done 2>/dev/null"


def _is_pooled(cgroup: str) -> bool:
    return cgroup.startswith(f"{POOL}/payload/")


def _entry(state: Document, name: str) -> Document | None:
    return next((entry for entry in state["entries"] if entry["pod"]["metadata"]["name"] == name), None)


def _containers(entry: Document) -> list[Document]:
    spec = entry["pod"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def _refused(state: Document) -> set[str]:
    return {entry["pod"]["metadata"]["name"] for entry in state["entries"] if "refusal" in entry}
