"""The load generator of the cluster tests: a static C program, and its output as Python reads it.

Static, because in a pod it is the only file of its image; see ``load.c`` for what it does.
"""
