"""Every figure that we print, measured by a script."""
