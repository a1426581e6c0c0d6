#!/bin/bash
# Unpacks Debian 12's own kernel into a directory, with all that is needed to boot it; nothing is
# installed. The file "version" is written last: if it exists, the directory is complete.
set -euo pipefail

readonly to=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# linux-image-amd64 depends on the newest build. (A backport would be another version.)
newest() {
	apt-cache depends linux-image-amd64 2>/dev/null |
		grep -oE 'linux-image-6\.1\.[0-9.]+-[0-9]+-amd64$' | tail -n 1
}

package=$(newest) || { apt-get -qq update && package=$(newest); } || {
	echo "apt knows no linux-image-6.1.*-amd64: is this Debian 12?" >&2
	exit 1
}
version=${package#linux-image-}
download() { (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$@"); }
# A package that was listed yesterday may have been replaced since.
download "$package" busybox-static || { apt-get -qq update && download "$package" busybox-static; }

rm -rf "$to"
mkdir -p "$to" "$work/busybox" "$work/initramfs"/{bin,modules,dev,proc,sys,host,layer,root}
dpkg-deb --extract "$work/$package"_*.deb "$to"
dpkg-deb --extract "$work"/busybox-static_*.deb "$work/busybox"
depmod --basedir "$to" "$version"

# The root is the host's, over 9p, below a layer in memory: the modules for that, in order.
for module in virtio_pci 9pnet_virtio 9p overlay; do
	modprobe --dirname "$to" --set-version "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/modules"
while read -r file; do
	cp "$file" "$work/initramfs/modules/"
	basename "$file" >>"$work/initramfs/modules/order"
done <"$work/modules"
cp "$work/busybox/bin/busybox" "$work/initramfs/bin/"
install -m 755 "$here/init.sh" "$work/initramfs/init"
(cd "$work/initramfs" && find . | "$work/busybox/bin/busybox" cpio -o -H newc 2>/dev/null) >"$to/initramfs"
ln -s "boot/vmlinuz-$version" "$to/vmlinuz"
echo "$version" >"$to/version"
