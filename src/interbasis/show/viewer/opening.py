"""Opening a page whose address is a secret.

Every user of a machine sees the arguments of all processes, so a browser is not started with the address. It
is given a file that only this user can read and that leads there.
"""

import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FORWARD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>interbasis</title>
</head>
<body><a href="{url}">Open the page</a></body>
</html>
"""


@contextmanager
def opened_in_browser(url: str, folder: Path) -> Iterator[None]:
    """Open a page in the browser; the file that leads there is removed at the end.

    Args:
        url: Address of the page.
        folder: Where the file goes, if it can be written to: browsers that are confined to the user's own
            files cannot read the system's folder of temporary ones, which is used otherwise.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".view-", suffix=".html", dir=folder)
    except OSError:
        handle, name = tempfile.mkstemp(prefix="interbasis-view-", suffix=".html")
    file = Path(name).resolve()
    try:
        with open(handle, "w", encoding="utf-8") as forward:
            forward.write(FORWARD.format(url=url))
        webbrowser.open(file.as_uri())
        yield
    finally:
        file.unlink(missing_ok=True)
