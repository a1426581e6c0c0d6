"""Floods of packets at real agents: what clients that answer still get."""
