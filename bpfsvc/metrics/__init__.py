"""What the agent counts, for Prometheus. prometheus_client is imported nowhere else.

The agent speaks to an :class:`~bpfsvc.metrics.observer.Observer`, which needs nothing and does
nothing; :class:`~bpfsvc.metrics.recorder.Metrics` is one that remembers, and is only imported where
somebody may ask it.
"""
