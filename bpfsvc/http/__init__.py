"""HTTP servers: health, metrics, and the health checks of Services.

May import metrics, services, model and base. The agent hands over the values that they serve.
"""
