"""A fake docker: an executable `docker` (and `podman`, which takes the same words), and the daemon that owns the containers, which
are plain processes of this machine.

    with FakeDocker(folder, images={"some/image:1.0"}) as docker: ...      # docker.path is to be first on PATH

As with the real one a container is no child of the `run` command: who kills that leaves the container running. It refuses words
it does not know, an image that is not there, a name or an id file that is taken, paths that are not mounted. `containers` tells
what is there; `kill_for_memory()` ends one as the kernel would; `vanish()` lets the daemon go, its containers stay.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

CLI = Path(__file__).with_name("docker_cli.py")
# Options of `run` that take a value, and those that do not.
VALUED = {"--name", "--pull", "--ipc", "--cidfile", "--label", "--network", "--publish", "--volume", "--env", "--gpus"}
VALUED |= {"--entrypoint", "--device", "--memory"}
PLAIN = {"--init"}
STATE = "exit {{.State.ExitCode}}, out of memory {{.State.OOMKilled}}, error {{json .State.Error}}"


@dataclass
class Container:
    id: str
    name: str
    labels: dict[str, str]
    words: list[str]
    options: dict[str, list[str]]
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    oom: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def running(self) -> bool:
        return self.exit_code is None


class RefusedError(Exception):
    def __init__(self, words: str, code: int = 1) -> None:
        super().__init__(words)
        self.code = code


class FakeDocker:
    def __init__(self, folder: Path, images: set[str]) -> None:
        self.folder, self.images = folder, images
        self.containers: dict[str, Container] = {}
        self.commands: list[list[str]] = []
        # Put first on the PATH inside: what only the image has.
        self.image_path = ""
        self.path = folder / "bin"
        self.path.mkdir(parents=True)
        # A path of a socket has to be short.
        self.socket_path = f"/tmp/dyno-fake-{os.getpid()}-{secrets.token_hex(4)}.sock"
        for runtime in ("docker", "podman"):
            script = self.path / runtime
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {CLI} {self.socket_path} "$@"\n')
            script.chmod(0o755)
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> FakeDocker:
        self._listener.bind(self.socket_path)
        self._listener.listen(64)
        threading.Thread(target=self._serve, name="fake-docker", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.vanish()
        for container in list(self.containers.values()):
            self._kill(container)

    def vanish(self) -> None:
        """The daemon is gone; containers go on, those who wait for one hear no more."""
        for link in list(self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.socket_path)

    def add(self, name: str, labels: dict[str, str], words: list[str] | None = None) -> Container:
        """A container that somebody else started."""
        container = Container(secrets.token_hex(32), name, labels, words or ["sleep", "600"], {})
        self._start(container, None, dict(os.environ))
        return container

    def kill_for_memory(self, container: Container) -> None:
        """As the kernel's killer would."""
        assert container.process is not None
        container.oom = True
        os.killpg(container.process.pid, signal.SIGKILL)

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        self._links.add(link)
        with link, contextlib.suppress(OSError):
            data, ancillary, _, _ = link.recvmsg(65536, socket.CMSG_SPACE(4))
            handles = array.array("i")
            for _, _, raw in ancillary:
                handles.frombytes(raw[:4])
            while not data.endswith(b"\n"):
                data += link.recv(65536)
            request = json.loads(data)
            try:
                reply = self._command(request["words"], request["env"], handles[0], link)
            except RefusedError as error:
                reply = {"code": error.code, "err": f"{error}\n"}
            finally:
                for handle in handles:
                    os.close(handle)
            link.sendall(json.dumps(reply).encode() + b"\n")
        self._links.discard(link)

    def _command(self, words: list[str], env: dict[str, str], out: int, link: socket.socket) -> dict[str, Any]:
        with self._lock:
            self.commands.append(words)
        if words[:2] == ["image", "inspect"]:
            return self._image(words[2])
        commands: dict[str, Callable[[list[str]], dict[str, Any]]] = {
            "ps": self._ps,
            "inspect": self._inspect,
            "rm": self._rm,
        }
        if words[0] == "run":
            return self._run(words[1:], env, out, link)
        if words[0] not in commands:
            raise RefusedError(f"docker: '{words[0]}' is not a docker command.")
        return commands[words[0]](words[1:])

    def _image(self, name: str) -> dict[str, Any]:
        if name not in self.images:
            raise RefusedError(f"Error response from daemon: No such image: {name}")
        return {
            "code": 0,
            "out": json.dumps([{"Id": "sha256:1234", "RepoDigests": [f"{name.split(':')[0]}@sha256:abcd"]}]),
        }

    def _run(self, words: list[str], env: dict[str, str], out: int, link: socket.socket) -> dict[str, Any]:
        options: dict[str, list[str]] = {}
        while words and words[0].startswith("-"):
            word, equals, value = words.pop(0).partition("=")
            if word in VALUED:
                options.setdefault(word, []).append(value if equals else words.pop(0))
            elif word in PLAIN:
                options[word] = []
            else:
                raise RefusedError(f"unknown flag: {word}\nSee 'docker run --help'.", 125)
        image, *command = words
        name = options.get("--name", [secrets.token_hex(4)])[0]
        if image not in self.images:
            raise RefusedError(f"docker: Error response from daemon: No such image: {image}.", 125)
        if (other := next((c for c in self.containers.values() if c.name == name), None)) is not None:
            raise RefusedError(
                f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use by container '
                f'"{other.id}". You have to remove (or rename) that container to be able to reuse that name.',
                125,
            )
        cidfile = Path(options["--cidfile"][0]) if "--cidfile" in options else None
        if cidfile is not None and cidfile.exists():
            raise RefusedError(
                f"docker: container ID file found, make sure the other container isn't running: {cidfile}", 125
            )
        command = [*options.get("--entrypoint", []), *command]
        self._require_mounted(command[1:], options.get("--volume", []))
        labels = dict(label.split("=", 1) for label in options.get("--label", []))
        container = Container(secrets.token_hex(32), name, labels, command, options)
        inside = {key: env[key] for key in ("PATH", *options.get("--env", [])) if key in env}
        if self.image_path:
            inside["PATH"] = f"{self.image_path}:{inside['PATH']}"
        if cidfile is not None:
            cidfile.write_text(container.id)
        self._start(container, out, inside)
        threading.Thread(target=self._signals, args=(link, container), daemon=True).start()
        container.done.wait()
        return {"code": container.exit_code}

    @staticmethod
    def _require_mounted(words: list[str], volumes: list[str]) -> None:
        targets = [Path(volume.split(":")[1]) for volume in volumes]
        for word in words:
            if word.startswith("/") and Path(word).exists() and not any(Path(word).is_relative_to(t) for t in targets):
                raise RefusedError(f"{word}: No such file or directory", 127)

    def _start(self, container: Container, out: int | None, env: dict[str, str]) -> None:
        target: Any = subprocess.DEVNULL if out is None else out
        process = subprocess.Popen(
            container.words, stdin=subprocess.DEVNULL, stdout=target, stderr=target, env=env, start_new_session=True
        )
        container.process = process
        self.containers[container.id] = container

        def wait() -> None:
            code = process.wait()
            container.exit_code = 128 - code if code < 0 else code
            container.done.set()

        threading.Thread(target=wait, daemon=True).start()

    @staticmethod
    def _signals(link: socket.socket, container: Container) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := link.recv(4096):
                for line in data.splitlines():
                    if container.process is not None and container.running:
                        os.kill(container.process.pid, json.loads(line)["signal"])

    def _ps(self, words: list[str]) -> dict[str, Any]:
        found = list(self.containers.values())
        form = "{{.ID}}"
        while words:
            word = words.pop(0)
            if word == "--filter":
                key, _, value = words.pop(0).removeprefix("label=").partition("=")
                found = [c for c in found if key in c.labels and value in ("", c.labels[key])]
            elif word == "--format":
                form = words.pop(0)
            elif word not in ("--all", "--quiet", "--no-trunc"):
                raise RefusedError(f"unknown flag: {word}")
        rows = []
        for container in found:
            row = form.replace("{{.ID}}", container.id).replace(
                "{{.State}}", "running" if container.running else "exited"
            )
            for key, value in container.labels.items():
                row = row.replace('{{.Label "' + key + '"}}', value)
            rows.append(row + "\n")
        return {"code": 0, "out": "".join(rows)}

    def _inspect(self, words: list[str]) -> dict[str, Any]:
        flag, form, name = words
        container = self._find(name)
        if flag != "--format" or form not in (STATE, "{{.State.Pid}}"):
            raise RefusedError(f"template parsing error: {form}")
        if form == STATE:
            code, oom = container.exit_code or 0, str(container.oom).lower()
            return {"code": 0, "out": f'exit {code}, out of memory {oom}, error ""\n'}
        pid = container.process.pid if container.process is not None and container.running else 0
        return {"code": 0, "out": f"{pid}\n"}

    def _rm(self, words: list[str]) -> dict[str, Any]:
        container = self._find(words[-1])
        if container.running and "--force" not in words:
            raise RefusedError(f"Error response from daemon: cannot remove container {words[-1]}: it is running")
        self._kill(container)
        self.containers.pop(container.id, None)
        return {"code": 0, "out": f"{words[-1]}\n"}

    def _find(self, name: str) -> Container:
        for container in self.containers.values():
            if container.id.startswith(name) or container.name == name:
                return container
        raise RefusedError(f"Error response from daemon: No such container: {name}")

    @staticmethod
    def _kill(container: Container) -> None:
        if container.process is not None:
            with contextlib.suppress(OSError):
                os.killpg(container.process.pid, signal.SIGKILL)
            container.done.wait(60)
