"""``bpfsvc explain``: what happens to a packet and why, from the real programs on made-up packets.

May import kube, datapath, services and all rooms below them, config and inspect included.
"""
