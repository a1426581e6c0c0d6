"""Services on their way into the kernel, and what is reported of them."""
