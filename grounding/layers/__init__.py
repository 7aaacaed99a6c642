"""The layers of a prompt: each turns data into one section. Pure."""
