"""Where it is measured.

Three places, each of them a :mod:`bpfsvc.lab.scaffold`: set up, and taken down again::

    stand       one mode, with clients and a server behind the Service, for traffic
    scene       one node and two backends that say who they are, for changes
    wire        one node and a wire, for frames

What they are made with::

    agents      agents as on a node, timed and weighed
    upkeep      what agents do for connections beside the way of packets
    offloads    cables as between real interfaces
"""
