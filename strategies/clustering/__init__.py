"""Finding the clusters: sketches, private k-means, public statistics, normality rescaling."""
