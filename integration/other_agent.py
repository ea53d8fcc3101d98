"""Another program in the place of the agent's, in the same service: one of `integration.overlap`."""

from collections.abc import Iterator
from contextlib import contextmanager

from integration.node import CONFIG, Node
from integration.overlap.proof import guest_module, put_tools

_DROP_IN = "/run/systemd/system/nodeagent.service.d/other-agent.conf"


@contextmanager
def other_agent(node: Node, module: str) -> Iterator[None]:
    """It runs from the agent's next start on, and is the agent again at the end."""
    put_tools(node.guest)
    command = " ".join(guest_module(module, CONFIG))
    node.guest.put(_DROP_IN, f"[Service]\nExecStart=\nExecStart=/usr/bin/{command}\n")
    node.run("systemctl daemon-reload")
    try:
        yield
    finally:
        node.run(f"rm {_DROP_IN}; systemctl daemon-reload", check=False)
    node.restart_agent()
