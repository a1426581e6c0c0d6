"""Print one line about rules of a firewall that no longer see packets to Services, if any.

``python -m bpfsvc.doctor.lost_rules PIN_ROOT``, which ``bpfsvc run`` starts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.doctor.check.firewall import firewall_warning
from bpfsvc.doctor.collect.firewall import collect_firewall

if __name__ == "__main__":
    print(firewall_warning(collect_firewall(read_network(), PinRoot(Path(sys.argv[1])))))
