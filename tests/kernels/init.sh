#!/bin/busybox sh
# The first process of the emulated machine. The host's files become its root, below a layer in
# memory that takes all writes; then guest.sh runs in it. The machine always ends: by a panic, too.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
option() { sed -n "s|.* $1=\([^ ]*\).*|\1|p" /proc/cmdline; }
checkout=$(option checkout)
kernel=$(option kernel)
python=$(option python)
suites=$(option suites | tr , " ")
guest=$(option guest)

while read -r file; do
	insmod "/modules/$file"
done </modules/order
# The host's files do not change meanwhile, so they may be cached.
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /host
mount -t tmpfs -o size=100% layer /layer
mkdir /layer/upper /layer/work
# Where the root is of another architecture, the checkout is not among its files.
mkdir -p /checkout
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro checkout /checkout 2>/dev/null
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root

for place in proc sys dev; do
	mkdir -p "/root/$place"
	mount --move "/$place" "/root/$place"
done
mkdir -p /root/dev/pts /root/dev/shm /root/run /root/lib/modules
mount -t devpts devpts /root/dev/pts
for place in dev/shm run; do
	mount -t tmpfs "$place" "/root/$place"
done
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
mount -t bpf bpf /root/sys/fs/bpf
mount -t tmpfs modules /root/lib/modules
ln -s "$kernel/lib/modules/$(uname -r)" "/root/lib/modules/$(uname -r)"
mkdir -p /root/run/results
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 results /root/run/results
if grep -q ' /checkout ' /root/proc/mounts; then
	mkdir -p "/root$checkout" /layer/above_checkout /layer/work_checkout
	mount -t overlay -o lowerdir=/checkout,upperdir=/layer/above_checkout,workdir=/layer/work_checkout \
		checkout "/root$checkout"
fi
ip link set lo up

# The kernel searches modprobe below the root of this process.
work="/bin/bash ${guest:-$checkout/tests/kernels/guest.sh} $checkout $python /run/results $suites"
exec chroot /root /bin/sh -c "$work; sync; echo o >/proc/sysrq-trigger; while :; do :; done"
