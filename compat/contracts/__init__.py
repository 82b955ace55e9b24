"""What contracts of patches have in common, so that each says only what is its own.

`rank_cases` and `forked` run a contract on several ranks. `megatron_parts` has what their cases are made of:
small models, steps and errors. A contract of one process needs no more than `overlay.testing.with_patches`.
"""
