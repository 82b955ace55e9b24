"""What is installed here, what do patches change in it, is it in force, and what comes next?"""
