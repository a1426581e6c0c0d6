#!/bin/bash
# What is run on the other kernel. Each suite has a log and, once it has ended, a status of its own in
# the directory of results; both are the host's. An emulated processor is some fifteen times slower.
readonly checkout=$1 python=$2 results=$3
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export PYTHONDONTWRITEBYTECODE=1 BPFSVC_LAB_PATIENCE=20
cd "$checkout" || exit 1
readonly pytest="$python -m pytest -p bpfsvc.lab.pytest_plugin -p no:cacheprovider --color=no -v"

suite() {
	local name=$1 limit=$2
	shift 2
	timeout --kill-after=30 "$limit" "$@" >"$results/$name.log" 2>&1
	echo $? >"$results/$name.status"
	echo "$name ended after $SECONDS s with status $(cat "$results/$name.status")"
}

uname -r >"$results/kernel"
echo "up on $(uname -r), $(nproc) processors"

# Two processors, two suites at a time. Of packets, whatever the verifier or a helper of this kernel
# could do otherwise; of the lab, one layout each of routed and bridged pods.
{
	suite packets 2400 $pytest tests/packets/test_{walk,masquerade_ports,reuse,guards}.py \
		tests/packets/test_{fragments,sctp}.py
	suite shortcuts 1500 $pytest tests/packets/test_{edge,fast_path}.py \
		-k TCP/IPv4
} &
suite demo 1500 $python -m bpfsvc.demo
suite lab 2100 $pytest tests/lab/test_traffic_cases.py -k 'TCP and not vxlan'
suite sockets 1200 $pytest tests/lab/test_traffic_pod_sockets.py -k call_of_a_pod
wait
