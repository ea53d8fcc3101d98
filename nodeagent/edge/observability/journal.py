"""Writes to systemd's journal in its own protocol, so that entries have a priority and fields to search by.

Source: systemd, "Native Journal Protocol" (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/).
"""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from typing import TextIO

SOCKET = "/run/systemd/journal/socket"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""The file can't be changed any more: the journal accepts no other."""


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether systemd has connected this stream to the journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        there = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{there.st_dev}:{there.st_ino}"


class Journal:
    """A connection to the journal.

    Raises:
        OSError: there is none.

    """

    def __init__(self, path: str = SOCKET) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def send(self, fields: Mapping[str, str]) -> None:
        """Write one entry.

        Args:
            fields: values by field name (upper case).

        Raises:
            OSError: the journal doesn't take it.

        """
        entry = b"".join(_spelled(name, value.encode(errors="replace")) for name, value in fields.items())
        try:
            self._socket.send(entry)
        except OSError as err:
            if err.errno != errno.EMSGSIZE:
                raise
            self._send_file(entry)

    def _send_file(self, entry: bytes) -> None:
        """What is too long for a datagram is passed on as a sealed memory file."""
        file = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with os.fdopen(os.dup(file), "wb") as stream:
                stream.write(entry)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(self._socket, [b""], [file])
        finally:
            os.close(file)


def _spelled(name: str, value: bytes) -> bytes:
    if b"\n" in value:
        return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name.encode() + b"=" + value + b"\n"
