"""`python -m overlay`."""

from overlay.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
