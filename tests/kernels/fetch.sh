#!/bin/bash
# Unpacks a kernel of Debian's archive into a directory, with all that is needed to boot it; nothing is
# installed. KERNEL is "newest", or the begin of a version ("5.10"). The file "version" is written last: if
# it exists, the directory is complete.
#   fetch.sh KERNEL DIRECTORY [ARCHITECTURE]
set -euo pipefail

readonly kernel=$1 to=$2 arch=${3:-amd64}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The suites that have a kernel. Those without a name in Debian's stable releases: wherever the newest is.
suites() {
	case $kernel in
	5.10) echo bullseye bullseye-security ;;
	6.1) echo bookworm bookworm-security ;;
	6.12) echo trixie trixie-security ;;
	*) echo trixie trixie-backports forky sid ;;
	esac
}

# The addresses of the archive, from this machine's own configuration: a mirror serves here, too.
archive() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep "/$1/\$" | head -n 1; }

# Without lists apt knows no address of the archive.
[ -n "$(archive debian)" ] || apt-get -qq update

# An apt with lists of its own, so that this machine's apt stays as it is.
sources() {
	local suite
	for suite in $(suites); do
		case $suite in
		*-security) echo "deb [arch=$arch] $(archive debian-security) $suite main" ;;
		*) echo "deb [arch=$arch] $(archive debian) $suite main" ;;
		esac
	done
}
mkdir -p "$work"/{lists,cache/archives}/partial
sources >"$work/sources.list"
readonly options=(-qq -o APT::Sandbox::User=root -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
	-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
	-o Dir::Etc::preferencesparts=/dev/null -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache"
	-o Dir::State::status=/dev/null)
apt-get "${options[@]}" update

pattern='[0-9]+\.[0-9]+'
[ "$kernel" = newest ] || pattern=${kernel//./\\.}
package=$(apt-cache "${options[@]}" search --names-only "^linux-image-$pattern[.][^a-z]+(deb[0-9.]+)?-$arch\$" |
	cut -d' ' -f1 | grep -v 'deb11' | sort -V | tail -n 1)
[ -n "$package" ] || {
	echo "Debian's archive has no linux-image-$kernel for $arch in: $(suites)" >&2
	exit 1
}
version=${package#linux-image-}
# Newer packages of an image are empty: the kernel, its modules and their lists are packages of their own.
mapfile -t parts < <(apt-cache "${options[@]}" depends "$package" |
	grep -oE "linux-(base|binary|modules)-[^ ]+-$arch\$" | sort -u)
(cd "$work" && apt-get "${options[@]}" download "$package" "${parts[@]}" busybox-static)

rm -rf "$to"
mkdir -p "$to" "$work/busybox" "$work/initramfs"/{bin,modules,dev,proc,sys,host,layer,root}
for deb in "$work"/linux-*.deb; do
	dpkg-deb --extract "$deb" "$to"
done
# Newer packages have all below /usr/lib/modules.
[ -d "$to/lib/modules" ] || { mkdir -p "$to/lib" && ln -s ../usr/lib/modules "$to/lib/modules"; }
image=lib/modules/$version/vmlinuz
[ -f "$to/$image" ] || image=boot/vmlinuz-$version
dpkg-deb --extract "$work"/busybox-static_*.deb "$work/busybox"
busybox=$(find "$work/busybox" -name busybox -type f -perm -u+x | head -n 1)
depmod --basedir "$to" "$version"

# The root is the host's, over 9p, below a layer in memory: the modules for that, in order.
for module in virtio_pci 9pnet_virtio 9p overlay; do
	modprobe --dirname "$to" --set-version "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/modules"
while read -r file; do
	case $file in
	*.xz) xz --decompress --stdout "$file" >"$work/initramfs/modules/$(basename "$file" .xz)" ;;
	*) cp "$file" "$work/initramfs/modules/" ;;
	esac
	basename "$file" .xz >>"$work/initramfs/modules/order"
done <"$work/modules"
cp "$busybox" "$work/initramfs/bin/"
install -m 755 "$here/init.sh" "$work/initramfs/init"
(cd "$work/initramfs" && find . | cpio --quiet -o -H newc) >"$to/initramfs"
ln -s "$image" "$to/vmlinuz"
echo "$version" >"$to/version"
