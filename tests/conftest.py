"""What all tests share: Ctrl-C reaches what they start, however they were started themselves."""

import signal


def pytest_configure() -> None:
    """A shell's background jobs ignore Ctrl-C and hand that down to the sweeps that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
