"""In what do all rooms speak: records, settings, marks, TOML within limits, text of 80 columns?"""
