"""A fake engine as an executable: quick to start, standard library only, with a fault at any stage of its life by flag.

`python tests/servers/engine_fake.py --port P [faults]`. Without faults it answers /health, /v1/models and streams
POST /v1/completions. It takes the command line of the reference engine, so that it stands in for it in whole runs. It
writes to its log what a test wants to wait for: `listening`, `got SIGTERM`, `worker PID kind`, `request of N for M`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

FOREVER_S = 600.0


def say(*words: object) -> None:
    """One line of the log, whole, even when several processes write."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--model", "--served-model-name", default="fake")
    parser.add_argument("--truth-dir")
    parser.add_argument("--message", default="", help="said before a fault, and on stderr")
    parser.add_argument("--exit-at-spawn", type=int, metavar="CODE")
    parser.add_argument("--hang-before-bind", action="store_true")
    parser.add_argument("--chatter", type=int, default=0, metavar="N", help="N log lines, 50 ms apart, before it binds")
    parser.add_argument("--bind-when", metavar="FILE", help="it binds once that file is there")
    parser.add_argument("--exit-while-loading", type=int, metavar="CODE", help="after the chatter, before it binds")
    parser.add_argument("--shared-memory", action="store_true", help="hold a segment, named in the log: `segment NAME`")
    parser.add_argument("--not-ready", type=int, default=0, metavar="N", help="503 for N polls; -1 for ever")
    parser.add_argument("--die-after-bind", type=int, metavar="CODE", help="negative: by that signal")
    parser.add_argument("--die-after-tokens", type=int, metavar="N")
    parser.add_argument("--die-code", type=int, default=-11)
    parser.add_argument("--worker", action="append", default=[], choices=["stubborn", "session", "orphan", "port"])
    parser.add_argument("--exit-with-workers", type=int, metavar="CODE", help="exit at once and leave the workers")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--die-on-term", type=int, metavar="CODE", help="end so instead of cleanly")
    parser.add_argument("--token-interval", type=float, default=0.0, metavar="S", help="time before each token")
    parser.add_argument("--generates-after", type=int, default=0, metavar="N", help="503 to so many requests")
    parser.add_argument("--refuse", type=int, metavar="STATUS", help="answer requests so, with the message")
    parser.add_argument(
        "--most-prompt", type=int, metavar="N", help="longer prompts are out of memory: 500, and it lives on"
    )
    parser.add_argument("--api-key", help="taken, and asked of nobody")
    parser.add_argument("--deaf", action="store_true", help="take requests and never answer them; /health is fine")
    parser.add_argument(
        "--lose-worker",
        type=float,
        metavar="S",
        help="a worker says the message and ends then, with --mood once that is `lose`; the front stays",
    )
    parser.add_argument(
        "--mood", metavar="FILE", help="a word in that file, read as it goes: unhealthy, hung, deaf, fatal, lose"
    )
    return parser.parse_args()


def die(code: int) -> None:
    """End at once, by a signal where `code` is negative."""
    if code < 0:
        os.kill(os.getpid(), -code)
        time.sleep(FOREVER_S)
    os._exit(code)


def hold_memory() -> object:
    """A shared segment as Python's engines have it: a helper process of its own removes it after the last user's end."""
    from multiprocessing.shared_memory import SharedMemory

    segment = SharedMemory(create=True, size=4096)
    say("segment", segment.name)
    return segment


def start_worker(kind: str, listener: socket.socket | None) -> None:
    """A child that ignores SIGTERM and stays: in a session of its own, orphaned at once, or holding the port."""
    ready, done = os.pipe()
    if os.fork() == 0:
        if kind == "orphan" and os.fork() != 0:
            os._exit(0)
        if kind in ("session", "orphan"):
            os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if kind != "port" and listener is not None:
            listener.close()
        say("worker", os.getpid(), kind)
        os.write(done, b".")
        os.close(done)
        time.sleep(FOREVER_S)
        os._exit(0)
    os.close(done)
    os.read(ready, 1)
    os.close(ready)


def mood_of(options: argparse.Namespace) -> str:
    """The word in its file now."""
    try:
        with open(options.mood or os.devnull) as file:
            return file.read().strip()
    except OSError:
        return ""


def lose_worker(options: argparse.Namespace) -> None:
    """A worker that ends with a cause while its front waits for it for ever."""
    if os.fork() == 0:
        time.sleep(options.lose_worker)
        while options.mood and mood_of(options) != "lose":
            time.sleep(0.01)
        say(options.message)
        os._exit(1)


class Server:
    """Just enough HTTP: one request a connection."""

    def __init__(self, options: argparse.Namespace, listener: socket.socket) -> None:
        self.options, self.listener = options, listener
        self.polls = 0
        self.refused = 0
        self.said_fatal = False

    def serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                data = b""
                while b"\r\n\r\n" not in data:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    data += piece
                head, _, body = data.partition(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
                while len(body) < int(headers.get("content-length", "0")):
                    body += connection.recv(65536)
                method, path, _ = lines[0].split(" ")
                if self.mood() == "hung":
                    time.sleep(FOREVER_S)
                if method == "POST":
                    self.generate(connection, json.loads(body))
                else:
                    self.reply(connection, *self.page(path))
            except OSError:
                return  # the client went away

    def mood(self) -> str:
        """The word of the moment; `fatal` is also said, once, as an engine does whose front goes on."""
        word = mood_of(self.options)
        if word == "fatal" and not self.said_fatal:
            self.said_fatal = True
            say("ERROR EngineCore encountered a fatal error.\nERROR torch.OutOfMemoryError: CUDA out of memory.")
        return word

    def generate(self, connection: socket.socket, request: dict[str, Any]) -> None:
        say("request of", len(request.get("prompt", ())), "for", request.get("max_tokens"))
        if self.options.deaf or self.mood() in ("deaf", "fatal"):
            time.sleep(FOREVER_S)
        if self.refused < self.options.generates_after:
            self.refused += 1
            self.reply(connection, 503, {"error": {"message": "Loading model"}})
        elif self.options.refuse is not None:
            self.reply(connection, self.options.refuse, {"error": {"message": self.options.message}})
        elif self.options.most_prompt is not None and len(request["prompt"]) > self.options.most_prompt:
            message = "CUDA out of memory. Tried to allocate 2.00 GiB"
            self.reply(connection, 500, {"error": {"message": message, "type": "OutOfMemoryError"}})
        elif request.get("stream", True):
            self.stream(connection, request)
        else:
            choice = {"index": 0, "text": " x" * request["max_tokens"], "finish_reason": "length"}
            usage = {"prompt_tokens": len(request["prompt"]), "completion_tokens": request["max_tokens"]}
            self.reply(connection, 200, {"model": self.options.model, "choices": [choice], "usage": usage})

    def page(self, path: str) -> tuple[int, dict[str, Any]]:
        self.polls += 1
        if self.options.die_after_bind is not None:
            say(self.options.message)
            die(self.options.die_after_bind)
        if self.options.not_ready < 0 or self.polls <= self.options.not_ready:
            return 503, {"error": {"message": "Loading model"}}
        if path == "/health" and self.mood() == "unhealthy":
            return 503, {"error": {"message": "The engine is dead"}}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": self.options.model, "max_model_len": 2048}]}
        return (200, {"status": "ok"}) if path == "/health" else (404, {"error": {"message": "not found"}})

    def reply(self, connection: socket.socket, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)

    def stream(self, connection: socket.socket, request: dict[str, Any]) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for index in range(int(request.get("max_tokens", 4))):
            if index == self.options.die_after_tokens:
                say(self.options.message)
                die(self.options.die_code)
            time.sleep(self.options.token_interval)
            if self.mood() in ("unhealthy", "hung", "deaf", "fatal"):
                time.sleep(FOREVER_S)
            connection.sendall(b'data: {"choices": [{"index": 0, "text": " x"}]}\n\n')
        connection.sendall(b"data: [DONE]\n\n")


def main() -> None:
    options = parse_arguments()

    def on_signal(number: int, _frame: object) -> None:
        say("got", signal.Signals(number).name)
        if number == signal.SIGTERM and options.die_on_term is not None:
            die(options.die_on_term)
        if not (options.ignore_term and number == signal.SIGTERM):
            os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    later = (options.die_after_bind, options.die_after_tokens, options.refuse, options.lose_worker)
    if options.message and all(fault is None for fault in later):
        print(options.message, file=sys.stderr, flush=True)
    if options.exit_at_spawn is not None:
        die(options.exit_at_spawn)
    segment = hold_memory() if options.shared_memory else None
    for number in range(options.chatter):
        say("loading step", number)
        time.sleep(0.05)
    if options.exit_while_loading is not None:
        die(options.exit_while_loading)
    if options.lose_worker is not None:
        lose_worker(options)
    if options.hang_before_bind:
        say("hanging")
        time.sleep(FOREVER_S)
    while options.bind_when and not os.path.exists(options.bind_when):
        time.sleep(0.01)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((options.host, options.port))
    for kind in options.worker:
        start_worker(kind, listener)
    if options.exit_with_workers is not None:
        die(options.exit_with_workers)
    listener.listen(64)
    say("listening", listener.getsockname()[1])
    Server(options, listener).serve()
    del segment


if __name__ == "__main__":
    main()
