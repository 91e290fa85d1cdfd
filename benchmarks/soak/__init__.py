"""What happens when files are damaged, forged or filled with noise, and when work is killed: `make soak`."""
