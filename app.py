"""Start the playground: `python app.py`, then open the address it prints."""
import argparse

import ui  # noqa: F401  (first: switches telemetry off before gradio is imported)
from ui import page, theme


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default=None, help="address to listen on; 0.0.0.0 for every network (default: this computer)")
    parser.add_argument("--port", type=int, default=None, help="port to listen on (default: 7860, or the next free one)")
    parser.add_argument("--model", default=None, help="bundled name, hub id or folder to begin with")
    parser.add_argument("--share", action="store_true", help="open a public link through Gradio's tunnel")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    options = theme.launch_options()
    page.build(given.model).launch(server_name=given.host, server_port=given.port, share=given.share, **options)


if __name__ == "__main__":
    main()
