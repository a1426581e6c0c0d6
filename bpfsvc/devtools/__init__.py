"""Beside the product: networks of namespaces, the benchmark, the demonstration."""
