"""Makes the project's environment, `.venv`: `python3 -m scripts.setup`.

Checks the interpreter in words that an old one can still read; the rest is `scripts.environment`.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - the very point of this file
    sys.exit(
        "setup: Python 3.11 or newer is needed and %s is %d.%d: name another, for example "  # noqa: UP031
        "`make setup PYTHON=python3.12`"
        % (sys.executable, sys.version_info[0], sys.version_info[1])
    )

from scripts.environment import main

if __name__ == "__main__":
    sys.exit(main())
