"""`nodeagent interference` names who ran on exclusive CPUs besides their owner, and nobody else; nothing of it stays in the kernel."""

import json
import re
from collections.abc import Iterator

import pytest

from integration.guest.guest import Guest
from integration.node import Document, Node, container, pod

INSTANCES = "/sys/kernel/tracing/instances"
COUNTING = f"until grep -qs '[[]active]' {INSTANCES}/nodeagent-*/events/sched/sched_switch/trigger; do sleep 0.1; done"
"""Waits until everything is counted: its counter is the last that begins."""
_SHORT_LIVED = """for name in sh true sleep; do cp /bin/$name /run/own-$name-$$; done
exec /run/own-sh-$$ -c "while :; do /run/own-true-$$; /run/own-sleep-$$ 0.05; done\""""
SHORT_LIVED = ["sh", "-c", _SHORT_LIVED]
"""By names that nothing else has: the measurement of the guest's pace, which may be on any CPU, runs `sh` and `true`, too."""
INTRUDER = "systemd-run -q --collect --unit=intruder -p CPUAffinity={cpu} bash -c "
NOW_AND_THEN = "'exec 3<> <(:); while :; do for i in {{1..500}}; do :; done; read -t 0.02 -u 3; done'"
"""It pauses, as do the short-lived: the counting waits for every emulated CPU, and each of these for a real one."""
WITHOUT_END = "'while :; do :; done'"


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    yield from watched(request.getfixturevalue(request.param))


@pytest.fixture
def debian_12(two_sockets: Guest) -> Iterator[Node]:
    yield from watched(two_sockets)


def watched(guest: Guest) -> Iterator[Node]:
    yield Node(guest)
    guest.run("systemctl stop intruder count", check=False)
    assert guest.run(f"ls {INSTANCES}").stdout == "", "nothing is left of it in the kernel"


def counted(node: Node, arguments: str) -> tuple[int, Document]:
    """Status and answer of one count."""
    done = node.run(f"nodeagent interference -o json {arguments}", check=False)
    assert done.returncode in {0, 2}, done.stderr
    document: Document = json.loads(done.stdout)
    return done.returncode, document


def pinned(node: Node, *names: str, command: list[str]) -> dict[str, str]:
    """Run pods that have two CPUs each, and return those."""
    node.apply(*(pod(name, container("app", command, cpu="2")) for name in names))
    state = node.wait_running(*names)
    return {name: state["promises"]["pods"][f"uid-{name}"]["cpus"]["app"] for name in names}


def last_of(cpus: str) -> str:
    return cpus.replace("-", ",").split(",")[-1]


def test_who_ran_there_is_named_and_an_owners_short_lived_children_are_not(node: Node) -> None:
    cpus = pinned(node, "worked", "idle", command=SHORT_LIVED)
    cpu = last_of(cpus["worked"])
    node.run((INTRUDER + NOW_AND_THEN).format(cpu=cpu))

    status, found = counted(node, "--seconds 1")

    worked, idle = found["cpus"]
    assert (status, found["alone"], worked["pod"], worked["cpus"]) == (2, False, "default/worked", cpus["worked"])
    (intruder,) = (one for one in worked["tasks"] if one["of"] == "/system.slice/intruder.service")
    assert (intruder["name"], intruder["kind"], intruder["cpus"]) == ("bash", "process", cpu)
    assert intruder["times"] > 0
    assert found["microseconds"] * 0.02 < intruder["microseconds"] <= found["microseconds"]
    assert idle["pod"] == "default/idle"
    for one in (*worked["tasks"], *idle["tasks"]):
        assert not one["name"].startswith("own-"), "an owner's own processes"
        assert one["kind"] != "container", "no pod is on another's CPUs"
    for one in (one for claim in found["cpus"] for kind in ("tasks", "interrupts", "softirqs") for one in claim[kind]):
        assert one["microseconds"] <= 2 * found["microseconds"], "no more than two CPUs have"


def test_interrupts_are_named_with_their_device_and_whether_they_could_be_elsewhere(node: Node) -> None:
    """What its disk's queue answers an owner on its own CPU is an interrupt that cannot be moved; only newer kernels tell."""
    read = [
        "sh",
        "-c",
        "while :; do dd if=/dev/vda of=/dev/null bs=4k count=8 iflag=direct 2>/dev/null; sleep 0.05; done",
    ]
    pinned(node, "reader", command=read)

    _, found = counted(node, "reader --seconds 1")

    queues = [one for one in found["cpus"][0]["interrupts"] if "-req." in one["name"]]
    assert queues
    assert {one["movable"] for one in queues} == {False if node.run("uname -r").stdout.startswith("6.12") else None}
    assert all(one["times"] > 0 for one in queues)


def test_one_that_never_lets_go_of_a_cpu_is_named_too(debian_12: Node) -> None:
    """It may not be switched at all in so short a time: then it is found by what runs there at the end."""
    node = debian_12
    cpus = pinned(node, "idle", command=["sleep", "infinity"])
    node.run((INTRUDER + WITHOUT_END).format(cpu=last_of(cpus["idle"])))

    status, found = counted(node, "idle --seconds 0.1")

    (intruder,) = (one for one in found["cpus"][0]["tasks"] if one["of"] == "/system.slice/intruder.service")
    assert status == 2
    assert intruder["microseconds"] > 0

    frames = node.run("nodeagent inspect --watch --interference --frames 2 --interval 0.5").stdout
    told = [line for line in frames.splitlines() if "INTERFERENCE" in line or "idle app: CPUs" in line]
    for heading, row in zip(told[::2], told[1::2], strict=True):
        assert re.fullmatch(r"INTERFERENCE 1 in [\d.]+ s:", heading)
        assert re.match(rf"  default/idle app: CPUs {cpus['idle']}: .*\bbash [1-9]\d*\.\d%", row)


def test_what_joins_and_what_its_owner_starts_later_is_the_owners(debian_12: Node) -> None:
    node = debian_12
    node.apply(pod("open", container("app", None, cpu="1")))
    node.wait_running("open")
    node.run(
        "systemd-run -q --collect --unit=count -p StandardOutput=truncate:/run/count nodeagent interference -o json --seconds 60"
    )
    node.run(COUNTING)
    # names that nothing else on the host has, not even the command before it has joined
    node.run("cp /bin/sh /run/joined; cp /bin/true /run/later")
    node.run("nodeagent exec open app -- /run/joined -c 'for i in 1 2 3 4 5; do /run/later; done'")
    node.run("systemctl kill -s INT count; until ! systemctl is-active -q count; do sleep 0.1; done")

    found = json.loads(node.guest.get("/run/count"))
    assert found["endedEarly"] is True
    assert found["microseconds"] < 60_000_000
    (claim,) = found["cpus"]
    assert [one for one in claim["tasks"] if one["name"] in {"joined", "later"}] == []


def test_what_a_killed_one_has_made_goes_with_it(debian_12: Node) -> None:
    node = debian_12
    pinned(node, "idle", command=["sleep", "infinity"])
    node.run("systemd-run -q --collect --unit=count nodeagent interference --seconds 600")
    node.run(COUNTING)
    node.run("systemctl kill --kill-who=main -s KILL count")
    node.run(f'until test -z "$(ls {INSTANCES})"; do sleep 0.1; done')


@pytest.mark.long  # the short form is the test above, whose leftovers go without another run
def test_the_next_run_removes_what_is_left(debian_12: Node) -> None:
    node = debian_12
    pinned(node, "idle", command=["sleep", "infinity"])
    node.run("systemd-run -q --collect --unit=count nodeagent interference --seconds 60")
    node.run(COUNTING)
    node.run("systemctl kill -s KILL count; until ! systemctl is-active -q count; do sleep 0.1; done")
    (left,) = node.run(f"ls {INSTANCES}").stdout.split()
    assert left.startswith("nodeagent-")

    counted(node, "--seconds 0.1")

    assert node.run(f"ls {INSTANCES}").stdout == ""


@pytest.mark.long  # the short form is the test above that ends its count by SIGINT
@pytest.mark.parametrize("signal", ["INT", "TERM", "HUP"])
def test_a_signal_ends_it_early_and_nothing_is_left(debian_12: Node, signal: str) -> None:
    node = debian_12
    pinned(node, "idle", command=["sleep", "infinity"])
    node.run(
        "systemd-run -q --collect --unit=count -p StandardOutput=truncate:/run/count nodeagent interference --seconds 60"
    )
    node.run(COUNTING)
    node.run(f"systemctl kill -s {signal} count; until ! systemctl is-active -q count; do sleep 0.1; done")

    assert "ended early" in node.guest.get("/run/count").decode()


def test_only_root_may_count(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    pinned(node, "idle", command=["sleep", "infinity"])
    done = node.run("setpriv --reuid=nobody --regid=nodeagent --clear-groups nodeagent interference", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("Permission denied\nhint: run this as root\n")
    watched = "nodeagent inspect --watch --interference --frames 1"
    frame = node.run(f"setpriv --reuid=nobody --regid=nodeagent --clear-groups {watched}").stdout
    assert re.search(r"^INTERFERENCE unknown: .*Permission denied \(run this as root\)$", frame, re.MULTILINE)
    assert "default/idle app" in frame


def test_a_node_without_exclusive_cpus_says_so(debian_12: Node) -> None:
    done = debian_12.run("nodeagent interference")
    assert done.stdout == "No pod has exclusive CPUs.\n"
