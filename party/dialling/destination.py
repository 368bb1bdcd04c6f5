"""Where a party dials to, as its administrator names it."""

from dataclasses import dataclass

from party.config import PartyConfig, split_address
from party.dialling.proxies import Proxy, proxy_for
from protos.console.mistakes import SettingsError
from protos.refusal import printable


@dataclass(frozen=True, slots=True)
class Destination:
    """The gate's host and port, and the proxy on the way."""

    address: str
    proxy: Proxy | None = None

    def __str__(self) -> str:
        return self.address if self.proxy is None else f"{self.address} (through the proxy {self.proxy})"


def destination(connect: str, proxy: str | None = None) -> Destination:
    """Where `--connect` and `--proxy` lead. Raises `SettingsError` for what is no address, or no proxy."""
    try:
        host, port = split_address(connect)
        if not port:
            raise ValueError("a port is 1 to 65535.")
    except ValueError as error:
        raise SettingsError(f"--connect {printable(connect)}: {error}") from None
    return Destination(connect, proxy_for(host, proxy))


def dialled(config: PartyConfig, connect: str | None, proxy: str | None) -> Destination | None:
    """Where a party dials to, by its command line or else by its file; None for one that listens.

    Raises `SettingsError` as `destination` does, and for a proxy on the way to nowhere.
    """
    wanted = connect or config.connect
    if wanted is not None:
        return destination(wanted, proxy)
    if proxy is not None:
        raise SettingsError(
            "--proxy is the way to a coordinator that this party dials: it goes with --connect, or connect in its "
            "file.",
            code="C101",
        )
    return None
