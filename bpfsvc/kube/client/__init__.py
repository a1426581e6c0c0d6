"""HTTP with the API server: who the server is, who the agent is, and connections between them.

=================  =============================================================================
``connection``     requests to the API server, and their responses
``credentials``    the login of the present moment, and the connections that were made with it
``login``          an address and credentials: of a pod, of ``--master``, of a kubeconfig
``kubeconfig``     the format of a kubeconfig
``port_forward``   a connection to a port of a Pod; the only user of ``websocket``
``plugin``         the short process that runs login plugins; the only user of ``kubernetes``
``transport``      urllib3's connections, and chunked bodies
=================  =============================================================================
"""
