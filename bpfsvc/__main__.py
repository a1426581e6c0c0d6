"""``python -m bpfsvc``: the same as the command ``bpfsvc``."""

from bpfsvc.cli.main import main

if __name__ == "__main__":
    main(prog_name="bpfsvc")
