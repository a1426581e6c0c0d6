#!/bin/bash
# Makes a root for an emulated machine of another architecture: Debian 12's packages, unpacked and not
# configured, because no program of this root can run here; and Python's from PyPI. The file "etc/complete"
# is written last.
#   root.sh DIRECTORY ARCHITECTURE CHECKOUT PYTHON
set -euo pipefail

readonly to=$1 arch=$2 checkout=$3 python=$4
readonly packages=(bash coreutils python3 python3-bpfcc python3-yaml iproute2 nftables iptables ipset kmod mount
	util-linux procps sed grep gawk findutils openssl conntrack ethtool libc-bin ncurses-base passwd base-files
	diffutils hostname netbase tar gzip)
declare -Ar MACHINES=([arm64]=aarch64)
readonly machine=${MACHINES[$arch]:?no machine of this architecture can be emulated here}

options=$(mktemp)
trap 'rm -f "$options"' EXIT
apt-config dump --format '%f "%v";%n' Acquire::http Acquire::https Acquire::Check-Valid-Until \
	Acquire::Check-Date | grep -v '""' >"$options" || true
rm -rf "$to"
mkdir -p "$(dirname "$to")"
mmdebstrap --quiet --variant=extract --architectures="$arch" --aptopt="$options" \
	--include="$(IFS=,; echo "${packages[*]}")" bookworm "$to"

# What the packages' scripts would do.
ln -sf bash "$to/bin/sh"
ln -sf gawk "$to/usr/bin/awk"
for family in iptables ip6tables; do
	for tool in "" -save -restore; do
		ln -sf xtables-nft-multi "$to/usr/sbin/$family$tool"
	done
done
printf 'root:x:0:0:root:/root:/bin/bash\n' >"$to/etc/passwd"
printf 'root:x:0:\n' >"$to/etc/group"
cp /etc/nsswitch.conf "$to/etc/" 2>/dev/null || true

# Those that setup.cfg names for tests, but for the tools of lint and of the benchmark.
mapfile -t requirements < <("$python" - "$checkout/setup.cfg" <<'PYTHON'
import configparser
import sys

parser = configparser.ConfigParser()
parser.read(sys.argv[1])
wanted = parser["options"]["install_requires"] + parser["options.extras_require"]["test"]
left_out = ("import-linter", "lizard", "mypy", "ruff", "types-", "matplotlib", "setuptools")
for line in wanted.splitlines():
    if line and not line.startswith(("#", *left_out)):
        print(line)
PYTHON
)
"$python" -m pip install --quiet --disable-pip-version-check --target "$to/opt/site-packages" \
	--platform "manylinux_2_28_$machine" --platform "manylinux2014_$machine" \
	--platform "manylinux_2_17_$machine" --python-version 3.11 --only-binary=:all: "${requirements[@]}"
touch "$to/etc/complete"
