"""What do all rooms share: records, settings, marks, text, errors of the environment?"""
