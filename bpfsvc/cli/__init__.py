"""The command line: one file for each command, and the options that they share.

May import every room of the product; no other room imports it.
"""
