"""Whether hosts can be reached: a command that requires one says so at once if it cannot."""

import socket
import urllib.request
from functools import cache
from threading import Thread
from urllib.parse import urlsplit

SECONDS_TO_CONNECT = 3.0
"""A host that has not answered by then counts as out of reach."""


def hub_is_out_of_reach() -> bool:
    """Whether only what is in the Hub's cache can be used: it is told to work offline, or does not answer.

    Its own clients try for half a minute before they say so.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    endpoint = urlsplit(constants.ENDPOINT)
    proxy = urllib.request.getproxies().get(endpoint.scheme)
    if proxy and not urllib.request.proxy_bypass(endpoint.hostname or ""):
        endpoint = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    default_port = 443 if endpoint.scheme == "https" else 80
    return not can_connect(endpoint.hostname or "", endpoint.port or default_port)


@cache
def can_connect(host: str, port: int) -> bool:
    """Whether a host answers; looking its name up counts, which can take longer than any connection."""
    answered: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=SECONDS_TO_CONNECT):
                answered.append(True)
        except OSError:
            pass

    trying = Thread(target=connect, daemon=True)
    trying.start()
    trying.join(SECONDS_TO_CONNECT)
    return bool(answered)
