"""Parts for servers that gpuyard starts: user data that tells them what to do, and a parser of their consoles."""
