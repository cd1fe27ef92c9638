"""The part of the client that is not generated: requests, errors, pages and streams. It uses the standard library only."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_ATTEMPTS = 4


class ApiError(Exception):
    """An answer that is not a success. `code` is that of the first error, such as 10200 for what does not exist."""

    def __init__(self, status: int, errors: list[dict[str, Any]], request: str) -> None:
        message = errors[0]["message"] if errors else f"HTTP status {status}"
        super().__init__(f"{request}: {message}")
        self.status = status
        self.errors = errors
        self.code: int | None = errors[0].get("code") if errors else None


class Page(NamedTuple, Generic[T]):
    """One page of a list."""

    result: list[T]
    result_info: dict[str, Any]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: urllib would send the token to the other server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class Client:
    """Sends requests to one server. The generated class Artifacts adds a method for each operation.

    url is the URL of the server without path, such as http://127.0.0.1:8790; account has 32 hexadecimal digits, and
    the client asks the server for it if it is empty; timeout is that of each read, in seconds.
    """

    def __init__(self, url: str, token: str, account: str = "", timeout: float = 60) -> None:
        self._account = account
        self._url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._opener = urllib.request.build_opener(_NoRedirect)

    @property
    def account(self) -> str:
        """The account of the server."""
        if not self._account:
            accounts = self._call("GET", "/client/v4/accounts", "result")
            if not accounts:
                raise LookupError("GET /client/v4/accounts: the server has no account for this token")
            self._account = accounts[0]["id"]
        return self._account

    def _call(self, method: str, path: str, kind: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        with self._send(method, path, "*/*", query, body) as answer:
            data = answer.read()
        if kind == "none":
            return None
        if kind == "bytes":
            return data
        if kind == "text":
            return data.decode()
        decoded = json.loads(data)
        if kind == "json":
            return decoded
        if kind == "page":
            return Page(decoded["result"], decoded["result_info"])
        return decoded["result"]

    def _stream(self, method: str, path: str, query: dict[str, Any] | None = None) -> Iterator[Any]:
        """Yields the values of a stream: server-sent events, or lines of JSON."""
        with self._send(method, path, "text/event-stream, application/x-ndjson", query, None) as answer:
            events = answer.headers.get("Content-Type", "").startswith("text/event-stream")
            data: list[str] = []
            for raw in answer:
                line = raw.decode().rstrip("\r\n")
                if not events:
                    if line:
                        yield json.loads(line)
                elif line.startswith("data:"):
                    data.append(line[5:].removeprefix(" "))
                elif not line and data:
                    yield json.loads("\n".join(data))
                    data = []

    def _send(self, method: str, path: str, accept: str, query: dict[str, Any] | None, body: Any) -> Any:
        if "{account}" in path:
            path = path.replace("{account}", segment(self.account), 1)
        given = {k: _text(v) for k, v in (query or {}).items() if v is not None}
        url = self._url + path + ("?" + urllib.parse.urlencode(given, doseq=True) if given else "")
        headers = {"Accept": accept}
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        data = None
        if isinstance(body, bytes):
            headers["Content-Type"] = "application/octet-stream"
            data = body
        elif body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        for attempt in range(1, _ATTEMPTS + 1):
            request = urllib.request.Request(url, data=data, headers=headers, method=method)
            try:
                return self._opener.open(request, timeout=self._timeout)
            except urllib.error.HTTPError as e:
                with e:
                    text = e.read().decode(errors="replace")
                # The server is busy or its database is away. Only requests that may be repeated are.
                after = e.headers.get("Retry-After", "")
                if e.code in (429, 503) and after.isdigit() and method != "POST" and attempt < _ATTEMPTS:
                    time.sleep(min(int(after), 10))
                    continue
                raise ApiError(e.code, _errors(text), f"{method} {path}") from None
        raise AssertionError("unreachable")


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return [_text(v) for v in value]
    return value


def _errors(text: str) -> list[dict[str, Any]]:
    try:
        errors = json.loads(text)["errors"]
        if isinstance(errors, list):
            return errors
    except (ValueError, KeyError, TypeError):
        pass  # The answer is not an envelope, for example that of a proxy.
    return [{"code": 0, "message": text.strip()[:200]}] if text.strip() else []


def segment(value: str | int) -> str:
    """Encodes a value as one segment of a path."""
    return urllib.parse.quote(str(value), safe="")


def segments(value: str) -> str:
    """Encodes a path, whose slashes are kept."""
    return urllib.parse.quote(value, safe="/")


def paginate(list_page: Callable[..., Page[T]], *args: Any, **query: Any) -> Iterator[T]:
    """Yields the results of all pages of a list: `for repo in paginate(api.repos_list, "default", search="x")`."""
    while True:
        page = list_page(*args, **query)
        yield from page.result
        info = page.result_info
        if info.get("cursor"):
            query["cursor"] = info["cursor"]
        elif "cursor" not in query and info.get("page", 0) < info.get("total_pages", 0):
            query["page"] = info["page"] + 1
        else:
            return
