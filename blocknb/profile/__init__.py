"""The work and the limits of a kernel: operations counted from the IR, measured times, the limits of the hardware."""
