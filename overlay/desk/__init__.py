"""What does somebody at a terminal see: the commands, and the tools that a job never imports?"""
