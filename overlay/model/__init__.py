"""What do all rooms share: records, settings, ranks, text, and files that are written whole?"""
