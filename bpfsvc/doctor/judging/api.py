"""Is the API server reached without a Service? The one who makes Services work cannot need one."""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.doctor.facts import ApiServer
from bpfsvc.doctor.finding import Finding, note, ok, refuse, warning

_HINT = (
    "give the API server's own address: the server of --kubeconfig, --master,"
    " or KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT in the DaemonSet"
)


def judge(api: ApiServer) -> Iterator[Finding]:
    """Judge how the API server is reached."""
    if api.trouble:
        yield refuse("api server", api.trouble, _HINT)
        return
    if not api.server:
        yield note("api server", "none is named, so it was not looked for", _HINT)
        return
    if api.is_service:
        yield warning(
            "api server",
            f"{api.server} is the address of a Service: after a reboot nobody serves it but the"
            " last known state",
            _HINT,
        )
    elif api.from_environment:
        yield note(
            "api server",
            f"{api.server} comes from KUBERNETES_SERVICE_HOST, which is a Service unless it was"
            " overridden",
            f"compare it with: kubectl get service kubernetes; then {_HINT}",
        )
    if api.unreachable:
        yield warning(
            "api server",
            f"{api.server} cannot be reached: {api.unreachable}",
            "bpfsvc starts, serves the last known state and keeps trying",
        )
    elif api.unreachable is not None and not api.is_service:
        yield ok("api server", f"{api.server} can be reached")
