"""Measures the link between two nodes: the round trip of a byte, and the bandwidth of one TCP stream."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Sequence

CONNECT_WITHIN_S = 4.0
ANSWER_WITHIN_S = 10.0
ROUND_TRIPS = 20
STREAM_S = 0.5
"""How long bytes are sent."""
CHUNK_BYTES = 1 << 16
SEND_BUFFER_BYTES = 1 << 19
"""What the kernel may hold back: a slow link has to carry it after the last byte was handed over."""
_RESULT = struct.Struct("!Qd")
MOST_NODES_IN_ALL_PAIRS = 16


class LinkServer:
    """Answers `measure_link` on a port that was free, until it is closed."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                stream, _ = self._listener.accept()
                threading.Thread(target=_answer, args=(stream,), daemon=True).start()


def _answer(stream: socket.socket) -> None:
    with contextlib.suppress(OSError), stream:
        stream.settimeout(ANSWER_WITHIN_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUND_TRIPS):
            stream.sendall(stream.recv(1))
        received, began_s, ended_s = 0, 0.0, 0.0
        while chunk := stream.recv(1 << 20):
            ended_s = time.monotonic()
            # The clock starts with the end of the first piece, so that piece does not count.
            received, began_s = (received + len(chunk), began_s) if began_s else (0, ended_s)
        stream.sendall(_RESULT.pack(received, ended_s - began_s))


def measure_link(address: str, port: int) -> tuple[float, float]:
    """Seconds of a round trip (median), and bytes a second of one stream from here to a `LinkServer`.

    Raises:
        OSError: when there is no connection within CONNECT_WITHIN_S, or no answer within ANSWER_WITHIN_S.
    """
    with socket.create_connection((address, port), timeout=CONNECT_WITHIN_S) as stream:
        stream.settimeout(ANSWER_WITHIN_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        trips = [_round_trip(stream) for _ in range(ROUND_TRIPS)]
        chunk, end_s = os.urandom(CHUNK_BYTES), time.monotonic() + STREAM_S
        while time.monotonic() < end_s:
            stream.sendall(chunk)
        stream.shutdown(socket.SHUT_WR)
        received, duration_s = _RESULT.unpack(_exactly(stream, _RESULT.size))
    return statistics.median(trips), received / max(duration_s, 1e-9)


def _round_trip(stream: socket.socket) -> float:
    began_s = time.monotonic()
    stream.sendall(b"x")
    _exactly(stream, 1)
    return time.monotonic() - began_s


def _exactly(stream: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        piece = stream.recv(count - len(content))
        if not piece:
            raise ConnectionResetError("the other side closed the connection")
        content += piece
    return content


def rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pairs of nodes in rounds in which no node is in two pairs, so that pairs of a round do not slow each other down.

    Every pair up to MOST_NODES_IN_ALL_PAIRS nodes, by the circle method; beyond, each node with its next one only.
    """
    if len(nodes) > MOST_NODES_IN_ALL_PAIRS:
        ring = [(node, nodes[(index + 1) % len(nodes)]) for index, node in enumerate(nodes)]
        last = [ring.pop()] if len(ring) % 2 else []
        return [part for part in (ring[0::2], ring[1::2], last) if part]
    circle: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(one, other) for one, other in pairs if one is not None and other is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in found if pairs]


def unreachable(address: str, port: int) -> str:
    """Why a port cannot be reached from here; empty where it can."""
    try:
        socket.create_connection((address, port), timeout=CONNECT_WITHIN_S).close()
    except OSError as error:
        return error.strerror or f"no connection within {CONNECT_WITHIN_S:g} s"
    return ""
