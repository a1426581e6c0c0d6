"""What the agent measures, for Prometheus; the only room that imports prometheus_client.

May import services, model and base: no kernel, no API server. The agent calls an
:class:`~bpfsvc.metrics.observer.Observer`, which imports nothing else and does nothing;
:class:`~bpfsvc.metrics.recorder.Metrics` records, and is imported only with the metrics server.
"""
