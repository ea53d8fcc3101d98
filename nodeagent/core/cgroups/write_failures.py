"""What a failed write to a cgroup means, by the kernel's answer, and so when to retry it. Knows no file and no clock.

| class | the kernel's answers | what is done |
| --- | --- | --- |
| gone | ENOENT, ENODEV | what was observed has changed since: look again at once, and report it only if that does not help |
| retry | EBUSY, EAGAIN, EINTR, ENOMEM; another value granted than asked for | reported; retried a second later |
| refused | EINVAL, ERANGE, ENOSPC, EACCES, EOPNOTSUPP, and all others | reported; retried at each reconcile, as only a person can help |

In no class is anything undone: the promise stands, changes that depend on the write are held back, and no process starts where it is not as
promised.
"""

import enum
import errno


class WriteFailure(enum.StrEnum):
    GONE = "gone"
    RETRY = "retry"
    REFUSED = "refused"


_GONE = frozenset({errno.ENOENT, errno.ENODEV})
_RETRY = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ENOMEM})


def write_failure(error: int | None) -> WriteFailure:
    """Classify an errno. None: the kernel took the write, and grants something else (yet)."""
    if error in _GONE:
        return WriteFailure.GONE
    return WriteFailure.RETRY if error is None or error in _RETRY else WriteFailure.REFUSED
