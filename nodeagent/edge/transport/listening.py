"""Listening sockets (TCP or Unix), with permissions for Unix sockets."""

import errno
import os
import socket
import stat
import struct

from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.bind_address import BindAddress, TcpAddress, UnixAddress

BACKLOG = 128
_ACL_VERSION, _USER_OBJ, _GROUP_OBJ, _GROUP, _MASK, _OTHER, _NOBODY = 2, 0x01, 0x04, 0x08, 0x10, 0x20, 0xFFFFFFFF
"""Tags of POSIX ACL entries, and the ID in an entry that doesn't name a user or group."""


class ListenError(NodeAgentError):
    """A socket can't listen on an address. `errno` is None if the host name can't be resolved."""

    def __init__(self, message: str, *, address: BindAddress, error: int | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.address = address
        self.errno = error


_HINTS = {
    errno.EADDRINUSE: "another process listens on this address (see `ss -lptx`): stop it, or set another {field}",
    errno.EADDRNOTAVAIL: "no interface of this machine has this address (see `ip address`)",
    errno.EACCES: "ports below 1024, and directories of others, need root (see `ls -ld` of the directory)",
    errno.ENOENT: "the socket's directory must exist (RuntimeDirectory= of the unit makes /run/nodeagent)",
    errno.EROFS: "name its directory in ReadWritePaths= of the unit (`systemctl edit nodeagent`), or set another {field}",
    errno.EOPNOTSUPP: "the socket's file system has no ACLs: set another {field}, in /run",
    errno.ENOTDIR: "a file has the name of the socket's directory: move the file away and make the directory, or set runtimeDirectory or "
    "{field}",
    errno.EAFNOSUPPORT: "the kernel or RestrictAddressFamilies= of the unit does not allow this kind of address",
}


def _make_error(address: BindAddress, err: OSError, field: str) -> ListenError:
    if isinstance(err, socket.gaierror):
        return ListenError(
            f"cannot listen on {address}: {err.strerror}",
            address=address,
            error=None,
            hint="give the host as an IP address: metricsBindAddress: 127.0.0.1:9753",
        )
    number = err.errno or 0
    hint = _HINTS.get(number, 'set another {field}, or "" for none').format(field=field)
    return ListenError(
        f"cannot listen on {address}: {os.strerror(number)}", address=address, error=err.errno, hint=hint
    )


def listen(address: BindAddress, *, group: int | None = None, field: str = "metricsBindAddress") -> socket.socket:
    """Create a listening stream socket.

    Args:
        address: the address. The file of a Unix socket is replaced if no process is listening on it.
        group: ID of the group whose members may connect to a Unix socket. None means that only the owner may connect.
        field: configuration field that contains the address, for hints of errors.

    Raises:
        ListenError: the socket can't be created, for instance because another process is listening on the address.
    """
    try:
        match address:
            case TcpAddress():
                return _listen_tcp(address)
            case UnixAddress():
                return _listen_unix(address.path, group)
    except OSError as err:
        raise _make_error(address, err, field) from err


def _listen_tcp(address: TcpAddress) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may be in TIME_WAIT
        listener.bind(place)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _listen_unix(path: str, group: int | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # bind creates the socket's file with this mode
        try:
            listener.bind(path)
        except OSError as err:
            if err.errno != errno.EADDRINUSE:
                raise
            _remove_stale(path, err)
            listener.bind(path)
        if group is not None:
            # an ACL (linux/posix_acl_xattr.h) that lets owner and group read and write; unlike chown, it needs no capability
            own, others = (_USER_OBJ, 6, _NOBODY, _GROUP_OBJ, 0, _NOBODY), (_MASK, 6, _NOBODY, _OTHER, 0, _NOBODY)
            acl = struct.pack("<I" + 5 * "HHI", _ACL_VERSION, *own, _GROUP, 6, group, *others)
            os.setxattr(path, "system.posix_acl_access", acl)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_stale(path: str, in_use: OSError) -> None:
    """Remove the socket file of a process that has exited. If a process is listening on the socket, raise `in_use`."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise in_use
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # noqa: PTH108 - system calls are named as such here
            return
        except BlockingIOError:
            pass  # another process listens on the socket, and its backlog is full
    raise in_use
