"""`python -m hum_workers.fake_humd`: what is started; `fake_humd.program` has the rest.

Until a loop takes the signals, Ctrl-C ends the process by itself: a traceback out of some import
tells nobody anything.
"""

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hum_workers.fake_humd.program import main

    sys.exit(main())
