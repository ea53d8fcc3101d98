"""Where others reach the daemon: the local API's socket and the metrics address, served by one thread. Decides nothing about either."""

import os
from collections.abc import Callable, Mapping

from nodeagent.core.config import Config
from nodeagent.edge.listening import group_id, listen
from nodeagent.edge.local_api import LocalApi, Operation
from nodeagent.edge.metrics import CONTENT_TYPE, Exposition
from nodeagent.edge.metrics_http import Check, MetricsPages
from nodeagent.edge.serving import Server, ServingThread
from nodeagent.errors import NodeAgentError
from nodeagent.formats.bind_address import BindAddressError, UnixAddress, parse_bind_address

API_SOCKET = "agent.sock"
GROUP = "nodeagent"


class EndpointError(NodeAgentError):
    """The metrics address is malformed."""


class Endpoints:
    """The servers of one daemon.

    Args:
        exposition: the metrics.
        checks: paths such as `/readyz` on the metrics address.
        reads: operations of the local API for root and the group `nodeagent`.
        writes: operations for root.
        on_failure: told of what goes wrong in the serving thread.

    """

    def __init__(
        self,
        *,
        exposition: Exposition,
        checks: Mapping[str, Check],
        reads: Mapping[str, Operation],
        writes: Mapping[str, Operation],
        on_failure: Callable[[str, BaseException | None], None],
    ) -> None:
        self._thread = ServingThread(on_failure)
        self._group = group_id(GROUP)
        self._api = LocalApi(reads=reads, writes=writes, owner=os.geteuid(), group=self._group)
        self._pages = MetricsPages(metrics=exposition.text, content_type=CONTENT_TYPE, checks=checks)
        self._api_server: Server | None = None
        self._metrics_server: Server | None = None
        self._metrics_address = ""

    def open(self, config: Config) -> None:
        """Begin to serve.

        Raises:
            ListenError: an address is not to be had.
            EndpointError: the metrics address is none.

        """
        socket = listen(UnixAddress(f"{config.runtime_directory}/{API_SOCKET}"), group=self._group)
        self._api_server = self._thread.serve(socket, self._api)
        self.serve_metrics(config.metrics_bind_address)

    def serve_metrics(self, address: str) -> None:
        """Serve the metrics at another address than before, or, if it is empty, nowhere.

        Raises:
            ListenError: the address is not to be had; they are served where they were.
            EndpointError: it is none.

        """
        if address == self._metrics_address:
            return
        new = None
        if address:
            try:
                new = self._thread.serve(listen(parse_bind_address(address), group=self._group), self._pages)
            except BindAddressError as err:
                raise EndpointError(f"metricsBindAddress {err}", hint="for instance 127.0.0.1:9753") from err
        if self._metrics_server is not None:
            self._metrics_server.close()
        self._metrics_server, self._metrics_address = new, address

    def close(self) -> None:
        for server in (self._metrics_server, self._api_server):
            if server is not None:
                server.close()
        self._api.close()
        self._thread.stop()
