"""The command line: `headway COMMAND`. Errors that a user can act on are one line, with exit code 2."""

from __future__ import annotations

import sys


def main() -> None:
    from headway.attention import BackendRefused, UnknownBackend
    from headway.cli.app import app
    from headway.errors import HeadwayError

    try:
        app()
    except (HeadwayError, BackendRefused, UnknownBackend) as error:
        lines = [line.strip(" -") for line in str(error).splitlines()]
        print("error: " + "; ".join(line for line in lines if line).replace(":;", ":"), file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
