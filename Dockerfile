# Stages: everything installed by Debian and pip, with the kernel programs compiled, and the part of that which is
# needed; LLVM linked with only what bcc calls, and what a compiler needs of both. The images start from scratch, but
# all their files are from debian:bookworm-slim and its packages, because bcc is installed for Debian's Python.
#
# There are two images. The main one has compiled programs and no compiler. That of --target bpfsvc-compiler has
# bcc and LLVM, too: for C sources or machines that the programs do not fit.

FROM debian:bookworm-slim AS no_kernel
ARG PACKAGES=locked
# Debian packages in the versions, and with the hashes, that deploy/image/lock.py has written down; with
# --build-arg PACKAGES=newest in Debian's versions of today.
COPY deploy/image/install.sh deploy/image/packages.lock /
RUN /install.sh gcc libc6-dev
COPY deploy/image/no_kernel.c /
RUN gcc -O2 -shared -fPIC -o /no_kernel.so /no_kernel.c

FROM debian:bookworm-slim AS installed
ARG PACKAGES=locked
COPY deploy/image/install.sh deploy/image/packages.lock /
RUN /install.sh binutils ipset iptables ipvsadm nftables python3-bpfcc python3-venv
RUN /usr/bin/python3 -m venv --system-site-packages /opt/bpfsvc
# Nothing is taken from a registry that deploy/image/lock.py has not written down, with its hash.
COPY deploy/image/requirements.txt /src/
RUN /opt/bpfsvc/bin/pip install --quiet --no-cache-dir --no-compile \
      --only-binary=:all: --require-hashes --requirement /src/requirements.txt
COPY setup.cfg pyproject.toml README.md LICENSE /src/
COPY bpf /src/bpf
COPY bpfsvc /src/bpfsvc
RUN /opt/bpfsvc/bin/pip install --quiet --no-cache-dir --no-compile --no-index --no-deps --no-build-isolation /src \
 && /opt/bpfsvc/bin/pip uninstall --quiet --yes setuptools pip \
 && find /opt/bpfsvc/lib -name '*.so' -exec strip --strip-unneeded {} +
COPY --from=no_kernel /no_kernel.so /
COPY deploy/image/closure.py /
# Byte code depends on the order of sets, which this seed fixes.
RUN LD_PRELOAD=/no_kernel.so \
      /opt/bpfsvc/bin/python -m bpfsvc.datapath.loader.shipped /usr/share/bpfsvc/programs \
 && PYTHONHASHSEED=0 /opt/bpfsvc/bin/python /closure.py /image

FROM no_kernel AS llvm
ARG PACKAGES=locked
RUN /install.sh g++ libbpfcc libclang-14-dev libpolly-14-dev llvm-14-dev zlib1g-dev
COPY deploy/image/compiler.sh /
RUN /compiler.sh /compiler

FROM installed AS with_compiler
ARG PACKAGES=locked
COPY --from=llvm /compiler /compiler
# /usr/lib/llvm-14 and /usr/lib/ARCHITECTURE: Debian's paths, so that its package records stay true.
RUN cp -P /compiler/libLLVM-14.so.1 "$(dirname "$(ldconfig -p | awk '$1 == "libLLVM-14.so.1" {print $NF}')")/" \
 && ln -sf "$(ldconfig -p | awk '$1 == "libLLVM-14.so.1" {print $NF}')" /usr/lib/llvm-14/lib/libclang-cpp.so.14 \
 && PYTHONHASHSEED=0 /opt/bpfsvc/bin/python /closure.py /image-again /image-compiler

FROM scratch AS main
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

FROM main AS bpfsvc-compiler
COPY --from=with_compiler /image-compiler /

FROM main AS bpfsvc
