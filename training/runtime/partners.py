"""Watches the other processes of a run: if one dies, the others end within seconds, whatever they wait for.

Process 0 listens, and each of the others keeps a connection to it, over which only one byte is sent, at a normal end.
The system closes the connections of a process that dies, however it dies. A process whose connection closes without
that byte gives its own work `GRACE` seconds to fail with a better message, and then exits with code 2. A host that
disappears from the network closes nothing: that is left to JAX's heartbeat.
"""

import atexit
import errno
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

KEY = "ablax/partners"  # of the key-value store: port and token of process 0
BYE = b"."
GRACE = 4.0  # seconds
PATIENCE = 60.0  # seconds for the first contact
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 30}  # seconds; firewalls drop silent connections

record: Callable[[str], None] | None = None  # called with the printed line, before the process ends
_connections: list[socket.socket] = []
_ending = threading.Event()


def watch(client: Any, index: int, number: int, host: str) -> None:
    """Starts watching, in threads.

    Args:
        client: JAX's, of the key-value store.
        index: this process.
        number: of processes.
        host: name or address of process 0.
    """
    atexit.register(_leave)  # runs before earlier registrations, including JAX's own waiting for the others
    try:
        if index == 0:
            _listen(client, number)
        else:
            _connect(client, index, host)
    except Exception as error:  # from the store: JAX has no class for it
        print(
            f"the other processes cannot be watched ({str(error).splitlines()[0]}): where one dies, "
            "the heartbeat (ABLAX_HEARTBEAT) tells",
            file=sys.stderr,
        )


def _listen(client: Any, number: int) -> None:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=max(number, 16))
    token = secrets.token_hex(16)
    client.key_value_set(KEY, f"{server.getsockname()[1]} {token}")
    _thread(_accept, server, token, number)


def _accept(server: socket.socket, token: str, number: int) -> None:
    greeted: set[int] = set()
    with server:
        while len(greeted) < number - 1:
            connection, _ = server.accept()
            _thread(_greeted, connection, token, number, greeted)


def _greeted(connection: socket.socket, token: str, number: int, greeted: set[int]) -> None:
    """Follows a connection that sends the token and a process number; refuses any other."""
    connection.settimeout(PATIENCE)
    expected = {f"{token} {index:08d}".encode(): index for index in range(1, number)}
    given = b""
    with suppress(OSError):
        while len(given) < len(token) + 9 and (more := connection.recv(len(token) + 9 - len(given))):
            given += more
    if given not in expected:
        connection.close()
        return
    greeted.add(expected[given])
    _follow(connection, f"process {expected[given]}")


def _connect(client: Any, index: int, host: str) -> None:
    port, token = client.blocking_key_value_get(KEY, round(PATIENCE * 1000)).split()
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.sendall(f"{token} {index:08d}".encode())
    _thread(_follow, connection, "process 0")


def _follow(connection: socket.socket, name: str) -> None:
    """Waits until the process at the other end ends."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    _connections.append(connection)
    try:
        said = connection.recv(1)
    except OSError as error:
        if error.errno != errno.ECONNRESET:
            return  # the network, not the process
        said = b""
    if said != BYE:
        time.sleep(GRACE)
        if not _ending.is_set():
            _end(name)


def _end(name: str) -> None:
    from training.runtime import failures

    message = failures.lost(f"{name} is gone")
    if record is not None:
        with suppress(Exception):  # what cannot be recorded is printed
            record(message)
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(2)


def _leave() -> None:
    """Announces that this process ends normally."""
    _ending.set()
    for connection in _connections:
        with suppress(OSError):
            connection.sendall(BYE)


def _thread(function: Callable[..., None], *given: Any) -> None:
    threading.Thread(target=function, args=given, daemon=True).start()
