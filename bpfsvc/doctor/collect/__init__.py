"""Facts of this node, from the kernel, from tools and from the API server. Changes nothing."""
