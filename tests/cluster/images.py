"""The images of the cluster's pods: Debian's packages below, Kubernetes' programs above."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path, PurePosixPath

from tests.cluster.certificates import Certificates
from tests.cluster.errors import ClusterError
from tests.cluster.node_files import PAUSE_IMAGE
from tests.cluster.oci import Contents, Image, Layer
from tests.cluster.settings import Settings

_E2E = "registry.k8s.io/e2e-test-images"
AGNHOST = f"{_E2E}/agnhost:2.63.0"
KUBE_PROXY = "registry.k8s.io/kube-proxy:v1.36.0"

PACKAGES = (
    *("bash", "bind9-dnsutils", "busybox", "ca-certificates", "conntrack", "curl", "iproute2"),
    *("iptables", "iputils-ping", "netcat-openbsd", "nftables", "procps", "tcpdump"),
)
"""Debian packages that tests call, in the image agnhost, or that kube-proxy calls."""

_DPKG = ("force-unsafe-io", "path-exclude=/usr/share/man/*", "path-exclude=/usr/share/doc/*")
_PATH = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
_BUSYBOX = "/bin/busybox"
_WGET = Path(__file__).with_name("wget.sh")
_PROGRAM_FOLDERS = ("bin", "sbin", "usr/bin", "usr/sbin")


def archives(settings: Settings) -> list[Path]:
    """Return the archives that ``make`` has made."""
    return sorted(settings.images.glob("*.oci.tar"))


def make_base(settings: Settings) -> Path:
    """Make the file system of Debian's packages, unless it is there; return its tar file."""
    base = settings.images / "base.tar"
    if not base.exists():
        settings.images.mkdir(parents=True, exist_ok=True)
        part = base.with_name("part.tar")
        done = subprocess.run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", "--include=" + ",".join(PACKAGES)),
                *(f"--dpkgopt={option}" for option in _DPKG),
                *("bookworm", part),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"mmdebstrap cannot make the images' base: {done.stderr.strip()}")
        part.replace(base)
    return base


def make(settings: Settings) -> None:
    """Make all archives, unless they are newer than all programs."""
    base = make_base(settings)
    folder, programs = settings.images, settings.bin
    newest = max(base.stat().st_mtime, *(file.stat().st_mtime for file in programs.iterdir()))
    stamp = folder / "complete"
    if not stamp.exists() or stamp.stat().st_mtime < newest:
        stamp.unlink(missing_ok=True)
        Certificates(folder).localhost()
        for name, image in _images(settings, Layer.of(base)).items():
            image.write(folder / f"{name}.oci.tar")
        stamp.touch()


def _images(settings: Settings, base: Layer) -> dict[str, Image]:
    folder, programs = settings.images, settings.bin

    def layer(name: str, contents: Contents) -> Layer:
        return contents.write(folder / f"{name}.layer.tar")

    agnhost = layer("agnhost", _agnhost(settings, base.file))
    alone = layer("server", Contents(files={"agnhost": programs / "agnhost"}))
    proxy = {"usr/local/bin/kube-proxy": (programs / "kube-proxy").resolve()}
    made = {
        "agnhost": Image(
            names=[AGNHOST, f"{_E2E}/agnhost:2.55"],
            layers=[base, agnhost],
            entrypoint=["/agnhost"],
            command=["pause"],
            environment=_PATH,
        ),
        "tools": Image(
            names=[
                "registry.k8s.io/build-image/distroless-iptables:v0.9.3",
                f"{_E2E}/glibc-dns-testing:2.0.0",
                f"{_E2E}/busybox:1.37.0-1",
            ],
            layers=[base],
            command=["/bin/sh"],
            environment=_PATH,
        ),
        # The tests that name it want a server that stays, and nothing of nginx itself.
        "nginx": Image(
            names=[f"{_E2E}/nginx:1.15-4", f"{_E2E}/nginx:1.27-0"],
            layers=[alone],
            entrypoint=["/agnhost"],
            command=["test-webserver"],
        ),
        "kube-proxy": Image(
            names=[KUBE_PROXY],
            layers=[base, layer("kube-proxy", Contents(files=proxy))],
            command=["/usr/local/bin/kube-proxy"],
            environment=_PATH,
        ),
        "pause": Image(names=[PAUSE_IMAGE], layers=[alone], entrypoint=["/agnhost", "pause"]),
    }
    for name, names in {
        "pause": [PAUSE_IMAGE],
        "regression-issue-74839": [f"{_E2E}/regression-issue-74839:1.5"],
    }.items():
        if (programs / name).exists():
            own = layer(name, Contents(files={name: programs / name}))
            made[name] = Image(names=names, layers=[own], entrypoint=[f"/{name}"])
    return made


def _agnhost(settings: Settings, base: Path) -> Contents:
    """Return what the image agnhost has above the base.

    The real one is made of Alpine, so tests call busybox' programs in it.
    """
    with tarfile.open(base) as archive:
        paths = [PurePosixPath(name) for name in archive.getnames()]
    there = {path.name for path in paths if str(path.parent) in _PROGRAM_FOLDERS}
    applets = _applets(base)
    return Contents(
        files={
            "agnhost": settings.bin / "agnhost",
            "localhost.crt": settings.images / "localhost.crt",
            "localhost.key": settings.images / "localhost.key",
            "usr/bin/wget": _WGET,
        },
        links={
            "agnhost-2": "agnhost",
            **{f"usr/bin/{name}": _BUSYBOX for name in applets if name not in {*there, "wget"}},
        },
        folders=["uploads"],
    )


def _applets(base: Path) -> list[str]:
    """Return the names of busybox' programs."""
    busybox = base.with_name("busybox")
    with tarfile.open(base) as archive:
        content = next(
            archive.extractfile(each)
            for each in archive
            if each.isfile() and PurePosixPath(each.name).name == "busybox" and each.mode & 0o111
        )
        assert content is not None  # a regular file has some
        busybox.write_bytes(content.read())
    busybox.chmod(0o755)
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    return listed.stdout.split()
