"""What people see in a browser and programs read over HTTP: the GPU map, the API, metrics and health. Read-only."""
