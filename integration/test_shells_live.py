"""`man` and the shells find what the installation has put there, on a node with pods."""

import pytest

from integration.guest.guest import Guest
from integration.node import Node, container, pod

BASH = """
source /usr/share/bash-completion/bash_completion
_completion_loader nodeagent
COMP_WORDS=(nodeagent "$@") COMP_CWORD=$#
_nodeagent 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
zmodload zsh/zpty
zpty shell 'zsh -f -i'
zpty -w shell 'autoload -Uz compinit; compinit -u; print TO''GETHER'
zpty -r -m shell line '*TOGETHER*'
zpty -w -n shell "$1"$'\\t'
zpty -r -m shell line "*$2*" && print found
zpty -d shell
"""


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def test_man_shows_the_pages(node: Node) -> None:
    shown = node.run("man nodeagent && man nodeagent-inspect").stdout
    assert "nodeagent - pin pods to whole CPUs close to their memory" in " ".join(shown.split())
    assert "--no-host-processes" in shown
    assert node.run("man -w nodeagent-retry").stdout.endswith("/man/man8/nodeagent-retry.8\n")


def test_each_shell_completes_names_of_pods_and_containers(node: Node) -> None:
    node.apply(pod("web", container("app", ["sleep", "infinity"], cpu="2")))
    node.wait_running("web")
    fish = node.run('fish -c \'complete -C "nodeagent inspect w"; complete -C "nodeagent exec web "\'')
    assert fish.stdout.split() == ["web", "app"]
    bash = node.guest.run(["bash", "-c", BASH, "bash", "exec", "default/w"])
    assert bash.stdout.split() == ["default/web"]
    zsh = node.guest.run(["zsh", "-fc", ZSH, "zsh", "nodeagent retry default/w", "default/web"])
    assert zsh.stdout.split()[-1:] == ["found"]
