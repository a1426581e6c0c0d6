"""What a kube-proxy replacement must do, as slow and obvious functions on plain objects.

A second way to every answer, for tests only: it checks the sample of real kube-proxy's answers, is
the oracle of property tests, and makes more cases than anyone would write. Its value is that it
shares nothing with bpfsvc, so nothing but ``answers`` and the tests may import it. Functions
follow the sections of the catalogue of kube-proxy's behaviour, whose numbers they name. Where
iptables and nftables mode differ they follow nftables, but NodePorts answer on IPv4 loopback as in
iptables mode.
"""
