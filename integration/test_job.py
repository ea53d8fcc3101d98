"""Jobs as users run them: on CPUs of their own from the first instruction, with their own identity, gone with what owns them."""

import json
import time

import pytest

from integration.guest.guest import Guest
from integration.node import CONFIG, Node, container, pod

JOB = "nodeagent job --cpus 2 --memory 64Mi"


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def test_a_command_is_itself_on_cpus_of_its_own(node: Node) -> None:
    node.run("cd /tmp && rm -f here && echo word >words")
    shell = "grep ^Cpus_allowed_list /proc/self/status; echo $NODEAGENT_EXCLUSIVE_CPUS $MINE $(id -u) $PWD; cat; exit 7"
    done = node.run(f"cd /tmp && MINE=x taskset -c 0 {JOB} --name one -- sh -c '{shell}' <words", check=False)
    allowed, told, word = done.stdout.splitlines()
    cpus = allowed.split()[1]
    assert (done.returncode, word, told) == (7, "word", f"{cpus} x 0 /tmp"), done.stderr
    node.wait(lambda state: not state["entries"], "the job to be gone")
