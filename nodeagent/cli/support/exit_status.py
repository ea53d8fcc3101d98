"""Exit statuses of commands. The same kind of outcome has the same status for every command."""

from nodeagent.errors import NodeAgentError

EXIT_ERROR = 1
EXIT_WRONG = 2
EXIT_AWAY = 3
EXIT_REFUSED = 4
EXIT_USAGE = 64
"""Exit status for wrong arguments (EX_USAGE of sysexits.h). argparse uses 2, which here means that something is wrong on the node."""

OUTCOMES = {
    0: "done, and everything is as it should be",
    EXIT_ERROR: "not done, or not determined: stderr has the cause and the next step",
    EXIT_WRONG: "done, and something is not as it should be: stdout says what",
    EXIT_AWAY: "the agent doesn't answer, and the command can't do without it, for instance because no state is saved or the configuration "
    "can't be used either (missing or invalid)",
    EXIT_REFUSED: "a pod was refused, or would be refused",
    EXIT_USAGE: "wrong arguments",
}
"""Meaning of each exit status. `run`, `exec` and `job` have further statuses."""

VERDICT_STATUSES = {"healthy": 0, "wrong": EXIT_WRONG, "agentAway": EXIT_AWAY, "refused": EXIT_REFUSED}
"""Exit status of `inspect` and `fleet inspect`, by the verdict in the document."""
NO_FAIL_HELP = (
    "exit with 0 even if something is wrong, for interactive use; an unknown state is still 1, or 3 if no agent answers"
)


class PodRefusedError(NodeAgentError):
    """The agent refused a pod, or would refuse it."""

    exit_status = EXIT_REFUSED


class UsageError(NodeAgentError):
    """A command-line argument is invalid."""

    exit_status = EXIT_USAGE


class AgentAwayError(NodeAgentError):
    """The command needs the agent, but the agent isn't running."""

    exit_status = EXIT_AWAY
