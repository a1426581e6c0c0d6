"""A real Kubernetes cluster on this machine, and the tests that need one.

``python -m tests.cluster up DIR`` starts it with the programs of a Kubernetes release in ``DIR``
(docs/cluster.md): etcd, the API server, the controller manager, the scheduler, and three nodes with
containerd and a kubelet each. A node is a set of namespaces; nothing leads out of them.

``cluster.Cluster`` is what tests use. The tests of the cluster's own parts (``test_*.py``) need no
cluster and belong to ``make test``; those in ``live`` run only on a cluster that is up.
"""
