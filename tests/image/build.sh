#!/bin/bash
# Build the image without a container registry: the base image of the Dockerfile is made of Debian's packages.
# The build uses this machine's settings of apt and pip, so that it reaches the packages; none of them stays
# in the image.
#
# With SOURCE_DATE_EPOCH the image and its files are dated so, and the same sources make the same image.
#
# Debian drops a version when a newer version comes. Then the image is built of the newer packages, with a warning,
# unless PACKAGES=locked, as for a release.
#
# Usage: build.sh DIRECTORY [TARGET [ARCHITECTURE]] (DIRECTORY gets the storage of buildah and podman, and the base;
# TARGET: bpfsvc-compiler in place of bpfsvc; ARCHITECTURE: by Debian's name, for which programs run by qemu)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

target=${2:-bpfsvc}
directory=$(mkdir -p "$1" && realpath "$1")
here=$(dpkg --print-architecture)
arch=${3:-$here}
if [ "$arch" != "$here" ] && [ -z "${EMULATED:-}" ]; then
	declare -Ar MACHINES=([arm64]=aarch64)
	machine=${MACHINES[$arch]:?images of this architecture cannot be built here}
	# Unpacked and not installed: the package would have the whole machine run programs by qemu.
	[ -x "$directory/qemu/usr/bin/qemu-$machine-static" ] || {
		(mkdir -p "$directory/qemu" && cd "$directory/qemu" &&
			apt-get -qq -o APT::Sandbox::User=root download qemu-user-static && dpkg-deb --extract ./*.deb .)
	}
	EMULATED=yes exec "${PYTHON:-python3}" -m tests.image.emulated \
		"$machine" "$directory/qemu/usr/bin/qemu-$machine-static" bash tests/image/build.sh "$@"
fi
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' bpfsvc/__init__.py)
base=docker.io/library/debian:bookworm-slim
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --storage-driver vfs --root "$directory/storage" --runroot "$directory/run" "$@"; }

# The files that Debian omits from its slim images, too.
make_base() {
	local options
	options=$(mktemp)
	apt-config dump --format '%f "%v";%n' Acquire::http Acquire::https Acquire::Check-Valid-Until \
		Acquire::Check-Date | grep -v '""' >"$options" || true
	mmdebstrap --quiet --variant=minbase --architectures="$arch" --skip=check/qemu,output/dev --aptopt="$options" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		bookworm "$directory/base.tar"
	rm "$options"
	container=$(buildah from --arch "$arch" scratch)
	buildah add --quiet "$container" "$directory/base.tar" / >/dev/null
	buildah commit --quiet --rm "$container" "$base" >/dev/null
	rm "$directory/base.tar"
}

# pip's settings, from any source, as one file; the certificates that it trusts beside it.
lend_pip() {
	local certificates
	"${PYTHON:-python3}" -m pip config list | awk '
		BEGIN { print "[global]" }
		match($0, /\.(cert|index-url|extra-index-url|proxy|trusted-host|default-timeout)=/) {
			key = substr($0, RSTART + 1, RLENGTH - 2)
			value = substr($0, RSTART + RLENGTH + 1)
			if (!(key in seen) && value !~ /file:/) print key " = " substr(value, 1, length(value) - 1)
			seen[key] = 1
		}' >"$1/pip.conf"
	certificates=$(sed -n 's/^cert = //p' "$1/pip.conf")
	touch "$1/certificates"
	if [ -n "$certificates" ]; then
		cp "$certificates" "$1/certificates"
		sed -i 's|^cert = .*|cert = /run/certificates|' "$1/pip.conf"
	fi
}

buildah inspect --type image "$base" >/dev/null 2>&1 || make_base
lent=$(mktemp -d)
trap 'rm -rf "$lent"' EXIT
lend_pip "$lent"
packages=locked
build() {
	buildah bud --quiet --pull-never --format docker --arch "$arch" --build-arg VERSION="$version" \
		--build-arg PACKAGES="$packages" \
		${SOURCE_DATE_EPOCH:+--timestamp "$SOURCE_DATE_EPOCH"} \
		--volume "$lent/pip.conf:/etc/pip.conf:ro" --volume "$lent/certificates:/run/certificates:ro" \
		--target "$target" --tag "localhost/$target:${version/+/-}" . 2>"$lent/errors" || { cat "$lent/errors" >&2; return 1; }
	cat "$lent/errors" >&2
}
# buildah runs a sealed copy of itself for each step. The kernel refuses to seal it ("Device or resource busy")
# while it happens to look at the memory of the copy.
for try in 1 2 3; do
	build && break
	[ "$try" -lt 3 ] || exit 1
	if [ "${PACKAGES:-}" != locked ] && grep -q 'packages.lock' "$lent/errors"; then
		echo 'warning: the image gets the newest packages of Debian, see above' >&2
		packages=newest
	fi
	echo "the image was not built, see above; once more" >&2
	buildah rm --all >/dev/null
done
# A stage without instructions leaves a container, whose image could not be removed later.
buildah rm --all >/dev/null
buildah rmi --prune >/dev/null
