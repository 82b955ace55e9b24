"""Which patches are there: those that come with overlay, and those of packs?"""
