"""`python -m backends.reference MODEL_DIR`: serve until SIGTERM or SIGINT.

Exit codes: 0 stopped as asked, 1 the engine failed, 2 a mistake of the caller (one line on stderr).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time

from backends.reference.config import EngineSettings, ModelConfig, read_model_config
from backends.reference.settings import ServerArguments, parse_arguments, resolve, settings_as_json
from results.errors import EXIT_USAGE, UsageError

log = logging.getLogger("backends.reference")

STOP_TIMEOUT_S = 1.0
# The engine's thread takes the interpreter lock back this soon from a busy event loop (Python's default is 5 ms).
SWITCH_INTERVAL_S = 0.0005
# How long libgomp's workers spin between products before they sleep. Its default (milliseconds) is a little quicker on
# an idle machine, but collapses when anything else wants a core, as a load client on the same machine does: the waiting
# thread then spins on the core that the late one needs. Measured on two cores, ms a decode step of a 135M model, alone
# and beside a process that takes 10 % of a core: 1,000 spins 27 / 32, 10,000 spins 24 / 141.
SPIN_COUNT = "1000"


def main(argv: list[str] | None = None, prog: str = "python -m backends.reference") -> int:
    """Run the server; returns the exit code. `prog` is the command's name in its help."""
    began = time.monotonic()
    try:
        arguments = parse_arguments(argv, prog)
        logging.basicConfig(
            level=arguments.log_level.upper(),
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        config = read_model_config(arguments.model)
        settings = resolve(arguments, config)
        # Taken before the model is loaded, so that a port in use is known at once; it listens when all is ready.
        listener = bind(arguments.host, arguments.port)
        return serve(arguments, config, settings, listener, began)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_USAGE


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UsageError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. Stop what uses the port or choose another "
            "with --port (0 takes a free one)."
        ) from error
    return listener


def serve(
    arguments: ServerArguments, config: ModelConfig, settings: EngineSettings, listener: socket.socket, began: float
) -> int:
    """Build the engine and serve until told to stop. Torch is first imported here."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when torch loads libgomp, so set before

    import uvloop

    from backends.reference.build import BuiltEngine, build_engine
    from backends.reference.chat import load_chat_template
    from backends.reference.owner import OwnerThread
    from backends.reference.profiler import NoProfiler, TorchProfiler
    from backends.reference.server import Server
    from backends.reference.service import Service
    from backends.reference.tokenizer import Tokenizer, load_tokenizer
    from backends.reference.truth import ArrowTruth, NoTruth

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # until the loop takes over: nothing to finish while loading
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log.info("settings: %s", settings)
    tokenizer, template = load_tokenizer(arguments.model), load_chat_template(arguments.model)
    truth = ArrowTruth(arguments.truth_dir) if arguments.truth_dir else NoTruth()
    profiler = TorchProfiler(arguments.profile_dir, arguments.profile_steps) if arguments.profile_dir else NoProfiler()
    owner = OwnerThread()
    built = owner.call(lambda: build_engine(arguments.model, config, settings, truth)).result()
    profiler.watch(built.engine)

    async def run(tokenizer: Tokenizer, built: BuiltEngine) -> int:
        from aiohttp import web

        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        service = Service(built.engine, owner, truth)
        facts = settings_as_json(
            settings,
            config,
            kernels=built.kernels,
            attention=built.kv.name,
            linear=built.model.linear_name,
            weight_bytes=built.model.num_bytes,
        )
        app = Server(service, tokenizer, template, config, arguments.name, facts, profiler.begin).app()
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=STOP_TIMEOUT_S)
        await runner.setup()
        try:
            await web.SockSite(runner, listener, backlog=4096).start()
        except OSError as error:
            raise UsageError(f"Cannot listen on {arguments.host}:{arguments.port}: {error.strerror}.") from error
        port = listener.getsockname()[1]
        print(
            f"ready on http://{arguments.host}:{port} in {time.monotonic() - began:.1f} s "
            f"(weights {built.weights_s:.1f} s, kv {built.kv_s:.1f} s)",
            flush=True,
        )
        waits = [asyncio.ensure_future(event.wait()) for event in (stopping, service.died)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
        ended = service.stop(STOP_TIMEOUT_S)
        await runner.cleanup()
        if ended:
            owner.call(profiler.close).result()  # nobody waits for tokens any more
        else:
            log.warning("the engine did not end its step within %.1f s", STOP_TIMEOUT_S)
        return 1 if service.died.is_set() else 0

    code = uvloop.run(run(tokenizer, built))
    truth.close()
    log.info("stopped")
    # Not sys.exit: a step in progress may hold the engine's thread for seconds, and nothing is left to write.
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
