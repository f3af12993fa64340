"""raysweep finds the fastest DeepSpeed configuration that fits in memory."""

__version__ = "0.1.0"
