"""What holds for all tests, however they are started."""

import signal

# A program that a script starts in the background ignores Ctrl-C, one that nohup starts ignores SIGHUP, and so does all
# that they start; some tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
