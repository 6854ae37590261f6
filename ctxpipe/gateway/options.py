"""The options that both commands of the gateway have, and their values from a file.

Each option of ``ctxpipe gateway`` and ``ctxpipe wrap`` has three names. For ``--cache-seconds``
these are the flag itself, the environment variable ``CTXPIPE_GATEWAY_CACHE_SECONDS``, and the key
``cache_seconds`` of the table ``[gateway]`` in the file of ``--config``. A flag takes precedence
over the environment, the environment over the file, and the file over the default. The command line
library derives all three from the parameters of a command, so a new parameter needs nothing more.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..providers.prices import FIVE_MINUTES
from ..settings import excerpt

ENVIRONMENT_PREFIX = "CTXPIPE_GATEWAY"
"""Beginning of the environment variables: an underscore and the name of an option follow."""
TABLE = "gateway"
"""The table of a configuration file that has the options; its other tables are a pipeline."""

Preset = Annotated[
    str,
    typer.Option(help="The pipeline that shapes the requests: coding, lean, chat, or a FILE.toml."),
]


def read_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values in the file at *path* as defaults of the options of *context*'s command.

    If the file has a pipeline too, that is the default of ``--preset``. Raises typer.BadParameter
    if the file cannot be read, or if it has an unknown option.
    """
    if path is None:
        return None
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be read: {reason}") from error
    values = tables.get(TABLE, {})
    names = sorted({str(option.name) for option in context.command.params} - {"command", "config"})
    if not isinstance(values, dict):
        raise typer.BadParameter(f"{path}: {TABLE} is {excerpt(values)}; give the table [{TABLE}]")
    for name in values:
        if name not in names:
            raise typer.BadParameter(
                f"{path}: {excerpt(name)} is not an option; the options are {', '.join(names)}"
            )
    defaults = dict(values)
    if "stage" in tables:
        defaults.setdefault("preset", str(path))
    context.default_map = defaults
    return path


def common_options(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            is_eager=True,
            callback=read_defaults,
            help="A TOML file with options in its table [gateway]. If it has a pipeline too, that "
            "is the default of --preset.",
        ),
    ] = None,
    root: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            help="The folder for offloaded texts and for journals. If it is inside the agent's own "
            "folder, the agent's tools can read from it.",
        ),
    ] = Path(".ctxpipe"),
    no_files: Annotated[
        bool, typer.Option("--no-files", help="Write nothing: compact and truncate only.")
    ] = False,
    preset: Preset = "coding",
    window: Annotated[
        int | None,
        typer.Option(
            help="The model's context window in tokens; default: 200,000, or a million if the "
            "request asks for it, or less if the price list or a refusal names "
            "less.",
            min=1_000,
        ),
    ] = None,
    cache_seconds: Annotated[
        float,
        typer.Option(
            help="Lifetime of the provider's prompt cache; from 3600 on, cache marks are for an "
            "hour.",
            min=0,
        ),
    ] = FIVE_MINUTES,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the agent's files, which are read again after a compaction."
        ),
    ] = None,
    pin: Annotated[
        list[str],
        typer.Option(
            "--pin",
            help="User messages that contain this text are kept word for word; may be repeated.",
        ),
    ] = [],  # noqa: B006  typer copies it
    observation: Annotated[
        str,
        typer.Option(help="User messages that begin with this text are results of tool calls."),
    ] = "",
    summary_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The model that writes summaries, called at the request's own upstream with the "
            "client's own key; default: none, summaries are collected from the conversation.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Send every request unchanged; report what would be saved."),
    ] = False,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificates in PEM format that the upstream, or the proxy, may have beside the "
            "usual ones.",
        ),
    ] = None,
    environment_certificates: Annotated[
        bool,
        typer.Option(
            "--environment-certificates",
            help="Accept the certificates of SSL_CERT_FILE and SSL_CERT_DIR too.",
        ),
    ] = False,
    redact: Annotated[
        list[str],
        typer.Option(
            "--redact",
            metavar="REGEX",
            help="What this regular expression finds is hidden in all that is written; may be "
            "repeated.",
        ),
    ] = [],  # noqa: B006  typer copies it
    max_days: Annotated[
        float | None,
        typer.Option(
            help="Texts, archives and journals of sessions that were unused for this number of "
            "days are deleted; default: never."
        ),
    ] = None,
    cache_breakpoints: Annotated[
        int | None,
        typer.Option(
            help="Cache breakpoints of a request to Claude, or to GPT-5.6 and later, up to 4; "
            "default: the client's own, and for the Messages API those that cost nothing.",
            min=0,
            max=4,
        ),
    ] = None,
    session_budget: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS",
            help="What a session may spend; later requests of it are refused. Default: no limit.",
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The HTTP proxy through which the upstream is reached."),
    ] = None,
) -> dict[str, Any]:
    """Return the fields of `GatewaySettings` that these options set."""
    del config  # its values are the defaults of the others
    return {
        "root": None if no_files else root,
        "preset": preset,
        "window": window,
        "cache_seconds": cache_seconds,
        "work_dir": work_dir,
        "pin": pin,
        "observation": observation,
        "summary_model": summary_model,
        "dry_run": dry_run,
        "ca_file": ca_file,
        "environment_certificates": environment_certificates,
        "proxy": proxy,
        "redact": redact,
        "max_days": max_days,
        "cache_breakpoints": cache_breakpoints,
        "session_budget": session_budget,
    }


def with_common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the `common_options` to the options of *command*, which gets their result as *shared*."""
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["shared"]
    shared = inspect.signature(common_options, eval_str=True).parameters

    @wraps(command)
    def run(**values: Any) -> None:
        shared_values = {name: values.pop(name) for name in shared}
        command(**values, shared=common_options(**shared_values))

    parameters = [*own.values(), *shared.values()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    return run
