"""Tables, plots and HTML pages."""
