"""Facts to findings. Pure: a module for each subject, each a function ``judge``."""
