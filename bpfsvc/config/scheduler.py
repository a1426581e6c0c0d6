"""The node's scheduler, for Services that name no scheduler.

bpfsvc's own document comes first, then kube-proxy's document in mode ipvs, then random.
"""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.config.bpfsvc_v1alpha1 import BpfsvcConfiguration
from bpfsvc.config.kubeproxy_v1alpha1 import KubeProxyConfiguration
from bpfsvc.services.scheduling.schedulers import RANDOM, Scheduler, parse_scheduler

_MH, _KUBE_PROXYS_MH = Scheduler("mh"), Scheduler("mh", ("mh-port",))
"""kube-proxy has ip_vs hash the port of the client, too (FlagSourceHash)."""


def effective(bpfsvc: BpfsvcConfiguration, kubeproxy: KubeProxyConfiguration) -> Scheduler:
    """Return the node's scheduler; both documents are checked and complete."""
    if bpfsvc.scheduler:
        return parse_scheduler(bpfsvc.scheduler)
    if not uses_ipvs(bpfsvc, kubeproxy):
        return RANDOM
    try:
        scheduler = parse_scheduler(kubeproxy.ipvs.scheduler)
    except ValueError:
        return RANDOM
    return _KUBE_PROXYS_MH if scheduler == _MH else scheduler


def uses_ipvs(bpfsvc: BpfsvcConfiguration, kubeproxy: KubeProxyConfiguration) -> bool:
    """True if the scheduler of kube-proxy's document counts."""
    return kubeproxy.mode == "ipvs" and not bpfsvc.scheduler


def warnings(
    bpfsvc: BpfsvcConfiguration, kubeproxy: KubeProxyConfiguration, name: str
) -> Iterator[str]:
    """Yield a warning if kube-proxy's scheduler counts and is unknown; ``name``: its field."""
    if uses_ipvs(bpfsvc, kubeproxy):
        try:
            parse_scheduler(kubeproxy.ipvs.scheduler)
        except ValueError as error:
            yield f"{name}: {error}; {RANDOM} is used instead"
