"""Client of systemd's journal, which sends log entries with fields in the native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/)."""

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Mapping
from typing import TextIO

SOCKET = "/run/systemd/journal/socket"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals that make a memory file immutable. The journal rejects a file without them."""


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether systemd has connected this stream to the journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        file = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{file.st_dev}:{file.st_ino}"


class Journal:
    """Connection to the journal's socket.

    Raises:
        OSError: no journal is listening at this path.
    """

    def __init__(self, path: str = SOCKET) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def send(self, fields: Mapping[str, str]) -> None:
        """Send one entry. `fields` maps upper-case field names to values.

        Raises:
            OSError: the journal doesn't accept the entry.
        """
        entry = b""
        for name, text in fields.items():
            value = text.encode(errors="replace")
            separator = b"\n" + struct.pack("<Q", len(value)) if b"\n" in value else b"="
            entry += name.encode() + separator + value + b"\n"
        try:
            self._socket.send(entry)
        except OSError as err:
            if err.errno != errno.EMSGSIZE:
                raise
            self._send_file(entry)

    def _send_file(self, entry: bytes) -> None:
        """Send an entry that is too long for a datagram as a sealed memory file."""
        file = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with os.fdopen(os.dup(file), "wb") as stream:
                stream.write(entry)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            socket.send_fds(self._socket, [b""], [file])
        finally:
            os.close(file)
