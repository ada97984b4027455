"""HTTP client for single requests, with bounds on everything that the other side decides: time, size, target.

No redirect is followed, no credentials are taken from files of the environment, no cookie is kept, nothing is
unpacked. Proxies are those of the environment (``HTTPS_PROXY``, ``NO_PROXY``), authorities the system's
(``SSL_CERT_FILE``).
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)

from gpuyard.model.text import printable

CONNECT = 10.0
READ = 30.0
TOTAL = 60.0
"""Seconds: to connect, between two pieces of an answer, and for all of it."""
MOST_BYTES = 8 << 20
PIECE = 1 << 16
POOLED = 8
"""Connections to one host that are kept open."""


@dataclass(frozen=True)
class WireAnswer:
    status: int
    headers: Mapping[str, str]
    """Headers; names in lower case."""
    body: bytes


class HttpClientError(Exception):
    """Raised when no whole answer came; the message says why, without addresses or secrets."""

    def __init__(self, message: str, *, sent: bool = True, too_big: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have arrived."""
        self.too_big = too_big


class WireStop:
    """Ends exchanges from another thread, those under way and those to come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[_Watch] = set()
        self._stopped = False

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            watches = list(self._watches)
        for watch in watches:
            watch.cut("called off")

    @contextmanager
    def _over(self, watch: _Watch) -> Iterator[None]:
        with self._lock:
            if self._stopped:
                raise HttpClientError("called off", sent=False)
            self._watches.add(watch)
        try:
            yield
        finally:
            with self._lock:
                self._watches.discard(watch)


class HttpClient:
    """Connections to hosts, kept open between requests. Safe to use from several threads."""

    def __init__(self, proxies: Mapping[str, str] | None = None) -> None:
        """`proxies`: scheme -> address; those of the environment when left out."""
        self._proxies = getproxies() if proxies is None else dict(proxies)
        self._context = ssl.create_default_context()
        self._direct = self._manager("")
        self._by_proxy: dict[str, urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._stop = WireStop()

    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        read: float = READ,
        total: float = TOTAL,
        most: int = MOST_BYTES,
        stop: WireStop | None = None,
    ) -> WireAnswer:
        """Return the answer, whatever its status. `read` and `total` are seconds, `most` bytes of its body. Raises
        HttpClientError, also when `stop` or `close` call it off."""
        watch = _Watch()
        timer = threading.Timer(total, watch.cut, (f"no whole answer in {total:.0f} s",))
        timer.daemon = True
        _HERE.watch = watch
        try:
            with self._stop._over(watch), (stop or self._stop)._over(watch):
                timer.start()
                answer = self._exchange(method, url, headers, body, read, most)
                watch.check()  # a connection that is cut looks like the end of headers, or of a body without length
                return answer
        except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            raise HttpClientError(watch.reason or _words(error, read), sent=watch.sent) from None
        finally:
            timer.cancel()
            _HERE.watch = None

    def close(self) -> None:
        """Close for good: exchanges under way end with an error."""
        self._stop.stop()
        self._direct.clear()
        for manager in self._by_proxy.values():
            manager.clear()

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, read: float, most: int
    ) -> WireAnswer:
        answer = self._way(url).urlopen(
            method,
            url,
            body=body,
            headers={"Accept-Encoding": "identity", **headers},
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=CONNECT, read=read),
        )
        taken = bytearray()
        try:
            for piece in answer.stream(PIECE, decode_content=False):
                taken += piece
                if len(taken) > most:
                    raise HttpClientError(f"the answer is larger than {most} bytes", too_big=True)
        except BaseException:
            answer.close()
            raise
        answer.release_conn()
        return WireAnswer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, bytes(taken))

    def _way(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme, "")
        if not proxy or proxy_bypass(parts.hostname or ""):
            return self._direct
        with self._lock:
            if proxy not in self._by_proxy:
                self._by_proxy[proxy] = self._manager(proxy)
            return self._by_proxy[proxy]

    def _manager(self, proxy: str) -> urllib3.PoolManager:
        how: dict[str, Any] = {"num_pools": 16, "maxsize": POOLED, "ssl_context": self._context}
        manager: urllib3.PoolManager
        if proxy:
            parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
            address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            headers = urllib3.make_headers(proxy_basic_auth=login)
            manager = urllib3.ProxyManager(address, proxy_headers=headers, **how)
        else:
            manager = urllib3.PoolManager(**how)
        manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        return manager


class _Watch:
    """What one exchange does, so that another thread can cut it."""

    def __init__(self) -> None:
        self.reason = ""
        self.sent = False
        self._connection: HTTPConnection | None = None

    def on(self, connection: HTTPConnection) -> None:
        self._connection = connection
        self.check()

    def check(self) -> None:
        if self.reason:
            raise HttpClientError(self.reason, sent=self.sent)

    def cut(self, reason: str) -> None:
        """The thread that waits for the socket finds it at its end."""
        self.reason = reason
        sock = self._connection.sock if self._connection else None
        sock = getattr(sock, "socket", sock)  # TLS within TLS, to a proxy
        if isinstance(sock, socket.socket):
            with suppress(OSError):
                # Not SSLSocket's own, which takes the encryption away under the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Here(threading.local):
    watch: _Watch | None = None


_HERE = _Here()


class _HttpConnection(HTTPConnection):
    def connect(self) -> None:
        _connect(self, super().connect)

    def request(self, *args: Any, **keywords: Any) -> None:
        _before_request(self)
        super().request(*args, **keywords)


class _HttpsConnection(HTTPSConnection):
    def connect(self) -> None:
        _connect(self, super().connect)

    def request(self, *args: Any, **keywords: Any) -> None:
        _before_request(self)
        super().request(*args, **keywords)


def _connect(connection: HTTPConnection, connect: Any) -> None:
    watch = _HERE.watch
    if watch:
        watch.on(connection)
    connect()
    if watch:
        watch.check()


def _before_request(connection: HTTPConnection) -> None:
    if connection.sock is None:
        connection.connect()
    if watch := _HERE.watch:
        watch.on(connection)
        watch.sent = True


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


def _words(error: BaseException, read: float) -> str:
    """Why, without the address that was asked."""
    if isinstance(error, NameResolutionError):
        return "its name cannot be resolved"
    if isinstance(error, NewConnectionError):
        cause = error.__cause__ or error.__context__
        return f"no connection: {cause.strerror}" if isinstance(cause, OSError) and cause.strerror else "no connection"
    if isinstance(error, ConnectTimeoutError):
        return f"no connection in {CONNECT:.0f} s"
    if isinstance(error, (ReadTimeoutError, TimeoutError)):
        return f"no answer in {read:.0f} s"
    if isinstance(error, (SSLError, ssl.SSLError)):
        return f"TLS: {printable(str(error))[:200]}"
    if isinstance(error, ProxyError):
        return "the proxy does not let us through"
    return f"the answer broke off ({type(error).__name__})"
