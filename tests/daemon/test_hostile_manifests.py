"""A directory of everything that a manifest must not be, before the real agent: one refusal each, and no write outside its own places."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.formats.wire.launcher_protocol import StartRequest
from tests.daemon.test_load import MACHINE_64, agent_of, directories, live
from tests.support.daemon_model import Client
from tests.support.node_model import Machine
from tests.support.world import node

GOOD = "apiVersion: v1\nkind: Pod\nmetadata: {name: good, uid: uid-good}\nspec:\n  containers: [{name: app, command: [run]}]\n"
BOMB = "\n".join(["a0: &a0 [x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))])
PATHS = (
    "../../../etc/cron.d/x",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "a\0b",
    "a\nb",
    "a\u202eb",
    "x" * 5000,
    "cgroup.procs",
    "_",
    " ",
)


def metadata(**fields: object) -> str:
    return GOOD.replace("{name: good, uid: uid-good}", json.dumps({"name": "bad", **fields}))


def container(**fields: object) -> str:
    return GOOD.replace("good", "bad").replace(
        "{name: app, command: [run]}", json.dumps({"name": "app", "command": ["x"], **fields})
    )


TEXTS: dict[str, str] = {
    **{f"name-{i}": metadata(name=text) for i, text in enumerate(PATHS) if text != "cgroup.procs"},
    **{f"namespace-{i}": metadata(namespace=text) for i, text in enumerate(PATHS)},
    **{f"uid-{i}": metadata(uid=text) for i, text in enumerate(PATHS) if text not in {"cgroup.procs", "_"}},
    **{f"container-{i}": container(name=text) for i, text in enumerate(PATHS)},
    "cpu-absurd": container(resources={"limits": {"cpu": "9e99"}}),
    "cpu-negative": container(resources={"limits": {"cpu": "-1"}}),
    "memory-absurd": container(resources={"limits": {"memory": "99999999999Ei"}}),
    "hugepages-path": container(resources={"limits": {"cpu": 1, "hugepages-../../x": "2Mi"}}),
    "user-absurd": container(securityContext={"runAsUser": 2**63}),
    "directory-relative": container(workingDir="../../etc"),
    "containers-many": GOOD.replace("good", "bad").replace(
        "[{name: app, command: [run]}]", "[" + "{name: a}, " * 20_000 + "]"
    ),
    "bomb": BOMB,
    "deep": "[" * 100_000,
    "deep-json": '{"a":' * 100_000,
    "twice": GOOD.replace("good", "bad") + "kind: Pod\n",
    "binary": "\x7fELF\x01\x02",
    "large": "#" * (2 << 20),
}


def special(directory: Path, outside: Path) -> Iterator[str]:
    """Make what is not a regular file. Names those that a refusal is due for."""
    (outside / "secret").write_text("root:*:hunter2\n")
    (directory / "stolen.yaml").symlink_to(outside / "secret")
    (directory / "loop.yaml").symlink_to("loop.yaml")
    (directory / "nowhere.yaml").symlink_to(outside / "not-there")
    (directory / "endless.yaml").symlink_to("/dev/zero")
    os.mkfifo(directory / "fifo.yaml")
    (directory / "a-directory.yaml").mkdir()
    (directory / "line\nbreak.yaml").write_text(GOOD)
    yield from (f"{name}.yaml" for name in ("stolen", "loop", "nowhere", "endless", "fifo", r"line\nbreak"))


EVENTS = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.truncate",
}


@contextmanager
def touched() -> Iterator[set[str]]:
    """Every path that this process opens for writing, makes, renames or removes, as the interpreter tells it."""
    found: set[str] = set()
    is_on = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if not is_on:
            return
        if event == "open" and isinstance(arguments[0], str | bytes) and isinstance(arguments[2], int):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                found.add(os.fsdecode(arguments[0]))
        elif event in EVENTS:
            found.update(str(argument) for argument in arguments if isinstance(argument, str | bytes | os.PathLike))

    sys.addaudithook(hook)
    try:
        yield found
    finally:
        is_on = False


def test_each_is_refused_once_and_nothing_is_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests, state = directories(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    for name, text in TEXTS.items():
        (manifests / f"{name}.yaml").write_text(text)
    (manifests / "good.yaml").write_text(GOOD)
    refused = {*(f"{name}.yaml" for name in TEXTS), *special(manifests, outside)}
    machine, asked = Machine(node(MACHINE_64)), list[StartRequest]()
    start = Client.start
    monkeypatch.setattr(Client, "start", lambda client, request: (asked.append(request), start(client, request))[1])
    began = time.process_time()
    with agent_of(machine.node, machine, manifests, state) as daemon:
        with touched() as paths:
            live(daemon, lambda: bool(machine.runs), WakeUpReason.START)
            for reason in (WakeUpReason.TIMER, WakeUpReason.MANIFESTS):
                daemon.agent.turn(frozenset({reason}))
        problems = daemon.agent.view.problems
    assert time.process_time() - began < 30
    assert [entry.pod.name for entry in daemon.agent.state.entries] == ["good"]
    reported = [line for line in daemon.said() if line["event"] == "manifest_refused"]
    assert {line["source"] for line in reported} == refused
    assert len(reported) == len(refused), "each is told once"
    assert all(len(problem) < 1000 for line in reported for problem in line["problems"])
    assert all(problem.isprintable() for problem in problems)
    assert "hunter2" not in daemon.log.getvalue() + repr(problems), "what lies behind a link isn't quoted"

    assert any(path.endswith("nodeagent_state") for path in paths), "the hook sees what is written"
    strange = {path for path in paths if not path.startswith(f"{state}/")}
    assert strange <= {"/proc/self/fd", str(state)}
    assert {change.path for change in machine.writes} <= {
        *("", *OWN_DIRECTORIES),
        *("shared/pool/payload/besteffort/poduid-good", "shared/pool/payload/besteffort/poduid-good/app"),
    }
    [request] = asked
    assert request.cgroup == "/pods/shared/pool/payload/besteffort/poduid-good/app"
    assert request.log_file == "/var/log/nodeagent/pods/default/good/uid-good/app.log"
