"""The page: forms from the catalog, charts from snapshots, widgets, and the events between them."""
import os

# Before gradio is imported anywhere: nothing of what people do here is reported to anybody.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
