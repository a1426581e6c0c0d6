"""What kube-proxy left in the kernel: find it, show it, and take away exactly that.

::

    names.py        what kube-proxy calls its chains, sets, tables and devices
    rules.py        the text of iptables-save -> the text that removes kube-proxy's part. Pure
    programs.py     runs iptables, nft, ipset, ipvsadm, and says which of them are missing
    nftables.py     its tables in nftables
    ipvs.py         its virtual services, sets and dummy device
    hold.py         keeps conntrack working for the connections that go on
    leftovers.py    all of them, in the order in which they can go
    running.py      whether kube-proxy still runs, and would write them again

Nothing is ever flushed, and no policy is touched: a rule that keeps a login alive may stand beside.
The connections kube-proxy translated live in conntrack, not in its rules, and go on without them.
"""
