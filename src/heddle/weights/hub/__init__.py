"""Models of the Hugging Face hub: names, the choice of files, downloads, the cache."""
