"""A proxy on 127.0.0.1 between our client and a real broker, which goes wrong where a test says so.

It reads whole frames in both directions, so a fault hits one request or its answer, never a random byte. A fault is armed for
requests of one API (`arm`), or decided for each request by a function of the test's own (`decide`); without faults every byte
goes through. The broker must advertise the proxy's port: `ProxiedKafka` starts one that does, on a listener of its own beside
the plain one by which tests read back what is really there.
Threads: one accepts, two pump each connection; all are daemons, and `close` ends every wait of theirs.
Law: a request is forwarded once, whole, or not at all; what became of each is in `log`.

    with ProxiedKafka(tmp_path) as cluster:
        cluster.proxy.arm(ProxyFault.DROP_AFTER, ApiKey.PRODUCE, skip=3, times=2)
        ... produce to cluster.proxied_servers, read from cluster.bootstrap_servers ...
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Any

from jobs.local_kafka import HOST, LocalKafka, LocalNode
from spark_kafka_sink.protocol.api_keys import ApiKey

WAIT_S = 10.0  # to connect to the broker, and for a thread to end
MAX_FRAME_BYTES = 100 * 1024 * 1024
MAX_CONNECTIONS = 200  # at a time
GLUE_S = 0.2  # so long an answer is kept back for the next one to be glued to it
HUGE = 0x7FFFFFFF  # the largest size a frame can announce
HUGE_SENT_BYTES = 64 * 1024 * 1024  # of it, this much is really sent, unless the client hangs up before

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhi")  # api key, version, correlation id


class ProxyFault(Enum):
    DROP_BEFORE = auto()  # the connection ends and the broker never sees the request
    DROP_AFTER = auto()  # the broker has carried the request out; the connection ends instead of its answer
    SWALLOW = auto()  # carried out; the answer never comes, later ones do
    SILENCE = auto()  # carried out; from its answer on, nothing comes back on this connection
    DELAY = auto()  # the answer comes late
    TEAR = auto()  # the answer comes byte by byte
    GLUE = auto()  # the answer comes in one write with the next one
    GARBAGE = auto()  # random bytes instead of the answer
    HUGE = auto()  # an answer that announces 2 GiB, and begins
    HALF_CLOSE = auto()  # the broker's side is closed for writing, what the client sends is still read
    STOP_READING = auto()  # neither this request nor any later one is read to its end: the client's socket fills up


@dataclass(frozen=True)
class Request:
    """As `decide` sees it. `number` counts the requests of this API since the proxy began, from 0."""

    connection: int
    api_key: int
    version: int
    correlation_id: int
    number: int
    size: int


@dataclass
class _Armed:
    fault: ProxyFault
    api_key: int | None
    skip: int
    times: int


Decide = Callable[[Request], ProxyFault | None]


class FaultProxy:
    """Listens as soon as it is made, so that its port can be told to a broker; `upstream` is set when that is known.

    Args: delay_s, of ProxyFault.DELAY; seed, of garbage.
    """

    def __init__(self, upstream: tuple[str, int] | None = None, *, delay_s: float = 0.3, seed: int = 0) -> None:
        self.upstream = upstream
        self.delay_s = delay_s
        self.decide: Decide = lambda _: None  # asked when nothing armed matches
        self.log: list[tuple[Request, ProxyFault | None]] = []  # every request, in the order of arrival
        self._random = random.Random(seed)
        self._lock = threading.Lock()  # guards all below and the log
        self._armed: list[_Armed] = []
        self._counts: Counter[int] = Counter()
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        self._connections = 0
        self._stopped = threading.Event()
        self._listener: socket.socket | None = None
        self.port = 0
        self.accept()

    # WHAT A TEST SAYS

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def arm(self, fault: ProxyFault, api_key: ApiKey | None = None, *, skip: int = 0, times: int = 1) -> None:
        """After `skip` requests of this API (of any, if None) the next `times` are hit. What was armed first goes first."""
        with self._lock:
            self._armed.append(_Armed(fault, api_key, skip, times))

    def disarm(self) -> None:
        """Forget what is armed. Connections that are silent stay so: `drop_connections` ends them."""
        with self._lock:
            self._armed.clear()
            self.decide = lambda _: None

    def count(self, fault: ProxyFault) -> int:
        """How often it has happened."""
        with self._lock:
            return sum(happened is fault for _, happened in self.log)

    def refuse(self) -> None:
        """Refuse new connections, and end those that are there: the broker is gone."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):  # wakes the thread that accepts
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop_connections()

    def accept(self) -> None:
        """Listen, on the same port as before; nothing changes if it does."""
        if self._listener is not None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._start(self._accept_all, listener)

    def drop_connections(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.end()

    def close(self) -> None:
        self._stopped.set()
        self.refuse()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a thread of the proxy does not end"

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # THREADS

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, name="fault-proxy", daemon=True)
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _accept_all(self, listener: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return  # refuse() or close()
            try:
                assert self.upstream is not None
                broker = socket.create_connection(self.upstream, timeout=WAIT_S)
            except OSError:
                client.close()  # the broker behind is down: so is this
                continue
            with self._lock:
                self._connections += 1
                pair = _Pair(self._connections, client, broker)
                self._pairs.add(pair)
                assert len(self._pairs) <= MAX_CONNECTIONS, "the client opens connections and closes none"
            self._start(self._pump_requests, pair)
            self._start(self._pump_responses, pair)

    def _fate(self, pair: _Pair, frame: bytes) -> ProxyFault | None:
        api_key, version, correlation_id = _HEADER.unpack_from(frame)
        with self._lock:
            request = Request(pair.number, api_key, version, correlation_id, self._counts[api_key], len(frame))
            self._counts[api_key] += 1
            fault = self._next_armed(api_key) or self.decide(request)
            self.log.append((request, fault))
        pair.faults[correlation_id] = fault
        return fault

    def _next_armed(self, api_key: int) -> ProxyFault | None:
        for armed in self._armed:
            if armed.api_key not in (None, api_key):
                continue
            if armed.skip:
                armed.skip -= 1
                return None
            armed.times -= 1
            if not armed.times:
                self._armed.remove(armed)
            return armed.fault
        return None

    def _pump_requests(self, pair: _Pair) -> None:
        try:
            self._forward_requests(pair)
        finally:
            self._end(pair)

    def _forward_requests(self, pair: _Pair) -> None:
        with contextlib.suppress(OSError):  # one of the two has closed: so do we
            while (frame := _read_frame(pair.client)) is not None:
                fault = self._fate(pair, frame)
                if fault is ProxyFault.DROP_BEFORE:
                    break
                if fault is ProxyFault.STOP_READING:
                    pair.ended.wait()  # the test, or the end of the proxy, ends it
                    break
                pair.broker.sendall(_SIZE.pack(len(frame)) + frame)

    def _pump_responses(self, pair: _Pair) -> None:
        try:
            self._forward_responses(pair)
        finally:
            self._end(pair)

    def _forward_responses(self, pair: _Pair) -> None:
        held = b""
        with contextlib.suppress(OSError):  # as above
            while True:
                if held and not _is_readable(pair.broker, GLUE_S):
                    pair.client.sendall(held)
                    held = b""
                frame = _read_frame(pair.broker)
                if frame is None:
                    break
                data = held + _SIZE.pack(len(frame)) + frame
                (correlation_id,) = _SIZE.unpack_from(frame)
                fault = pair.faults.pop(correlation_id, None)
                held = data if fault is ProxyFault.GLUE else b""
                if fault is not ProxyFault.GLUE and not self._answer(pair, fault, data):
                    break

    def _answer(self, pair: _Pair, fault: ProxyFault | None, data: bytes) -> bool:
        """Send an answer as the fault wants it; false when nothing more may follow it."""
        client = pair.client
        if fault is ProxyFault.DROP_AFTER:
            return False
        if fault is ProxyFault.SWALLOW:
            return True
        if fault is ProxyFault.SILENCE:
            pair.ended.wait()
            return False
        if fault is ProxyFault.DELAY:
            pair.ended.wait(self.delay_s)
        if fault is ProxyFault.GARBAGE:
            data = self._random.randbytes(self._random.randint(1, 200))
        if fault is ProxyFault.HALF_CLOSE:
            client.shutdown(socket.SHUT_WR)
            pair.ended.wait(WAIT_S)
            return False
        if fault is ProxyFault.HUGE:
            client.sendall(_SIZE.pack(HUGE))
            for _ in range(HUGE_SENT_BYTES // 65_536):
                client.sendall(bytes(65_536))
        elif fault is ProxyFault.TEAR:
            for at in range(len(data)):
                client.sendall(data[at : at + 1])
        else:
            client.sendall(data)
        return True

    def _end(self, pair: _Pair) -> None:
        pair.end()
        with self._lock:
            self._pairs.discard(pair)


class _Pair:
    """A client's connection and the one to the broker that belongs to it."""

    def __init__(self, number: int, client: socket.socket, broker: socket.socket) -> None:
        self.number = number
        self.client = client
        self.broker = broker
        self.faults: dict[int, ProxyFault | None] = {}  # correlation id -> what happens to the answer
        self.ended = threading.Event()
        for each in (client, broker):
            each.settimeout(None)  # a connection may be idle for long; end() wakes whoever reads or writes
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def end(self) -> None:
        self.ended.set()
        for each in (self.client, self.broker):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _read_frame(connection: socket.socket) -> bytes | None:
    """The next frame without its size; None at the end of the stream, be it within a frame."""
    size = _read(connection, _SIZE.size)
    if size is None:
        return None
    (length,) = _SIZE.unpack(size)
    if not 0 <= length <= MAX_FRAME_BYTES:
        raise OSError(f"a frame of {length} bytes")
    return _read(connection, length)


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if not received:
            return None
        view = view[received:]
    return bytes(data)


def _is_readable(connection: socket.socket, timeout_s: float) -> bool:
    with selectors.DefaultSelector() as waiting:
        waiting.register(connection, selectors.EVENT_READ)
        return bool(waiting.select(timeout_s))


class ProxiedKafka(LocalKafka):
    """A LocalKafka whose listener PROXIED advertises a FaultProxy for each node, and whose plain listener works as ever."""

    LISTENER = "PROXIED"

    def __init__(
        self, work_dir: Path, *, brokers: int = 1, proxies: Mapping[int, FaultProxy] | None = None, **options: Any
    ) -> None:
        """`proxies` of another cluster lead to this one from its start on."""
        super().__init__(work_dir, brokers=brokers, extra_listeners=(self.LISTENER,), **options)
        self.proxies = proxies or {node_id: FaultProxy(seed=node_id) for node_id in range(1, brokers + 1)}

    @property
    def proxy(self) -> FaultProxy:
        """The first node's."""
        return self.proxies[1]

    @property
    def proxied_servers(self) -> str:
        return ",".join(proxy.address for proxy in self.proxies.values())

    def start(self) -> ProxiedKafka:
        try:
            super().start()
        except BaseException:
            self._close_proxies()
            raise
        for node_id, proxy in self.proxies.items():
            proxy.upstream = (HOST, self.nodes[node_id].extra_ports[self.LISTENER])
        return self

    def __enter__(self) -> ProxiedKafka:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close_proxies()
        super().__exit__(kind, error, trace)

    def _close_proxies(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()

    def _server_properties(self, node: LocalNode) -> dict[str, str]:
        return super()._server_properties(node) | {
            "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port},{self.LISTENER}://{self.proxies[node.node_id].address}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,{self.LISTENER}:PLAINTEXT",
        }
