"""Real gloo ranks on this machine: what starts them, and the programs that they run their cases with."""
