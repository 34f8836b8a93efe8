"""Tools of the Model Context Protocol, with which an agent notifies users and asks them."""
