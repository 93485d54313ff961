"""Generated data in the files of data sets that cannot come along."""
