"""The agent of a guest, made to die where a test says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.faults.dying import DIRECTORY, ORDER, SAID
from integration.node import Node

_DROP_IN = "/run/systemd/system/nodeagent.service.d/faults.conf"
_UNIT = f"""
[Service]
Environment=PYTHONPATH={DIRECTORY}
ExecStartPre=+/bin/sh -c 'cd {DIRECTORY}; rm -f now; [ ! -e next ] || mv next now'
"""
NEVER = 1_000_000


class Mortal:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._cursor = ""

    def dies_at(self, step: int) -> None:
        """Order the agent that runs to die before that change, and to tell of each."""
        self._cursor = self._node.cursor()
        self._node.guest.put(str(ORDER), f"{self._node.main_pid()} {step}")

    def next_dies_at(self, step: int) -> None:
        """Order the agent that is started next to die before that change."""
        self._cursor = self._node.cursor()
        self._node.guest.put(str(DIRECTORY / "next"), str(step))

    def changes(self) -> list[str]:
        """What the agent has told since the last order."""
        lines = self._node.run(
            f"journalctl --sync; journalctl --after-cursor='{self._cursor}' -u nodeagent -o cat -q"
        ).stdout
        return [line.split(maxsplit=2)[2] for line in lines.splitlines() if line.startswith(f"{SAID} ")]

    @contextmanager
    def death(self) -> Iterator[None]:
        """Do what brings the ordered death about; then a successor is ready."""
        before = self._node.main_pid()
        yield
        self._node.run(
            f"cd {DIRECTORY}; until [ ! -e next ] && [ ! -e now ] && [ $(systemctl show -P MainPID nodeagent) -ne {before} ] &&"
            " systemctl is-active -q nodeagent; do sleep 0.1; done",
            timeout_seconds=30,
        )


@contextmanager
def mortal(node: Node) -> Iterator[Mortal]:
    """Run the agent, for a while, so that it can be told when to die."""
    node.guest.put(str(DIRECTORY / "sitecustomize.py"), (Path(__file__).parent / "dying.py").read_bytes())
    node.guest.put(_DROP_IN, _UNIT)
    node.run("systemctl daemon-reload; systemctl restart nodeagent", timeout_seconds=60)
    try:
        yield Mortal(node)
    finally:
        node.run(
            f"rm -rf {DIRECTORY} {_DROP_IN}; systemctl daemon-reload; systemctl restart nodeagent", timeout_seconds=60
        )
