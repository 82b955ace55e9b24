"""Patches of megatron."""
