#!/bin/bash
# The suites that run on the other kernel. Each has a log and, after its end, a status in the
# directory of results on the host. An emulated processor is some fifteen times slower.
#   guest.sh CHECKOUT PYTHON RESULTS SUITE...
[ $# -ge 4 ] || { echo "for an emulated machine only: init.sh starts it" >&2; exit 2; }
readonly checkout=$1 python=$2 results=$3 wanted=" ${*:4} "
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export PYTHONDONTWRITEBYTECODE=1 BPFSVC_LAB_PATIENCE=60
cd "$checkout" || exit 1
# A root that is made of packages for another architecture has Python's there.
[ ! -d /opt/site-packages ] || export PYTHONPATH=$checkout:/opt/site-packages
readonly pytest="$python -m pytest -p bpfsvc.devtools.lab.pytest_plugin --color=no -v"

suite() {
	local name=$1 limit=$2
	shift 2
	[[ $wanted == *" $name "* ]] || return 0
	timeout --kill-after=30 "$limit" "$@" >"$results/$name.log" 2>&1
	echo $? >"$results/$name.status"
	echo "$name ended after $SECONDS s with status $(cat "$results/$name.status")"
}

# A suite of tests; those that fail run once more. The log has both results.
tests() {
	local name=$1 limit=$2
	shift 2
	# shellcheck disable=SC2016
	suite "$name" "$limit" bash -c '"$@" || { [ $? -eq 1 ] && echo "once more:" && "$@" --last-failed; }' \
		"$name" $pytest -o cache_dir="$results/$name.cache" "$@"
}

uname -r >"$results/kernel"
echo "up on $(uname -r), $(nproc) processors"

# Programs that were compiled on the host, where an image has them: compiling takes minutes here, and
# nothing of what comes out depends on the kernel.
export BPFSVC_PROGRAMS=$results/programs
mkdir -p /usr/share/bpfsvc
cp -r "$BPFSVC_PROGRAMS" /usr/share/bpfsvc/programs

suite verified 600 $python -m tests.kernels.verified "$BPFSVC_PROGRAMS"

# Before Linux 5.13 a test packet cannot say by which interface it came, and before 5.18 a program
# cannot refuse a call by itself.
came='' called=''
if [[ $(uname -r) == 5.10.* ]]; then
	came=' and not egress_guards_nothing and not forwarded_or_has_no_endpoint'
	called=' and not refused_at_once'
fi

# Two processors, two suites at a time. Packet tests where the verifier or a helper of this kernel may
# behave differently, each transport by one family; lab tests of routed pods by the fast path and of
# bridged ones by the stack.
{
	tests packets 3300 tests/packets/test_{walk,masquerade_ports,reuse,guards,echo,quarantine}.py \
		tests/packets/test_{fragments,sctp,schedules,schedule_loads,load_counts,schedule_locality,spill}.py \
		-m 'not slow' -k "not TCP/IPv6 and not UDP/IPv4$came"
	tests shortcuts 1800 tests/packets/test_{xdp,fast_path,fast_path_bridge,fast_path_direct,fast_path_outside,fast_path_untranslated,untranslated_flows}.py \
		-k TCP/IPv4
} &
suite demo 2400 $python -m bpfsvc.devtools.demo
tests lab 2700 tests/lab/test_traffic_cases.py \
	-k "TCP and not vxlan and (routed and IPv4 or bridge and IPv6)$called"
tests sockets 1800 tests/lab/test_traffic_pod_sockets.py tests/lab/test_traffic_older_kernels.py \
	-k "call_of_a_pod or without_endpoints"
# Its name keeps this file out of other runs, too: other kernels may lack netkit.
tests netkit 2700 tests/lab/netkit_traffic.py
tests image 1800 tests/lab/test_shipped_programs.py -k compiles_nothing
# ip_vs is not in every kernel, but it is in this one. Its name keeps the file out of other runs.
modprobe -a ip_vs ip_vs_{rr,wrr,sh,dh,mh,lc,wlc,sed,nq,ovf,fo,lblc,lblcr}
tests ipvs 1500 tests/kernels/ipvs_choices.py tests/kernels/ipvs_connections.py
wait
