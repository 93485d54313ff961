"""Generated data sets in the file formats of the originals."""
