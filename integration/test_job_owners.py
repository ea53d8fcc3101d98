"""Who counts as whom: every way to ask for a job, while a member of the group has a job that leaves it one CPU of its bound."""

from collections.abc import Iterator

import pytest

from integration.guest.guest import Guest
from integration.node import CONFIG, Node

BOUNDS = b"jobs: {group: runners, maxCPUs: 4, maxMemory: 1Gi, maxPerUser: 3} #"
JOB = "nodeagent job --cpus 2 --memory 64Mi -- true"
SHELL = f"sh -c '{JOB}'"
AS_RUNNER = (125, "your jobs would have 5 CPUs together; your limit is 4 (jobs.maxCPUs)")
AS_ANOTHER = (0, "")
"""As another user, whose bounds are free, or as root, who has none."""
NO_MEMBER = (125, "is not in the group runners (jobs.group), whose members may run jobs")
MIXED_IDS = (125, "which asks for a job, has user IDs other than")

CONTAINER = "unshare --mount --pid --fork --uts --ipc --mount-proc"
"""Plays a container engine, by the namespaces that it makes. `setpriv` plays the user IDs that it maps."""

WAYS = {
    "root": (JOB, AS_ANOTHER),
    "root of a container without a user namespace": (f"{CONTAINER} {SHELL}", AS_ANOTHER),
    "another member": (f"runuser -u second -- {JOB}", AS_ANOTHER),
    "itself": (f"runuser -u runner -- {JOB}", AS_RUNNER),
    "su": (f"su runner -c '{JOB}'", AS_RUNNER),
    "su to a login": (f"su - runner -c '{JOB}'", AS_RUNNER),
    "su to another member": (f"su second -c '{JOB}'", AS_ANOTHER),
    "sudo to another member": (f"runuser -u runner -- sudo -u second {JOB}", AS_ANOTHER),
    "sudo to root": (f"runuser -u runner -- sudo {JOB}", AS_ANOTHER),
    "sudo by root to the user": (f"sudo -u runner {JOB}", AS_RUNNER),
    "root for the user": ("nodeagent job --cpus 2 --memory 64Mi --user runner -- true", AS_ANOTHER),
    "a unit of systemd with User=": (f"systemd-run --quiet --wait --pipe --uid=runner {JOB}", AS_RUNNER),
    "a user namespace": (f"runuser -u runner -- unshare --user {SHELL}", AS_RUNNER),
    "root of a user namespace": (f"runuser -u runner -- unshare --map-root-user {SHELL}", AS_RUNNER),
    "a user namespace in a user namespace": (
        f"runuser -u runner -- unshare --map-root-user unshare --map-root-user {SHELL}",
        AS_RUNNER,
    ),
    "a rootless container": (
        f"runuser -u runner -- {CONTAINER} --map-root-user {SHELL}",
        AS_RUNNER,
    ),
    "a container without a user namespace": (
        f"{CONTAINER} setpriv --reuid runner --regid runner --init-groups {SHELL}",
        AS_RUNNER,
    ),
    "a subordinate id of a user": (f"setpriv --reuid 100000 --regid runners --clear-groups {SHELL}", NO_MEMBER),
    "root of a container whose user namespace root has made": (
        f"setpriv --reuid 231072 --regid 231072 --groups runners {CONTAINER} --user --map-root-user {SHELL}",
        NO_MEMBER,
    ),
    "a unit of systemd with DynamicUser=": (
        f"systemd-run --quiet --wait --pipe -p DynamicUser=yes -p SupplementaryGroups=runners {JOB}",
        NO_MEMBER,
    ),
    "an id that no database knows": (f"setpriv --reuid 54321 --regid runners --clear-groups {SHELL}", NO_MEMBER),
    "a process with the group, whose user is no member": (
        f"setpriv --reuid stranger --regid stranger --groups runners {SHELL}",
        NO_MEMBER,
    ),
    "a set-user-ID program": (f"runuser -u runner -- /opt/as-second {JOB}", MIXED_IDS),
    "a set-user-ID program of root": (f"runuser -u runner -- /opt/as-root {JOB}", MIXED_IDS),
    "a stranger": (f"runuser -u stranger -- {JOB}", (125, "cannot connect to /run/nodeagent/jobs.sock")),
}


@pytest.fixture
def node(two_sockets: Guest) -> Iterator[Node]:
    node = Node(two_sockets)
    node.run("groupadd -f runners; for u in runner second; do id $u || useradd -m -G runners -s /bin/bash $u; done")
    node.run("id stranger || useradd stranger")
    node.run("for owner in root second; do install -o $owner -m 4755 /usr/bin/env /opt/as-$owner; done")
    node.guest.put("/etc/sudoers.d/runner", "runner ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    usual = node.guest.get(CONFIG)
    node.guest.put(CONFIG, usual.replace(b"jobs: ", BOUNDS))
    try:
        node.restart_agent()
        yield node
    finally:
        node.run("rm /etc/sudoers.d/runner /opt/as-root /opt/as-second")
        node.guest.put(CONFIG, usual)
        node.restart_agent()


def test_who_asks_counts_as_whom_the_table_says(node: Node) -> None:
    holds = "exec runuser -u runner -- nodeagent job --cpus 3 --memory 64Mi --name holder -- sleep 2001"
    node.guest.start(["bash", "-c", holds])
    node.wait(lambda state: any(e["pod"]["metadata"]["name"] == "holder" for e in state["entries"]), "the first job")
    wrong = {}
    for way, (command, (status, words)) in WAYS.items():
        done = node.run(command, check=False)
        if (done.returncode, words in done.stderr) != (status, True):
            wrong[way] = (done.returncode, done.stderr)
    node.run("pkill -f '^sleep 2001'")
    node.wait(lambda state: not state["entries"], "the jobs to be gone")
    assert wrong == {}
