"""Somebody's supervisor: it runs processes, and is asked over a socket. One request and one answer, each a line of JSON."""

import json
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class Supervised(Struct):
    wanted: int
    """CPUs that the process asks for."""
    cpus: CpuSet
    """Those that it may run on."""


class Supervisor:
    """Args:
    path: of the socket.
    online: where a new process runs.
    """

    def __init__(self, path: Path, online: CpuSet) -> None:
        self.online = online
        self.processes: dict[str, Supervised] = {}
        self.is_stubborn = False
        """It moves no process."""
        self.on_move: Callable[[], None] = lambda: None
        """Called once it has moved one."""

        class Handler(socketserver.StreamRequestHandler):
            supervisor: ClassVar[Supervisor] = self

            def handle(self) -> None:
                answer = self.supervisor.answer(json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def run(self, name: str, wanted: int) -> None:
        self.processes[name] = Supervised(wanted, self.online)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "set" in request:
            one = self.processes.get(request["set"])
            if one is None or self.is_stubborn:
                return {"error": f"no process {request['set']}" if one is None else "not now"}
            one.cpus = CpuSet.parse(request["cpus"])
            self.on_move()
        return {"processes": {name: [p.wanted, str(p.cpus)] for name, p in sorted(self.processes.items())}}
