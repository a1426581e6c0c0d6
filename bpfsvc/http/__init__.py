"""HTTP servers: health, metrics, and the health checks of Services.

May import metrics, services, model and base; the agent passes in the values that they serve.
"""
