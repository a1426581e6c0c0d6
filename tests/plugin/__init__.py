"""The kubectl plugin: as a program, with a kubectl that answers from files, and a real one."""
