"""What the agent does about connections: collect, drain, move, reset."""
