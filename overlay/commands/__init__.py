"""What does `overlay COMMAND` do, and what does it print?"""
