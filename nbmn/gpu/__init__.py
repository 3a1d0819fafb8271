"""What belongs to the device: its memory, streams and kernels, and NCCL; knows no communicator."""
