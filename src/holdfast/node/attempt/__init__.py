"""One attempt on this machine: its folder, inputs, shim and results. Carries out what the node core decides."""
