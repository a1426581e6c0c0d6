"""Facts become findings. Pure: meets no kernel, no tool and no API server."""
