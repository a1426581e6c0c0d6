"""``bpfsvc explain``: the way of a packet, and the reasons."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from bpfsvc.base.errors import UsageError
from bpfsvc.base.privileges import require_privileges
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.cli import completion, flags, options
from bpfsvc.cli.bpfsvc_flags import BPFSVC
from bpfsvc.cli.interrupt import interrupt_after
from bpfsvc.cli.kubeproxy_flags import KUBE_PROXY
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_CACHE as AGENTS_CACHE
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_PROGRAMS
from bpfsvc.config.config import Config
from bpfsvc.config.loading import load, make_config
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.explain.agent_answers import AgentAnswers
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.cases import answer_cases, read_cases
from bpfsvc.explain.context import ManifestObjects, context_of, read_manifests
from bpfsvc.explain.live_kernel import live_kernel
from bpfsvc.explain.live_traffic import LiveTraffic
from bpfsvc.explain.names import question_with_names
from bpfsvc.explain.private_kernel import private_kernel
from bpfsvc.explain.question import ORIGINS, Question
from bpfsvc.inspect.events.agent_stream import open_stream_with_drops
from bpfsvc.inspect.reader import open_pinned
from bpfsvc.model.events import decode_event
from bpfsvc.services.cache import Cache

DEFAULT_CACHE = AGENTS_CACHE / "explain"
"""Apart from the agent's own cache: the agent removes the oldest files of its cache."""

_LIVE_SECONDS = 10.0

_NODE_FLAGS = flags.pick(
    (*KUBE_PROXY, *BPFSVC),
    "--hostname-override",
    "--detect-local-mode",
    "--cluster-cidr",
    "--pod-bridge-interface",
    "--pod-interface-name-prefix",
    "--masquerade-all",
    "--source-ranges-for-all",
    "--vip-echo",
    "--nodeport-addresses",
    "--localhost-nodeports",
)
"""The flags of ``bpfsvc run`` that describe a node, for ``--manifests``."""


class Source(click.ParamType[Any]):
    """An origin of packets, or a file."""

    name = "origin|file"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | Path:
        """Return an origin as text, a file as a path; a word that is neither is no origin."""
        if value in ORIGINS or isinstance(value, Path):
            return value  # type: ignore[no-any-return]
        if not ("/" in value or "." in value or Path(value).exists()):
            self.fail(f"{value!r} is no origin ({', '.join(ORIGINS)}), and no file", param, ctx)
        return Path(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[Any]:
        """Offer files, and the origins."""
        origins = completion.words(*ORIGINS)(ctx, param, incomplete)
        return [*completion.files(ctx, param, incomplete), *map(CompletionItem, origins)]


@click.command()
@click.argument("source", metavar="[CLIENT]", required=False)
@click.argument(
    "protocol",
    metavar="[PROTO]",
    required=False,
    shell_complete=completion.words(*PROTOCOLS),
)
@click.argument(
    "destination",
    metavar="[DESTINATION:PORT]",
    required=False,
    shell_complete=completion.services,
)
@click.option(
    "--from",
    "sources",
    type=Source(),
    multiple=True,
    help=f"Where the packet comes from ({', '.join(ORIGINS)}); not needed if CLIENT is the name of"
    " a Pod. With a file of bpfsvc sysdump, the answer is that of its node, and needs no rights;"
    " both may be given.",
)
@click.option(
    "--in-iface", default="", metavar="IF", help="The interface at which the packet arrives."
)
@click.option(
    "--cases",
    type=click.Path(path_type=Path),
    help="Answer for every flow in a file of cases, one JSON line per flow.",
)
@click.option(
    "--manifests",
    type=click.Path(path_type=Path),
    help="Ask about the objects in these files; without it, ask the running agent's maps.",
)
@click.option(
    "--live",
    is_flag=True,
    help="After the answer, watch the packets of this client to this Service for some seconds:"
    " which backends they get, which answer, and who else on this node drops them, and why.",
)
@click.option(
    "--for",
    "seconds",
    metavar="S",
    type=click.FloatRange(min=0.1, max=86400),
    help=f"Watch for so many seconds, with --live.  [default: {_LIVE_SECONDS:.0f}]",
)
@flags.add(_NODE_FLAGS)
@options.output("text", "json")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=DEFAULT_CACHE,
    callback=lambda _context, _option, value: None if str(value) == "none" else value,
    show_default=True,
    help="Where compiled programs are kept; 'none': nowhere.",
)
@options.pin_root
def explain(
    source: str | None,
    protocol: str | None,
    destination: str | None,
    sources: tuple[str | Path, ...],
    in_iface: str,
    cases: Path | None,
    manifests: Path | None,
    live: bool,
    seconds: float | None,
    output: str,
    cache: Path | None,
    pin_root: Path,
    **node_flags: Any,
) -> None:
    """Show what happens to the first packet of a connection, and why.

    The real programs decide, on a made-up packet that is never sent. CLIENT is an address or the
    NAMESPACE/NAME of a Pod. DESTINATION:PORT is an address and a port, the NAMESPACE/NAME of a
    Service and the number or name of its port, or the NAMESPACE/NAME of a Pod and a port number.
    PROTO is TCP, UDP or SCTP. The options from --hostname-override to --localhost-nodeports need
    --manifests, and are the same as for bpfsvc run.
    """
    origin, sysdump = _origin_and_file(sources)
    _check_options(sysdump, cases or manifests, seconds, live=live)
    if sysdump:
        texts = _texts(source, protocol, destination)
        _print(_recorded_answer(sysdump, origin, texts, in_iface), output)
        return
    require_privileges()
    if cases:
        _answer_cases(cases, cache)
        return
    texts = _texts(source, protocol, destination)
    if not manifests:
        agent = AgentAnswers(pin_root)
        asked = question_with_names(origin, *texts, in_iface, agent)
        answer, traffic = _live_answer(pin_root, agent, asked)
        if live:
            _print_live(pin_root, answer, traffic, seconds or _LIVE_SECONDS, output)
        else:
            _print(answer, output)
        return
    config = _config(manifests, node_flags)
    objects = read_manifests(manifests, config.node_name)
    asked = question_with_names(origin, *texts, in_iface, ManifestObjects(manifests, objects))
    _print(_answer_from_manifests(asked, objects, config, cache), output)


def _check_options(
    sysdump: Path | None, other: Path | None, seconds: float | None, *, live: bool
) -> None:
    """Raise :class:`UsageError` for options that exclude each other; ``other``: other objects."""
    if seconds and not live:
        raise UsageError("--for is the time of --live", "add --live")
    if live and other:
        raise UsageError(
            "--live watches the packets of this node's agent", "leave out --cases and --manifests"
        )
    if sysdump and (live or other):
        raise UsageError(
            "--from FILE is about the node of that file",
            "leave out --live, --cases and --manifests",
        )


def _origin_and_file(sources: tuple[str | Path, ...]) -> tuple[str | None, Path | None]:
    origins = [given for given in sources if isinstance(given, str)]
    files = [given for given in sources if isinstance(given, Path)]
    if len(origins) > 1 or len(files) > 1:
        raise UsageError("--from is given twice", "give an origin, a file, or one of both")
    return origins[0] if origins else None, files[0] if files else None


def _recorded_answer(
    sysdump: Path, origin: str | None, texts: tuple[str, str, str], interface: str
) -> Answer:
    from bpfsvc.sysdump.archive import read_archive
    from bpfsvc.sysdump.reading import recorded_node

    archive = read_archive(sysdump)
    node = recorded_node(archive)
    for line in archive.cut():
        click.echo(f"the sysdump is not whole: {line}", err=True)
    return node.kernel.answer(question_with_names(origin, *texts, interface, node.agent))


def _config(manifests: Path, node_flags: Mapping[str, Any]) -> Config:
    documents = load(flags.command_line(_NODE_FLAGS, node_flags))
    name = options.node_name(documents.kubeproxy.hostname_override or None)
    return dataclasses.replace(make_config(documents, name, None), manifests=manifests)


def _texts(
    source: str | None, protocol: str | None, destination: str | None
) -> tuple[str, str, str]:
    if source is None or protocol is None or destination is None:
        raise UsageError(
            "the question is incomplete: it needs CLIENT, PROTO and DESTINATION:PORT",
            "for example: bpfsvc explain --from pod 10.244.1.5 TCP 10.96.0.10:80,"
            " or: bpfsvc explain prod/client-0 TCP prod/shop:http",
        )
    return source, protocol, destination


def _live_answer(
    pin_root: Path, agent: AgentAnswers, asked: Question
) -> tuple[Answer, LiveTraffic]:
    """Return the answer of a node, and what counts the connections that it is about."""
    with open_pinned(PinRoot(pin_root)) as pinned:
        kernel = live_kernel(pinned, agent)
        answer = kernel.answer(asked)
        return answer, LiveTraffic(asked, answer, kernel.own)


def _print_live(
    pin_root: Path, answer: Answer, traffic: LiveTraffic, seconds: float, output: str
) -> None:
    """Print the answer, and then what becomes of packets; Ctrl-C ends that earlier."""
    if output != "json":
        _print(answer, output)
        sys.stdout.flush()
    with open_stream_with_drops(pin_root) as (lines, missing):
        if missing:
            click.echo(f"what other parts of this node drop is not seen: {missing}", err=True)
        began = time.monotonic()
        with suppress(KeyboardInterrupt):
            interrupt_after(seconds)
            for line in lines:
                traffic.add(decode_event(line))
        watched = time.monotonic() - began
    if output == "json":
        click.echo(json.dumps({**answer.to_object(), "live": traffic.to_object(watched)}, indent=2))
    else:
        click.echo("\n".join(traffic.lines(watched)))


def _answer_from_manifests(
    asked: Question, objects: Cache, config: Config, cache: Path | None
) -> Answer:
    is_this_machine = config.node_name == options.node_name(None)
    context = context_of(objects.node, config, is_this_machine=is_this_machine)
    with private_kernel(cache, DEFAULT_PROGRAMS) as kernel:
        kernel.load(context, objects)
        return kernel.answer(asked)


def _answer_cases(path: Path, cache: Path | None) -> None:
    cases = read_cases(path)
    with private_kernel(cache, DEFAULT_PROGRAMS) as kernel:
        for answer in answer_cases(kernel, cases):
            sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _print(answer: Answer, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(answer.to_object(), indent=2))
    else:
        click.echo("\n".join(answer.lines()))
