"""Model files: finds, fetches and reads them, and decodes their tensors."""
