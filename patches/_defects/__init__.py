"""The known defects of the upstreams, a file for each project: `DEFECTS`, records of `overlay.defect`.

`overlay audit` loads them, and no trainer does. A defect that a patch fixes leaves to the patch what that
says: the sources, the settings in words, the references, the test. Of the others each names the test that
measures it, or says that it was read in the source and that no run has shown it.
"""
