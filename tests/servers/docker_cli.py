"""The command line of the fake docker: hands its words to the fake daemon, and for `run` its output, and waits.

`docker_cli.py SOCKET WORDS...`; standard library only, so that it is quick.
"""

import array
import json
import os
import signal
import socket
import sys

GONE = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


def main() -> int:
    path, *words = sys.argv[1:]
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
    except OSError:
        print(GONE, file=sys.stderr)
        return 1
    request = json.dumps({"words": words, "env": dict(os.environ)}).encode() + b"\n"
    handles = array.array("i", [1])
    link.sendmsg([request[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
    link.sendall(request[1:])
    signal.signal(signal.SIGTERM, lambda *_: link.sendall(b'{"signal": 15}\n'))
    signal.signal(signal.SIGINT, lambda *_: link.sendall(b'{"signal": 2}\n'))
    answer = b""
    while not answer.endswith(b"\n"):
        piece = link.recv(65536)
        if not piece:
            print("docker: error during connect: the daemon went away", file=sys.stderr)
            return 125
        answer += piece
    reply = json.loads(answer)
    sys.stdout.write(reply.get("out", ""))
    sys.stderr.write(reply.get("err", ""))
    return int(reply["code"])


if __name__ == "__main__":
    sys.exit(main())
