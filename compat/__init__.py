"""What the upstream projects look like, and stand-ins that let them run without a GPU."""
