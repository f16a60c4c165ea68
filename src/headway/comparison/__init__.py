"""Running one model with every attention backend: exactness, speed, memory, reasons."""
