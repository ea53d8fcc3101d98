"""`make uninstall` while a quiet job and pods run, and dying at any of its steps: the next one finishes, and the host is as it was before
nodeagent.
"""

import pytest

from integration.guest.guest import Guest
from integration.installed import traces
from integration.isolation import isolate, listed, wait_as
from integration.node import Node, container, pod
from integration.test_job import LATENCIES, ended, said, start
from integration.test_pinned_units import unit

UNINSTALL = "make --directory=/usr/src/nodeagent uninstall PURGE=1 STOP_PODS=1"
DYING = """\
#!/bin/sh
# systemctl, after whose n-th call the uninstallation is killed
/usr/bin/systemctl "$@"
status=$?
echo >>/tmp/calls
[ "$(wc -l </tmp/calls)" != "$DIES_AT" ] || pkill -KILL -f scripts/uninstall.sh
exit $status
"""


@pytest.mark.long
@pytest.mark.reinstalls
def test_whatever_step_an_uninstallation_dies_at_the_next_one_finishes(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    unit(node, "db.service", "AllowedCPUs=0-7")
    node.run("systemctl start db")
    host, latencies = listed(node), node.run(LATENCIES).stdout
    isolate(node)
    node.run("nodeagent pin db --cpus 2 --memory 64Mi --wait")
    node.apply(pod("one", container("app", ["sleep", "infinity"], cpu="2")))
    node.wait_running("one")
    job = start(node, "nodeagent job --cpus 2 --memory 64Mi --quiet -- sh -c 'echo up; exec sleep infinity'")
    said(node, job, b"up")
    assert node.run(LATENCIES).stdout != latencies
    node.guest.put("/opt/dying/systemctl", DYING, 0o755)

    node.run(f"timeout -s KILL 1 {UNINSTALL}", check=False)
    died = 0
    while True:
        done = node.run(f"rm -f /tmp/calls; PATH=/opt/dying:$PATH DIES_AT={died + 1} {UNINSTALL}", check=False)
        if done.returncode == 0:
            break
        died += 1
        assert died < 30, done.stderr
    assert died > 5, "it has as many steps"
    node.run("rm -r /opt/dying /tmp/calls")
    assert traces(node) == []
    wait_as(node, host)
    assert node.run(LATENCIES).stdout == latencies
    assert ended(node, job) != 0
