"""A directory of manifests as a source of objects, followed by inotify."""
