"""Draws → matrices → one kernel: whole batches augmented on the device."""
