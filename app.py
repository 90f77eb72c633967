"""Start the playground: `python app.py`, then open the address it prints."""
import argparse
import os

import ui  # noqa: F401  (first: switches telemetry off before gradio is imported)
from kvcache.chat import models
from ui import page, theme


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default=None, help="address to listen on; 0.0.0.0 for every network (default: this computer)")
    parser.add_argument("--port", type=int, default=None, help="port to listen on (default: 7860, or the next free one)")
    parser.add_argument("--model", default=None, help="bundled name, hub id or folder to begin with")
    parser.add_argument("--share", action="store_true", help="open a public link through Gradio's tunnel")
    return parser.parse_args()


def is_local(host: str | None) -> bool:
    """Whether only this computer can reach a page that listens on `host`; Gradio's own default is so."""
    return host in (None, "", "localhost", "::1") or host.startswith("127.")


def main() -> None:
    given = arguments()
    if given.model:
        try:
            models.offer(given.model)
        except models.ModelError as error:
            raise SystemExit(f"--model: {error}") from error
    if given.share or not is_local(given.host or os.environ.get("GRADIO_SERVER_NAME")):
        models.serve_strangers()
    options = theme.launch_options()
    page.build(given.model).launch(server_name=given.host, server_port=given.port, share=given.share, **options)


if __name__ == "__main__":
    main()
