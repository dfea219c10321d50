"""What holds for all tests, however they are started."""

import signal

# A program that a script starts in the background ignores Ctrl-C, and so does all that it starts; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
