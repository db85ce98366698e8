"""What a kernel did and could do: operations counted from the IR, measured times, the limits of the hardware."""
