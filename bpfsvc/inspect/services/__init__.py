"""What ``bpfsvc services`` and ``bpfsvc top`` show: service ports put together from the maps."""
