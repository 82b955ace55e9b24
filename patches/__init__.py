"""The patches that come with overlay: one file each, `<project>/<name>.py`, which defines `PATCH`."""
