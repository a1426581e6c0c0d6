"""The tools that print and change the rules of netfilter and ipvs, and the tools' formats.

Each format is read in one module, for verify, for cleanup --kube-proxy and for doctor. May import
base.
"""
