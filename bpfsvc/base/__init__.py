"""What several rooms need: addresses, ports, map sizes, errors, YAML, system calls, lean imports.

Imports nothing of bpfsvc.
"""
