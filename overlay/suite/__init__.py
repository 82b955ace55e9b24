"""What do upstream's own tests say with patches and without them?

Nothing of this is imported by `overlay.enable()`: the command line gets it when `overlay suite` is asked for.
"""
