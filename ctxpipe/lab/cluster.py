"""An existing Dask cluster, in place of processes of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ..errors import SettingsError
from .batch import Workers

__all__ = ["cluster"]

SECONDS_TO_ANSWER = 10


@contextmanager
def cluster(address: str) -> Iterator[Workers]:
    """The workers of the Dask scheduler at *address*.

    They are sent the files' contents and need ctxpipe, not the caller's disk. Raises SettingsError
    when ``ctxpipe[dask]`` is not installed, nothing answers at *address*, or there are no workers.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise SettingsError(
            "--scheduler needs the package distributed: pip install 'ctxpipe[dask]'"
        ) from error
    try:
        # First the address: a client with a wrong one waits long, and reports it only then.
        distributed.comm.get_address_host_port(address)
        client = distributed.Client(address, timeout=SECONDS_TO_ANSWER, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error) or type(error).__name__
        raise SettingsError(f"no Dask scheduler answers at {address}: {reason}") from error
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise SettingsError(f"the Dask scheduler at {address} has no workers")
        pool = client.get_executor(pure=False)
        try:
            yield Workers(pool, threads + 1, far=True)
        finally:
            pool.shutdown(wait=False)
