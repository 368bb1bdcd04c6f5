"""What every test may count on."""

import signal

# A shell that starts the suite in the background makes it ignore Ctrl-C, and so every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
