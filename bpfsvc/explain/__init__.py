"""What becomes of a client, and why: asked of the real programs, on packets that are never sent."""
