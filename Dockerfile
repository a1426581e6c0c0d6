# The agent on Debian's Python, for that is the one Debian's bcc belongs to.
FROM debian:bookworm-slim

RUN apt-get -qq update \
 && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends python3-bpfcc python3-venv \
 && rm -rf /var/lib/apt/lists/*

COPY setup.cfg pyproject.toml README.md LICENSE /src/
COPY bpf /src/bpf
COPY bpfsvc /src/bpfsvc
RUN /usr/bin/python3 -m venv --system-site-packages /opt/bpfsvc \
 && /opt/bpfsvc/bin/pip install --no-cache-dir /src \
 && rm -rf /src

ENV PATH=/opt/bpfsvc/bin:$PATH
ENTRYPOINT ["bpfsvc"]
CMD ["run", "--manifests", "/etc/bpfsvc/manifests"]
