"""What do upstream's own tests say with patches and without them?

`overlay.enable()` imports nothing of this: only the command `overlay suite` does.
"""
