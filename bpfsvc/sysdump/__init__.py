"""``bpfsvc sysdump``: what a node knows, in one archive, and the archive read elsewhere.

May import doctor, explain, and all rooms below them.
"""
