# Three stages: LLVM linked with only what bcc calls; everything installed as Debian and pip do it; and of
# that, what is needed. The last is built from scratch, but every file in it is of debian:bookworm-slim and
# its packages, because bcc belongs to Debian's Python.

FROM debian:bookworm-slim AS compiler
RUN apt-get -qq update \
 && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \
      g++ libbpfcc libclang-14-dev libpolly-14-dev llvm-14-dev zlib1g-dev
COPY deploy/image/compiler.sh /
RUN /compiler.sh /compiler

FROM debian:bookworm-slim AS installed
RUN apt-get -qq update \
 && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \
      ipset iptables ipvsadm mount nftables python3-bpfcc python3-venv
RUN /usr/bin/python3 -m venv --system-site-packages /opt/bpfsvc
COPY setup.cfg pyproject.toml README.md LICENSE /src/
COPY bpf /src/bpf
COPY bpfsvc /src/bpfsvc
RUN /opt/bpfsvc/bin/pip install --quiet --no-cache-dir --no-compile /src \
 && /opt/bpfsvc/bin/pip uninstall --quiet --yes setuptools pip
COPY --from=compiler /compiler /compiler
COPY deploy/image/closure.py /
# /usr/lib/llvm-14 and /usr/lib/ARCHITECTURE: where Debian's are, so that their records stay true.
RUN cp -P /compiler/libLLVM-14.so.1 "$(dirname "$(ldconfig -p | awk '$1 == "libLLVM-14.so.1" {print $NF}')")/" \
 && ln -sf "$(ldconfig -p | awk '$1 == "libLLVM-14.so.1" {print $NF}')" /usr/lib/llvm-14/lib/libclang-cpp.so.14 \
 && /opt/bpfsvc/bin/python /closure.py /image

FROM scratch
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="bpfsvc" \
      org.opencontainers.image.description="Kubernetes Services by eBPF, in place of kube-proxy, beside any CNI" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/debian:bookworm-slim"
COPY --from=installed /image /
ENV PATH=/opt/bpfsvc/bin:/usr/sbin:/usr/bin PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["bpfsvc"]
CMD ["run"]
