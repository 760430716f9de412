"""The REST API: one module for each noun of the path table (reference 2), with the declarations of its calls."""
