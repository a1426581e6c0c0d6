"""The views of ``bpfsvc maps dump``: each map as records."""
