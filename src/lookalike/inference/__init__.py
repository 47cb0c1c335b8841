"""The one path from picture to vector: preprocessing, the loaded model, heat maps."""
