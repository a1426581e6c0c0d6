"""Services on their way into the kernel, and the reports about them."""
