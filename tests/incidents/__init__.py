"""Incidents as an operator lives them: a fault, and the one command that names its cause."""
