"""Configuration file of the agent, compared with the configuration that the agent uses.

If the file is invalid at a start, the agent uses the last valid configuration (D58). The problem is then shown in the log, `systemctl
status`, `/readyz`, `nodeagent inspect` and the metrics, until the file is corrected and reloaded.
"""

import re
import time
from contextlib import suppress

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.model.config import Config
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.start.node_builder import build_node
from nodeagent.daemon.start.reloading import check_takeover
from nodeagent.daemon.start.startup import (
    A_FIELD,
    LAST_CONFIG,
    MAX_CONFIG_BYTES,
    StartError,
    read_config_text,
    read_file,
)
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files import state_files
from nodeagent.edge.files.state_files import Sync
from nodeagent.errors import NodeAgentError
from nodeagent.formats.config.config_text import config_fields, config_text

_STATE_DIRECTORY = re.compile(rb"""^stateDirectory:[ \t]*["']?(/[!-~]+?)["']?[ \t]*(?:#.*)?\r?$""", re.MULTILINE)
"""Pattern of the field `stateDirectory`. It finds the state directory in a configuration file that isn't valid YAML, because the last valid
configuration is saved in that directory.
"""
_HEADER = "# last valid configuration of {}\n"


class ConfigFile:
    """Configuration file of the running agent."""

    def __init__(self, path: str, log: Log) -> None:
        self.path = path
        self._log = log
        self._in_use: bytes | None = None
        """Content of the file when the agent applied it. None means that the agent uses the last valid configuration instead."""
        self.problem: Problem | None = None
        """Reason why the agent doesn't use the file's present content. None means that it does."""
        self.refused_at_seconds = 0.0
        """Time at which the file was first refused, in seconds since the epoch. 0 means that the file is valid."""

    def load(self) -> NodeSetup:
        """Read the configuration at the agent's start. If the file is invalid, read the last valid configuration instead.

        Raises:
            StartError: the file is invalid, and there is no last valid configuration of this file that fits the machine.
        """
        try:
            content = read_config_text(self.path)
            node = build_node(content, self.path)
        except StartError as err:
            node = self._load_last(err)
            self._refuse(err)
            return node
        self._in_use = content
        return node

    def reload(self, agent: Agent) -> None:
        """Read the file again and apply it. If it can't be applied, keep the current configuration, and set `problem`."""
        try:
            content = read_config_text(self.path)
            node = build_node(content, self.path)
            agent.change_node(node)
        except NodeAgentError as err:
            self._log.error("reload_refused", problem=err.message, hint=err.hint)
            self._refuse(err)
            return
        self._in_use = content
        self._settle(None)
        self._log.info("configuration_reloaded", config=self.path)
        self.keep(node.config)

    def look(self, agent: Agent) -> None:
        """Check whether the file has changed since it was applied, and whether a changed file is valid. Set `problem` accordingly."""
        try:
            content = read_config_text(self.path)
            if content == self._in_use:
                self._settle(None)
                return
            check_takeover(agent.node, agent.state, build_node(content, self.path))
        except NodeAgentError as err:
            self._refuse(err)
        else:
            text = f"{self.path} has changed, and the change is not in effect yet (nodeagent config reload)"
            self._settle(Problem(text, kind=ProblemKind.CONFIGURATION_CHANGED))

    def keep(self, config: Config) -> None:
        """Log the notes on an applied configuration and its unused kubelet fields, and save it as the last valid configuration."""
        for note in config.notes:
            self._log.warning("configuration_note", problem=note)
        if config.reported_fields:
            self._log.info("unused_kubelet_fields", fields=list(config.reported_fields))
        content = _HEADER.format(self.path) + config_text(config_fields(config))
        try:
            state_files.write_atomically(f"{config.state_directory}/{LAST_CONFIG}", content.encode(), sync=Sync.WHOLE)
        except state_files.StateFileError as err:
            self._log.warning("configuration_not_kept", problem=err.message, hint=err.hint)

    def _load_last(self, wrong: StartError) -> NodeSetup:
        """Build the node from the last valid configuration of this file.

        If there is none that fits the machine, raise `wrong`, the error of the file itself.
        """
        last = f"{self._find_state_directory()}/{LAST_CONFIG}"
        with suppress(StartError):
            content = read_file(last, MAX_CONFIG_BYTES) or b""
            if content.startswith(_HEADER.format(self.path).encode()):
                return build_node(content, last)
        raise wrong

    def _find_state_directory(self) -> str:
        from nodeagent.formats.config.config_yaml import judge_config  # noqa: PLC0415 - only after an error

        config, content = None, b""
        with suppress(state_files.StateFileError):
            content = state_files.read(self.path, max_bytes=MAX_CONFIG_BYTES, follow_symlinks=True) or b""
            config, _ = judge_config(content, self.path) if A_FIELD.search(content) else (None, ())
        written = _STATE_DIRECTORY.search(content) if config is None else None
        return (config or Config()).state_directory if written is None else written[1].decode()

    def _refuse(self, err: NodeAgentError) -> None:
        first, *more = err.message.splitlines()
        others = f", and {len(more)} more" if more else ""
        goes_on = "the last valid one is in use" if self._in_use is None else "the previous one stays in effect"
        text = f"the configuration is refused, {goes_on}: {first}{others} ({err.hint})"
        self._settle(Problem(text, kind=ProblemKind.CONFIGURATION_REFUSED))

    def _settle(self, problem: Problem | None) -> None:
        """Replace `problem`, and log a change."""
        before, self.problem = self.problem, problem
        is_refused = problem is not None and problem.kind is ProblemKind.CONFIGURATION_REFUSED
        self.refused_at_seconds = (self.refused_at_seconds or time.time()) if is_refused else 0.0
        if problem == before:
            return
        if problem is None:
            self._log.info("configuration_mended", config=self.path)
        elif is_refused:
            self._log.error("configuration_refused", problem=str(problem))
        else:
            self._log.warning("configuration_changed", problem=str(problem))
