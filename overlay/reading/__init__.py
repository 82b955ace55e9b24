"""What does the source of an upstream say, which is read and never imported?"""
