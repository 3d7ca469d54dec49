"""llama.cpp's API: infill."""
