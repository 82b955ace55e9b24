"""Patches of miles, the fork of slime: what both get wrong is mended by the same code."""
