"""Jobs as users run them: on CPUs of their own from the first instruction, with their own identity, gone with what owns them."""

import json
import shlex
import signal
from collections.abc import Callable

import pytest

from integration.guest.guest import Guest
from integration.guest.session import Request
from integration.node import CONFIG, READY, ROOT, STATE, WAIT_SECONDS, Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet

JOB = "nodeagent job --cpus 2 --memory 64Mi"
BOUNDS = b"jobs: {group: runners, maxCPUs: 4, maxMemory: 1Gi, maxPerUser: 2} #"


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def start(node: Node, command: str, *, terminal: bool = False) -> Request:
    """Start a job and leave it running."""
    return node.guest.start(["bash", "-c", f"exec {command}"], terminal=(24, 80, "dumb") if terminal else None)


def ended(node: Node, job: Request, seconds: float = WAIT_SECONDS) -> int:
    """Wait for a command's end; return its status as a shell shows it."""
    status = node.until(
        lambda: job.wait(0.2), lambda: f"still running: {bytes(job.stdout)!r} {bytes(job.stderr)!r}", seconds
    )
    return status if status >= 0 else 128 - status


def said(node: Node, job: Request, what: bytes, seconds: float = WAIT_SECONDS) -> str:
    """Wait until a command has said something; return all it said."""

    def look() -> bytes | None:
        job.wait(0.1)
        return bytes(job.stdout) if what in bytes(job.stdout) else None

    return node.until(
        look, lambda: f"{what!r} is not in {bytes(job.stdout)!r}, {bytes(job.stderr)!r}", seconds
    ).decode()


def there(name: str) -> Callable[[Document], bool]:
    return lambda state: name in names(state)


def names(state: Document) -> set[str]:
    return {entry["pod"]["metadata"]["name"] for entry in state["entries"]}


def gone(state: Document) -> bool:
    return not state["entries"] and not state["promises"]["pods"]


def test_a_command_is_itself_on_cpus_of_its_own(node: Node) -> None:
    node.run("cd /tmp && echo word >words")
    shell = (
        "grep ^Cpus_allowed_list /proc/self/status; echo $NODEAGENT_EXCLUSIVE_CPUS $MINE $(id -u) $PWD; cat; "
        "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/../memory.swap.max; "
        "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/../../pids.max; exit 7"
    )
    done = node.run(f"cd /tmp && MINE=x taskset -c 0 {JOB} --name one -- sh -c '{shell}' <words", check=False)
    allowed, told, word, swap, most = done.stdout.splitlines()
    assert (done.returncode, word, told) == (7, "word", f"{allowed.split()[1]} x 0 /tmp"), done.stderr
    assert (swap, most) == ("0", "4096")
    assert node.run(f"{JOB} -- sh -c 'kill -TERM $$' || exit $?", check=False).returncode == 143
    # what one leaves running is ended before the next has its CPUs, although almost all are needed each time
    leaving = "nodeagent job --cpus 13 --memory 64Mi -- sh -c 'sleep infinity & exit 0'"
    node.run(f"for n in 1 2; do {leaving}; done")
    node.wait(gone, "the last job to be gone")


LATENCIES = "cat /sys/devices/system/cpu/cpu*/power/pm_qos_resume_latency_us | sort | uniq -c"


def test_a_quiet_job_bounds_idle_states_only_on_its_cores_and_gives_all_back(node: Node) -> None:
    """The kernel's own files. Neither the death of the agent nor that of the command leaves a bound behind."""
    before = node.run(LATENCIES).stdout
    file = "/sys/devices/system/cpu/cpu$c/power/pm_qos_resume_latency_us"
    shell = f'for c in $(echo $NODEAGENT_EXCLUSIVE_CPUS | tr ,- "  "); do cat {file}; done; echo up; exec sleep 1010'
    of_process = (
        "grep -E THP_enabled\\|Cpus_allowed_list /proc/self/status; echo $NODEAGENT_EXCLUSIVE_CPUS; "
        "cat /proc/self/personality; nice; chrt -p $$"
    )
    options = "--quiet --no-aslr --no-thp --sched fifo:10 --nice 3"
    job = start(node, f"{JOB} {options} --name still -- sh -c '{of_process}; {shell}'")
    thp, allowed, told, personality, nice, policy, priority, *rest = said(node, job, b"up").splitlines()
    assert (thp.split()[1], allowed.split()[1], personality, nice) == ("0", told, "00040000", "3")
    assert (policy.split()[-1], priority.split()[-1]) == ("SCHED_FIFO", "10")
    assert rest == ["5", "5", "up"], bytes(job.stderr)
    assert b"idle latency" not in bytes(job.stderr), "this kernel has it"
    has_governors = node.run("test -e /sys/devices/system/cpu/cpu0/cpufreq", check=False).returncode == 0
    assert (b"not quiet: frequency governor of CPU" in bytes(job.stderr)) != has_governors
    during = node.run(LATENCIES).stdout
    assert ["4", "5"] in [line.split() for line in during.splitlines()], "both threads of two cores"
    node.kill_agent()
    assert node.run(LATENCIES).stdout == during
    node.run("pkill -KILL -f '^sleep 1010'")
    node.wait(gone, "the job to be gone")
    node.until(lambda: node.run(LATENCIES).stdout == before or None, lambda: node.run(LATENCIES).stdout)
    again = start(node, f"{JOB} --quiet -- sh -c 'echo up; exec sleep 1011'")
    said(node, again, b"up")
    node.run("systemctl stop nodeagent nodeagent-pods")
    assert node.run(LATENCIES).stdout == before, "the pods' unit restores without an agent"


def test_a_refused_job_says_why(node: Node) -> None:
    node.apply(pod("other", container("app", ["sleep", "infinity"], cpu="4")))
    node.wait_running("other")
    refused = node.run("nodeagent job --cpus 14 --memory 64Mi --name large -- touch /run/never", check=False)
    assert refused.returncode == 125
    assert "jobs/large: OutOfcpu" in refused.stderr
    assert "would admit" in refused.stderr, "the explanation"
    assert node.run("test -e /run/never", check=False).returncode == 1
    node.wait(lambda state: names(state) == {"other"}, "the refused job to be forgotten", of=["other"])


def test_a_job_waits_for_room_in_its_place_and_leaves_with_its_process(node: Node) -> None:
    """A restart of the agent keeps the places. Ctrl-C gives a place up, and so does a closed terminal."""
    holder = start(node, "nodeagent job --cpus 8 --memory 64Mi --name holder -- sh -c 'echo up; exec sleep 1004'")
    said(node, holder, b"up")
    waits = "nodeagent job --cpus 12 --memory 64Mi --wait=30m"
    first = start(node, f"{waits} --name first -- sh -c 'echo first; exec sleep 1005'", terminal=True)
    node.wait(there("first"), "the first one to wait")
    second = start(node, f"{waits} --name second -- sh -c 'echo second; exec sleep 1006'")
    node.wait(there("second"), "the second one to wait")
    third = start(
        node, "nodeagent job --cpus 1 --memory 64Mi --wait --name third -- sh -c 'echo third; exec sleep 1007'"
    )
    node.wait(there("third"), "the third one to wait")
    terminal = "tmux -L closed -f /dev/null"
    node.run(f"{terminal} new-session -d '{waits} --name fourth -- sleep infinity'")
    node.wait(there("fourth"), "the one in another terminal to wait")
    node.run(f"{terminal} kill-server")
    node.wait(lambda state: "fourth" not in names(state), "the one whose terminal is closed to leave")
    huge = node.run("nodeagent job --cpus 64 --memory 64Mi --wait -- true", check=False)
    assert (huge.returncode, "OutOfcpu" in huge.stderr) == (125, True)
    late = node.run("nodeagent job --cpus 12 --memory 64Mi --wait=1s -- true", check=False)
    assert (late.returncode, "the job could not start within the time of --wait" in late.stderr) == (125, True), (
        late.stderr
    )

    queued = json.loads(node.run("nodeagent queue -o json").stdout)["jobs"]
    assert [(one["name"], one["state"]) for one in queued] == [
        ("jobs/holder", "running"),
        *((f"jobs/{name}", "waiting") for name in ("first", "second", "third")),
    ]
    assert queued[1]["startUnknown"] == f"PID {queued[0]['pid']}'s job has no time limit"
    assert "4. " not in node.run("nodeagent queue").stdout
    since = {one["name"]: one["sinceMs"] for one in queued}
    node.run(f"systemctl restart nodeagent; {READY}")
    node.kill_agent()
    node.run(READY)
    shown = {one["name"]: one for one in node.inspect()["pods"]}
    assert list(shown) == ["holder", "first", "second", "third"]
    assert [one["phase"] for one in shown.values()] == ["Running", "Waiting", "Waiting", "Waiting"]
    again = json.loads(node.run("nodeagent queue -o json").stdout)["jobs"]
    assert {one["name"]: one["sinceMs"] for one in again} == since
    first.send(b"\x03")
    assert ended(node, first) == 130
    node.wait(lambda state: names(state) == {"holder", "second", "third"}, "the first one to leave")
    assert bytes(third.stdout) == b""
    holder_pid = node.run("pgrep -f '^sleep 1004'").stdout.strip()
    node.run(f"kill {holder_pid}")
    said(node, second, b"second")
    said(node, third, b"third")
    node.run("pkill -f '^sleep 100[67]'")
    node.wait(gone, "both to be gone")


def test_reserved_room_is_left_to_the_jobs_in_the_reservation_over_a_kill_of_the_agent(node: Node) -> None:
    node.run("nodeagent reserve --cpus 10 --for 1h --name soon --from $(date -d '+2 minutes' +%H:%M)")
    refused = node.run("nodeagent job --cpus 8 --memory 64Mi -- true", check=False)
    assert (refused.returncode, "WaitingForReservation" in refused.stderr) == (125, True), refused.stderr
    beside = start(node, "nodeagent job --cpus 2 --memory 64Mi --name beside -- sh -c 'echo up; exec sleep 1008'")
    said(node, beside, b"up")
    inside = start(
        node,
        "nodeagent job --cpus 10 --memory 64Mi --reservation soon --wait --name inside -- sh -c 'echo in; sleep 9'",
    )
    node.wait(there("inside"), "the job to wait for its reservation")
    node.kill_agent()
    node.run(READY)
    (kept,) = json.loads(node.run("nodeagent reserve --list -o json").stdout)["reservations"]
    assert (kept["name"], kept["cpus"], kept["hasRoom"]) == ("soon", "10", True)
    said(node, inside, b"in", seconds=180)  # two minutes, of which the clock shows whole ones
    assert int(node.run("date +%s%3N").stdout) >= kept["fromMs"]
    assert ended(node, inside) == 0
    node.run("nodeagent reserve --cancel soon; pkill -f '^sleep 1008'")
    assert node.run("nodeagent job --cpus 8 --memory 64Mi --until-free -- echo done").stdout == "done\n"
    node.wait(gone, "all to be gone")


def test_it_is_on_the_numa_node_that_it_names_and_says_at_its_end_what_it_used(node: Node) -> None:
    shell = "awk '/^Cpus_allowed_list/ {print \\$2}' /proc/self/status; exit 3"
    done = node.run(f'{JOB} --numa 1 --name far --report -- sh -c "{shell}"', check=False)
    cpus = done.stdout.strip()
    assert done.returncode == 3, done.stderr
    assert CpuSet.parse(cpus) <= CpuSet.parse("8-15")
    assert done.stderr.startswith("nodeagent: jobs/far: ")
    assert f" s on CPUs {cpus} of NUMA 1; " in " ".join(done.stderr.split())
    node.wait(gone, "the job to be gone")


def test_the_cpus_of_a_pod_are_told_for_other_tools(node: Node) -> None:
    node.apply(pod("slot", container("slot", None, cpu="2")))
    promised = node.wait_running("slot")["promises"]["pods"]["uid-slot"]["cpus"]["slot"]
    assert node.run("nodeagent cpus slot").stdout == f"{promised}\n"


def test_a_job_ends_when_its_time_is_over_whatever_it_does_against_that(node: Node) -> None:
    """It ignores SIGTERM and stops the process that waits for it; a restart of the agent changes nothing."""
    shell = "trap '' TERM; kill -STOP $PPID; echo up; while :; do sleep 1; done"
    job = start(node, f"nodeagent job --cpus 8 --memory 64Mi --max-time 5s --name long -- sh -c {shlex.quote(shell)}")
    said(node, job, b"up")
    node.kill_agent()
    node.run(READY)
    waits = start(node, "nodeagent job --cpus 12 --memory 64Mi --wait --name waits -- echo room")
    said(node, waits, b"room", seconds=60)  # 10 of them are the grace period
    node.run("pkill -CONT -f 'nodeagent job .*--max-time'")
    assert (ended(node, job), ended(node, waits)) == (124, 0)
    assert b"the job's time was over" in bytes(job.stderr)
    node.wait(gone, "both to be gone")


def test_it_ends_with_its_process_and_with_nothing_else(node: Node) -> None:
    job = start(node, f"{JOB} --name long -- sh -c 'trap \"\" HUP; sleep 1000 & sleep 1001 & echo up; wait'")
    said(node, job, b"up")
    state = node.wait(there("long"), "the job")
    (uid,) = state["promises"]["pods"]
    procs = node.run(
        f"cat /sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service/pod{uid}/main/payload/cgroup.procs"
    ).stdout
    before = node.footprint()
    assert len(procs.split()) == 3
    node.kill_agent()
    launcher = node.main_pid("nodeagent-launcher")
    node.run(
        f"kill -9 {launcher}; until [ $(systemctl show -P MainPID nodeagent-launcher) != {launcher} ]; do sleep .2; done"
    )
    node.run(f"systemctl stop nodeagent; rm {STATE}/nodeagent_state; {READY}")
    assert node.footprint() == before, "restarts, and the loss of the state, touch nothing"
    shown = node.inspect()
    assert shown["differences"] == []
    assert [one["name"] for one in shown["pods"]] == ["long"]

    node.run(f"kill -9 {procs.split()[0]}")
    assert ended(node, job) == 137
    node.wait(gone, "the job to be gone with its process")
    assert node.run(f"ps -o pid= -p {','.join(procs.split())}", check=False).stdout == ""

    for name, status in (("INT", 130), ("QUIT", 131)):
        job = start(node, f"{JOB} --name {name.lower()} -- bash -c 'echo up; exec sleep 1003'")
        said(node, job, b"up")
        node.run(f"kill -{name} $(pgrep -f '^sleep 1003')")
        assert ended(node, job) == status
        node.wait(gone, "the job to be gone")

    job = start(node, f"{JOB} --name other -- sh -c 'echo up; exec sleep 1002'")
    said(node, job, b"up")
    node.run("nodeagent release jobs/other")
    assert ended(node, job) == 143
    node.wait(gone, "the released job to be gone")


EXECUTES = """
import json, os, socket, sys, threading
asking = socket.socket(socket.AF_UNIX)
asking.connect("/run/nodeagent/jobs.sock")
os.set_inheritable(asking.fileno(), True)
amounts = {"cpu": "2", "memory": "64Mi"}
asking.sendall(json.dumps({"op": "job", "name": sys.argv[1], "amounts": amounts}).encode() + b"\\n")
words = ["sleep", "infinity"]
threading.Thread(target=os.execvp, args=(words[0], words)).start()
threading.Event().wait()
"""


def test_an_owner_that_executes_its_command_before_its_answer_is_moved_all_the_same(node: Node) -> None:
    """From a thread, too, so that the main one is gone at some moment."""
    node.guest.put("/tmp/executes.py", EXECUTES.encode())
    for name in ("early-1", "early-2", "early-3"):
        job = start(node, f"python3 -S /tmp/executes.py {name}")
        ((uid, held),) = node.wait(there(name), "the job to be admitted")["promises"]["pods"].items()
        moved = f"{ROOT}/pod{uid}/main/payload/cgroup.procs"
        node.run(f"until grep -q . {moved} && [ $(cat /proc/$(cat {moved})/comm) = sleep ]; do sleep 0.1; done")
        pid = int(node.run(f"cat {moved}").stdout)
        assert CpuSet.parse(node.allowed(pid)[0]) == CpuSet.parse(held["cpus"]["main"])
        node.run(f"kill {pid}")
        assert ended(node, job) == 128 + signal.SIGTERM
        node.wait(gone, "the job to be gone")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_terminal_says_that_the_oom_killer_has_ended_its_job(node: Node, *, restarts: bool) -> None:
    """Ended by the kernel, told by the sandboxed agent and launcher. A job with enough memory says nothing."""
    hungry = "nodeagent job --cpus 1 --memory 64Mi --name hungry -- sh -c 'echo in; read go; dd if=/dev/zero of=/dev/null bs=200M'"
    shell = f"nodeagent job --cpus 1 --memory 64Mi -- true; {hungry}; echo ended=$?; read stays"
    user = node.guest.start(["bash", "-c", shell], terminal=(24, 200, "dumb"))
    said(node, user, b"in")
    if restarts:
        node.run("systemctl restart nodeagent")
    user.send(b"\n")
    line = said(node, user, b"request more memory")
    assert "nodeagent: the OOM killer has ended jobs/hungry: memory peak 64Mi of --memory 64Mi; request more" in line, (
        line
    )
    assert line.count("OOM killer") == 1, line
    said(node, user, b"ended=137")
    user.send(b"\n")
    ended(node, user)


def test_a_terminal_is_the_commands_own(node: Node) -> None:
    job = start(node, f"{JOB} --name tty -- bash --norc -i", terminal=True)
    job.send(b"PS1='ready '; echo $((6 * 7)) $(ps -o tty= -p $$)\n")
    said(node, job, b"42 pts/")
    job.send(b"sleep 1003\n")
    sleeping = "pgrep -f '^sleep 1003'"
    node.run(f"until {sleeping}; do sleep 0.1; done")
    job.send(b"\x1a")
    said(node, job, b"Stopped")
    job.send(b"fg\n")
    node.run(f"until grep -q 'State:.S' /proc/$({sleeping})/status; do sleep 0.1; done")
    job.send(b"\x03")
    node.run(f"while {sleeping}; do sleep 0.1; done")
    job.resize(30, 90)
    job.send(b"stty size; exit 5\n")
    assert ended(node, job) == 5
    assert b"30 90" in bytes(job.stdout)
    node.wait(gone, "the job to be gone")

    job = start(node, f"{JOB} -- sleep 1004", terminal=True)
    node.run("until pgrep -f '^sleep 1004'; do sleep 0.1; done")
    job.send(b"\x03")
    assert ended(node, job) == 128 + signal.SIGINT
    node.wait(gone, "the interrupted job to be gone")


@pytest.mark.long  # who may is tested on the host, with real sockets and processes
def test_members_of_the_group_run_jobs_as_themselves(node: Node) -> None:
    node.run("groupadd -f runners; id runner || useradd -m -G runners runner; id stranger || useradd stranger")
    usual = node.guest.get(CONFIG)
    refused = node.run(f"runuser -u runner -- {JOB} -- id", check=False)
    assert (refused.returncode, "jobs: {group: GROUP}" in refused.stderr) == (125, True)
    node.guest.put(CONFIG, usual.replace(b"jobs: ", BOUNDS) + b"\npodPidsLimit: 20\n")
    try:
        node.restart_agent()
        tell = "id; umask; grep ^CapPrm /proc/self/status; cat /proc/self/cgroup"
        done = node.run(f"cd /tmp; umask 027; runuser -u runner -- {JOB} --name mine -- sh -c '{tell}'")
        identity, umask, rights, cgroup = done.stdout.splitlines()
        assert "(runner)" in identity
        assert "runners" in identity
        assert (umask, rights.split(), cgroup.endswith("/main/payload")) == ("0027", ["CapPrm:", "0" * 16], True)
        assert node.run(f"runuser -u stranger -- {JOB} -- id", check=False).returncode == 125
        # as a process of a user namespace of runner's that has changed to a subordinate id
        unknown = node.run(f"setpriv --reuid 100000 --regid runners --clear-groups {JOB} -- id", check=False)
        assert (unknown.returncode, "user 100000 is not in the group runners" in unknown.stderr) == (125, True)
        most = node.run(f"{JOB} -- sh -c 'for n in $(seq 30); do sleep 1 & done; wait'", check=False)
        assert "Resource temporarily unavailable" in most.stderr + most.stdout
        large = node.run("runuser -u runner -- nodeagent job --cpus 5 --memory 64Mi -- id", check=False)
        assert (large.returncode, "your limit is 4 (jobs.maxCPUs)" in large.stderr) == (125, True)
        asked = node.run(f"runuser -u runner -- {JOB} --user stranger -- id", check=False)
        assert (asked.returncode, "only root" in asked.stderr) == (125, True)
        done = node.run(f"{JOB} --user runner -- sh -c 'id -un; id -Gn; echo $HOME'")
        assert done.stdout.split("\n")[0] == "runner"
        assert "runners" in done.stdout.split("\n")[1].split()
        assert done.stdout.split("\n")[2] == "/home/runner"
        passed = node.run(
            f"TOKEN=secret {JOB} --user runner -- sh -c 'echo $TOKEN; cat <&7' 7</etc/shadow", check=False
        )
        assert (passed.stdout.strip(), passed.returncode != 0) == ("", True)
        outer, inner = (
            node.run(f'script -qec "{JOB} --user runner {more} -- tty" /dev/null').stdout.split()[-1]
            for more in ("--inherit", "")
        )
        assert outer != inner, "this kernel lets a process type into its terminal"
        node.wait(gone, "the jobs to be gone")
    finally:
        node.guest.put(CONFIG, usual)
        node.restart_agent()
