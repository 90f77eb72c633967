"""Start the playground: `python app.py`, then open the address it prints."""
import argparse
import gc
import logging
import os
import signal
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (who has an older one is to read why)
    raise SystemExit(f"The playground needs Python 3.11 or newer, and this is {sys.version.split()[0]}.")
try:
    import ui  # noqa: F401  (first: switches telemetry off before gradio is imported)
    from kvcache.chat import models, prefixes
    from ui import gradio_upkeep, health, page, theme
    from ui.state import Registry
except ModuleNotFoundError as error:
    raise SystemExit(f"The playground needs {error.name}, which is not installed: pip install -r requirements.txt") from error


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default=None, help="address to listen on; 0.0.0.0 for every network (default: this computer)")
    parser.add_argument("--port", type=int, default=None, help="port to listen on (default: 7860, or the next free one)")
    parser.add_argument("--model", default=os.environ.get("KVCACHE_MODEL"), help="bundled name, hub id or folder to begin with (default: KVCACHE_MODEL, or the first that is bundled)")
    parser.add_argument("--share", action="store_true", help="open a public link through Gradio's tunnel")
    return parser.parse_args()


def is_local(host: str | None) -> bool:
    """Whether only this computer can reach a page that listens on `host`; Gradio's own default is so."""
    return host in (None, "", "localhost", "::1") or host.startswith("127.")


def stop(number: int, frame: object) -> None:
    """A service manager's way to end a program is as Ctrl+C."""
    raise KeyboardInterrupt


def main() -> None:
    given = arguments()
    if given.model:
        try:
            models.offer(given.model)
        except models.ModelError as error:
            raise SystemExit(f"--model: {error}") from error
    try:
        prefixes.most_nbytes()
    except ValueError as error:
        raise SystemExit(str(error)) from error
    if given.share or not is_local(given.host or os.environ.get("GRADIO_SERVER_NAME")):
        models.serve_strangers()
    logging.basicConfig(format="%(message)s")
    health.TURNS.setLevel(logging.INFO)
    registry, model = Registry(), given.model or models.DEFAULT
    blocks = page.build(model, registry)
    gc.freeze()  # what is imported stays: looking through it for garbage would hold everybody up for a quarter of a second
    signal.signal(signal.SIGTERM, stop)
    try:
        app, _, _ = blocks.launch(server_name=given.host, server_port=given.port, share=given.share, prevent_thread_lock=True, **theme.launch_options())
    except OSError as error:
        raise SystemExit(f"The page cannot listen on {given.host or '127.0.0.1'}, port {given.port or os.environ.get('GRADIO_SERVER_PORT') or 'from 7860 on'}: {error}") from error
    gradio_upkeep.spare_the_server(app, blocks)
    page.warm_up(model)
    health.serve(app, registry, model)
    try:
        blocks.block_thread()  # until Ctrl+C or SIGTERM
    finally:
        registry.stop()
        prefixes.flush()


if __name__ == "__main__":
    main()
