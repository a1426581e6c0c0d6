"""The flags of bpfsvc's own, each with the field it sets."""

from __future__ import annotations

import click

from bpfsvc.base.attachment import ATTACH_MODES
from bpfsvc.cli.flags import BOOL, DURATION, PORTS, Table, text, words
from bpfsvc.config.bpfsvc_v1alpha1 import MOST_ENTRIES, SIZES, BpfsvcConfiguration, complete
from bpfsvc.config.config import FAST_PATH, SOCKET_LB, VIP_ECHO
from bpfsvc.config.fields import plain_values

_option = Table(plain_values(complete(BpfsvcConfiguration())), of_kubeproxy=False).option

BPFSVC = (
    _option(
        "--manifests",
        "manifests",
        text("DIR"),
        "Directory with Services, EndpointSlices and Nodes as YAML or JSON, used instead of an API"
        " server and watched for changes.",
    ),
    _option(
        "--last-good",
        "lastGood",
        text("FILE|none"),
        "Snapshot file, used when the API server is unreachable at boot.",
    ),
    _option(
        "--last-good-after",
        "lastGoodAfter",
        DURATION,
        "How long to wait for the API server at boot before the snapshot is used.",
    ),
    _option(
        "--history",
        "history",
        text("FILE|none"),
        "File that keeps what has changed in Services, for bpfsvc history after a restart.",
    ),
    _option(
        "--history-megabytes",
        "historyMegabytes",
        click.IntRange(0, 1024),
        "Memory for what has changed in Services, and as much in files; 0: nothing is remembered.",
        metavar="NUMBER",
    ),
    _option(
        "--source-ranges-for-all",
        "sourceRangesForAll",
        BOOL,
        "Apply loadBalancerSourceRanges to NodePorts and externalIPs too.",
    ),
    _option(
        "--scheduler",
        "scheduler",
        text("NAME[,FLAG...]"),
        "The scheduler of Services that name none: random, rr, wrr, sh, dh or mh, with ip_vs's"
        " flags such as sh-port. Without it: --ipvs-scheduler if the mode is ipvs.",
        "random",
    ),
    _option(
        "--vip-echo",
        "vipEcho",
        click.Choice(VIP_ECHO),
        "Answer echo requests (ping) to cluster IPs, external IPs and addresses of load balancers"
        " of Services that have endpoints; auto: if the mode is ipvs, as kube-proxy does.",
    ),
    _option(
        "--service-node-port-range",
        "serviceNodePortRange",
        text("FIRST-LAST"),
        "The API server's range of NodePorts.",
    ),
    _option(
        "--devices",
        "devices",
        words("PATTERN,..."),
        "Names of interfaces to attach to; !PATTERN excludes interfaces. Without it: all interfaces"
        " that carry traffic.",
    ),
    _option(
        "--cgroup-root",
        "cgroupRoot",
        text("DIR|none"),
        "cgroup2 directory of the node's processes. Without it: where cgroup2 is mounted.",
    ),
    _option(
        "--socket-lb",
        "socketLb",
        click.Choice(SOCKET_LB),
        "Which sockets are translated when they connect: sockets of the node and its pods (all), of"
        " the node only (host), or none (off). All other traffic is translated packet by packet.",
    ),
    _option(
        "--mesh-ports",
        "meshPorts",
        PORTS,
        "Ports of service mesh proxies. Sockets of a pod that listens on one of them on loopback"
        " are not translated when they connect, so that the proxy sees the Service's address.",
    ),
    _option(
        "--fast-path",
        "fastPath",
        click.Choice(FAST_PATH),
        "auto: packets between pods and translated packets go past netfilter, directly to the"
        " interface where they leave, as far as the node's rules allow: whole connections, only"
        " their middle (where there are network policies or a firewall), or none. established: at"
        " most the middle of connections. Without a value: auto.",
        is_flag=False,
        flag_value="auto",
    ),
    _option(
        "--xdp",
        "xdp",
        words("off|auto|PATTERN,..."),
        "Uplinks on which XDP forwards packets for backends on other nodes; auto: uplinks with a"
        " driver that supports XDP natively.",
        "off",
    ),
    _option(
        "--metrics-services",
        "metricsServices",
        text("top:N|all|none|PATTERN,..."),
        "Services with metrics of their own; all others are one sum. top:N: the N service ports"
        " with the most traffic; PATTERN: NAMESPACE/NAME, such as shop/*.",
    ),
    _option(
        "--count-drops-elsewhere",
        "countDropsElsewhere",
        BOOL,
        "Count what other parts of the node drop of the packets of Services, by the kernel's"
        " reason: every dropped packet of the node costs some 450 ns more.",
    ),
    _option(
        "--ui-bind-address",
        "uiBindAddress",
        text("ADDRESS:PORT"),
        "Address and port of the page of this node, for browsers; '' serves it nowhere.",
    ),
    _option(
        "--pin-root",
        "pinRoot",
        text("DIR"),
        "Directory in a bpf file system for the agent's maps and programs.",
    ),
    _option(
        "--cache",
        "cache",
        text("DIR|none"),
        "Directory for compiled programs, so that the next boot need not compile them.",
    ),
    _option(
        "--programs",
        "programs",
        text("DIR|none"),
        "Directory of compiled programs that came with the image; without it, they are compiled.",
    ),
    _option(
        "--masquerade-ports",
        "masqueradePorts",
        text("FIRST-LAST"),
        "Source ports for masqueraded connections.",
    ),
    _option(
        "--attach",
        "attach",
        click.Choice(ATTACH_MODES),
        "How to attach to interfaces: tcx links, or filters in a clsact qdisc; auto: tcx if the"
        " kernel has it.",
    ),
    _option(
        "--tc-priority",
        "tcPriority",
        click.IntRange(1, 0xBFFF),
        "Priority of the filters in a clsact qdisc; lower runs first.",
        metavar="NUMBER",
    ),
    *(
        _option(
            f"--{attribute.replace('_', '-')}",
            f"mapSizes.{name}",
            click.IntRange(1, MOST_ENTRIES),
            f"Size of the map of {attribute.removeprefix('max_').replace('_', ' ')}, in entries.",
            metavar="NUMBER",
        )
        for name, attribute in SIZES.items()
    ),
)
