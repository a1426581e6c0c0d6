"""From kube-proxy to bpfsvc and back under load, by the commands of docs/migration.md."""
