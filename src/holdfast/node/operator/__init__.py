"""For the operator of the machine: status, commands to host less, and the hours of the offer."""
