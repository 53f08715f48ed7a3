"""The configuration: its model, its rows, and everything that derives from them."""
