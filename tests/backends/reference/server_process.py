"""The server as a child process, on a free port."""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import LONG_S


class Answer:
    """One HTTP answer; read it whole or line by line."""

    def __init__(self, raw: http.client.HTTPResponse) -> None:
        self._raw = raw
        self.status_code = raw.status
        self.headers = {name.lower(): value for name, value in raw.getheaders()}

    @property
    def text(self) -> str:
        """The body."""
        return self._raw.read().decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)

    def lines(self) -> Iterator[str]:
        """Lines of the body as they arrive."""
        for line in self._raw:
            yield line.decode().rstrip("\n")


class ServerProcess:
    """A running server: its process and its address."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log

    def connect(self) -> socket.socket:
        """A bare connection."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=LONG_S)

    @contextmanager
    def ask(self, path: str, content: bytes | None = None, **headers: str) -> Iterator[Answer]:
        """GET, or POST where there is content; the connection is closed on leaving, whatever was read."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=LONG_S)
        try:
            connection.request("GET" if content is None else "POST", path, content, headers)
            yield Answer(connection.getresponse())
        finally:
            connection.close()

    def text(self, path: str) -> str:
        """The body of a GET."""
        with self.ask(path) as answer:
            assert answer.status_code == 200, answer.text
            return answer.text

    def complete(self, status: int = 200, **body: object) -> dict[str, Any]:
        """POST /v1/completions; the JSON answer."""
        return self.post("/v1/completions", status, **body)

    def post(self, path: str, status: int = 200, **body: object) -> dict[str, Any]:
        """POST a JSON body; the JSON answer."""
        with self.ask(path, json.dumps({"temperature": 0} | body).encode()) as answer:
            made: dict[str, Any] = answer.json()
            assert answer.status_code == status, made
            return made

    def metric(self, name: str) -> float:
        """One metric's value; `name` may end with its labels."""
        labels = "" if name.endswith("}") else r"\{.*\}"
        (value,) = re.findall(rf"^{re.escape(name)}{labels} (\S+)$", self.text("/metrics"), re.MULTILINE)
        return float(value)


@contextmanager
def running_server(folder: Path, log: Path, *flags: str) -> Iterator[ServerProcess]:
    """Start `python -m backends.reference` on `folder` and end it afterwards, however the test went."""
    command = [sys.executable, "-m", "backends.reference", str(folder), "--port", "0", "--threads", "1", *flags]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], LONG_S)[0], log.read_text()
            line = process.stdout.readline()
            match = re.fullmatch(r"ready on (http://\S+) in [\d.]+ s \(weights [\d.]+ s, kv [\d.]+ s\)\n", line)
            assert match, f"{line!r}\n{log.read_text()}"
            yield ServerProcess(process, match[1], log)
        finally:
            process.kill()
