"""An agent that answers only on its socket for jobs."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nodeagent.daemon.reports.publisher import JOB_SOCKET
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.wire.exchange import Peer

Answers = Callable[[Mapping[str, Any], Peer], Mapping[str, object]]
TOLD = {"NODEAGENT_EXCLUSIVE_CPUS": "2-3"}


def admit_job(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
    return {"pod": "jobs/one", "uid": "uid-one", "exclusiveCPUs": "", "sharedCPUs": "0", "environment": TOLD}


def release_job(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
    return {"isReleased": True}


@contextmanager
def answer_jobs(
    answer: Answers, release: Answers = release_job, queue: Answers = release_job, reserve: Answers = release_job
) -> Iterator[str]:
    """Yields the path of the socket."""

    async def job(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return answer(arguments, peer)

    async def released(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return release(arguments, peer)

    async def queued(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return queue(arguments, peer)

    async def reserved(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return reserve(arguments, peer)

    thread = ServingThread(lambda *_: None)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/{JOB_SOCKET}"
        operations = {"job": job, "job-released": released, "queue": queued}
        operations |= {"reserve": reserved, "cancel-reservation": reserved}
        api = LocalApi(reads={}, writes={}, owner=os.geteuid(), group=None, open_to_all=operations)
        server = thread.serve(listen(UnixAddress(path)), api)
        try:
            yield path
        finally:
            server.close()
            thread.stop()
