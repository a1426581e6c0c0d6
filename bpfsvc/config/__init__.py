"""The configuration: kube-proxy's file and flags, and bpfsvc's own, made into one ``Config``.

Meets text only; imports services, model and base. ::

    file ── documents ──┐
                        ├── fields ── loading ── config.Config
    flags ──────────────┘

A flag is laid over the document that a file would hold, so defaults, rules and messages are the
same for both: :mod:`.kubeproxy_v1alpha1` and :mod:`.bpfsvc_v1alpha1` have them.
"""
