"""Patches of slime."""
