"""What is the verdict on a patch here, by selection, versions and shapes?"""
