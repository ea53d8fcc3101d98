"""The operator's commands from the outside: where the state comes from, exit statuses, and that every error names a next step."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from nodeagent.cli.main import main
from nodeagent.cli.parser import COMMANDS
from nodeagent.cli.support.becoming import CommandError, run_command
from nodeagent.cli.support.node import saved_node, this_node
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup
from nodeagent.core.model.cgroup_layout import POOL
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.promises import NOTHING
from nodeagent.core.model.state import NodeState, Phase, RefusedChange, run_id
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import CpuHoldings, exclusive_cpus
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.start.config_file import ConfigFile
from nodeagent.daemon.start.startup import STATE_FILE
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.edge.processes import host_processes
from nodeagent.edge.processes.host_processes import find_processes_on
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import encode_state, policies_of
from nodeagent.formats.config.config_yaml import parse_config
from nodeagent.formats.kernel.cgroup_values import format_value
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.node_view import NodeView, view_document
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.wire.launcher_protocol import Running
from tests.cli.test_selected_node import MACHINE
from tests.support import json_schema
from tests.support.inspected_nodes import World, changed, ended, running
from tests.support.pods import app, pod

GROUP = 4242
OTHER = 65_534
CONFIG, SAVED = "etc/nodeagent/config.yaml", f"var/lib/nodeagent/{STATE_FILE}"
"""Below a copied root."""
NOT_REFUSED = NodeAgentError("pod default/web is not refused", hint="see `nodeagent inspect`")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")


class HostWorld(World):
    """Pods on this very machine: policy none, as it may have a single CPU."""

    def __init__(self) -> None:
        super().__init__(topology_of(read_machine()), Placement())
        self.add(pod("web", app("app"), app("slot", command=())))

    @property
    def kernel(self) -> Kernel:
        return replace(Kernel.of(self.node.topology, os.sysconf("SC_PAGE_SIZE"), {}), extra_controllers=frozenset())


class Host:
    """A directory with all that the commands look for: configuration, state, cgroups, and a daemon if one is started."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o755)
        self.world = HostWorld()
        self.directory = directory
        self.config = directory / "config.yaml"
        self.socket = directory / "agent.sock"
        self.cgroups = directory / "pods"
        self.state = directory / "state"
        self.state.mkdir(mode=0o700)
        self.refusals: list[Waiting | None] = []
        self.bugs: list[object] = []
        self.problems: tuple[str, ...] = ()
        self.is_ready = True
        self._close: list[Any] = []
        settings = {
            "stateDirectory": str(self.state),
            "runtimeDirectory": str(directory / "run"),
            "cgroupRoot": str(self.cgroups),
            "launcherSocket": str(directory / "launcher.sock"),
        }
        self.config.write_text(json.dumps(settings))
        self.config.chmod(0o644)
        self.write_cgroups(self.world.observed())

    def write_cgroups(self, observed: Mapping[str, ObservedCgroup]) -> None:
        for path, there in observed.items():
            directory = self.cgroups / path
            directory.mkdir(parents=True, exist_ok=True)
            files = {
                "cgroup.controllers": " ".join(sorted(there.controllers)),
                "cgroup.subtree_control": " ".join(sorted(there.subtree_control)),
                "cgroup.events": f"populated {int(there.is_populated)}\nfrozen {int(there.is_frozen)}",
                "cgroup.procs": str(os.getpid()) if there.is_populated else "",
                "memory.events": f"oom_kill {there.oom_kills}",
                **{attribute.value: format_value(value) for attribute, value in there.attributes},
            }
            if there.cpus_effective is not None:
                files |= {
                    "cpuset.cpus.effective": str(there.cpus_effective),
                    "cpuset.mems.effective": str(there.mems_effective),
                }
            for name, text in files.items():
                (directory / name).parent.mkdir(exist_ok=True)
                (directory / name).write_text(text + "\n")
            if (directory / "payload").is_dir():
                # where the processes are
                (directory / "cgroup.procs").rename(directory / "payload/cgroup.procs")
                (directory / "cgroup.procs").touch()

    def drift(self) -> None:
        path = "shared/pool/payload/besteffort/poduid-web/app"
        self.write_cgroups({path: changed(self.world.observed()[path], Attribute.CPU_WEIGHT, 77)})

    def save(self) -> None:
        content = encode_state(self.world.state, policies_of(self.world.config.placement))
        (self.state / STATE_FILE).write_bytes(content)

    def start_daemon(self) -> None:
        thread = ServingThread(lambda what, err: self.bugs.append((what, err)))
        api = LocalApi(
            reads={"state": lambda _: view_document(self.view())},
            writes={"retry": self.retry},
            owner=os.geteuid(),
            group=GROUP,
        )
        server = thread.serve(listen(UnixAddress(str(self.socket)), group=GROUP if os.geteuid() == 0 else None), api)
        self._close = [server.close, thread.stop]

    def view(self) -> NodeView:
        """What the agent says."""
        pids = {run_id(e, s): os.getpid() for e in self.world.state.entries for s in e.containers if s.is_started}
        return NodeView(
            self.world.node,
            self.world.state,
            str(self.cgroups),
            pids,
            problems=self.problems,
            is_live=True,
            is_ready=self.is_ready,
        )

    async def retry(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Decide as the test wants it."""
        entry = self.world.state.entries[-1]
        if not self.refusals and entry.refusal is not None:  # no turn came in time
            return {"pod": entry.pod.full_name, "uid": entry.pod.uid, "refusedBefore": entry.refusal.reason}
        if entry.refused_change is not None:
            again = self.refusals.pop()
            change = None if again is None else replace(entry.refused_change, refusal=again)
            decided = replace(entry, refused_change=change, deleting_since_ms=3 if change is None else None)
            self.world.state = replace(self.world.state, entries=(*self.world.state.entries[:-1], decided))
            return {"pod": entry.pod.full_name, "uid": entry.pod.uid, "refusedBefore": "OutOfcpu"}
        if entry.refusal is None:
            raise NOT_REFUSED
        assert arguments["pod"] == "default/big"
        decided = replace(entry, refusal=self.refusals.pop(), decided_at_ms=entry.decided_at_ms + 1)
        if decided.refusal is None:
            decided = replace(decided, containers=(running("app"),))
        self.world.state = replace(self.world.state, entries=(*self.world.state.entries[:-1], decided))
        return {"pod": entry.pod.full_name, "uid": entry.pod.uid, "refusedBefore": entry.refusal.reason}

    def refuse(self) -> None:
        self.world.add(pod("big", app("app")), ended("app"))
        entry = replace(self.world.state.entries[-1], refusal=Waiting("OutOfcpu", "too little", 1), containers=())
        self.world.state = replace(self.world.state, entries=(*self.world.state.entries[:-1], entry))

    def refuse_change(self, reason: str = "OutOfcpu") -> None:
        self.world.add(pod("big", app("app")), running("app"))
        change = RefusedChange(pod("big", app("app", cpu="400", memory="1Gi")), Waiting(reason, "too little", 1))
        entry = replace(self.world.state.entries[-1], refused_change=change)
        self.world.state = replace(self.world.state, entries=(*self.world.state.entries[:-1], entry))

    def stop(self) -> None:
        """End the daemon, if there is one."""
        while self._close:
            self._close.pop(0)()

    @property
    def options(self) -> list[str]:
        return ["--config", str(self.config), "--socket", str(self.socket)]


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory() as directory:
        made = Host(Path(directory))
        yield made
        made.stop()
        assert made.bugs == []


@pytest.fixture
def live(host: Host) -> Host:
    host.start_daemon()
    return host


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command line: exit status, stdout, stderr."""

    def run_one(*words: str) -> tuple[int, str, str]:
        try:
            status = main(list(words))
        except SystemExit as ended:  # argparse
            status = int(str(ended.code))
        out, err = capfd.readouterr()
        return status, out, err

    return run_one


def failed(result: tuple[int, str, str], *, status: int = 1) -> str:
    """Check that it is one error with a next step, and nothing on stdout."""
    code, out, err = result
    assert (code, out) == (status, "")
    assert err.startswith("nodeagent: ")
    assert "\nhint: " in err
    return err


# Arguments


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["inspect", "a", "b"],
        ["inspect", "-o", "xml"],
        ["inspect", "--nothing"],
        ["inspect", "--frames", "3"],
        ["inspect", "--interval", "1"],
        ["inspect", "--interference"],
        ["inspect", "--watch", "--color", "always"],
        ["exec"],
        ["exec", "web"],
        ["exec", "web", "app"],
        ["exec", "web", "app", "--"],
        ["retry"],
        ["release"],
        ["release", "web", "--all"],
        ["release", "--all", "--machine", "node.json"],
        ["release", "--all", "-o", "wide"],
        ["retry", "web", "-o", "wide"],
        ["retry", "a", "b"],
        ["topology", "-o", "png"],
        ["topology", "/"],
        ["topology", "--root", "/x", "--machine", "y"],
        ["config"],
        ["capture", "node.json"],
        ["capture", "-o", "node.json"],
        ["explain"],
        ["explain", "web", "-f", "pod.yaml"],
        ["explain", "web", "--errata", "1.35"],
        ["simulate"],
        ["simulate", "--bench", "many", "-"],
        ["run", "now"],
        ["--nothing"],
        ["inspekt"],
    ],
)
def test_wrong_arguments_are_exit_status_64_and_say_usage_and_next_step(words, run):
    status, out, err = run(*words)
    assert (status, out) == (64, "")
    assert err.startswith("usage: nodeagent")
    complaint, hint = err.splitlines()[-2:]
    assert complaint.startswith("nodeagent: ")
    named = f"nodeagent {words[0]}" if words and words[0] in COMMANDS else "nodeagent"
    assert hint == f"hint: {named} --help lists the arguments"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["inspekt"], "'inspekt'"),
        (["inspect", "a", "b", "c"], "b c"),
        (["inspect", "-o", "xml"], "'xml'"),
        (["run", "--confg", "x"], "--confg x"),
        (["simulate", "--bench", "0", "-"], "'0' is not a whole number above 0"),
        (["inspect", "--watch", "--frames", "-1"], "'-1' is not a whole number above 0"),
        (["inspect", "--watch", "--frames", "x"], "'x' is not a whole number above 0"),
        (["inspect", "--watch", "--interval", "0"], "'0' is not a number of seconds from 0.1 to 3600"),
        (["inspect", "--watch", "--interval", "nan"], "'nan' is not a number of seconds from 0.1 to 3600"),
        (["release", "--all", "--timeout", "soon"], "'soon' is not a number of seconds from 0 to 86400"),
        (["release", "--all", "--timeout", "86401"], "'86401' is not a number of seconds from 0 to 86400"),
        (["topology", "--root"], "--root"),
        (["completion"], "required: bash|zsh|fish"),
        (["exec", "web", "--", "true"], "no command for container true: name it after --, such as: web true -- sh"),
        (["completion", "csh"], "'csh' is not one of bash, zsh, fish"),
    ],
)
def test_a_complaint_about_arguments_names_what_was_given(words, value, run):
    assert value in run(*words)[2].splitlines()[-2]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["insepct"], "there is no 'insepct', did you mean inspect?"),
        (["config", "vaildate"], "there is no 'vaildate', did you mean validate?"),
        (["inspect", "--wacth"], "unrecognized arguments: --wacth, did you mean --watch?"),
        (["run", "--cofnig=x"], "unrecognized arguments: --cofnig=x, did you mean --config?"),
        (["inspect", "-o", "jsno"], "there is no 'jsno', did you mean json?"),
        (["inspect", "-o", "png"], "there is no 'png', must be one of text, wide, json, yaml"),
        (["frobnicate"], "there is no 'frobnicate', must be one of run, inspect, interference, probe, topology, "),
        (["inspect", "--frobnicate", "x", "y"], "unrecognized arguments: --frobnicate y"),
    ],
)
def test_the_word_that_was_meant_is_named(words, meant, run):
    assert meant in run(*words)[2].splitlines()[-2]


def test_who_asks_is_no_host_process_on_exclusive_cpus(live, run):
    mine = give_own_cpus(live)
    cgroup = live.cgroups / "shared/pool/payload/besteffort/poduid-web/app/cgroup.procs"
    cgroup.write_text("")
    document = json.loads(run("inspect", "-o", "json", *live.options)[1])
    assert document["node"]["cpus"]["exclusive"] == str(mine)
    assert os.getpid() not in {process["pid"] for process in document["hostProcesses"]["processes"]}


def give_own_cpus(live):
    """Let a pod have the CPUs of this process exclusively, and return them."""
    promises, mine = live.world.state.promises, CpuSet.from_ids(os.sched_getaffinity(0))
    own = promises.pods.put("uid-web", NOTHING.having(CpuHoldings(cpus=(("app", mine),))))
    live.world.state = replace(live.world.state, promises=replace(promises, pods=own))
    return mine


def test_the_main_process_of_the_pods_unit_is_no_host_process(live, run, monkeypatch):
    """It sleeps beside the pods (systemd/nodeagent-pods.service), on all CPUs."""
    give_own_cpus(live)
    left_out = []

    def find(cpus, *, excluding):
        left_out.append(excluding(1))
        return find_processes_on(CpuSet(), excluding=excluding)

    monkeypatch.setattr(host_processes, "find_processes_on", find)
    run("inspect", *live.options)
    (live.cgroups / "holder").mkdir()
    (live.cgroups / "holder/cgroup.procs").write_text("1\n")
    run("inspect", *live.options)
    assert (left_out[0], left_out[-1]) == (False, True)


def test_no_complaint_names_what_only_scripts_say(run):
    for words in (["completion"], ["completion", "csh"]):
        assert not re.search(r"\bwords\b", run(*words)[2])


@pytest.mark.parametrize("words", [["config", "validate"], ["checkpoint", "show"]])
def test_a_complaint_shows_the_usage_of_the_action(words, run):
    status, out, err = run(*words, "--confg", "x")
    assert (status, out) == (64, "")
    assert err.startswith(f"usage: nodeagent {' '.join(words)} ")
    assert err.endswith(f"hint: nodeagent {' '.join(words)} --help lists the arguments\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_says_exit_status_has_examples_and_ends_with_what_comes_next(command, run):
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert "exit status:" in out
    assert f"  nodeagent {command}" in out.partition("examples:\n")[2]
    last = out.rpartition("\nnext: ")[2]
    assert "\n\n" not in last
    assert next_commands(last) <= COMMANDS.keys()
    assert next_commands(last)


def test_the_help_as_a_whole_lists_the_commands_and_ends_with_what_comes_next(run):
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    assert all(re.search(rf"\n    {command}\s", out) for command in COMMANDS)
    assert out.endswith("next: nodeagent inspect\n")
    documents = re.search(r"^documents and examples: (.*)$", out, re.MULTILINE)
    assert documents is not None
    assert {"docs", "examples"} <= {path.name for path in Path(documents[1]).iterdir()}


def test_documents_that_texts_name_exist():
    """What a hint points to is among what is installed, and help says where."""
    root = Path(__file__).parents[2]
    texts = [source.read_text() for source in root.glob("nodeagent/**/*.py")]
    named = {name for text in texts for name in re.findall(r"\b(?:docs|examples)/[\w.-]+", text)}
    assert named >= {"docs/simulate.md", "examples/config.yaml"}
    assert [name for name in named if not (root / name).exists()] == []


def next_commands(text: str) -> set[str]:
    return set(re.findall(r"nodeagent ([a-z]+)", text))


# inspect


def test_live_state_and_exit_status_0(live, run):
    status, out, err = run("inspect", "-o", "json", *live.options)
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["node"]["agent"] == {
        "known": True,
        "launcherKnown": True,
        "live": True,
        "ready": True,
    }
    app, slot = document["pods"][0]["containers"]
    assert (app["pid"], app["processes"], app["state"]["name"]) == (os.getpid(), 1, "Running")
    assert (slot["state"]["name"], slot["processes"]) == ("Open", 0)
    assert list(document) == sorted(document)


def test_without_exclusive_cpus_nobody_can_interfere(live, run):
    assert run("interference", *live.options) == (0, "No pod has exclusive CPUs.\n", "")
    status, out, _ = run("interference", *live.options, "-o", "json")
    json_schema.check(json.loads(out), "interference")
    assert status == 0


def test_a_pod_without_exclusive_cpus_is_an_error_if_it_is_named(live, run):
    status, out, err = run("interference", "web", *live.options)
    assert (status, out) == (1, "")
    assert err == "nodeagent: default/web has no exclusive CPUs\nhint: `nodeagent explain web` says why\n"


def test_the_running_agents_configuration_counts_not_the_file(live, run):
    live.config.write_text("this: [is no configuration")
    assert run("inspect", *live.options)[0] == 0


def test_a_difference_is_exit_status_2(live, run):
    live.drift()
    status, out, err = run("inspect", *live.options)
    assert (status, err) == (2, "")
    assert "  default/web app: cpu.weight is '77', should be '1'\n" in out


def test_a_decision_being_carried_out_is_no_difference(live, run, monkeypatch):
    """The files are right a moment later: looked at again, nothing differs."""
    live.drift()
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        live.write_cgroups(live.world.observed())

    monkeypatch.setattr("nodeagent.cli.commands.inspect.time.sleep", pause)
    assert run("inspect", *live.options)[0] == 0
    assert len(looks) == 1


def test_a_main_process_outside_its_cgroup_is_a_difference(live, run):
    (live.cgroups / "shared/pool/payload/besteffort/poduid-web/app/cgroup.procs").write_text("1\n")
    status, out, _ = run("inspect", "-o", "json", *live.options)
    assert status == 2
    (found,) = json.loads(out)["differences"]
    assert (found["container"], found["file"], found["promised"], found["found"]) == (
        "app",
        "cgroup.procs",
        f"main process {os.getpid()}",
        "it left this cgroup",
    )


def test_a_process_that_somebody_put_into_a_containers_cgroup_itself_is_a_difference(live, run):
    (entry,) = live.world.state.entries
    live.world.state = replace(live.world.state, entries=(replace(entry, is_pooled=False),))
    shutil.rmtree(live.cgroups)
    live.write_cgroups(live.world.observed())
    (live.cgroups / "besteffort/poduid-web/app/cgroup.procs").write_text("1\n")
    status, out, _ = run("inspect", "-o", "json", *live.options)
    assert status == 2
    (found,) = json.loads(out)["differences"]
    assert (found["container"], found["file"], found["promised"], found["found"]) == (
        "app",
        "cgroup.procs",
        "no process outside payload",
        "process 1, not from `nodeagent exec`",
    )


def test_a_refused_pod_is_shown_among_the_others(live, run):
    live.refuse()
    status, out, err = run("inspect", *live.options)
    assert (status, err) == (2, "")
    assert "default/web  Running" in out
    assert "default/big  Refused" in out
    assert "OutOfcpu: too little" in out


def test_differences_of_other_pods_do_not_count_for_one_pod(live, run):
    live.world.add(pod("calm", app("app")))
    live.write_cgroups(live.world.observed())
    live.drift()
    assert run("inspect", "calm", *live.options)[0] == 0
    assert run("inspect", "default/web", *live.options)[0] == 2
    assert run("inspect", "uid-web", *live.options)[0] == 2


@pytest.mark.parametrize("form", ["text", "wide", "json", "yaml"])
def test_every_form_shows_the_pod(form, live, run):
    status, out, _ = run("inspect", "-o", form, *live.options)
    assert status == 0
    assert "web" in out
    if form == "yaml":
        assert yaml.safe_load(out)["pods"][0]["name"] == "web"
        assert "&id" not in out


def test_one_pod_is_shown_in_full(live, run):
    _, out, _ = run("inspect", "web", *live.options)
    assert "uid       uid-web\n" in out
    assert f"process    {os.getpid()}, 1 process in total\n" in out


def test_unknown_pods_are_answered_with_near_names(live, run):
    err = failed(run("inspect", "wbe", *live.options))
    assert err == "nodeagent: no pod is named 'wbe'\nhint: did you mean web? `nodeagent inspect` lists the pods\n"


def test_without_a_daemon_the_saved_state_is_shown(host, run):
    host.save()
    status, out, err = run("inspect", *host.options)
    assert (status, err) == (3, "")
    assert "is NOT running" in out
    assert "no difference between" in out
    host.drift()
    status, out, _ = run("inspect", *host.options)
    assert status == 3, "an agent that is away is worse than a difference"
    assert "the agent corrects them once it runs: systemctl start nodeagent" in out


def test_a_refused_pod_is_something_wrong_and_the_answer_of_one_who_asks_for_it(live, run):
    assert "healthy" not in run("inspect", *live.options)[1]
    live.refuse()
    _, out, _ = run("inspect", *live.options)
    assert out.endswith("\nNOT healthy: 1 refused pod\n")
    status, out, _ = run("inspect", "-o", "json", *live.options)
    assert (status, json.loads(out)["summary"]["refused"], json.loads(out)["verdict"]) == (2, 1, "wrong")
    assert run("inspect", "big", *live.options)[0] == 4
    assert run("inspect", "web", *live.options)[0] == 0, "the others are not asked about"
    assert run("inspect", "--no-fail", *live.options)[0] == 0
    assert run("inspect", "--no-fail", "big", *live.options)[0] == 0


def test_a_sync_that_is_not_finished_is_something_wrong(live, run):
    live.is_ready = False
    status, out, _ = run("inspect", *live.options)
    assert (status, out.splitlines()[-1]) == (2, "NOT healthy: the last sync is not finished")


def test_a_problem_of_the_agent_is_something_wrong(live, run):
    live.problems = ("manifest web.yaml: line 1: no kind",)
    status, out, _ = run("inspect", *live.options)
    assert (status, out.splitlines()[-1]) == (2, "NOT healthy: 1 problem")


def test_an_agent_that_does_not_run_is_away(host, run):
    host.save()
    status, out, _ = run("inspect", *host.options)
    assert status == 3
    assert out.splitlines()[-1] == "NOT healthy: the agent is not running, 2 problems", "nor does the launcher answer"


def test_a_wrong_configuration_hides_no_pod_that_runs(host, run, monkeypatch):
    """The agent, which doesn't start with it, has kept the one that it last ran with."""
    host.save()
    wrong, last = host.directory / "wrong.yaml", host.directory / "last_config.yaml"
    wrong.write_text("cpuManagerPolicy: statik\nmaxPods: many\n")
    monkeypatch.setattr(this_node, "DEFAULT_CONFIG", str(wrong))
    monkeypatch.setattr(this_node, "LAST_CONFIG_PATH", str(last))
    socket = ["--socket", str(host.socket)]
    assert "cpuManagerPolicy" in failed(run("inspect", *socket), status=3), "it never ran"
    valid = parse_config(host.config.read_bytes(), str(host.config))
    ConfigFile(str(wrong), make_log()).keep(replace(valid, state_directory=str(host.directory)))
    last.write_text(last.read_text().replace(f"stateDirectory: {host.directory}\n", f"stateDirectory: {host.state}\n"))
    status, out, err = run("inspect", *socket)
    assert (status, err) == (3, "")
    assert "default/web" in out
    words = " ".join(out.split())
    assert f"the configuration is invalid, so the agent's last valid configuration is used: {wrong}:1: cpuMan" in words
    assert "and 1 more (all errors: nodeagent config validate)" in words
    assert "cpuManagerPolicy" in failed(run("inspect", "--config", str(wrong), *socket), status=3), (
        "what was named counts"
    )
    last.write_text("cpuManagerPolicy: statik\n")
    assert str(wrong) in failed(run("inspect", *socket), status=3)


def test_without_a_daemon_cpus_that_are_withheld_count_as_offline(host, run, monkeypatch):
    """As the agent has it once it starts: what a container lacks of them is no difference that it would correct."""
    world = World().add(pod("web", app("app", cpu="2", memory="64Mi")))
    monkeypatch.setattr(
        saved_node,
        "discover",
        lambda config, _path: replace(world.node, config=replace(config, placement=world.config.placement)),
    )
    gone = CpuSet.of(max(exclusive_cpus(world.state.promises)))
    observed = {
        path: there if there.cpus_effective is None else replace(there, cpus_effective=there.cpus_effective - gone)
        for path, there in world.observed().items()
    }
    shutil.rmtree(host.cgroups)
    host.write_cgroups(observed)
    for name, text in (("cgroup.controllers", "cpuset"), ("cpuset.cpus.effective", str(world.node.topology.online))):
        (host.directory / name).write_text(text + "\n")
    (host.state / STATE_FILE).write_bytes(encode_state(world.state, policies_of(world.config.placement)))
    _, out, _ = run("inspect", "-o", "json", *host.options)
    shown = json.loads(out)
    assert shown["differences"] == []
    assert f"{host.cgroups} withholds CPUs {gone} from the pods" in out


def test_without_a_daemon_a_start_that_was_not_saved_is_the_launchers(host, run, monkeypatch):
    of = host.world.state.entry("uid-web")
    status = of.containers[0]
    assert status.is_started
    host.world.state = host.world.state.with_entry(of.with_status(replace(status, started_at_ms=None)))
    host.save()
    found = Running(run_id(of, status), os.getpid(), 1, "boot", None, 5_000)
    launcher = SimpleNamespace(list=lambda: (found,), hello=lambda: SimpleNamespace(cgroup=str(host.cgroups)))
    monkeypatch.setattr(saved_node, "LauncherClient", lambda _path: launcher)
    _, out, _ = run("inspect", "web", "-o", "json", *host.options)
    (state, *_) = [container["state"] for container in json.loads(out)["pods"][0]["containers"]]
    assert (state["name"], state["startedAtMs"]) == ("Running", 5_000)


def test_without_a_daemon_and_cgroups_nothing_is_compared(host, run):
    host.save()
    subprocess.run(["rm", "-r", host.cgroups], check=True)
    status, out, err = run("inspect", *host.options)
    assert (status, err) == (3, "")
    assert "nothing was compared" in out
    assert f"there is no cgroup {host.cgroups}" in " ".join(out.split())
    assert "Start the pods' unit: systemctl start nodeagent-pods" in " ".join(out.split())


def test_with_a_daemon_and_without_cgroups_nothing_is_compared(live, run):
    subprocess.run(["rm", "-r", live.cgroups], check=True)
    status, out, err = run("inspect", "web", "-o", "json", *live.options)
    app, slot = json.loads(out)["pods"][0]["containers"]
    assert (status, json.loads(out)["differences"], err) == (2, None, "")
    assert (app["state"]["name"], app["pid"], app["processes"]) == ("Running", os.getpid(), None)
    assert (slot["state"]["name"], slot["processes"]) == ("Open", None)


def test_a_saved_state_of_other_policies_is_shown_with_the_problem(host, run):
    saved = encode_state(host.world.state, {"cpuManagerPolicy": "static", "memoryManagerPolicy": "None"})
    (host.state / STATE_FILE).write_bytes(saved)
    status, out, _ = run("inspect", *host.options)
    assert status == 3
    assert 'was written under cpuManagerPolicy "static"' in " ".join(out.split())


def test_where_the_configuration_puts_the_socket_is_where_it_is_looked_for(host, run):
    (host.directory / "run").mkdir()
    host.socket = host.directory / "run" / "agent.sock"
    host.start_daemon()
    status, out, _ = run("inspect", "-o", "json", "--config", str(host.config))
    assert (status, json.loads(out)["node"]["agent"]["live"]) == (0, True)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (None, 3, "has saved no state"),
        (b"nonsense", 3, "the first line is not a nodeagent_state header"),
    ],
)
def test_no_daemon_and_no_usable_state(host, run, content, status, message):
    if content is not None:
        (host.state / STATE_FILE).write_bytes(content)
    assert message in failed(run("inspect", *host.options), status=status)


def test_no_daemon_and_no_configuration(host, run):
    host.config.unlink()
    assert f"no configuration at {host.config}" in failed(run("inspect", *host.options), status=3)


@pytest.mark.parametrize("form", ["text", "wide"])
def test_a_machine_without_an_agent_gives_no_orders_for_this_host(form, tmp_path, run):
    root = MACHINE.grow(tmp_path / "copy")
    config = tmp_path / "c.yaml"
    config.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    status, out, err = run("inspect", "--root", str(root), "--config", str(config), "-o", form)
    assert (status, err) == (3, "")
    assert "the capture has no agent" in out
    assert "no pods\n" in out
    assert "cgroups: the capture has no cgroups to compare with" in out
    assert not re.search("systemctl|manifest directory|run as root", out + err)


def test_a_daemon_of_another_version_is_an_error_not_a_traceback(host, run, monkeypatch):
    monkeypatch.setattr(f"{__name__}.view_document", lambda _: {"state": {}})
    host.start_daemon()
    err = failed(run("inspect", *host.options))
    assert "cannot understand the agent's state" in err
    assert "systemctl restart nodeagent" in err


def test_a_socket_that_nobody_listens_at_is_a_daemon_that_is_down(host, run):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(host.socket))
    assert "Connection refused" in failed(run("inspect", *host.options), status=3)


def as_user(uid: int, gids: list[int], *words: str) -> tuple[int, str, str]:
    """Run a command line as another user. What is imported late must be there before: the interpreter may be root's own."""
    late = "difflib, encodings.utf_8_sig, hashlib, locale, psutil, shutil"
    late += ", nodeagent.edge.processes.host_processes, nodeagent.cli.support.node.saved_node"
    commands = ", ".join(
        f"nodeagent.cli.{name}"
        for name in ("main", "commands.inspect", "commands.exec", "commands.retry", "commands.topology")
    )
    program = (
        f"import os, sys, {late}, {commands}\n"
        f"os.setgroups({gids}); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})\n"
        "sys.exit(nodeagent.cli.main.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@needs_root
def test_the_group_sees_everything_through_the_socket(live):
    live.drift()
    status, out, err = as_user(OTHER, [GROUP], "inspect", *live.options)
    assert (status, err) == (2, "")
    assert "cpu.weight is '77'" in out


@needs_root
def test_others_are_told_whom_to_ask(live, host):
    err = failed(as_user(OTHER, [], "inspect", *live.options))
    assert "run as root, or as a member of the group nodeagent" in err


@needs_root
def test_without_a_daemon_only_root_reads_the_saved_state(host):
    host.save()
    err = failed(as_user(OTHER, [GROUP], "inspect", *host.options), status=3)
    assert "only root may read its saved state" in err
    assert "systemctl start nodeagent" in err
    assert stat.S_IMODE(host.state.stat().st_mode) == 0o700


# topology


def test_topology_says_who_owns_what(live, run):
    status, out, err = run("topology", *live.options)
    assert (status, err) == (0, "")
    assert "\nowners\n" in out
    assert "shared" in out


def test_topology_without_an_agent_is_just_the_machine(host, run):
    status, out, err = run("topology", "--socket", str(host.socket))
    assert (status, err) == (0, "")
    assert "socket" in out
    assert "owners" not in out


def test_topology_without_an_agent_shows_what_the_named_configuration_reserves(host, run):
    host.config.write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    status, out, err = run("topology", *host.options)
    assert (status, err) == (0, "")
    assert "owners" in out
    host.config.unlink()
    status, out, err = run("topology", *host.options)
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: no configuration at {host.config}\nhint: ")


@needs_root
def test_topology_tells_others_whom_to_ask_for_the_owners(live):
    status, out, err = as_user(OTHER, [], "topology", "--socket", str(live.socket))
    assert status == 0
    assert "owners" not in out
    assert err == (
        f"nodeagent: CPU owners are left out: cannot connect to {live.socket}: Permission denied\n"
        "hint: run as root, or as a member of the group nodeagent (`usermod -aG nodeagent USER`)\n"
    )


@needs_root
def test_an_agent_that_may_not_be_asked_has_not_refused_a_configuration(live):
    status, out, err = as_user(OTHER, [], "config", "reload", "--socket", str(live.socket))
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: cannot connect to {live.socket}: Permission denied\n")


def test_topology_says_why_there_are_no_owners_where_the_promises_cannot_be_read(host, run):
    settings = json.loads(host.config.read_text()) | {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    host.config.write_text(json.dumps(settings))
    (host.state / STATE_FILE).write_text("damaged")
    status, out, err = run("topology", *host.options)
    assert status == 0
    assert "socket" in out
    assert "owners" not in out
    assert err.startswith(f"nodeagent: CPU owners are left out: cannot use {host.state / STATE_FILE}: ")
    assert "\nhint: start the agent" in err


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({}, ""),
        ({CONFIG: "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"}, ""),  # everybody shares what isn't reserved
        ({CONFIG: "cpuManagerPolcy: static\n"}, "cpuManagerPolcy"),
        ({CONFIG: "cpuManagerPolicy: none\n", SAVED: "damaged"}, SAVED),
        ({SAVED: "damaged"}, "no configuration at "),
    ],
)
def test_topology_of_a_copied_root_says_why_owners_are_missing(there, said, tmp_path, run):
    root = MACHINE.grow(tmp_path / "root")
    for name, text in there.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    status, out, err = run("topology", "--root", str(root))
    assert status == 0
    assert ("owners" in out) is (bool(there) and not said)
    assert said in err
    assert bool(err) is bool(said)
    if said:
        assert err.startswith("nodeagent: CPU owners are left out: ")
        assert len(re.findall(r"^hint: .+", err, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("choice", "environment", "is_terminal", "is_coloured"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {}, True, False),
    ],
)
def test_topology_is_coloured_for_eyes_that_see_it(
    choice, environment, is_terminal, is_coloured, live, run, monkeypatch
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    status, out, _ = run("topology", "--color", choice, *live.options)
    assert (status, "\x1b[" in out) == (0, is_coloured)


def test_what_is_refused_stands_out_in_colour(live, run):
    live.refuse()
    plain = run("inspect", "--color", "never", *live.options)[1]
    shown = run("inspect", "--color", "always", *live.options)[1]
    assert "default/big  \x1b[1;91mRefused\x1b[0m" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == plain
    assert "\x1b" not in run("inspect", "--color", "always", "-o", "json", *live.options)[1]


@pytest.mark.parametrize(
    ("is_terminal", "columns", "widest"), [(True, "60", 60), (True, "200", 200), (False, "200", 80)]
)
def test_text_has_the_terminals_width(is_terminal, columns, widest, live, run, monkeypatch):
    live.refuse()
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    monkeypatch.setenv("COLUMNS", columns)
    longest = max(map(len, run("inspect", "--color", "never", *live.options)[1].splitlines()))
    assert widest // 2 < longest <= widest


def test_topology_draws_owners_in_every_picture(live, run):
    for form, owned in (("svg", ">CPU 0: shared<"), ("hwloc-xml", '<info name="Owner" value="shared"/>')):
        status, out, err = run("topology", "-o", form, *live.options)
        assert (status, err) == (0, "")
        assert owned in out


# exec


@needs_root
@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        (["wbe", "app"], None, "no pod is named 'wbe'"),
        (["web", "../web/app"], None, "pod default/web has no container '../web/app'"),
        (["web", "app"], "terminating", "pod default/web is being ended"),
        (["web", "app"], "finished", "pod default/web has finished (Succeeded)"),
        (["web", "app"], "drifted", "cpuset.cpus of shared/pool is '4095'"),
        (["web", "slot"], "no cgroups", "the pods' cgroup cannot be read"),
        (["web", "slot"], "used below", "is the parent of other cgroups (ctr)"),
        (["big", "app"], "refused", "pod default/big was refused: OutOfcpu: too little"),
    ],
)
def test_exec_refuses_with_the_reason(words, change, message, live, run):
    entry = live.world.state.entries[0]
    match change:
        case "terminating":
            live.world.state = replace(live.world.state, entries=(replace(entry, deleting_since_ms=1),))
        case "finished":
            live.world.state = replace(live.world.state, entries=(replace(entry, outcome=Phase.SUCCEEDED),))
        case "drifted":
            (live.cgroups / POOL / "cpuset.cpus").write_text("4095")
        case "no cgroups":
            subprocess.run(["rm", "-r", live.cgroups], check=True)
        case "used below":
            child = live.cgroups / entry.pod_path / "slot" / "ctr"
            child.mkdir()
            (child / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        case "refused":
            live.refuse()
    assert message in failed(run("exec", *live.options, *words, "--", "true"), status=125)


@needs_root
def test_exec_cannot_enter_what_is_no_cgroup(live, run):
    """The last step is the kernel's: this directory only looks like a cgroup."""
    (live.cgroups / "shared/pool/payload/besteffort/poduid-web/slot/cgroup.procs").unlink()
    assert "cannot enter cgroup" in failed(run("exec", *live.options, "web", "slot", "--", "true"), status=125)


@needs_root
def test_exec_is_for_root(live):
    err = failed(as_user(OTHER, [GROUP], "exec", *live.options, "web", "slot", "--", "true"), status=125)
    assert err == "nodeagent: only root may enter a container\nhint: sudo nodeagent exec web slot -- …\n"


def test_a_command_that_is_not_there_is_127():
    with pytest.raises(CommandError) as caught:
        run_command(["/nowhere/to-be-found"])
    assert caught.value.exit_status == 127
    assert "'/nowhere/to-be-found'" in caught.value.message
    assert caught.value.hint


def test_a_command_that_cannot_be_run_leaves_signals_as_they_were(tmp_path):
    with pytest.raises(CommandError):
        run_command([str(tmp_path)])
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN


def test_a_command_that_cannot_be_run_is_126(tmp_path):
    (tmp_path / "data").write_text("no program")
    (tmp_path / "data").chmod(0o755)
    for path in (tmp_path, tmp_path / "data"):
        with pytest.raises(CommandError) as caught:
            run_command([str(path)])
        assert caught.value.exit_status == 126


def test_what_it_becomes_has_the_commands_status_and_ignores_no_more_signals_than_the_caller():
    shown = "grep SigIgn /proc/self/status"
    caller = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
    program = f"from nodeagent.cli.support.becoming import run_command; run_command(['sh', '-c', '{shown}; exit 7'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    # signals 32 and 33 are the C library's: whether a shell was started with them ignored depends on how Python spawned it
    ignored = [int(shown.partition(":")[2], 16) & ~(3 << 31) for shown in (done.stdout, caller.stdout)]
    assert ignored[0] == ignored[1]


# retry


def test_retry_reports_that_the_pod_is_admitted(live, run):
    live.refuse()
    live.refusals = [None]
    assert run("retry", "default/big", "--socket", str(live.socket)) == (
        0,
        "pod default/big is admitted; see: nodeagent inspect default/big\n",
        "",
    )


def test_retry_reports_that_it_is_refused_again_and_what_to_do(live, run):
    live.refuse()
    live.refusals = [Waiting("OutOfpods", "none left", 2)]
    err = failed(run("retry", "default/big", "--socket", str(live.socket)), status=4)
    assert "pod default/big is refused again: OutOfpods: none left" in err
    assert "maxPods" in err


@pytest.mark.parametrize(("reason", "word"), [("ResizeDeferred", "deferred"), ("ResizeInfeasible", "infeasible")])
def test_a_resize_that_waits_or_cannot_be_is_shown_in_kubernetes_words(live, run, reason, word):
    live.refuse_change(reason)
    out = run("inspect", *live.options)[1]
    asked = "app: cpu not set → 400, memory not set → 1Gi"
    assert f"    resize {word}: too little\n    requested: {asked}\n    next: " in out
    out = run("inspect", *live.options, "default/big")[1]
    assert f"resize {word}" in out
    assert re.search(f"requested +{asked}", out)


def test_a_changed_manifest_that_was_refused_is_shown_under_its_pod(live, run):
    live.refuse_change()
    _, out, _ = run("inspect", *live.options)
    assert "    changed manifest refused: OutOfcpu: too little\n    requested: " in out
    _, out, _ = run("inspect", *live.options, "default/big")
    assert "change refused  OutOfcpu: too little" in out
    _, out, _ = run("inspect", *live.options, "-o", "json")
    document = json.loads(out)
    json_schema.check(document, "inspection")
    found = {of["name"]: of["refusedChange"] and of["refusedChange"]["reason"] for of in document["pods"]}
    assert found["big"] == "OutOfcpu"
    assert {name for name, reason in found.items() if reason} == {"big"}


def test_retry_of_a_changed_manifest_reports_what_comes_of_it(live, run):
    live.refuse_change()
    live.refusals = [None, Waiting("OutOfpods", "none left", 2)]
    err = failed(run("retry", "default/big", "--socket", str(live.socket)), status=4)
    assert "the changed manifest of pod default/big is refused again: OutOfpods: none left" in err
    assert run("retry", "default/big", "--socket", str(live.socket)) == (
        0,
        "pod default/big is ending, and starts again with its changed manifest; see: nodeagent inspect default/big\n",
        "",
    )


@pytest.mark.parametrize(
    ("refusal", "status", "admitted"), [(None, 0, True), (Waiting("OutOfpods", "none left", 2), 4, False)]
)
def test_retry_as_json_is_as_its_schema_says(live, run, refusal, status, admitted):
    live.refuse()
    live.refusals = [refusal]
    found = run("retry", "default/big", "--socket", str(live.socket), "-o", "json")
    document = json.loads(found[1])
    json_schema.check(document, "retry")
    assert (found[0], found[2]) == (status, "")
    assert (document["name"], document["uid"], document["admitted"]) == ("big", "uid-big", admitted)
    assert (document["refusal"] or {}).get("message") == (None if refusal is None else "none left")


def test_retry_as_yaml_of_a_pod_that_is_decided_as_before(live, run):
    live.refuse()
    status, out, err = run("retry", "default/big", "--socket", str(live.socket), "-o", "yaml")
    document = yaml.safe_load(out)
    json_schema.check(document, "retry")
    assert (status, err, document["admitted"]) == (4, "", False)
    assert "pod default/big is refused again" in failed(
        run("retry", "default/big", "--socket", str(live.socket)), status=4
    )


def test_retry_passes_on_what_the_agent_says(live, run):
    assert NOT_REFUSED.message in failed(run("retry", "web", "--socket", str(live.socket)))


def test_retry_needs_the_agent(host, run):
    assert "the agent does not answer" in failed(run("retry", "web", "--socket", str(host.socket)), status=3)


@needs_root
def test_retry_is_for_root(live):
    live.refuse()
    err = failed(as_user(OTHER, [GROUP], "retry", "default/big", "--socket", str(live.socket)))
    assert f"user {OTHER} may not ask for 'retry'" in err


def test_a_state_without_pods_is_no_problem(live, run):
    live.world.state = NodeState(live.world.state.promises)
    live.write_cgroups(live.world.observed())
    subprocess.run(["rm", "-r", live.cgroups / "shared/pool/payload/besteffort/poduid-web"], check=True)
    status, out, _ = run("inspect", *live.options)
    assert (status, "no pods:" in out) == (0, True)


def test_cpus_are_of_this_machine(live, run):
    _, out, _ = run("inspect", "-o", "json", "--no-host-processes", *live.options)
    document = json.loads(out)
    assert CpuSet.parse(document["node"]["cpus"]["online"]) == topology_of(read_machine()).online
    assert document["hostProcesses"] is None
