"""In what do all rooms speak: records, settings, marks, text, errors of the environment?"""
