"""Patches of miles, the fork of slime: what both get wrong is fixed by the same code."""
