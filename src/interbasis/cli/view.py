"""`interbasis view`: look at a run, or at two side by side."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common


def view(
    run: common.Run,
    other: Annotated[
        Path | None, Parameter(help="Folder of a second run, shown side by side with the first.")
    ] = None,
    /,
    *,
    port: Annotated[int, Parameter(help="Port on 127.0.0.1; default: a free one.", show_default=False)] = 0,
    open_browser: Annotated[
        bool, Parameter(name="--open", negative="--no-open", help="Open the page in the browser.")
    ] = True,
    labels: common.Labels = True,
    as_json: common.AsJson = False,
) -> None:
    """Show a run as a page in the browser, served on this machine only, until Ctrl+C.

    The address holds a secret, so that other users of the machine cannot open the page.

    Example: interbasis view runs/lib, or two runs side by side: interbasis view runs/lib runs/pca
    """
    from contextlib import ExitStack, suppress

    from interbasis.show.viewer import ViewerServer
    from interbasis.show.viewer.server import opened_in_browser

    runs = [run] if other is None else [run, other]
    if labels:
        common.describe_opening_views(runs)
    with ViewerServer(runs, port) as server, ExitStack() as stack:
        common.print_text(json.dumps({"url": server.url}) if as_json else f"{server.url}  (Ctrl+C ends it)")
        with suppress(KeyboardInterrupt):
            if open_browser:
                stack.enter_context(opened_in_browser(server.url, run))
            server.serve_forever()
