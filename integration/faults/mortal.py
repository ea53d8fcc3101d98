"""The agent of a guest, made to die where a test says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.faults.dying import DIRECTORY, ORDER, SAID
from integration.node import READY, Node, until_replaced

_DROP_IN = "/run/systemd/system/nodeagent.service.d/faults.conf"
_UNIT = f"""
[Service]
Environment=PYTHONPATH={DIRECTORY}
# named here, Python heeds PYTHONPATH, which the command's own first line has it ignore
ExecStart=
ExecStart=/opt/nodeagent/bin/python /opt/nodeagent/bin/nodeagent run --config /etc/nodeagent/config.yaml
ExecStartPre=+/bin/sh -c 'cd {DIRECTORY}; rm -f now; [ ! -e next ] || mv next now'
"""
NEVER = 1_000_000


class Mortal:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._cursor = ""

    def dies_at(self, step: int) -> None:
        """Order the running agent to die before that change, and to report each change."""
        self._cursor = self._node.cursor()
        self._node.guest.put(str(ORDER), f"{self._node.main_pid()} {step}")

    def next_dies_at(self, step: int) -> None:
        """Order the agent that is started next to die before that change."""
        self._cursor = self._node.cursor()
        self._node.guest.put(str(DIRECTORY / "next"), str(step))

    def changes(self) -> list[str]:
        """What the agent has reported since the last order."""
        self._node.run("journalctl --sync")
        lines = self._node.journal(self._cursor)
        return [line.split(maxsplit=2)[2] for line in lines if line.startswith(f"{SAID} ")]

    @contextmanager
    def death(self) -> Iterator[None]:
        """Do what triggers the ordered death; afterwards a successor is ready."""
        before = self._node.main_pid()
        yield
        self._node.run(
            # one that dies while it starts has a successor too
            f"cd {DIRECTORY}; {until_replaced(before)}; until {READY} && [ ! -e next ] && [ ! -e now ]; do sleep 0.2; done",
        )


@contextmanager
def mortal(node: Node) -> Iterator[Mortal]:
    """Run the agent for a while in a way that lets tests order its death. It has reported the changes that its start made."""
    agent = Mortal(node)
    node.guest.put(str(DIRECTORY / "sitecustomize.py"), (Path(__file__).parent / "dying.py").read_bytes())
    node.guest.put(_DROP_IN, _UNIT)
    agent.next_dies_at(NEVER)
    node.run("systemctl daemon-reload; systemctl restart nodeagent")
    try:
        yield agent
    finally:
        node.run(f"rm -rf {DIRECTORY} {_DROP_IN}; systemctl daemon-reload; systemctl restart nodeagent")
