"""A Python that has imported what takes long: each program that it runs is a fork of it.

To import anthropic takes more than a second of a processor, a fork some hundredths. A program has
arguments, a folder, an environment, standard streams, signals and an exit code of its own, as in a
new interpreter; only the modules are in memory before. `processes.prepared_python` has the command.

One file for both ends: ``prepared_python.py ADDRESS`` serves, and ``prepared_python.py ADDRESS -c
CODE …`` (or ``-m MODULE …``, or ``FILE …``) runs a program, with the standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

# With what the SDKs and anyio import at the first call only.
MODULES = (
    "anthropic",
    "anyio._backends._asyncio",
    "ast_grep_py",
    "genai_prices.data",
    "httpcore2",
    "logging.config",
    "openai",
    "opentelemetry.propagate",
    "rich.progress",
    "starlette.applications",
    "tiktoken_ext.openai_public",
    "truststore",
    "typer",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
    "ctxpipe.adapters.anthropic",
    "ctxpipe._cli",
    "ctxpipe.storage.object_journals",
    "ctxpipe.storage.objects",
    "ctxpipe.storage.postgres",
    "ctxpipe.storage.redis",
    "ctxpipe.storage.sqlite",
    "ctxpipe.sync",
    "ctxpipe.testing.running",
    "ctxpipe.tools",
    "ctxpipe._threads.processes",
    "ctxpipe._threads.worker",
)


def ask(address: str, arguments: list[str]):
    """Have *arguments* run with this process's streams, and end as the program ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"!"], [0, 1, 2])
        request = [arguments, os.getcwd(), dict(os.environ)]
        connection.sendall(json.dumps(request).encode() + b"\n")
        answers = connection.makefile()
        program = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(program, number))
        status = int(answers.readline())
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def serve(address: str) -> list[str] | None:
    """Return the arguments in the process of a program; None once standard input has ended."""
    import contextlib
    import gc
    import importlib
    import select
    import ssl

    gc.disable()
    for name in MODULES:
        with contextlib.suppress(ImportError, SystemExit):  # a command says what it needs
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        build_once()
    # No test uses TLS, and to read the certificates takes longer than a request.
    ssl.SSLContext.load_verify_locations = lambda *_, **__: None  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()  # what is here is garbage in no program
    gc.enable()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    ended, running = os.pipe()  # the first is readable once no server holds the second
    print("ready", flush=True)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(running)
            return keep(connection, ended)
        connection.close()
    os.close(running)
    with contextlib.suppress(ChildProcessError):  # so that what they took is known
        while True:
            os.wait()
    return None


def build_once() -> None:
    """Build what each program would build in its first turn: the tokenizer, the SDK's schemas."""
    from anthropic.types import Message
    from anthropic.types.beta import BetaMessage

    from ctxpipe.tokens import TokenCounter

    TokenCounter().text("go")
    blocks = [
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}},
    ]
    for reply in (Message, BetaMessage):
        reply.construct(
            id="msg_1",
            type="message",
            role="assistant",
            content=blocks,
            model="",
            stop_reason="end_turn",
            usage={"input_tokens": 1},
        )


def keep(connection: socket.socket, ended: int) -> list[str]:
    """Run a program, which ends with the one who has asked, or the server. Returns in its process.

    *ended* is readable at the server's end: a test that failed may have left a program running.
    """
    import contextlib
    import select
    import threading

    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as requests:
        arguments, folder, environment = json.loads(requests.readline())
    program = os.fork()
    if program == 0:
        connection.close()
        become(streams, folder, environment)
        return list(arguments)
    for stream in (0, 1, *streams):
        os.close(stream)
    connection.sendall(b"%d\n" % program)

    def end_with_others() -> None:
        with contextlib.suppress(OSError):  # the program has ended first
            select.select([connection.fileno(), ended], [], [])
            os.kill(program, signal.SIGKILL)

    threading.Thread(target=end_with_others, daemon=True).start()
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):  # the one who has asked was killed
        connection.sendall(b"%d\n" % status)
    os._exit(0)


def become(streams: list[int], folder: str, environment: dict[str, str]):
    """Take over the streams, the folder and the environment of the one who has asked."""
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for place, name in ((1, "stdout"), (2, "stderr")):
        is_written_at_once = place == 2 or os.isatty(place) or "PYTHONUNBUFFERED" in environment
        buffering = 1 if is_written_at_once else -1
        written = open(place, "w", buffering, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, written)
        setattr(sys, f"__{name}__", written)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))


def run(arguments: list[str]):
    """Run a program as the interpreter's command line does."""
    import runpy
    import types

    how, *rest = arguments
    match how:
        case "-c":
            code, *sys.argv[1:] = rest
            sys.argv[0] = "-c"
            sys.path.insert(0, "")
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(code, "<string>", "exec"), vars(main))  # noqa: S102
        case "-m":
            sys.argv[:] = rest
            sys.path.insert(0, os.getcwd())
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        case _:
            sys.argv[:] = arguments
            sys.path.insert(0, os.path.dirname(how))
            runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[2:]:
        ask(sys.argv[1], sys.argv[2:])
    import atexit
    import contextlib

    status: int | None = None

    @atexit.register  # as the first, and so the last to be called
    def leave() -> None:
        """End here: to take apart what was imported would take most of a second."""
        with contextlib.suppress(Exception):  # the interpreter says what is wrong with a stream
            if status is not None:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)

    program = serve(sys.argv[1])
    if program is not None:
        try:
            run(program)
            status = 0
        except SystemExit as error:
            if error.code is None or isinstance(error.code, int):
                status = (error.code or 0) & 0xFF
            raise
        except Exception:
            status = 1
            raise
