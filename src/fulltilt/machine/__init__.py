"""What the computer has and is doing: cores, memory, disks, GPUs; one reading of them is a sample."""
