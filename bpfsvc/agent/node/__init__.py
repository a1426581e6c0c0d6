"""What the agent keeps right on its node: interfaces, programs, the node's own maps."""
