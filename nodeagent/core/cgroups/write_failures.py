"""Classes of failed cgroup writes, by errno, and when each class is retried. This module doesn't access files or a clock.

| class | the kernel's answers | what is done |
| --- | --- | --- |
| gone | ENOENT, ENODEV | the cgroup has changed since it was observed; it is read again at once, and reported only if that doesn't help |
| retry | EBUSY, EAGAIN, EINTR, ENOMEM; a value that differs from the written one | reported; retried a second later |
| refused | EINVAL, ERANGE, ENOSPC, EACCES, EOPNOTSUPP, and all others | reported; retried at each reconcile, as a person has to help |

No write is undone. The allocation stays, changes that depend on the write are deferred, and processes don't start in a cgroup without its
allocated values.
"""

import enum
import errno


class WriteFailure(enum.StrEnum):
    GONE = "gone"
    RETRY = "retry"
    REFUSED = "refused"


_GONE = frozenset({errno.ENOENT, errno.ENODEV})
_RETRY = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.ENOMEM})


def classify_failure(error: int | None) -> WriteFailure:
    """Classify a failed write by its errno. If `error` is None, the write itself succeeded, but the kernel shows another value."""
    if error in _GONE:
        return WriteFailure.GONE
    return WriteFailure.RETRY if error is None or error in _RETRY else WriteFailure.REFUSED
